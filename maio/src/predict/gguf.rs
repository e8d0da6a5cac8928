//! The header of a GGUF file: counts, metadata, where each tensor begins.
//!
//! llama.cpp reads the whole header, and then the tensors in file order. The length of a tensor depends
//! on its quantisation, and new kinds appear every year; so each tensor is taken to end where the next
//! one begins.

use std::iter;
use std::ops::Range;

use super::error::Damage;
use super::{Library, read};

/// Upper bound on tensors, and on entries of metadata; the largest models have 2,000 tensors in a file.
const MOST: u64 = 1 << 20;
/// Upper bound on the size of a header. Vocabularies, which are part of it, take 10 MiB.
const LARGEST: u64 = 256 << 20;
const LONGEST_TEXT: u64 = 16 << 20;
const LONGEST_NAME: u64 = 64 << 10;
const MOST_DIMENSIONS: u32 = 8;
/// Upper bound on the nesting of arrays. The format allows arrays of arrays of arrays, but files do not use them.
const DEEPEST: usize = 4;

const ALIGNMENT_KEY: &[u8] = b"general.alignment";
const ALIGNMENT: u32 = 32;
const UINT32: u32 = 4;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// Where the header and the tensors are in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GgufLayout {
    /// Where the header ends.
    header: u64,
    /// Where tensors begin, in order.
    tensors: Vec<u64>,
    size: u64,
}

impl GgufLayout {
    /// The ranges that are read, in order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let ends = self.tensors.iter().skip(1).copied().chain([self.size]);
        let tensors = self.tensors.iter().copied().zip(ends);
        iter::once(0..self.header).chain(tensors.map(|(start, end)| start..end))
    }
}

/// Reads the header of a file of this size; `left` is how many bytes of headers may still be read.
pub(super) fn layout(
    library: &dyn Library,
    path: &str,
    size: u64,
    left: &mut u64,
) -> Result<GgufLayout, Damage> {
    let mut source = Source {
        library,
        path,
        limit: size.min(LARGEST),
        left,
        at: 0,
        buffer: Vec::new(),
        start: 0,
    };
    if source.bytes()? != *b"GGUF" || !matches!(source.u32()?, 2 | 3) {
        return Err(Damage::Version);
    }
    let (tensors, pairs) = (source.u64()?, source.u64()?);
    if tensors > MOST || pairs > MOST {
        return Err(Damage::Sense("it has an impossible count"));
    }
    let mut alignment = ALIGNMENT;
    for _ in 0..pairs {
        if let Some(said) = pair(&mut source)? {
            alignment = said;
        }
    }
    if !alignment.is_power_of_two() {
        return Err(Damage::Sense("its alignment is not a power of two"));
    }
    let mut offsets = Vec::new();
    for _ in 0..tensors {
        offsets.push(tensor(&mut source, alignment)?);
    }
    placed(offsets, source.at, alignment, size)
}

/// Turns offsets behind the header into places in the file.
fn placed(offsets: Vec<u64>, end: u64, alignment: u32, size: u64) -> Result<GgufLayout, Damage> {
    let start = end.next_multiple_of(u64::from(alignment));
    let place = |offset: u64| {
        let place = start.checked_add(offset).filter(|&place| place < size);
        place.ok_or(Damage::Sense("a tensor begins beyond the end of the file"))
    };
    let mut tensors = offsets
        .into_iter()
        .map(place)
        .collect::<Result<Vec<_>, _>>()?;
    tensors.sort_unstable();
    Ok(GgufLayout {
        header: end,
        tensors,
        size,
    })
}

/// Skips a key and its value; returns the value if it is the alignment.
fn pair(source: &mut Source<'_>) -> Result<Option<u32>, Damage> {
    let length = source.length(LONGEST_NAME)?;
    let is_alignment = if length == ALIGNMENT_KEY.len() as u64 {
        source.bytes::<{ ALIGNMENT_KEY.len() }>()? == ALIGNMENT_KEY
    } else {
        source.skip(length)?;
        false
    };
    let kind = source.u32()?;
    if is_alignment {
        return match kind {
            UINT32 => source.u32().map(Some),
            _ => Err(Damage::Sense("its alignment is of another type")),
        };
    }
    value(source, kind, DEEPEST)?;
    Ok(None)
}

