//! Packs ranges in reading order.
//!
//! Models are regular: the reads of an expert are those of the one before, some megabytes
//! further on. So a range is encoded by its gap to the last read of the file, and gap and length by
//! their difference from those some ranges ago, the stride, which is the number of ranges that an
//! expert has, or eight experts where they do not fill whole pages. Few of these differences are
//! not 0, and deflate compresses the rest well.
//!
//! ```text
//! u32 size of the rest when inflated, then deflated:
//!   stride, size of files, size of gaps     numbers
//!   files       (difference of the file's place, how many ranges)...
//!   gaps        (page after the last one read of the file .. first page, by the stride)...
//!   lengths     (pages, by the stride)...
//! ```
//!
//! Numbers take 7 bits a byte, lowest first; differences are folded to have their sign lowest.

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

use super::TemplateError;
use super::{MAX_EXTENTS, MAX_FILES};
use crate::Extent;

/// The longest stride that is tried. Eight experts of six tensors each are 48 ranges.
const MAX_STRIDE: usize = 64;
/// How many ranges decide on the stride.
const SAMPLE: usize = 8192;
/// Upper bound on the bytes that one byte of this format inflates to.
const MAX_RATIO: usize = 1032;
/// Some milliseconds more than 6 for the largest groups, up to a tenth less bytes.
const LEVEL: u8 = 9;

/// Upper bound on the bytes of an extent, in all columns,
const EXTENT_BYTES: usize = 16;
/// and on those of the numbers before the columns.
const HEAD_BYTES: usize = 16;

/// A range as it is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Delta {
    gap: i64,
    pages: i64,
}

/// The state of encoding and decoding: where each file was read last.
#[derive(Debug, Default)]
struct Cursors(Vec<u32>);

impl Cursors {
    /// The file must be below [`MAX_FILES`].
    fn at(&mut self, file: u32) -> &mut u32 {
        let at = file as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        &mut self.0[at]
    }
}

/// Packs ranges that [`check`] has accepted.
pub(super) fn pack(extents: &[Extent]) -> Vec<u8> {
    let mut cursors = Cursors::default();
    let steps: Vec<Delta> = extents
        .iter()
        .map(|extent| {
            let cursor = cursors.at(extent.file);
            let gap = i64::from(extent.first) - i64::from(*cursor);
            *cursor = extent.end();
            let pages = i64::from(extent.pages);
            Delta { gap, pages }
        })
        .collect();
    let files = files(extents);
    strides(&steps)
        .into_iter()
        .map(|stride| deflate(&columns(&files, &steps, stride)))
        .min_by_key(Vec::len)
        .unwrap_or_default()
}

/// Whether ranges can be packed.
pub(super) fn check(extents: &[Extent]) -> Result<(), TemplateError> {
    if extents.len() > MAX_EXTENTS {
        return Err(TemplateError::Inconsistent("a group has too many ranges"));
    }
    for extent in extents {
        if extent.file as usize >= MAX_FILES {
            return Err(TemplateError::Inconsistent("a range belongs to no file"));
        }
        if extent.pages == 0 || extent.first.checked_add(extent.pages).is_none() {
            return Err(TemplateError::Inconsistent(
                "a range is empty or has no end",
            ));
        }
    }
    Ok(())
}

