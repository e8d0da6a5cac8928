//! Ranges of a file, and how a load goes through one. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

/// What one request carries: the kernel takes no more pages at once.
pub(super) const PIECE: u64 = 1 << 20;

/// How finely a piece of which something is cached already is looked at.
const GRAIN: u64 = 256 << 10;

/// A set of bytes, as ranges that neither meet nor overlap, by their beginnings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn add(&mut self, range: &Range<u64>) {
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

    pub(super) fn remove(&mut self, range: &Range<u64>) {
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
    pub(super) fn within(&self, range: &Range<u64>) -> u64 {
        let before = self.0.range(..range.start).next_back();
        let some = before.into_iter().chain(self.0.range(range.clone()));
        some.map(|(&start, &end)| {
            let (start, end) = (start.max(range.start), end.min(range.end));
            end.saturating_sub(start)
        })
        .sum()
    }
}

/// The pieces of a range, one request each.
pub(super) fn pieces(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    steps(range, PIECE)
}

/// A range up to each multiple of a step.
fn steps(range: &Range<u64>, step: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let Range { start, end } = range.clone();
    let mut at = start;
    std::iter::from_fn(move || {
        let next = (at / step + 1).saturating_mul(step).min(end);
        let piece = at..next;
        at = next;
        (piece.start < piece.end).then_some(piece)
    })
}

/// What of a piece is to be loaded, by how many of a range's bytes are cached: nothing, or all, or
/// the grains that are not whole.
pub(super) fn gaps(piece: &Range<u64>, cached: impl Fn(&Range<u64>) -> u64) -> Vec<Range<u64>> {
    let length = piece.end - piece.start;
    match cached(piece) {
        0 => return vec![piece.clone()],
        all if all >= length => return Vec::new(),
        _ => {}
    }
    let mut gaps: Vec<Range<u64>> = Vec::new();
    for grain in steps(piece, GRAIN) {
        if cached(&grain) >= grain.end - grain.start {
            continue;
        }
        match gaps.last_mut() {
            Some(last) if last.end == grain.start => last.end = grain.end,
            _ => gaps.push(grain),
        }
    }
    gaps
}

/// The pages that a range covers whole; the last page of a file is whole if its bytes are.
pub(super) fn whole_pages(range: &Range<u64>, size: u64, page: u64) -> Range<u64> {
    let start = range.start.next_multiple_of(page);
    let end = if range.end >= size {
        size.next_multiple_of(page)
    } else {
        range.end - range.end % page
    };
    start..end.max(start)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are meant")]

    use super::*;

    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;

    fn set(ranges: &[Range<u64>]) -> Ranges {
        let mut all = Ranges::default();
        for range in ranges {
            all.add(range);
        }
        all
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

    #[test]
    fn pieces_end_at_multiples_and_miss_nothing() {
        let got: Vec<_> = pieces(&(M - 1..3 * M + 5)).collect();
        assert_eq!(got, [M - 1..M, M..2 * M, 2 * M..3 * M, 3 * M..3 * M + 5]);
        assert_eq!(pieces(&(7..7)).count(), 0);
    }

    #[test]
    fn only_what_is_missing_is_loaded() {
        let none = gaps(&(0..M), |_| 0);
        assert_eq!(none, [0..M]);
        let all = gaps(&(0..M), |range| range.end - range.start);
        assert!(all.is_empty());
        // Some of the second grain is there, and the whole of the fourth.
        let there = set(&[256 * K..260 * K, 768 * K..1024 * K]);
        let some = gaps(&(0..M), |range| there.within(range));
        assert_eq!(some, [0..768 * K]);
        let there = set(&[256 * K..512 * K]);
        let some = gaps(&(0..M), |range| there.within(range));
        assert_eq!(some, [0..256 * K, 512 * K..M]);
    }

    #[test]
    fn an_eviction_takes_whole_pages() {
        for (range, expected) in [
            (0..4096, 0..4096),
            (1..8192, 4096..8192),
            (0..8191, 0..4096),
            (1..4095, 4096..4096),
            (0..10_000, 0..12_288),
            (9_000..10_000, 12_288..12_288),
            (8_192..20_000, 8_192..12_288),
        ] {
            assert_eq!(whole_pages(&range, 10_000, 4096), expected, "{range:?}");
        }
    }
}
