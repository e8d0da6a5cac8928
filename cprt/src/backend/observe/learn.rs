//! Learns the kernel's name (device and inode) of a file that we know by stat.
//!
//! On most file systems the two agree. In stat, btrfs has its own device for each subvolume, and
//! overlayfs shows its own inode for one of the file systems below. So for each device that
//! stat shows, one byte of one file is read, and the tracepoint's record of this thread has the
//! true name. On overlayfs that is done for every file of a directory, because each may lie elsewhere. It takes the
//! kernel a tenth of a second to release the tracepoint, so this is not done for file systems that are known to agree.
//!
//! A start, as of a container, opens thousands of files of one overlayfs, and reading from each would hold it up. There
//! one file stands for all: stat shows the inode number that the file has below, on the device that is below. That is
//! wrong only for a file that was changed in the container and keeps its earlier number.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::statfs::{
    EXT4_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs,
};

use super::record::{self, Key, Layout, Point};
use crate::machine::files::keep_access_time;
use crate::machine::mappings::Identity;
use crate::sys::perf::{Event, Ring, Wakes, Whose};
use crate::sys::{self, cache};

/// File systems on which stat shows the kernel's names.
const HONEST: [FsType; 3] = [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, TMPFS_MAGIC];

/// A stacked file system has no rule if more than this many files break it.
const MOST_ODD: u32 = 8;

/// How the kernel's names of a device's files follow from stat. Pure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// They agree.
    Same,
    /// The same inodes, on another device.
    Device(u32),
    /// The same, but on a stacked file system, where another file may lie on another device.
    Below(u32),
    /// There is no rule.
    Each,
}

impl Rule {
    /// The rule that one file shows.
    fn of(stat: Identity, truth: Key, stacked: bool) -> Self {
        if truth.inode != stat.inode {
            Self::Each
        } else if stacked {
            Self::Below(truth.device)
        } else if Key::of_stat(stat.device, stat.inode) == Some(truth) {
            Self::Same
        } else {
            Self::Device(truth.device)
        }
    }

    /// The kernel's name, if it is certain.
    fn apply(self, stat: Identity) -> Option<Key> {
        match self {
            Self::Below(_) => None,
            other => other.guess(stat),
        }
    }

    /// The most likely name.
    fn guess(self, stat: Identity) -> Option<Key> {
        match self {
            Self::Same => Key::of_stat(stat.device, stat.inode),
            Self::Device(device) | Self::Below(device) => Some(Key {
                device,
                inode: stat.inode,
            }),
            Self::Each => None,
        }
    }
}

/// Knows the rules, and learns new ones.
#[derive(Debug)]
pub(super) struct LearntNames {
    /// The tracepoint of reads: kernels before 6.12 have none.
    point: Option<Layout>,
    rules: HashMap<u64, Rule>,
    /// How many files of a stacked file system showed that there is no rule.
    odd: HashMap<u64, u32>,
}

/// Receives records of this thread's reads.
struct TouchHearing {
    event: Event,
    ring: Ring,
    layout: Layout,
}

impl LearntNames {
    pub(super) fn new(layouts: &[Layout]) -> Self {
        let get = layouts.iter().find(|layout| layout.point == Point::Get);
        Self {
            point: get.copied(),
            rules: HashMap::new(),
            odd: HashMap::new(),
        }
    }

    /// As [`Self::key`], but where one file of the file system has shown a rule, takes the most likely name; `None` if
    /// there is none.
    pub(super) fn key_by_rule(
        &mut self,
        stat: Identity,
        open: impl FnOnce() -> io::Result<File>,
    ) -> Option<Key> {
        match self.rules.get(&stat.device) {
            Some(rule) => rule.guess(stat),
            None => self.key(stat, open),
        }
    }

