//! Which processes map a file, and where.
//!
//! A file is identified by its inode number in `/proc/PID/maps`, and by the file behind the mapping: on some
//! file systems, the device in `maps` is not the one that stat shows. A file mapped through a FUSE mirror
//! that passes reads through shows as the mirror's, with the same inode number, and so does a file mapped
//! through an overlayfs, as in a container that has the directory for one of its layers.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};

use crate::sys::maps::{self, FileMap};

/// A file as stat shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// A range of addresses with a range of a file behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) addresses: Range<u64>,
    /// The offset in the file at which it begins.
    pub(crate) offset: u64,
}

impl Mapping {
    /// The addresses of the part of a range of the file that is mapped here; `None` if none of it is.
    pub(crate) fn addresses_of(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let end = self
            .offset
            .saturating_add(self.addresses.end - self.addresses.start);
        let (from, to) = (range.start.max(self.offset), range.end.min(end));
        let place = |at: u64| self.addresses.start + (at - self.offset);
        (from < to).then(|| place(from)..place(to))
    }

    /// The range of the file that it maps.
    pub(crate) fn range(&self) -> Range<u64> {
        self.range_of(&self.addresses)
    }

    /// The range of the file at these addresses, which are within the mapping.
    pub(crate) fn range_of(&self, addresses: &Range<u64>) -> Range<u64> {
        let place = |at: u64| {
            self.offset
                .saturating_add(at.saturating_sub(self.addresses.start))
        };
        place(addresses.start)..place(addresses.end)
    }
}

fn is_stacked(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == OVERLAYFS_SUPER_MAGIC)
}

/// The mappings of a file in a process, of the file itself or through a mirror of that device; none if we may
/// not look.
pub(crate) fn of(process: u32, file: Identity, mirror: Option<u64>) -> Vec<Mapping> {
    let mut of_each = of_each(process, &[file], mirror);
    of_each.pop().unwrap_or_default()
}

/// The same for several files, in their order: a process may have thousands of mappings, which are gone through once.
pub(crate) fn of_each(process: u32, files: &[Identity], mirror: Option<u64>) -> Vec<Vec<Mapping>> {
    let folder = Path::new("/proc").join(process.to_string());
    let inodes: Vec<_> = files.iter().map(|file| file.inode).collect();
    let found = maps::of_inodes(process, &inodes).unwrap_or_default();
    let behind = |mapping: &Mapping, file: Identity| {
        let Range { start, end } = mapping.addresses;
        let link = folder.join("map_files").join(format!("{start:x}-{end:x}"));
        // Only a process that may trace this one sees the file behind; otherwise the inode number has to do.
        fs::metadata(&link).map_or(true, |found| {
            let device = found.dev();
            let is_same = device == file.device || Some(device) == mirror;
            found.ino() == file.inode && (is_same || is_stacked(&link))
        })
    };
    let mapping = |FileMap { addresses, offset }: &FileMap| Mapping {
        addresses: addresses.clone(),
        offset: *offset,
    };
    let of = |&file: &Identity| {
        let found = found.iter().filter(|(_, inode)| *inode == file.inode);
        let found = found.map(|(it, _)| mapping(it));
        found.filter(|it| behind(it, file)).collect()
    };
    files.iter().map(of).collect()
}

/// Whether a process still has these mappings of a file; no, if we may not look.
pub(crate) fn are_still(process: u32, file: Identity, mappings: &[Mapping]) -> bool {
    let of = |it: &Mapping| FileMap {
        addresses: it.addresses.clone(),
        offset: it.offset,
    };
    let all: Vec<_> = mappings.iter().map(of).collect();
    maps::has(process, file.inode, &all).unwrap_or(false)
}

/// All processes but this one that map a file, and where.
pub(crate) fn all_of(file: Identity, mirror: Option<u64>) -> Vec<(u32, Vec<Mapping>)> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&process| process != std::process::id())
        .map(|process| (process, of(process, file, mirror)))
        .filter(|(_, mappings)| !mappings.is_empty())
        .collect()
}

/// Whether a process has locked a mapping into memory; no, if we may not look.
pub(crate) fn is_locked(process: u32, mapping: &Mapping) -> bool {
    let smaps = fs::read(format!("/proc/{process}/smaps"));
    smaps.is_ok_and(|text| locked(&String::from_utf8_lossy(&text), &mapping.addresses))
}

/// The same by the text of smaps: a line with addresses, then lines with what is known of them.
fn locked(smaps: &str, addresses: &Range<u64>) -> bool {
    let head = format!("{:x}-{:x} ", addresses.start, addresses.end);
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&head));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "lo"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_mappings_are_found_by_their_addresses() {
        let text = "7f01000-7f02000 r--s 00000000 fe:00 77 /a\nRss: 4 kB\nVmFlags: rd sh mr lo sd\n\
                    7f02000-7f03000 r--s 00001000 fe:00 77 /a lo\nVmFlags: rd sh mr\n";
        assert!(locked(text, &(0x7f0_1000..0x7f0_2000)));
        assert!(!locked(text, &(0x7f0_2000..0x7f0_3000)));
        assert!(!locked(text, &(0x1000..0x2000)));
    }

    #[test]
    fn places_in_the_file_and_addresses_are_found_from_each_other() {
        let mapping = Mapping {
            addresses: 0x10_0000..0x10_4000,
            offset: 0x2000,
        };
        assert_eq!(
            mapping.addresses_of(&(0..0x3000)),
            Some(0x10_0000..0x10_1000)
        );
        assert_eq!(
            mapping.addresses_of(&(0x3000..u64::MAX)),
            Some(0x10_1000..0x10_4000)
        );
        assert_eq!(mapping.addresses_of(&(0..0x2000)), None);
        assert_eq!(mapping.addresses_of(&(0x6000..0x7000)), None);
        assert_eq!(mapping.range_of(&(0x10_1000..0x10_4000)), 0x3000..0x6000);
    }
}
