//! Decides how a range is loaded and dropped. Pure.

use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of a piece; a stop takes effect between two pieces.
pub(super) const PIECE: u64 = 1 << 20;
/// How many bytes make a run dense: reading it like a file costs less than requesting its pages, and the
/// kernel's readahead beyond its end is little beside it.
const DENSE: u64 = 8 << 20;
/// The largest folio that a file system makes, where huge pages are of the usual size.
pub(super) const FOLIO: u64 = 2 << 20;

/// How a range is brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Read like a whole file from end to end: cheapest, in large folios, and the kernel
    /// may read on beyond the end.
    Stream,
    /// Request exactly these pages from the kernel, which then reads no more than that.
    Exact,
}

/// The way for a range that ends a run of `run` bytes.
pub(super) const fn way(run: u64, large: bool) -> Way {
    if large || run >= DENSE {
        Way::Stream
    } else {
        Way::Exact
    }
}

/// Ranges of a file that were requested recently, joined where one begins where another ended: long
/// ones come in parts.
#[derive(Debug, Default)]
pub(super) struct Runs(VecDeque<Range<u64>>);

impl Runs {
    /// Upper bound on runs remembered: one for each process that reads the file at its own place.
    const MOST: usize = 32;

    /// Adds a range and returns the length of the run that it ends.
    pub(super) fn add(&mut self, range: &Range<u64>) -> u64 {
        let goes_on = |run: &Range<u64>| (run.start..=run.end).contains(&range.start);
        let mut run = match self.0.iter().position(goes_on) {
            Some(at) => self.0.remove(at).unwrap_or_else(|| range.clone()),
            None => range.clone(),
        };
        run.end = run.end.max(range.end);
        let length = range.end - run.start;
        self.0.push_back(run);
        if self.0.len() > Self::MOST {
            self.0.pop_front();
        }
        length
    }
}

/// The next piece of a range, up to a multiple of the size.
pub(super) fn piece(at: u64, end: u64) -> Range<u64> {
    let next = (at / PIECE + 1).saturating_mul(PIECE);
    at..next.min(end)
}

/// Whether a file system makes the largest folios. Where it does not, trying costs time, and leaves marks at which the
/// kernel reads further ahead than was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FolioTries {
    makes_them: bool,
    failed: u32,
}

impl FolioTries {
    /// How many failed attempts to make: a reader may have loaded a part of the folio, or memory may be fragmented.
    const MOST: u32 = 4;

    pub(super) const fn goes_on(self) -> bool {
        self.makes_them || self.failed < Self::MOST
    }

    pub(super) const fn tried(&mut self, came: bool) {
        self.makes_them |= came;
        self.failed = self.failed.saturating_add(1);
    }
}

/// What is loaded next of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// All that the file has of one large folio.
    Folio(Range<u64>),
    /// A piece that is not a whole folio: the range has only a part of that.
    Piece(Range<u64>),
}

/// The next step of a range of a file of that size.
pub(super) fn step(at: u64, end: u64, size: u64) -> Step {
    let next = (at / FOLIO + 1).saturating_mul(FOLIO).min(size);
    if at.is_multiple_of(FOLIO) && next <= end && next - at > FOLIO / 2 {
        return Step::Folio(at..next);
    }
    Step::Piece(piece(at, end))
}

/// The range to drop, when `range` is asked for and `before` was asked for last.
///
/// A folio that is asked for in two parts would stay both times. So a range that begins where the last
/// one ended is extended to the beginning of the folio there.
pub(super) fn reach(before: Option<&Range<u64>>, range: &Range<u64>) -> Range<u64> {
    let folio = range.start / FOLIO * FOLIO;
    match before {
        Some(before) if before.end == range.start => folio.max(before.start)..range.end,
        _ => range.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn small_ranges_are_exact_and_dense_ones_stream() {
        let table = [
            (4 * KIB, false, Way::Exact),
            (7 * MIB, false, Way::Exact),
            (8 * MIB, false, Way::Stream),
            (4 * KIB, true, Way::Stream),
            (u64::MAX, false, Way::Stream),
        ];
        for (length, large, expected) in table {
            assert_eq!(way(length, large), expected, "{length} {large}");
        }
    }

    #[test]
    fn parts_of_a_long_run_are_joined_and_those_of_others_are_not() {
        let mut runs = Runs::default();
        for part in 0..8 {
            let at = part * 2 * MIB;
            assert_eq!(runs.add(&(at..at + 2 * MIB)), at + 2 * MIB);
            // Slices of another reader, with gaps.
            let slice = 100 * MIB + part * MIB;
            assert_eq!(runs.add(&(slice..slice + 256 * KIB)), 256 * KIB);
        }
        for slice in 0..2 * Runs::MOST as u64 {
            let at = 200 * MIB + slice * 7 * KIB;
            runs.add(&(at..at + 1));
        }
        assert_eq!(runs.add(&(16 * MIB..18 * MIB)), 2 * MIB, "forgotten");
        assert!(runs.0.len() <= Runs::MOST);
    }

    #[test]
    fn pieces_cover_a_range_and_none_is_long() {
        for range in [0..1, 5..3 * MIB + 7, MIB - 1..MIB + 1, MIB..2 * MIB] {
            let (mut at, mut count) = (range.start, 0);
            while at < range.end {
                let piece = piece(at, range.end);
                assert_eq!(piece.start, at);
                assert!(piece.end > at && piece.end - at <= PIECE, "{piece:?}");
                (at, count) = (piece.end, count + 1);
            }
            assert_eq!(at, range.end);
            assert!(count <= 4);
        }
        assert_eq!(piece(u64::MAX - 1, u64::MAX), u64::MAX - 1..u64::MAX);
    }

    #[test]
    fn whole_folios_come_at_once_and_the_rest_in_pieces() {
        let size = 9 * MIB;
        for (at, end, expected) in [
            (0, 2 * MIB, Step::Folio(0..2 * MIB)),
            (2 * MIB, size, Step::Folio(2 * MIB..4 * MIB)),
            (0, 2 * MIB - 1, Step::Piece(0..MIB)),
            (MIB, 4 * MIB, Step::Piece(MIB..2 * MIB)),
            // Half a folio at the end of the file, and a little more.
            (8 * MIB, size, Step::Piece(8 * MIB..size)),
        ] {
            assert_eq!(step(at, end, size), expected, "{at} {end}");
        }
        let more = size + 5;
        assert_eq!(step(8 * MIB, more, more), Step::Folio(8 * MIB..more));
    }

    #[test]
    fn folios_are_tried_a_few_times_where_none_ever_came() {
        let mut tries = FolioTries::default();
        for _ in 0..FolioTries::MOST {
            assert!(tries.goes_on());
            tries.tried(false);
        }
        assert!(!tries.goes_on());
        let mut tries = FolioTries::default();
        for came in [false, true, false, false, false, false] {
            tries.tried(came);
            assert!(tries.goes_on());
        }
    }

    #[test]
    fn steps_take_along_the_folio_that_they_cut() {
        assert_eq!(reach(None, &(MIB..3 * MIB)), MIB..3 * MIB);
        assert_eq!(
            reach(Some(&(0..3 * MIB)), &(3 * MIB..4 * MIB)),
            2 * MIB..4 * MIB
        );
        let part = 2 * MIB + 5..3 * MIB;
        assert_eq!(reach(Some(&part), &(3 * MIB..4 * MIB)), part.start..4 * MIB);
        assert_eq!(
            reach(Some(&(0..2 * MIB)), &(3 * MIB..4 * MIB)),
            3 * MIB..4 * MIB
        );
    }
}
