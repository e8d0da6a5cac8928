//! Decodes events from bytes.
//!
//! A batch is what one read(2) of the device returned: whole records, one after another, each
//! with its own length. [`Events`] walks it and makes an [`Event`] of every record whose version
//! and kind are known; it skips others, so that an old program works on a new kernel.
//! Nothing here touches the device, so all of it can be tested without one.

use std::fmt;
use std::iter::FusedIterator;

use bitflags::bitflags;
use thiserror::Error;

use crate::bindings as c;

/// Identifies a file of one mount, for as long as it is open or mapped. Not an inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(u64);

impl FileId {
    /// The id with this number in the protocol.
    #[must_use]
    pub const fn from_raw(id: u64) -> Self {
        Self(id)
    }

    /// The number in the protocol.
    #[must_use]
    pub const fn as_raw(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// [`Event::count`] events did not fit into the queue of [`Event::cpu`] and are gone.
    Lost,
    /// A file of [`Event::length`] bytes was opened.
    Open,
    /// The last descriptor of an open was closed; its mappings may live on.
    Close,
    /// The pages of the range were absent when a reader reached them.
    Miss,
    /// The range was read, hit or miss.
    Touch,
    /// A process is at [`Event::offset`], [`Event::length`] bytes after its last PROGRESS.
    Progress,
}

impl Kind {
    /// All kinds, in the order of the protocol.
    pub const ALL: [Self; 6] = [
        Self::Lost,
        Self::Open,
        Self::Close,
        Self::Miss,
        Self::Touch,
        Self::Progress,
    ];

    fn from_raw(kind: u8) -> Option<Self> {
        Some(match u32::from(kind) {
            c::RFS_EVENT_LOST => Self::Lost,
            c::RFS_EVENT_OPEN => Self::Open,
            c::RFS_EVENT_CLOSE => Self::Close,
            c::RFS_EVENT_MISS => Self::Miss,
            c::RFS_EVENT_TOUCH => Self::Touch,
            c::RFS_EVENT_PROGRESS => Self::Progress,
            _ => return None,
        })
    }

    /// Its name in the protocol: `MISS`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "LOST",
            Self::Open => "OPEN",
            Self::Close => "CLOSE",
            Self::Miss => "MISS",
            Self::Touch => "TOUCH",
            Self::Progress => "PROGRESS",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

bitflags! {
    /// A set of kinds, as a mask names them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Kinds: u32 {
        /// [`Kind::Lost`], which is always on.
        const LOST = 1 << c::RFS_EVENT_LOST;
        /// [`Kind::Open`]
        const OPEN = 1 << c::RFS_EVENT_OPEN;
        /// [`Kind::Close`]
        const CLOSE = 1 << c::RFS_EVENT_CLOSE;
        /// [`Kind::Miss`]
        const MISS = 1 << c::RFS_EVENT_MISS;
        /// [`Kind::Touch`]
        const TOUCH = 1 << c::RFS_EVENT_TOUCH;
        /// [`Kind::Progress`]
        const PROGRESS = 1 << c::RFS_EVENT_PROGRESS;
        // Kinds of a newer kernel are kept as they are.
        const _ = !0;
    }

    /// How it happened.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct EventFlags: u32 {
        /// By a page fault, not by a read.
        const MMAP = c::RFS_EV_MMAP;
        /// The file was opened with `O_DIRECT`.
        const DIRECT = c::RFS_EV_DIRECT;
        // Flags of a newer kernel are kept as they are.
        const _ = !0;
    }
}

/// One record of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: Kind,
    /// How it happened.
    pub flags: EventFlags,
    /// The file; 0 for [`Kind::Lost`].
    pub file: FileId,
    /// Where the range begins, in bytes.
    pub offset: u64,
    /// How long the range is, in bytes.
    pub length: u64,
    /// When the first of the merged events happened, by `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// How many events were merged into this one, or lost.
    pub count: u64,
    /// The process, by its number in the initial pid namespace.
    pub tgid: u32,
    /// The thread, likewise.
    pub tid: u32,
    /// The CPU on which it happened.
    pub cpu: u32,
}

