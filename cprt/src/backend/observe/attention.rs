//! Decides whether records wake the worker or it polls for them. Pure.
//!
//! A reader that wakes the worker with every record pays several times the cost of the record. So only the first
//! record does: from then on the worker polls now and then, until there have been no records for a while.

use std::time::{Duration, Instant};

/// How often the worker polls while there are records.
pub(super) const LOOK: Duration = Duration::from_millis(5);

/// How the worker learns of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Attention {
    /// The next record wakes it.
    #[default]
    Rests,
    /// The same from now on, but a program that did not know yet may just have made a record.
    Settles,
    /// It polls; the last record came then.
    Looks(Instant),
}

impl Attention {
    /// The state after a look that found records (`some`) or none; after `quiet` without one, polling ends.
    pub(super) fn next(self, some: bool, now: Instant, quiet: Duration) -> Self {
        match self {
            _ if some => Self::Looks(now),
            Self::Looks(last) if now.duration_since(last) < quiet => self,
            Self::Looks(_) => Self::Settles,
            Self::Settles | Self::Rests => Self::Rests,
        }
    }

    /// Whether the next record is to wake us.
    pub(super) fn wakes(self) -> bool {
        !matches!(self, Self::Looks(_))
    }

    /// When to look next, unless woken before.
    pub(super) fn due(self, now: Instant) -> Option<Instant> {
        (self != Self::Rests).then(|| now + LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_millis(100);

    #[test]
    fn worker_polls_until_quiet_and_one_final_look() {
        let start = Instant::now();
        let later = start + QUIET;
        let looks = Attention::Rests.next(true, start, QUIET);
        assert_eq!(looks, Attention::Looks(start));
        assert_eq!(looks.next(false, start + LOOK, QUIET), looks);
        assert_eq!(looks.next(true, later, QUIET), Attention::Looks(later));
        assert!(!looks.wakes());
        let settles = looks.next(false, later, QUIET);
        assert!(settles == Attention::Settles && settles.wakes());
        assert_eq!(settles.next(true, later, QUIET), Attention::Looks(later));
        assert_eq!(settles.next(false, later, QUIET), Attention::Rests);
        assert_eq!(Attention::Rests.next(false, later, QUIET), Attention::Rests);
    }
}