    /// The kernel's name for a file; `None` if it cannot be found out, as for an empty file.
    pub(super) fn key(
        &mut self,
        stat: Identity,
        open: impl FnOnce() -> io::Result<File>,
    ) -> Option<Key> {
        if let Some(rule) = self.rules.get(&stat.device)
            && let Some(key) = rule.apply(stat)
        {
            return Some(key);
        }
        let Some(layout) = self.point else {
            return Key::of_stat(stat.device, stat.inode);
        };
        let file = open().ok()?;
        let kind = fstatfs(&file).ok().map(|fs| fs.filesystem_type());
        if kind.is_some_and(|kind| HONEST.contains(&kind)) {
            self.rules.insert(stat.device, Rule::Same);
            return Rule::Same.apply(stat);
        }
        let truth = TouchHearing::new(layout)
            .and_then(|ear| ear.touch(&file))
            .ok()??;
        let stacked = kind == Some(OVERLAYFS_SUPER_MAGIC);
        let rule = Rule::of(stat, truth, stacked);
        if stacked && rule == Rule::Each {
            // This may be a file that was changed in the container: ask further files.
            let odd = self.odd.entry(stat.device).or_default();
            *odd += 1;
            if *odd < MOST_ODD {
                return Some(truth);
            }
        }
        self.rules.insert(stat.device, rule);
        Some(truth)
    }
}

impl TouchHearing {
    fn new(layout: Layout) -> io::Result<Self> {
        let event = Event::open(layout.id.into(), Whose::Mine, Wakes::Each)?;
        let size = usize::try_from(sys::page_size()).unwrap_or(4096);
        Ok(Self {
            ring: Ring::new(&event, size)?,
            event,
            layout,
        })
    }

    /// Reads a byte of a file, leaves as few traces as possible, and returns the name in the record.
    fn touch(&self, file: &File) -> io::Result<Option<Key>> {
        quietly(file);
        let page = sys::page_size();
        let cold = cache::mincore(file, &(0..page), page).is_ok_and(|pages| pages == 0);
        self.event.enable(true)?;
        let read = file.read_at(&mut [0], 0);
        self.event.enable(false)?;
        if cold {
            // Restores the state of before.
            let length = libc::off_t::try_from(page).unwrap_or(0);
            let _ = posix_fadvise(file, 0, length, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        }
        let mut bytes = Vec::new();
        self.ring.take(&mut bytes);
        let mut raws = Vec::new();
        record::decode(&bytes, &[self.layout], &mut raws);
        read.map(|_| raws.last().map(|raw| raw.key))
    }
}

/// Turns off readahead and updates of the access time for our reads of this file.
fn quietly(file: &File) {
    keep_access_time(file);
    // Where this advice does not work, a few more pages are read.
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_follow_from_one_file() {
        let stat = Identity {
            device: libc::makedev(0, 45),
            inode: 257,
        };
        let key = |device, inode| Key { device, inode };
        let table = [
            (key(45, 257), false, Rule::Same, Some(key(45, 257))),
            (key(46, 257), false, Rule::Device(46), Some(key(46, 257))),
            (key(45, 258), false, Rule::Each, None),
            (key(46, 258), true, Rule::Each, None),
            (key(46, 257), true, Rule::Below(46), None),
        ];
        for (truth, stacked, rule, applied) in table {
            assert_eq!(Rule::of(stat, truth, stacked), rule, "{truth:?}");
            assert_eq!(rule.apply(stat), applied, "{truth:?}");
        }
        assert_eq!(Rule::Below(46).guess(stat), Some(key(46, 257)));
        assert_eq!(Rule::Each.guess(stat), None);
    }

    #[test]
    fn without_the_tracepoint_stat_has_to_do() {
        let mut names = LearntNames::new(&[]);
        let stat = Identity {
            device: libc::makedev(8, 1),
            inode: 5,
        };
        let never = || Err(io::ErrorKind::Other.into());
        let expected = Key {
            device: 8 << 20 | 1,
            inode: 5,
        };
        assert_eq!(names.key(stat, never), Some(expected));
    }
}
