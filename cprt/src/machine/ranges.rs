//! Ranges of a file. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of bytes, as ranges that neither touch nor overlap, keyed by their beginnings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range and returns how many bytes of it are new.
    pub(crate) fn insert(&mut self, range: &Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let mut new = range.end - range.start;
        let (mut start, mut end) = (range.start, range.end);
        // From the back: all ranges that begin within it or at its end, and the one before if it reaches it.
        while let Some((&other, &its_end)) = self.0.range(..=end).next_back() {
            if its_end < start {
                break;
            }
            let known = (other.max(range.start), its_end.min(range.end));
            new -= known.1.saturating_sub(known.0);
            (start, end) = (start.min(other), end.max(its_end));
            self.0.remove(&other);
        }
        self.0.insert(start, end);
        new
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

    /// How many bytes of a range are in the set.
    pub(crate) fn within(&self, range: &Range<u64>) -> u64 {
        let before = self.0.range(..range.start).next_back();
        let some = before.into_iter().chain(self.0.range(range.clone()));
        some.map(|(&start, &end)| {
            let (start, end) = (start.max(range.start), end.min(range.end));
            end.saturating_sub(start)
        })
        .sum()
    }

    /// The parts of a range that are not in the set; only ranges of at least `least` bytes count as in it.
    pub(crate) fn gaps(&self, within: &Range<u64>, least: u64) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = within.start;
        for range in self.iter().filter(|it| it.end - it.start >= least) {
            if at < range.start.min(within.end) {
                gaps.push(at..range.start.min(within.end));
            }
            at = at.max(range.end);
        }
        if at < within.end {
            gaps.push(at..within.end);
        }
        gaps
    }

    /// The bytes that are in this set and not in the other.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let mut left = self.clone();
        for range in other.iter() {
            left.remove(&range);
        }
        left
    }

    /// How many bytes are in the set.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The ranges in their order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> {
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
            all.insert(&range);
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
    fn removing_a_range_keeps_the_rest() {
        let mut all = set(&[0..10, 20..30]);
        all.remove(&(5..25));
        assert_eq!(all, set(&[0..5, 25..30]));
        all.remove(&(2..3));
        assert_eq!(all, set(&[0..2, 3..5, 25..30]));
        all.remove(&(0..100));
        assert_eq!(all, Ranges::default());
    }

    #[test]
    fn bytes_within_a_range_are_counted() {
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

    #[test]
    fn gaps_are_what_is_not_there_and_what_is_short() {
        let all = set(&[10..20, 30..32, 40..60]);
        let gaps = |set: &Ranges, from, to, least| {
            let gaps = set.gaps(&(from..to), least).into_iter();
            gaps.map(|gap| (gap.start, gap.end)).collect::<Vec<_>>()
        };
        let every = [(0, 10), (20, 30), (32, 40), (60, 100)];
        assert_eq!(gaps(&all, 0, 100, 1), every);
        assert_eq!(gaps(&all, 0, 100, 5), [(0, 10), (20, 40), (60, 100)]);
        assert_eq!(gaps(&all, 15, 45, 5), [(20, 40)]);
        assert_eq!(gaps(&all, 42, 58, 5), []);
        assert_eq!(gaps(&all, 70, 80, 5), [(70, 80)]);
        assert_eq!(gaps(&set(&[]), 5, 6, 5), [(5, 6)]);
    }

    #[test]
    fn inserting_joins_and_counts_what_is_new() {
        let mut all = Ranges::default();
        let table = [
            (10, 20, 10),
            (30, 40, 10),
            (20, 30, 10),
            (15, 25, 0),
            (5, 50, 15),
            (60, 60, 0),
            (0, 5, 5),
        ];
        for (from, to, new) in table {
            assert_eq!(all.insert(&(from..to)), new, "{from}..{to}");
        }
        assert_eq!(all, set(&[0..50]));
        assert_eq!(all.bytes(), 50);
    }

    #[test]
    fn ranges_behave_like_a_set_of_bytes() {
        // Compares every pair of small sets with the bits of a number.
        let ranges_of = |bits: u32| {
            let bits = (0..6_u64).filter(|bit| bits >> bit & 1 != 0);
            bits.map(|bit| bit..bit + 1).collect::<Ranges>()
        };
        for a in 0..64 {
            for b in 0..64 {
                let (one, other) = (ranges_of(a), ranges_of(b));
                assert_eq!(one.without(&other), ranges_of(a & !b), "{a:b} {b:b}");
                let mut both = one.clone();
                let new: u64 = other.iter().map(|range| both.insert(&range)).sum();
                assert_eq!(both, ranges_of(a | b), "{a:b} {b:b}");
                assert_eq!(new, u64::from((b & !a).count_ones()));
            }
        }
    }
}
