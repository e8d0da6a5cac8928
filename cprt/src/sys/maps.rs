//! Lists the mappings of a process that have files with given inode numbers.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::fd::AsRawFd as _;

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
/// The mapping at the address, or the next one.
const COVERING_OR_NEXT: u64 = 0x10;
const FILE_BACKED: u64 = 0x20;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// A mapping of a file: its addresses, and the offset in the file at which it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileMap {
    pub(crate) addresses: Range<u64>,
    pub(crate) offset: u64,
}

/// The mappings of files with one of these inode numbers in a process, each with its own. From Linux 6.11 on, the
/// kernel is asked for one after the other: a framework has thousands, and to write the path of each into a text takes
/// ten times as long.
pub(crate) fn of_inodes(process: u32, inodes: &[u64]) -> io::Result<Vec<(FileMap, u64)>> {
    let mut file = File::open(format!("/proc/{process}/maps"))?;
    match asked(&file, inodes) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {}
        done => return done,
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(read(&String::from_utf8_lossy(&text), inodes))
}

/// Whether a process has exactly these mappings of a file with this inode number, and perhaps others.
pub(crate) fn has(process: u32, inode: u64, mappings: &[FileMap]) -> io::Result<bool> {
    let file = File::open(format!("/proc/{process}/maps"))?;
    for mapping in mappings {
        let found = match query(&file, mapping.addresses.start) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                let all = of_inodes(process, &[inode])?;
                let has = |mapping: &FileMap| all.iter().any(|(it, _)| it == mapping);
                return Ok(mappings.iter().all(has));
            }
            found => found?,
        };
        if found.as_ref() != Some(&(mapping.clone(), inode)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn asked(file: &File, inodes: &[u64]) -> io::Result<Vec<(FileMap, u64)>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some((mapping, number)) = query(file, at)? {
        let end = mapping.addresses.end;
        if inodes.contains(&number) {
            found.push((mapping, number));
        }
        if end <= at {
            break;
        }
        at = end;
    }
    Ok(found)
}

/// The mapping of a file at an address, or the next one, and the file's inode number; `None` if there is no more.
fn query(file: &File, address: u64) -> io::Result<Option<(FileMap, u64)>> {
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT | FILE_BACKED,
        address,
        ..Query::default()
    };
    // SAFETY: the kernel reads and writes the structure, which has the size that it names itself, and neither name
    // nor build ID is asked for, so it writes nowhere else.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    if done < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(None),
            _ => Err(error),
        };
    }
    let mapping = FileMap {
        addresses: query.start..query.end,
        offset: query.offset,
    };
    Ok(Some((mapping, query.inode)))
}

/// The same by the text of `/proc/PID/maps`.
fn read(text: &str, inodes: &[u64]) -> Vec<(FileMap, u64)> {
    let lines = text.lines().filter_map(line);
    lines
        .filter(|(_, number)| inodes.contains(number))
        .collect()
}

/// A mapping and its inode number; `None` for one without a file.
fn line(text: &str) -> Option<(FileMap, u64)> {
    let mut words = text.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |word| u64::from_str_radix(word, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let offset = hex(words.nth(1)?)?;
    let inode: u64 = words.nth(1)?.parse().ok()?;
    let addresses = start..end;
    (inode != 0 && start < end).then_some((FileMap { addresses, offset }, inode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn lines_are_read_and_what_is_no_file_is_not() {
        let text = "7f0000001000-7f0000003000 r--s 00002000 fe:00 77   /models/a b (deleted)";
        let expected = FileMap {
            addresses: 0x7f00_0000_1000..0x7f00_0000_3000,
            offset: 0x2000,
        };
        assert_eq!(line(text), Some((expected, 77)));
        for text in [
            "7ffd0000-7ffe0000 rw-p 00000000 00:00 0   [stack]",
            "",
            "7f-",
            "zz-7f r--p 0 fe:00 1",
            "7f-7e r--p 0 fe:00 1",
            "1000-2000 r--p 0",
        ] {
            assert_eq!(line(text), None, "{text}");
        }
    }

    #[test]
    fn both_ways_find_the_same_mappings_of_this_program() {
        let own = std::process::id();
        let program = std::fs::metadata("/proc/self/exe").expect("this program");
        let text = std::fs::read_to_string(format!("/proc/{own}/maps")).expect("our own");
        let by_text = read(&text, &[program.ino()]);
        assert!(by_text.len() > 1, "code and data: {text}");
        assert_eq!(
            of_inodes(own, &[u64::MAX, program.ino()]).expect("our own"),
            by_text
        );
        assert_eq!(of_inodes(own, &[u64::MAX]).expect("our own"), []);
        let by_text: Vec<_> = by_text.into_iter().map(|(mapping, _)| mapping).collect();
        let has = |inode, mappings: &[FileMap]| has(own, inode, mappings).expect("our own");
        assert!(has(program.ino(), &by_text));
        assert!(!has(program.ino() + 1, &by_text));
        let longer = FileMap {
            addresses: by_text[0].addresses.start..by_text[0].addresses.end + 4096,
            ..by_text[0]
        };
        assert!(!has(program.ino(), &[by_text[1].clone(), longer]));
    }
}
