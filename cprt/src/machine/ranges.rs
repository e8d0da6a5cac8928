//! Ranges of a file. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of bytes, as ranges that neither meet nor overlap, by their beginnings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(crate) fn add(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // From the back: all that begin within it or at its end, and the one before if it reaches it.
        while let Some((&other, &its_end)) = self.0.range(..=end).next_back() {
            if its_end < start {
                break;
            }
            (start, end) = (start.min(other), end.max(its_end));
            self.0.remove(&other);
        }
        self.0.insert(start, end);
    }

    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        while let Some((&other, &its_end)) = self.0.range(..range.end).next_back() {
            if its_end <= range.start {
                break;
            }
            self.0.remove(&other);
            if other < range.start {
                self.0.insert(other, range.start);
            }
            if its_end > range.end {
                self.0.insert(range.end, its_end);
            }
        }
    }

    /// How much of a range is in it.
    pub(crate) fn within(&self, range: &Range<u64>) -> u64 {
        let before = self.0.range(..range.start).next_back();
        let some = before.into_iter().chain(self.0.range(range.clone()));
        some.map(|(&start, &end)| {
            let (start, end) = (start.max(range.start), end.min(range.end));
            end.saturating_sub(start)
        })
        .sum()
    }

    /// In their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut all = Self::default();
        for range in ranges {
            all.add(&range);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are meant")]

    use super::*;

    fn set(ranges: &[Range<u64>]) -> Ranges {
        ranges.iter().cloned().collect()
    }

    #[test]
    fn ranges_that_meet_become_one() {
        for added in [[0..4, 4..8], [4..8, 0..4], [0..6, 2..8], [0..8, 2..4]] {
            assert_eq!(set(&added), set(&[0..8]), "{added:?}");
        }
        let across = set(&[0..2, 4..6, 8..10, 1..9]);
        assert_eq!(across, set(&[0..10]));
        assert_eq!(set(&[3..3]), Ranges::default());
    }

    #[test]
    fn what_is_removed_leaves_the_rest() {
        let mut all = set(&[0..10, 20..30]);
        all.remove(&(5..25));
        assert_eq!(all, set(&[0..5, 25..30]));
        all.remove(&(2..3));
        assert_eq!(all, set(&[0..2, 3..5, 25..30]));
        all.remove(&(0..100));
        assert_eq!(all, Ranges::default());
    }

    #[test]
    fn what_is_within_is_counted() {
        let all = set(&[0..10, 20..30]);
        for (range, expected) in [
            (0..100, 20),
            (5..25, 10),
            (10..20, 0),
            (3..4, 1),
            (29..31, 1),
        ] {
            assert_eq!(all.within(&range), expected, "{range:?}");
        }
    }
}
