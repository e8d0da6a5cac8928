//! Decides which starts are followed: one of a name at a time, few at once, and none of a program that restarts in a
//! loop. Pure; the time comes from outside.
//!
//! A start that is left alone is no slower than without us: the one under way has loaded what both read, and a loop has
//! everything cached.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Starts of a name within [`WINDOW`] that make further ones a loop.
const STARTS: usize = 3;
/// The time in which starts count as a loop.
const WINDOW: Duration = Duration::from_secs(30);
/// Upper bound on starts followed at once: each takes a worker.
const AT_ONCE: usize = 4;
/// Upper bound on names remembered.
const NAMES: usize = 1024;

/// Whether a start is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is recorded, and loaded if a record is known.
    Attend,
    /// Another start of this name is under way.
    Twice,
    /// Too many other starts are under way.
    Busy,
    /// It starts again and again.
    Loops,
}

impl Verdict {
    /// Why a start is left alone.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Attend => "",
            Self::Twice => "another start of it was in progress",
            Self::Busy => "too many starts were in progress",
            Self::Loops => "it started three times within 30 s",
        }
    }
}

/// Starts by name.
#[derive(Debug, Default)]
pub(super) struct Pace {
    under_way: Vec<String>,
    recent: HashMap<String, VecDeque<Instant>>,
}

impl Pace {
    /// Decides about a new start of this name; if it is followed, it is under way until [`Self::over`].
    pub(super) fn begin(&mut self, name: &str, now: Instant) -> Verdict {
        if self.under_way.iter().any(|it| it == name) {
            return Verdict::Twice;
        }
        if self.under_way.len() >= AT_ONCE {
            return Verdict::Busy;
        }
        if self.recent.len() >= NAMES && !self.recent.contains_key(name) {
            self.recent.retain(|_, times| {
                let last = times.back();
                last.is_some_and(|&last| now.saturating_duration_since(last) < WINDOW)
            });
            if self.recent.len() >= NAMES {
                return Verdict::Busy;
            }
        }
        let times = self.recent.entry(name.to_owned()).or_default();
        times.retain(|&then| now.saturating_duration_since(then) < WINDOW);
        if times.len() >= STARTS {
            // While it continues, the newest starts count.
            times.pop_front();
            times.push_back(now);
            return Verdict::Loops;
        }
        times.push_back(now);
        self.under_way.push(name.to_owned());
        Verdict::Attend
    }

    /// Whether it is worth loading files ahead of a start that is yet to come: neither is one of this name under way,
    /// nor does it start again and again.
    pub(super) fn expects(&self, name: &str, now: Instant) -> bool {
        let is_recent = |&&then: &&Instant| now.saturating_duration_since(then) < WINDOW;
        let recent = self.recent.get(name);
        let recent = recent.map_or(0, |times| times.iter().filter(is_recent).count());
        recent < STARTS && !self.under_way.iter().any(|it| it == name)
    }

    pub(super) fn over(&mut self, name: &str) {
        self.under_way.retain(|it| it != name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_name_at_a_time_and_few_at_once() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        for name in ["a", "b", "c", "d"] {
            assert_eq!(pace.begin(name, now), Verdict::Attend);
        }
        assert_eq!(pace.begin("a", now), Verdict::Twice);
        assert_eq!(pace.begin("e", now), Verdict::Busy);
        pace.over("a");
        assert_eq!(pace.begin("e", now), Verdict::Attend);
    }

    #[test]
    fn a_loop_is_left_alone_until_it_ends() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut at = |seconds: u64| {
            let verdict = pace.begin("a", start + Duration::from_secs(seconds));
            pace.over("a");
            verdict
        };
        for seconds in [0, 1, 2] {
            assert_eq!(at(seconds), Verdict::Attend);
        }
        for seconds in (3..300).step_by(3) {
            assert_eq!(at(seconds), Verdict::Loops, "{seconds}");
        }
        assert_eq!(at(400), Verdict::Attend);
        // Occasional starts are not a loop.
        for seconds in (500..1000).step_by(16) {
            assert_eq!(at(seconds), Verdict::Attend, "{seconds}");
        }
    }

    #[test]
    fn start_in_progress_or_in_a_loop_is_not_expected() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert!(pace.expects("a", start));
        for _ in 0..STARTS {
            assert_eq!(pace.begin("a", start), Verdict::Attend);
            assert!(!pace.expects("a", start));
            pace.over("a");
        }
        assert!(!pace.expects("a", start) && pace.expects("b", start));
        assert!(pace.expects("a", start + WINDOW));
    }

    #[test]
    fn names_are_bounded() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut begin = |number: usize, after: u64| {
            let name = format!("n{number}");
            let verdict = pace.begin(&name, start + Duration::from_secs(after));
            pace.over(&name);
            (verdict, pace.recent.len())
        };
        for number in 0..NAMES {
            assert_eq!(begin(number, 0).0, Verdict::Attend);
        }
        assert_eq!(begin(NAMES, 1), (Verdict::Busy, NAMES));
        assert_eq!(begin(NAMES, 100), (Verdict::Attend, 1));
    }
}
