//! Whether records wake us or we look for them by ourselves. Pure.
//!
//! A reader that wakes us with every record pays several times what the record costs. So only the first
//! one does: from then on we look now and then, until there has been nothing for a while.

use std::time::{Duration, Instant};

/// How often we look while there are records.
pub(super) const LOOK: Duration = Duration::from_millis(5);

/// How we hear of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Attention {
    /// The next one wakes us.
    #[default]
    Rests,
    /// The same from now on, but one may just have been made by a program that did not know yet.
    Settles,
    /// We look by ourselves; then was the last one.
    Looks(Instant),
}

impl Attention {
    /// After a look that found some records, or none; after so long without one there is quiet.
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

    /// When to look next, if not when woken.
    pub(super) fn due(self, now: Instant) -> Option<Instant> {
        (self != Self::Rests).then(|| now + LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_millis(100);

    #[test]
    fn we_look_while_there_is_something_and_then_once_more() {
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