/// Unpacks ranges and checks them; also against the files' sizes in pages, if known.
pub(super) fn unpack(
    packed: &[u8],
    count: usize,
    limits: Option<&[u32]>,
) -> Result<Vec<Extent>, TemplateError> {
    if count > MAX_EXTENTS {
        return Err(TemplateError::Inconsistent("a group has too many ranges"));
    }
    let bytes = inflate(packed, count)?;
    let mut rest = Numbers(&bytes);
    let stride = rest.size(MAX_STRIDE)?;
    let (files, gaps) = (rest.size(bytes.len())?, rest.size(bytes.len())?);
    let mut files = Numbers(rest.take(files)?);
    let mut gaps = Numbers(rest.take(gaps)?);
    let mut lengths = rest;
    // A range takes a byte in each, so this is what is allocated.
    if gaps.0.len() < count || lengths.0.len() < count {
        return Err(TemplateError::Inconsistent(
            "a group is shorter than it claims",
        ));
    }
    let mut extents = Vec::with_capacity(count);
    let mut cursors = Cursors::default();
    let mut history = History::new(stride);
    let mut file = 0;
    while extents.len() < count {
        file = next_file(file, &mut files)?;
        let run = files.size(count - extents.len())?;
        let limit = match limits {
            Some(limits) => limits.get(file as usize).copied(),
            None => ((file as usize) < MAX_FILES).then_some(u32::MAX),
        };
        let limit = limit.ok_or(TemplateError::Inconsistent("a range belongs to no file"))?;
        let cursor = cursors.at(file);
        for _ in 0..run {
            let step = history.next(gaps.signed()?, lengths.signed()?)?;
            let extent = extent(file, *cursor, step, limit)?;
            *cursor = extent.end();
            extents.push(extent);
        }
        if run == 0 {
            return Err(TemplateError::Inconsistent("a run has no ranges"));
        }
    }
    if !(files.0.is_empty() && gaps.0.is_empty() && lengths.0.is_empty()) {
        return Err(TemplateError::Inconsistent(
            "a group is longer than it claims",
        ));
    }
    Ok(extents)
}

fn next_file(file: u32, files: &mut Numbers<'_>) -> Result<u32, TemplateError> {
    i64::from(file)
        .checked_add(files.signed()?)
        .and_then(|file| u32::try_from(file).ok())
        .ok_or(TemplateError::Inconsistent("a range belongs to no file"))
}

fn extent(file: u32, cursor: u32, step: Delta, limit: u32) -> Result<Extent, TemplateError> {
    let place = |at: Option<i64>| at.and_then(|at| u32::try_from(at).ok());
    let first = place(i64::from(cursor).checked_add(step.gap));
    let pages = place(Some(step.pages)).filter(|&pages| pages > 0);
    let (Some(first), Some(pages)) = (first, pages) else {
        return Err(TemplateError::Inconsistent("a range has no position"));
    };
    match first.checked_add(pages) {
        Some(end) if end <= limit => Ok(Extent { file, first, pages }),
        _ => Err(TemplateError::Inconsistent("a range ends beyond its file")),
    }
}

/// The steps of the last stride, relative to which the next ones are encoded.
struct History {
    steps: Vec<Delta>,
    at: usize,
    kept: bool,
}

impl History {
    fn new(stride: usize) -> Self {
        Self {
            steps: vec![Delta::default(); stride.max(1)],
            at: 0,
            kept: stride > 0,
        }
    }

    /// The step with this difference from the one a stride ago.
    fn next(&mut self, gap: i64, pages: i64) -> Result<Delta, TemplateError> {
        let before = &mut self.steps[self.at];
        let (Some(gap), Some(pages)) =
            (before.gap.checked_add(gap), before.pages.checked_add(pages))
        else {
            return Err(TemplateError::Inconsistent("a range has no position"));
        };
        let step = Delta { gap, pages };
        if self.kept {
            *before = step;
            self.at = (self.at + 1) % self.steps.len();
        }
        Ok(step)
    }
}

/// The strides to try: none, and those short and long in which the ranges repeat best.
fn strides(steps: &[Delta]) -> Vec<usize> {
    let from = (steps.len() / 2).saturating_sub(SAMPLE / 2);
    let sample = &steps[from..steps.len().min(from + SAMPLE)];
    // A run that continues like the previous one costs next to nothing.
    let surprises = |stride: &usize| {
        let goes_on = |&at: &usize| {
            let (a, b, c) = (sample[at - 2 * stride], sample[at - stride], sample[at]);
            c.gap - b.gap == b.gap - a.gap && c.pages - b.pages == b.pages - a.pages
        };
        2 * stride + (2 * stride..sample.len()).filter(|at| !goes_on(at)).count()
    };
    let short = (1..=MAX_STRIDE / 4).min_by_key(surprises);
    let long = (MAX_STRIDE / 4 + 1..=MAX_STRIDE).min_by_key(surprises);
    let worth = sample.len() > 2;
    let found = short.into_iter().chain(long).filter(|_| worth);
    std::iter::once(0).chain(found).collect()
}

