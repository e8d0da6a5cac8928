//! Adds up the starts of a service: what became of each, what was loaded for it, and how long each phase of it took.
//! Pure; the time comes from outside.

use std::time::{Duration, Instant};

use crate::control::protocol::StartTotals;

/// The starts of a service since the daemon knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    under_way: Vec<Way>,
    past: StartTotals,
}

/// A start that is followed.
#[derive(Clone, Debug)]
struct Way {
    process: u32,
    began: Instant,
    /// When its policy ran.
    ready: Option<Instant>,
    /// When all was loaded that was known to be read.
    loaded: Option<Instant>,
    loaded_bytes: u64,
    cached_bytes: u64,
}

impl Totals {
    /// A start is left alone.
    pub(super) fn leave_alone(&mut self) {
        self.past.left_alone += 1;
    }

    /// This process begins a start that is followed.
    pub(super) fn begin(&mut self, process: u32, now: Instant) {
        self.under_way.retain(|way| way.process != process);
        self.under_way.push(Way {
            process,
            began: now,
            ready: None,
            loaded: None,
            loaded_bytes: 0,
            cached_bytes: 0,
        });
    }

    /// Its policy runs.
    pub(super) fn ready(&mut self, process: u32, now: Instant) {
        if let Some(way) = self.way(process) {
            way.ready.get_or_insert(now);
        }
    }

    /// Nothing is left to load; only the first time counts, as later loads follow what is read.
    pub(super) fn loaded(&mut self, process: u32, now: Instant) {
        if let Some(way) = self.way(process) {
            way.loaded.get_or_insert(now);
        }
    }

    /// This much has been loaded for it so far, and this much was cached already.
    pub(super) fn counted(&mut self, process: u32, loaded_bytes: u64, cached_bytes: u64) {
        if let Some(way) = self.way(process) {
            way.loaded_bytes = way.loaded_bytes.max(loaded_bytes);
            way.cached_bytes = way.cached_bytes.max(cached_bytes);
        }
    }

    /// It is over, or its policy has failed.
    pub(super) fn over(&mut self, process: u32, failed: bool, now: Instant) {
        let Some(at) = self.under_way.iter().position(|it| it.process == process) else {
            return;
        };
        let way = self.under_way.remove(at);
        let ready = way.ready.unwrap_or(now);
        let loaded = way.loaded.unwrap_or(now).max(ready);
        let past = &mut self.past;
        past.over += 1;
        past.failed += u64::from(failed);
        past.loaded_bytes += way.loaded_bytes;
        past.cached_bytes += way.cached_bytes;
        past.beginning_us += micros(ready - way.began);
        past.loading_us += micros(loaded - ready);
        past.reading_us += micros(now - loaded);
        past.whole_us += micros(now - way.began);
    }

    /// The totals, with the bytes of starts under way.
    pub(super) fn sum(&self) -> StartTotals {
        let mut sum = self.past.clone();
        for way in &self.under_way {
            sum.loaded_bytes += way.loaded_bytes;
            sum.cached_bytes += way.cached_bytes;
        }
        sum
    }

    fn way(&mut self, process: u32) -> Option<&mut Way> {
        self.under_way.iter_mut().find(|it| it.process == process)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn phases_partition_the_time_of_a_start() {
        let (mut totals, t) = (Totals::default(), Instant::now());
        totals.begin(7, t);
        totals.ready(7, t + ms(30));
        totals.loaded(7, t + ms(100));
        totals.loaded(7, t + ms(200));
        totals.over(7, false, t + ms(1000));
        let sum = totals.sum();
        let phases = [sum.beginning_us, sum.loading_us, sum.reading_us];
        assert_eq!(phases, [30_000, 70_000, 900_000]);
        assert_eq!(sum.whole_us, phases.iter().sum::<u64>());
        assert_eq!((sum.over, sum.failed), (1, 0));
    }

    #[test]
    fn a_start_that_fails_early_has_the_phases_it_came_to() {
        let (mut totals, t) = (Totals::default(), Instant::now());
        totals.begin(7, t);
        totals.over(7, true, t + ms(10));
        totals.begin(8, t);
        totals.ready(8, t + ms(10));
        totals.over(8, true, t + ms(30));
        let sum = totals.sum();
        let phases = [sum.beginning_us, sum.loading_us, sum.reading_us];
        assert_eq!(phases, [20_000, 20_000, 0]);
        assert_eq!((sum.whole_us, sum.over, sum.failed), (40_000, 2, 2));
        totals.over(8, true, t + ms(40));
        assert_eq!(totals.sum(), sum, "it was over");
    }

    #[test]
    fn bytes_of_starts_under_way_count_and_never_shrink() {
        let (mut totals, t) = (Totals::default(), Instant::now());
        totals.begin(7, t);
        totals.begin(8, t);
        totals.counted(7, 100, 10);
        totals.counted(8, 5, 1);
        // The answer to the earlier question may arrive later.
        totals.counted(8, 4, 0);
        totals.counted(9, 1000, 1000);
        let bytes = |totals: &Totals| (totals.sum().loaded_bytes, totals.sum().cached_bytes);
        assert_eq!(bytes(&totals), (105, 11));
        totals.over(7, false, t);
        assert_eq!(bytes(&totals), (105, 11));
        totals.leave_alone();
        assert_eq!(totals.sum().left_alone, 1);
    }
}
