//! The parts of a shared object that all its users read: the linker goes through its tables and relocates its data
//! before any of it runs. Pure.

use std::ops::Range;

/// How many bytes at its beginning show where those parts are.
pub(super) const HEADER: usize = 4096;
/// Upper bound on the size of an object that is needed nearly whole.
const SMALL: u64 = 4 << 20;
/// Upper bound on the tables; larger ones are something else.
const TABLES: u64 = 64 << 20;
/// Upper bound on the data; most of larger data is not relocated.
const DATA: u64 = 16 << 20;

pub(super) const LOAD: u32 = 1;
const RELRO: u32 = 0x6474_e552;
const EXECUTABLE: u32 = 1;
const WRITABLE: u32 = 2;
/// Bytes of an entry of the 64-bit program header.
const ENTRY: usize = 56;

/// Whether a file has the name of a shared object.
pub(super) fn is_object(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.split('.').skip(1).any(|part| part == "so")
}

/// The bytes that are read of an object of this size with this beginning.
pub(super) fn needed(size: u64, header: &[u8]) -> Vec<Range<u64>> {
    if size <= SMALL {
        return std::iter::once(0..size)
            .filter(|it| !it.is_empty())
            .collect();
    }
    let segments = segments(header).unwrap_or_default();
    let first = segments.iter().position(|segment| segment.kind == LOAD);
    let is_needed = |(number, segment): (usize, &Segment)| match segment.kind {
        RELRO => segment.length() <= DATA,
        LOAD if segment.flags & EXECUTABLE != 0 => false,
        LOAD if segment.flags & WRITABLE != 0 => segment.length() <= DATA,
        LOAD => Some(number) == first && segment.length() <= TABLES,
        _ => false,
    };
    let needed = segments.iter().enumerate().filter(|&it| is_needed(it));
    let ranges = needed.map(|(_, segment)| segment.range.start..segment.range.end.min(size));
    ranges.filter(|range| !range.is_empty()).collect()
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) kind: u32,
    flags: u32,
    /// In the file.
    pub(super) range: Range<u64>,
    /// Its address in memory, relative to the object.
    pub(super) address: u64,
}

impl Segment {
    const fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The segments of a 64-bit ELF file of this machine's byte order; `None` for any other file.
pub(super) fn segments(header: &[u8]) -> Option<Vec<Segment>> {
    const WIDTH_64: u8 = 2;

    if header.get(..4)? != b"\x7fELF" || *header.get(4)? != WIDTH_64 {
        return None;
    }
    let at = usize::try_from(long(header, 32)?).ok()?;
    let count = usize::from(u16::from_ne_bytes(*header.get(56..)?.first_chunk()?));
    let entries = header.get(at..at.checked_add(count * ENTRY)?)?;
    let segment = |entry: &[u8]| {
        let start = long(entry, 8)?;
        Some(Segment {
            kind: word(entry, 0)?,
            flags: word(entry, 4)?,
            range: start..start.checked_add(long(entry, 32)?)?,
            address: long(entry, 16)?,
        })
    };
    entries.chunks_exact(ENTRY).map(segment).collect()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn elf(segments: &[(u32, u32, Range<u64>)]) -> Vec<u8> {
        let mut header = vec![0; 64];
        header[..5].copy_from_slice(b"\x7fELF\x02");
        header[32..40].copy_from_slice(&64_u64.to_ne_bytes());
        let count = u16::try_from(segments.len()).expect("a few");
        header[56..58].copy_from_slice(&count.to_ne_bytes());
        for (kind, flags, range) in segments {
            let mut entry = [0; ENTRY];
            entry[..4].copy_from_slice(&kind.to_ne_bytes());
            entry[4..8].copy_from_slice(&flags.to_ne_bytes());
            entry[8..16].copy_from_slice(&range.start.to_ne_bytes());
            entry[32..40].copy_from_slice(&(range.end - range.start).to_ne_bytes());
            header.extend(entry);
        }
        header
    }

    #[test]
    fn shared_objects_are_recognized_by_file_name() {
        for name in ["libc.so.6", "x/_C.cpython-311-x86_64-linux-gnu.so", "a.so"] {
            assert!(is_object(name), "{name}");
        }
        for name in ["so", "a.sock", "a.so/b", "a.json"] {
            assert!(!is_object(name), "{name}");
        }
    }

    #[test]
    fn tables_and_what_is_relocated_are_needed_and_code_is_not() {
        let header = elf(&[
            (LOAD, 4, 0..8 * MIB),
            (LOAD, 5, 8 * MIB..100 * MIB),
            (LOAD, 4, 100 * MIB..300 * MIB),
            (LOAD, 6, 300 * MIB..420 * MIB),
            (RELRO, 4, 300 * MIB..303 * MIB),
            (2, 6, 302 * MIB..303 * MIB),
            (LOAD, 6, 420 * MIB..430 * MIB),
        ]);
        let expected = [0..8 * MIB, 300 * MIB..303 * MIB, 420 * MIB..425 * MIB];
        assert_eq!(
            needed(425 * MIB, &header),
            expected,
            "no further than the file goes"
        );
    }

    #[test]
    fn a_small_object_is_needed_whole_and_of_what_is_none_nothing_is_known() {
        let whole = 0..SMALL;
        assert_eq!(needed(SMALL, b"any"), [whole]);
        assert!(needed(0, b"").is_empty());
        assert!(needed(9 * MIB, b"GROUP ( libc.so.6 )").is_empty());
    }

    proptest! {
        #[test]
        fn ranges_for_any_elf_header_lie_within_the_file(size: u64, mut bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            bytes.splice(..bytes.len().min(5), *b"\x7fELF\x02");
            for range in needed(size, &bytes) {
                prop_assert!(range.start < range.end && range.end <= size);
            }
        }
    }
}
