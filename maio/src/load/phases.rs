//! The time of a load by phases that follow each other without a gap. Pure; the time comes from outside.

/// What a load does at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Its first reader has not come.
    Waiting,
    /// Something is being loaded.
    Loading,
    /// All that fits has come, and the rest waits for readers or for memory.
    Held,
    /// All has come.
    Done,
}

/// The time of a load, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Phases {
    began: u64,
    at: u64,
    pub(crate) waiting: u64,
    pub(crate) loading: u64,
    pub(crate) held: u64,
    /// All has come, and readers read.
    pub(crate) reading: u64,
    /// All has come, and none reads.
    pub(crate) resting: u64,
}

impl Phases {
    pub(crate) const fn new(now_ns: u64) -> Self {
        Self {
            began: now_ns,
            at: now_ns,
            waiting: 0,
            loading: 0,
            held: 0,
            reading: 0,
            resting: 0,
        }
    }

    /// The load has been doing this since the last call, and a reader was last heard of then.
    pub(crate) fn pass(&mut self, activity: Activity, heard_ns: u64, now_ns: u64) {
        let now = now_ns.max(self.at);
        let since = now - self.at;
        match activity {
            Activity::Waiting => self.waiting += since,
            Activity::Loading => self.loading += since,
            Activity::Held => self.held += since,
            Activity::Done => {
                let reading = heard_ns.clamp(self.at, now) - self.at;
                self.reading += reading;
                self.resting += since - reading;
            }
        }
        self.at = now;
    }

    /// From the beginning to the last call.
    pub(crate) const fn whole(&self) -> u64 {
        self.at - self.began
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_partition_the_time() {
        let mut phases = Phases::new(100);
        for (activity, heard, now) in [
            (Activity::Waiting, 100, 150),
            (Activity::Loading, 160, 250),
            (Activity::Held, 240, 260),
            (Activity::Loading, 265, 300),
            // A clock that another processor was ahead of.
            (Activity::Loading, 310, 290),
            (Activity::Done, 340, 400),
            (Activity::Done, 340, 500),
        ] {
            phases.pass(activity, heard, now);
        }
        let of = (phases.waiting, phases.loading, phases.held);
        assert_eq!(of, (50, 140, 10));
        assert_eq!((phases.reading, phases.resting), (40, 160));
        let sum = of.0 + of.1 + of.2 + phases.reading + phases.resting;
        assert_eq!((sum, phases.whole()), (400, 400));
    }
}