/// Which files, one after the other.
fn files(extents: &[Extent]) -> Vec<u8> {
    let (mut bytes, mut before) = (Vec::new(), 0);
    for run in extents.chunk_by(|a, b| a.file == b.file) {
        let file = i64::from(run[0].file);
        put(&mut bytes, fold(file - before));
        put(&mut bytes, run.len() as u64);
        before = file;
    }
    bytes
}

fn columns(files: &[u8], steps: &[Delta], stride: usize) -> Vec<u8> {
    let (mut gaps, mut lengths) = (Vec::new(), Vec::new());
    for (at, step) in steps.iter().enumerate() {
        let before = match at.checked_sub(stride) {
            Some(before) if stride > 0 => steps[before],
            _ => Delta::default(),
        };
        put(&mut gaps, fold(step.gap - before.gap));
        put(&mut lengths, fold(step.pages - before.pages));
    }
    let mut all = Vec::new();
    for number in [stride, files.len(), gaps.len()] {
        put(&mut all, number as u64);
    }
    all.extend_from_slice(files);
    all.append(&mut gaps);
    all.append(&mut lengths);
    all
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    // No more than MAX_EXTENTS times EXTENT_BYTES and a little.
    let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut packed = size.to_le_bytes().to_vec();
    packed.append(&mut compress_to_vec(bytes, LEVEL));
    packed
}

/// Inflates what is packed, to exactly the size it says it has, from exactly the given bytes.
fn inflate(packed: &[u8], count: usize) -> Result<Vec<u8>, TemplateError> {
    let (size, deflated) = packed
        .split_first_chunk()
        .ok_or(TemplateError::Inconsistent("a group has no contents"))?;
    let size = u32::from_le_bytes(*size) as usize;
    let most = HEAD_BYTES + count * EXTENT_BYTES;
    if size > most || size > deflated.len().saturating_mul(MAX_RATIO) {
        return Err(TemplateError::Inconsistent("a group is too large"));
    }
    let mut bytes = vec![0; size];
    let mut state = Box::<DecompressorOxide>::default();
    let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let done = decompress(&mut state, deflated, &mut bytes, 0, flags);
    if done == (TINFLStatus::Done, deflated.len(), size) {
        Ok(bytes)
    } else {
        Err(TemplateError::Inconsistent("a group does not inflate"))
    }
}

/// What is left of a column.
struct Numbers<'a>(&'a [u8]);

impl<'a> Numbers<'a> {
    fn next(&mut self) -> Result<u64, TemplateError> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (&byte, rest) = self
                .0
                .split_first()
                .ok_or(TemplateError::Inconsistent("a column ends early"))?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(TemplateError::Inconsistent("a number has no end"))
    }

    fn signed(&mut self) -> Result<i64, TemplateError> {
        let folded = self.next()?;
        Ok((folded >> 1).cast_signed() ^ -(folded & 1).cast_signed())
    }

    fn size(&mut self, most: usize) -> Result<usize, TemplateError> {
        usize::try_from(self.next()?)
            .ok()
            .filter(|&size| size <= most)
            .ok_or(TemplateError::Inconsistent("a size is too large"))
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8], TemplateError> {
        let (taken, rest) = self
            .0
            .split_at_checked(size)
            .ok_or(TemplateError::Inconsistent("a column ends early"))?;
        self.0 = rest;
        Ok(taken)
    }
}

