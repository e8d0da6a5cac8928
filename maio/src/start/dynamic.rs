//! What an executable or a shared object asks the linker for: other objects, by name, and the folders to search. Pure
//! except for a function that reads.

use std::ops::Range;

use super::object::{HEADER, LOAD, Segment, long, segments};

/// Upper bound on the objects that an object needs; one with more is not taken for one.
const NEEDS: usize = 512;
/// Upper bound on the entries of a table; one with more is not taken for one.
const ENTRIES: usize = 4096;
/// Bytes of an entry of the 64-bit dynamic table: tag and value.
const ENTRY: usize = 16;
/// Upper bound on the length of names and search paths.
const NAME: u64 = 1024;

const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;

const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const OLD_PATH: u64 = 15;
const RUN_PATH: u64 = 29;

/// What an object asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dynamic {
    /// The names of objects.
    pub(super) needed: Vec<String>,
    /// The folders searched for them first.
    pub(super) folders: Vec<String>,
    /// Executables have one: the linker.
    pub(super) interpreter: Option<String>,
}

/// The requests of the file that begins with `header`; `None` if it is not an ELF file. `read` returns the existing
/// bytes of a range.
pub(super) fn dynamic(
    header: &[u8],
    mut read: impl FnMut(Range<u64>) -> Vec<u8>,
) -> Option<Dynamic> {
    let segments = segments(header.get(..HEADER.min(header.len()))?)?;
    let of_kind = |kind| segments.iter().find(|segment| segment.kind == kind);
    let interpreter = of_kind(INTERPRETER).and_then(|segment| text(&read(name_at(segment)?)));
    let mut found = Dynamic {
        interpreter,
        ..Dynamic::default()
    };
    let Some(table) = of_kind(DYNAMIC) else {
        return Some(found);
    };
    let most = (ENTRIES * ENTRY) as u64;
    let end = table.range.end.min(table.range.start.saturating_add(most));
    let table = read(table.range.start..end);
    let entries: Vec<_> = table.chunks_exact(ENTRY).map_while(entry).collect();
    let strings = entries.iter().find(|(what, _)| *what == STRINGS);
    let Some(strings) = strings.and_then(|&(_, address)| place(&segments, address)) else {
        return Some(found);
    };
    let mut name = |value: u64| {
        let at = strings.checked_add(value)?;
        text(&read(at..at.checked_add(NAME)?))
    };
    for (what, value) in entries {
        match what {
            NEEDED if found.needed.len() < NEEDS => found.needed.extend(name(value)),
            OLD_PATH | RUN_PATH => {
                let folders = name(value).unwrap_or_default();
                let folders = folders.split(':').filter(|folder| !folder.is_empty());
                found.folders.extend(folders.map(str::to_owned));
            }
            _ => {}
        }
    }
    Some(found)
}

/// An entry of the table; `None` at its end.
fn entry(bytes: &[u8]) -> Option<(u64, u64)> {
    let what = long(bytes, 0)?;
    (what != 0).then_some((what, long(bytes, 8)?))
}

/// The range of the name that a segment holds.
fn name_at(segment: &Segment) -> Option<Range<u64>> {
    let start = segment.range.start;
    Some(start..start.checked_add(NAME)?)
}

/// The offset of an address in the file.
fn place(segments: &[Segment], address: u64) -> Option<u64> {
    segments
        .iter()
        .filter(|segment| segment.kind == LOAD)
        .find_map(|segment| {
            let inner = address.checked_sub(segment.address)?;
            (inner < segment.range.end - segment.range.start).then(|| segment.range.start + inner)
        })
}

/// The text up to the first zero.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(file: &[u8], range: &Range<u64>) -> Vec<u8> {
        let at = |place: u64| usize::try_from(place).map_or(file.len(), |it| it.min(file.len()));
        file[at(range.start)..at(range.end)].to_vec()
    }

    fn of_file(file: &[u8]) -> Option<Dynamic> {
        dynamic(file, |range| part(file, &range))
    }

    #[test]
    fn own_executable_needs_libc_and_has_an_interpreter() {
        let file = std::fs::read("/proc/self/exe").expect("this program");
        let found = of_file(&file).expect("an ELF file");
        let libc = found.needed.iter().any(|name| name.starts_with("libc.so"));
        assert!(libc, "{found:?}");
        let interpreter = found.interpreter.expect("a linker");
        assert!(std::path::Path::new(&interpreter).exists(), "{interpreter}");
    }

    #[test]
    fn a_script_asks_for_nothing() {
        assert_eq!(of_file(b"#!/bin/sh\n"), None);
        assert_eq!(of_file(b""), None);
    }

    #[test]
    fn truncated_elf_file_is_tolerated() {
        let file = std::fs::read("/proc/self/exe").expect("this program");
        for length in (0..HEADER.min(file.len())).step_by(7) {
            of_file(&file[..length]);
        }
        let whole = of_file(&file).expect("an ELF file");
        let cut = dynamic(&file, |_| Vec::new()).expect("an ELF file");
        assert!(cut.needed.is_empty() && !whole.needed.is_empty());
    }

    proptest! {
        #[test]
        fn arbitrary_elf_content_is_tolerated(mut bytes in prop::collection::vec(any::<u8>(), 64..4096), count in 0_u16..8) {
            bytes.splice(..5, *b"\x7fELF\x02");
            bytes.splice(32..40, 64_u64.to_ne_bytes());
            bytes.splice(56..58, count.to_ne_bytes());
            if let Some(found) = of_file(&bytes) {
                prop_assert!(found.needed.len() <= NEEDS);
            }
        }
    }
}