fn value(source: &mut Source<'_>, kind: u32, depth: usize) -> Result<(), Damage> {
    match kind {
        TEXT => {
            let length = source.length(LONGEST_TEXT)?;
            source.skip(length)
        }
        ARRAY => array(source, depth),
        _ => source.skip(width(kind)?),
    }
}

fn array(source: &mut Source<'_>, depth: usize) -> Result<(), Damage> {
    let depth = depth
        .checked_sub(1)
        .ok_or(Damage::Sense("its arrays are nested too deeply"))?;
    let (kind, count) = (source.u32()?, source.u64()?);
    if !matches!(kind, TEXT | ARRAY) {
        let length = width(kind)?.checked_mul(count);
        return source.skip(length.unwrap_or(u64::MAX));
    }
    // Each entry takes some bytes, so a false count runs into the end of the header.
    for _ in 0..count {
        value(source, kind, depth)?;
    }
    Ok(())
}

/// The size of a value of this type, in bytes.
const fn width(kind: u32) -> Result<u64, Damage> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        _ => Err(Damage::Sense("it has a value of an unknown type")),
    }
}

/// Skips the description of a tensor, and returns the tensor's offset behind the header.
fn tensor(source: &mut Source<'_>, alignment: u32) -> Result<u64, Damage> {
    let length = source.length(LONGEST_NAME)?;
    source.skip(length)?;
    let dimensions = source.u32()?;
    if dimensions > MOST_DIMENSIONS {
        return Err(Damage::Sense("a tensor has too many dimensions"));
    }
    // The dimensions and the type.
    source.skip(u64::from(dimensions) * 8 + 4)?;
    let offset = source.u64()?;
    if !offset.is_multiple_of(u64::from(alignment)) {
        return Err(Damage::Sense("a tensor is not aligned"));
    }
    Ok(offset)
}

/// A header, read from start to end in chunks; most of what is skipped is not read.
struct Source<'a> {
    library: &'a dyn Library,
    path: &'a str,
    /// Where reading has to stop.
    limit: u64,
    /// Bytes of headers that may still be read for this model.
    left: &'a mut u64,
    at: u64,
    buffer: Vec<u8>,
    /// Where in the file the buffer begins.
    start: u64,
}

