//! How a load goes through a range of a file, and which pages an eviction takes. Pure.

use std::ops::Range;

/// Bytes of one request: the kernel takes no more pages at once.
pub(super) const PIECE: u64 = 1 << 20;

/// The granularity at which a partly cached piece is examined.
const GRAIN: u64 = 256 << 10;

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

/// The parts of a piece to load; `cached` says how many bytes of a range are cached. They are none, or
/// all, or the grains that are not whole.
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

/// The pages that a range covers completely; for the last page of a file, its bytes are enough.
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
    use crate::machine::ranges::Ranges;

    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;

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
        // Part of the second grain is cached, and the whole of the fourth.
        let there = Ranges::from_iter([256 * K..260 * K, 768 * K..1024 * K]);
        let some = gaps(&(0..M), |range| there.within(range));
        assert_eq!(some, [0..768 * K]);
        let there = Ranges::from_iter([256 * K..512 * K]);
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
