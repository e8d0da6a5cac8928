//! The contents of a file: every eight bytes a number computed from the file and the offset, so that one
//! number shows whether a page is the right one, and a sum whether a whole range is right.

use std::ops::Range;

/// Odd, so that the numbers of a file are all different.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The numbers of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(u64);

impl Pattern {
    pub(crate) fn of_file(number: u64) -> Self {
        Self((number + 1).wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    /// The number at an offset, a multiple of 8.
    pub(crate) fn word(self, offset: u64) -> u64 {
        self.0.wrapping_add((offset / 8).wrapping_mul(STEP))
    }

    /// The sum, modulo 2^64, of all numbers of a range that begins and ends at a number.
    pub(crate) fn sum(self, bytes: &Range<u64>) -> u64 {
        let first = bytes.start / 8;
        let count = bytes.end.saturating_sub(bytes.start) / 8;
        // Of two successive numbers, one is even.
        let (one, other) = (count, count.wrapping_sub(1));
        let triangle = if one.is_multiple_of(2) {
            (one / 2).wrapping_mul(other)
        } else {
            one.wrapping_mul(other / 2)
        };
        let places = count.wrapping_mul(first).wrapping_add(triangle);
        count
            .wrapping_mul(self.0)
            .wrapping_add(places.wrapping_mul(STEP))
    }

    /// Writes the numbers from an offset on.
    pub(crate) fn fill(self, mut offset: u64, bytes: &mut [u8]) {
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&self.word(offset).to_le_bytes());
            offset += 8;
        }
    }
}

/// The sum of all numbers in memory; an incomplete one at the end does not count.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0, |sum: u64, word| {
        sum.wrapping_add(u64::from_le_bytes(*word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_ranges_need_no_data() {
        let pattern = Pattern::of_file(3);
        let mut bytes = vec![0; 8000];
        pattern.fill(4096, &mut bytes);
        for (start, end) in [(0, 8000), (8, 16), (16, 16), (800, 7992)] {
            let expected = sum(&bytes[start..end]);
            let range = 4096 + start as u64..4096 + end as u64;
            assert_eq!(pattern.sum(&range), expected, "{start}..{end}");
        }
    }

    #[test]
    fn pattern_reveals_wrong_offsets_files_and_bits() {
        let one = Pattern::of_file(0);
        assert_ne!(one.word(0), one.word(8));
        assert_ne!(one.word(0), Pattern::of_file(1).word(0));
        let mut bytes = [0; 24];
        one.fill(0, &mut bytes);
        bytes[9] ^= 1;
        assert_ne!(sum(&bytes), one.sum(&(0..24)));
    }
}