impl Source<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        loop {
            let from = self.at.checked_sub(self.start);
            let from = from.and_then(|from| usize::try_from(from).ok());
            let here = from.and_then(|from| self.buffer.get(from..)?.first_chunk());
            if let Some(&bytes) = here {
                self.at += N as u64;
                return Ok(bytes);
            }
            self.fill(N as u64)?;
        }
    }

    /// Reads at least this many bytes from the current position on.
    fn fill(&mut self, least: u64) -> Result<(), Damage> {
        let room = self.limit.saturating_sub(self.at);
        if room < least {
            return Err(if self.limit == LARGEST {
                Damage::Long(LARGEST)
            } else {
                Damage::Short
            });
        }
        let length = room.min(read::CHUNK);
        *self.left = self.left.checked_sub(length).ok_or(Damage::Budget)?;
        self.buffer = read::range(self.library, self.path, self.at, length)?;
        self.start = self.at;
        Ok(())
    }

    fn skip(&mut self, length: u64) -> Result<(), Damage> {
        let end = self.at.checked_add(length);
        self.at = end.filter(|&end| end <= self.limit).ok_or(Damage::Short)?;
        Ok(())
    }

    fn u32(&mut self) -> Result<u32, Damage> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Damage> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Reads the length of the text that follows.
    fn length(&mut self, most: u64) -> Result<u64, Damage> {
        let length = self.u64()?;
        if length > most {
            return Err(Damage::Sense("a string is too long"));
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{FakeLibrary, Flips, Gguf};
    use super::*;

    fn read(bytes: &[u8]) -> Result<GgufLayout, Damage> {
        let mut library = FakeLibrary::default();
        library.add("x", bytes);
        layout(&library, "x", bytes.len() as u64, &mut { u64::MAX })
    }

    fn small() -> Gguf {
        let mut array = TEXT.to_le_bytes().to_vec();
        array.extend(2_u64.to_le_bytes());
        for text in ["<s>", "</s>"] {
            array.extend((text.len() as u64).to_le_bytes());
            array.extend(text.as_bytes());
        }
        let mut nested = ARRAY.to_le_bytes().to_vec();
        nested.extend(1_u64.to_le_bytes());
        nested.extend(5_u32.to_le_bytes());
        nested.extend(3_u64.to_le_bytes());
        nested.extend([0; 12]);
        Gguf {
            version: 3,
            pairs: vec![
                ("general.alignment", UINT32, 64_u32.to_le_bytes().to_vec()),
                ("tokenizer.ggml.tokens", ARRAY, array),
                ("nested", ARRAY, nested),
                ("some.float", 12, vec![0; 8]),
                ("some.bool", 7, vec![1]),
            ],
            tensors: vec![("b", 128), ("a", 0)],
            alignment: 64,
            data: 200,
        }
    }

    #[test]
    fn header_is_read_first_then_tensors_in_file_order() {
        let bytes = small().bytes();
        let size = bytes.len() as u64;
        let layout = read(&bytes).expect("good");
        let start = size - 200;
        assert_eq!(start % 64, 0);
        assert!(layout.header <= start && start < layout.header + 64);
        let ranges: Vec<_> = layout.ranges().collect();
        let expected = [0..layout.header, start..start + 128, start + 128..size];
        assert_eq!(ranges, expected);
    }

    #[test]
    fn invalid_gguf_headers_are_rejected() {
        let of = |change: fn(&mut Gguf)| {
            let mut file = small();
            change(&mut file);
            read(&file.bytes()).map(|_| ())
        };
        assert!(of(|_| ()).is_ok());
        assert!(of(|file| file.version = 2).is_ok());
        assert!(matches!(of(|file| file.version = 1), Err(Damage::Version)));
        assert!(matches!(
            of(|file| file.version = 3 << 24),
            Err(Damage::Version)
        ));
        let senseless: [fn(&mut Gguf); 6] = [
            |file| file.tensors[0].1 = 100,
            |file| file.tensors[0].1 = 256,
            |file| file.tensors[0].1 = u64::MAX - 63,
            |file| file.pairs[0].2 = 48_u32.to_le_bytes().to_vec(),
            |file| file.pairs[0].1 = 6,
            |file| file.pairs[4].1 = 13,
        ];
        for (case, change) in senseless.into_iter().enumerate() {
            assert!(matches!(of(change), Err(Damage::Sense(_))), "{case}");
        }
    }

    #[test]
    fn counts_that_lie_cost_nothing() {
        let mut bytes = small().bytes();
        for at in [8, 16] {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            assert!(matches!(read(&bytes), Err(Damage::Sense(_))));
            bytes[at..at + 8].copy_from_slice(&MOST.to_le_bytes());
            assert!(read(&bytes).is_err());
        }
        let tokens = bytes
            .windows(6)
            .position(|window| window == b"tokens")
            .expect("there");
        for count in [u64::MAX, 1 << 40] {
            bytes[tokens + 14..tokens + 22].copy_from_slice(&count.to_le_bytes());
            assert!(read(&bytes).is_err());
        }
    }

    #[test]
    fn a_header_cut_off_anywhere_is_refused() {
        let bytes = small().bytes();
        // The last tensor begins 72 bytes before the end.
        for end in 0..bytes.len() - 72 {
            assert!(read(&bytes[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn flipped_bits_leave_tensors_within_the_file() {
        let mut taken = 0;
        for bytes in Flips::of(&small().bytes()).take(10_000) {
            if let Ok(layout) = read(&bytes) {
                taken += 1;
                let size = bytes.len() as u64;
                assert!(
                    layout
                        .ranges()
                        .all(|it| it.start <= it.end && it.end <= size)
                );
            }
        }
        assert!(taken > 0);
    }

    proptest! {
        #[test]
        fn anything_is_parsed_or_refused(
            rest in prop::collection::vec(prop_oneof![Just(0), Just(9), any::<u8>()], 0..300),
            version in 2_u8..4,
        ) {
            let mut bytes = b"GGUF".to_vec();
            bytes.extend([version, 0, 0, 0]);
            bytes.extend(&rest);
            let _ = read(&rest);
            let _ = read(&bytes);
        }
    }
}
