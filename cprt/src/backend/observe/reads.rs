//! Decides when the tracepoints of reads are on: every program that reads a cached file pays for them. Pure.
//!
//! A policy that waits for a load says so ([`ppc::Kinds::FROM_OPEN`]). They are then off until a file is opened or
//! pages come in for a reader, and go off again once neither has happened for a while.

use std::time::{Duration, Instant};

use super::record::Point;

/// How long after the last sign of a reader they go off. Its files may have been open before.
pub(super) const CALM: Duration = if cfg!(test) {
    Duration::from_millis(300)
} else {
    Duration::from_secs(10)
};

/// The tracepoints that the policy wants.
#[derive(Debug, Default)]
pub(super) struct ReadPoints {
    wanted: Vec<Point>,
    /// Whether the sources that report reads may be switched off.
    may_rest: bool,
    /// Since when there has been no reader; `None` if they are off.
    calm_since: Option<Instant>,
    /// No reader has any of the files open, as far as is known.
    unread: bool,
}

impl ReadPoints {
    /// No reader has opened anything yet.
    pub(super) const fn before_readers(&mut self) {
        self.unread = true;
    }

    /// Sets which events the policy wants. Readers that may already have their files open get some time to show
    /// themselves.
    pub(super) fn want(&mut self, wanted: Vec<Point>, may_rest: bool, now: Instant) {
        (self.wanted, self.may_rest) = (wanted, may_rest);
        self.calm_since = (!(self.unread && may_rest)).then_some(now);
    }

    /// Notes a sign of a reader. Returns whether [`Self::on`] has changed.
    pub(super) fn wake(&mut self, now: Instant) -> bool {
        self.unread = false;
        self.calm_since.replace(now).is_none()
    }

    /// Switches the sources that report reads off if it is time. Returns whether [`Self::on`] has changed.
    pub(super) fn rest(&mut self, now: Instant) -> bool {
        let rests = self.due().is_some_and(|due| due <= now);
        if rests {
            self.calm_since = None;
        }
        rests
    }

    /// When to call [`Self::rest`].
    pub(super) fn due(&self) -> Option<Instant> {
        let rests = self.may_rest && self.wanted.iter().copied().any(is_of_hits);
        self.calm_since.filter(|_| rests).map(|since| since + CALM)
    }

    /// The sources that should be on.
    pub(super) fn on(&self) -> Vec<Point> {
        let all = self.calm_since.is_some();
        let on = |&point: &Point| all || !is_of_hits(point);
        self.wanted.iter().copied().filter(on).collect()
    }
}

/// Whether readers that find everything cached pass this tracepoint.
const fn is_of_hits(point: Point) -> bool {
    matches!(point, Point::Get | Point::Map)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSES: [Point; 2] = [Point::Add, Point::Fault];

    #[test]
    fn hit_tracepoints_are_off_while_no_process_reads() {
        let begin = Instant::now();
        let mut points = ReadPoints::default();
        points.want(Point::ALL.to_vec(), true, begin);
        assert_eq!(points.on(), Point::ALL);
        let early = begin + CALM / 2;
        assert!(!points.rest(early), "a reader may have had its files open");
        assert!(!points.wake(early));
        assert_eq!(points.due(), Some(early + CALM));
        assert!(points.rest(early + CALM));
        assert_eq!((points.on(), points.due()), (MISSES.to_vec(), None));
        assert!(!points.rest(early + CALM * 2));
        assert!(points.wake(early + CALM * 3), "it has opened a file");
        assert_eq!(points.on(), Point::ALL);
    }

    #[test]
    fn before_there_are_readers_no_time_is_given_to_them() {
        let begin = Instant::now();
        let mut points = ReadPoints::default();
        points.before_readers();
        for _ in 0..2 {
            points.want(Point::ALL.to_vec(), true, begin);
            assert_eq!((points.on(), points.due()), (MISSES.to_vec(), None));
        }
        points.want(Point::ALL.to_vec(), false, begin);
        assert_eq!(points.on(), Point::ALL, "they are wanted at once");
        points.want(Point::ALL.to_vec(), true, begin);
        assert!(points.wake(begin), "it has opened a file");
        points.want(Point::ALL.to_vec(), true, begin);
        assert_eq!(points.on(), Point::ALL, "it may have more files open");
    }

    #[test]
    fn permanently_wanted_and_miss_tracepoints_stay_on() {
        let begin = Instant::now();
        let mut points = ReadPoints::default();
        points.want(Point::ALL.to_vec(), false, begin);
        assert!(points.due().is_none() && !points.rest(begin + CALM * 9));
        assert_eq!(points.on(), Point::ALL);
        points.want(MISSES.to_vec(), true, begin);
        assert!(points.due().is_none(), "these cost other processes nothing");
    }
}