/// Bytes that are not a batch of the protocol: nothing after them can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Too few bytes are left for a record's header.
    #[error("Event at byte {at} is cut off after {left} bytes")]
    Header {
        /// Where in the batch it begins.
        at: usize,
        /// How many bytes there are.
        left: usize,
    },
    /// The length in a record is 0 or not a multiple of 8.
    #[error("Event at byte {at} claims a length of {len}, not a multiple of 8 above 0")]
    Length {
        /// Where in the batch it begins.
        at: usize,
        /// What it claims.
        len: usize,
    },
    /// The length in a record reaches beyond the batch.
    #[error("Event at byte {at} claims {len} bytes, but only {left} are left")]
    Truncated {
        /// Where in the batch it begins.
        at: usize,
        /// What it claims.
        len: usize,
        /// How many bytes there are.
        left: usize,
    },
    /// A record of a known version is shorter than that version's.
    #[error("Event at byte {at} is {len} bytes, too short for its version")]
    Short {
        /// Where in the batch it begins.
        at: usize,
        /// What it claims.
        len: usize,
    },
}

/// The events of one batch, in the kernel's order.
///
/// An error ends it, because the next record cannot be found.
#[derive(Clone, Debug)]
pub struct Events<'a> {
    batch: &'a [u8],
    at: usize,
    skipped: usize,
}

/// Bytes of `len`, `version` and `kind`, which are enough to skip a record of any version.
const HEADER: usize = 4;
const RECORD: usize = size_of::<c::rfs_event>();

impl<'a> Events<'a> {
    /// The events in `batch`, which is what one read of a device returned.
    #[must_use]
    pub const fn new(batch: &'a [u8]) -> Self {
        Self {
            batch,
            at: 0,
            skipped: 0,
        }
    }

    /// How many records so far were of an unknown kind or version.
    #[must_use]
    pub const fn skipped(&self) -> usize {
        self.skipped
    }

    /// Decodes the next record; `None` if its kind or version is unknown.
    fn step(&mut self) -> Result<Option<Event>, DecodeError> {
        let at = self.at;
        let rest = &self.batch[at..];
        let left = rest.len();
        let Some(header) = rest.first_chunk::<HEADER>() else {
            return Err(DecodeError::Header { at, left });
        };
        let [len0, len1, version, kind] = *header;
        let len = usize::from(u16::from_ne_bytes([len0, len1]));
        if len == 0 || !len.is_multiple_of(8) {
            return Err(DecodeError::Length { at, len });
        }
        let Some(record) = rest.get(..len) else {
            return Err(DecodeError::Truncated { at, len, left });
        };
        self.at += len;
        if u32::from(version) != c::RFS_EVENT_VERSION {
            return Ok(None);
        }
        let Some(record) = record.first_chunk::<RECORD>() else {
            return Err(DecodeError::Short { at, len });
        };
        Ok(Kind::from_raw(kind).map(|kind| decode(kind, record)))
    }
}

impl Iterator for Events<'_> {
    type Item = Result<Event, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.at < self.batch.len() {
            match self.step() {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => self.skipped += 1,
                Err(error) => {
                    self.at = self.batch.len();
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

impl FusedIterator for Events<'_> {}

/// Decodes version 1 of a record; the compiler keeps the offsets equal to those of the C structure.
fn decode(kind: Kind, record: &[u8; RECORD]) -> Event {
    use std::mem::offset_of;

    Event {
        kind,
        flags: EventFlags::from_bits_retain(u32_at(record, offset_of!(c::rfs_event, flags))),
        file: FileId(u64_at(record, offset_of!(c::rfs_event, file))),
        offset: u64_at(record, offset_of!(c::rfs_event, offset)),
        length: u64_at(record, offset_of!(c::rfs_event, length)),
        time_ns: u64_at(record, offset_of!(c::rfs_event, time_ns)),
        count: u64_at(record, offset_of!(c::rfs_event, count)),
        tgid: u32_at(record, offset_of!(c::rfs_event, tgid)),
        tid: u32_at(record, offset_of!(c::rfs_event, tid)),
        cpu: u32_at(record, offset_of!(c::rfs_event, cpu)),
    }
}

fn u32_at(record: &[u8; RECORD], at: usize) -> u32 {
    u32::from_ne_bytes(bytes_at(record, at))
}

fn u64_at(record: &[u8; RECORD], at: usize) -> u64 {
    u64::from_ne_bytes(bytes_at(record, at))
}

fn bytes_at<const N: usize>(record: &[u8; RECORD], at: usize) -> [u8; N] {
    std::array::from_fn(|i| record[at + i])
}

#[cfg(all(test, target_endian = "little"))]
#[path = "event_tests.rs"]
mod tests;