fn fold(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent_of((file, first, pages): (u32, u32, u32)) -> Extent {
        Extent { file, first, pages }
    }

    fn roundtrip(ranges: &[(u32, u32, u32)]) {
        let extents: Vec<Extent> = ranges.iter().copied().map(extent_of).collect();
        check(&extents).expect("ranges");
        let packed = pack(&extents);
        assert_eq!(
            unpack(&packed, extents.len(), None).expect("ranges"),
            extents
        );
        assert!(unpack(&packed, extents.len() + 1, None).is_err());
        if let Some(less) = extents.len().checked_sub(1) {
            assert!(unpack(&packed, less, None).is_err());
        }
    }

    #[test]
    fn ranges_come_back_in_their_order() {
        roundtrip(&[]);
        roundtrip(&[(0, 0, 1)]);
        roundtrip(&[(65535, u32::MAX - 1, 1), (0, 0, u32::MAX), (0, 0, 1)]);
        let backwards: Vec<_> = (0..200).rev().map(|at| (at % 3, at * 7, 1 + at)).collect();
        roundtrip(&backwards);
    }

    #[test]
    fn the_worst_ranges_fit_what_is_allowed() {
        // Each range is as far as possible from the previous one, in place, length and file.
        let worst: Vec<_> = (0..5000_u32)
            .map(|at| match at % 2 {
                0 => (0, 0, u32::MAX - at / 256),
                _ => (65535, u32::MAX - 2, 1),
            })
            .collect();
        roundtrip(&worst);
        let single: Vec<_> = worst
            .into_iter()
            .map(|(_, at, pages)| (0, at, pages))
            .collect();
        roundtrip(&single);
    }

    #[test]
    fn ranges_that_cannot_be_are_not_packed() {
        for range in [(0, 0, 0), (0, u32::MAX, 1), (65536, 0, 1)] {
            assert!(check(&[extent_of(range)]).is_err(), "{range:?}");
        }
        let many = vec![extent_of((0, 0, 1)); MAX_EXTENTS + 1];
        assert!(check(&many).is_err());
    }

    /// One file with ranges by these steps, without a stride.
    fn told(steps: &[(i64, i64)]) -> Vec<u8> {
        let steps: Vec<Delta> = steps
            .iter()
            .map(|&(gap, pages)| Delta { gap, pages })
            .collect();
        let mut files = vec![0];
        put(&mut files, steps.len() as u64);
        deflate(&columns(&files, &steps, 0))
    }

    #[test]
    fn invalid_extents_are_not_unpacked() {
        let good = told(&[(5, 3), (-8, 1)]);
        assert!(unpack(&good, 2, Some(&[8])).is_ok());
        assert!(unpack(&good, 2, Some(&[7])).is_err(), "beyond the file");
        assert!(unpack(&good, 2, Some(&[])).is_err(), "of no file");
        let table: [&[(i64, i64)]; 6] = [
            &[(-1, 1)],
            &[(0, 0)],
            &[(0, -1)],
            &[(i64::MAX, 1)],
            &[(1, i64::MAX)],
            &[(0, 1), (i64::MIN, 1)],
        ];
        for steps in table {
            assert!(
                unpack(&told(steps), steps.len(), None).is_err(),
                "{steps:?}"
            );
        }
    }

    #[test]
    fn packed_data_with_extra_or_missing_bytes_is_rejected() {
        let packed = told(&[(5, 3)]);
        let mut longer = packed.clone();
        longer.push(0);
        assert!(unpack(&longer, 1, None).is_err(), "after the deflated");
        let mut larger = packed.clone();
        larger[0] += 1;
        assert!(unpack(&larger, 1, None).is_err(), "size");
        assert!(unpack(&packed[..packed.len() - 1], 1, None).is_err());
        assert!(unpack(&packed[..3], 1, None).is_err());
        assert!(unpack(&[], 0, None).is_err());
    }

    #[test]
    fn bombs_are_not_inflated() {
        let zeros = deflate(&vec![0; 8 << 20]);
        assert!(zeros.len() < 16 << 10);
        assert!(unpack(&zeros, 1000, None).is_err());
        let mut claim = u32::MAX.to_le_bytes().to_vec();
        claim.push(3);
        assert!(unpack(&claim, MAX_EXTENTS, None).is_err());
        assert!(unpack(&zeros, usize::MAX, None).is_err());
    }
}
