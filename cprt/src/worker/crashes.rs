//! Decides how often a policy may fail. Pure; the time comes from outside.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How many failures within [`WINDOW`] are too many.
const MAX: usize = 3;
/// The time within which failures count.
const WINDOW: Duration = Duration::from_mins(1);
/// How long to wait after the first failure; twice that after the next.
const PAUSE: Duration = Duration::from_millis(200);

/// The failures of a registered policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crashes {
    count: u64,
    recent: VecDeque<Instant>,
    last: Option<String>,
}

/// What follows from a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AfterCrash {
    /// The policy is started again, after a pause.
    Again(Duration),
    /// The policy stays down, for this reason.
    Never(String),
}

impl Crashes {
    /// Adds a failure.
    pub(crate) fn add(&mut self, now: Instant, fault: &str) -> AfterCrash {
        self.count += 1;
        self.last = Some(fault.to_owned());
        self.recent.push_back(now);
        self.recent
            .retain(|&then| now.saturating_duration_since(then) < WINDOW);
        if self.recent.len() >= MAX {
            return AfterCrash::Never(self.too_many());
        }
        AfterCrash::Again(PAUSE * (1 << (self.recent.len() - 1)))
    }

    fn too_many(&self) -> String {
        let (times, seconds) = (self.recent.len(), WINDOW.as_secs());
        format!("it has failed {times} times within {seconds} s")
    }

    /// Failures since the policy was registered.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The last failure.
    pub(crate) fn last(&self) -> Option<String> {
        self.last.clone()
    }

    /// Why the policy does not run.
    pub(crate) fn reason(&self) -> Option<String> {
        let last = self.last.as_ref()?;
        if self.recent.len() < MAX {
            return Some(format!("it failed: {last}"));
        }
        Some(format!("{}; the last time: {last}", self.too_many()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_in_a_minute_are_too_many() {
        let mut crashes = Crashes::default();
        let start = Instant::now();
        assert_eq!(crashes.reason(), None);
        assert_eq!(crashes.add(start, "a"), AfterCrash::Again(PAUSE));
        assert_eq!(
            crashes.add(start + PAUSE, "b"),
            AfterCrash::Again(2 * PAUSE)
        );
        assert_eq!(crashes.reason().as_deref(), Some("it failed: b"));
        let verdict = crashes.add(start + WINDOW / 2, "killed by SIGSEGV");
        let why = "it has failed 3 times within 60 s";
        assert_eq!(verdict, AfterCrash::Never(why.into()));
        let reason = crashes.reason().expect("a reason");
        assert_eq!(reason, format!("{why}; the last time: killed by SIGSEGV"));
    }

    #[test]
    fn one_now_and_then_is_none_of_that() {
        let mut crashes = Crashes::default();
        let start = Instant::now();
        for i in 0..10 {
            let now = start + WINDOW * i / 2 + Duration::from_millis(u64::from(i));
            assert!(matches!(crashes.add(now, "x"), AfterCrash::Again(_)), "{i}");
        }
        assert_eq!(crashes.count(), 10);
    }
}
