//! Identifies a file of the lower file system, and distinguishes its contents from earlier ones.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::time::UNIX_EPOCH;

/// Identifies a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// In ns since 1970, 0 if the file system does not know.
    pub(crate) birth: u64,
}

impl FileIdentity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let birth = metadata.created().ok();
        let birth = birth.and_then(|birth| birth.duration_since(UNIX_EPOCH).ok());
        let birth = birth.and_then(|since| u64::try_from(since.as_nanos()).ok());
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            birth: birth.unwrap_or(0),
        }
    }
}

/// Changes whenever a file's contents do. The ctime is part of it, as programs such as rsync often set back
/// the mtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContentStamp {
    pub(crate) size: u64,
    pub(crate) modified_ns: i128,
    pub(crate) changed_ns: i128,
}

impl ContentStamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let ns = |seconds, ns| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Self {
            size: metadata.len(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
