//! The source of events and the target of page-cache verbs.
//!
//! A `Backend` is what a mount can do, in the terms of the contract between policies and their
//! host. Ranges that reach it are valid: of a regular file, inside it, not empty. One thread asks it
//! for events; any thread may call the rest, concurrently.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ppc::{Entry, Event, Features, FileId, FileInfo, Kinds};

mod ahead;
pub(crate) mod beneath;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod fuse;
mod module;
pub(crate) mod observe;
pub(crate) mod pagecache;
pub mod select;

pub(crate) use ahead::Ahead;
pub(crate) use beneath::Beneath;
pub(crate) use module::Module;
pub(crate) use observe::{Exec, Execs, Observe, Start, Told, kernel_tells};

/// Why a backend did not do something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The file, or its id, is gone.
    #[error("the file is gone")]
    Stale,
    /// It is a directory, a device or the like.
    #[error("not a regular file")]
    NoFile,
    /// The process to charge is gone.
    #[error("the process to charge is gone")]
    NoProcess,
    /// The mount is gone.
    #[error("the file system has been unmounted")]
    Ended,
    /// The system's error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Fault {
    /// The errno that services of the host return to the policy.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::Stale => libc::ESTALE,
            Self::NoFile => libc::EINVAL,
            Self::NoProcess => libc::ESRCH,
            Self::Ended => libc::ENODEV,
            Self::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl From<Fault> for ppc::Error {
    fn from(fault: Fault) -> Self {
        Self::Errno(fault.errno())
    }
}

/// The name of loader threads, in this process and no other: backends need not report what they read.
pub(crate) fn loader_name() -> String {
    format!("load-{}", std::process::id())
}

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Span {
    /// Its bytes; the end saturates.
    pub(crate) const fn range(self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.length)
    }
}

/// How to load a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct How {
    /// [`Backend::stop`] stops loads by this.
    pub(crate) cookie: u64,
    /// The memory cgroup of this process pays.
    pub(crate) charge: Option<u32>,
    /// Large folios rather than the exact range.
    pub(crate) large: bool,
    /// Nothing beyond the range all the same: others wait for the device, or memory is nearly full.
    pub(crate) exact: bool,
    /// The kernel is to reclaim other cache first, where processes keep what they map.
    pub(crate) hold: bool,
}

/// What a load did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// Bytes that were processed, from the start.
    pub(crate) done: u64,
    /// Bytes of these that were not cached before.
    pub(crate) fresh: u64,
    /// It was stopped.
    pub(crate) stopped: bool,
}

/// What an eviction did, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) dropped: u64,
    pub(crate) kept: u64,
}

/// What [`Backend::events`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// There may be more.
    On,
    /// The mount is gone.
    Ended,
}

/// A mount, whatever is behind it.
pub(crate) trait Backend: Send + Sync {
    /// As in `ppcctl status`.
    fn name(&self) -> &'static str;
    /// What it can do.
    fn features(&self) -> Features;
    /// What it cannot do and another backend could, a sentence each.
    fn limits(&self) -> Vec<String> {
        Vec::new()
    }
    /// Whether TOUCH and PROGRESS of the next call of [`Backend::want`] may begin with the next open: reporting them
    /// may cost programs that read other files.
    fn rests_until_open(&self, _rests: bool) {}
    /// Chooses which events it reports from now on.
    fn want(&self, kinds: Kinds, progress_bytes: u64) -> Result<(), Fault>;
    /// Sleeps until there are events or [`Backend::interrupt`] is called, and appends them.
    fn events(&self, into: &mut Vec<Event>) -> Result<Flow, Fault>;
    /// Whether the policy answers events with plans: then they are wanted soon, otherwise in large batches.
    fn hurry(&self, _soon: bool) {}
    /// Has the current call of [`Backend::events`] return now; if there is none, the next one.
    fn interrupt(&self);

    /// The id of the regular file at a path of the mount, valid until it is closed.
    fn open(&self, path: &Path) -> Result<FileId, Fault>;
    /// Releases an id that `open` returned.
    fn close(&self, file: FileId) -> Result<(), Fault>;
    /// Size, identity and last change of a regular file.
    fn info(&self, file: FileId) -> Result<FileInfo, Fault>;
    /// The length of a regular file; before it has been looked up, an upper bound.
    fn size(&self, file: FileId) -> Result<u64, Fault> {
        Ok(self.info(file)?.size)
    }
    /// The file's path in the mount.
    fn path(&self, file: FileId) -> Result<PathBuf, Fault>;
    /// The entries of a directory of the mount.
    fn list(&self, path: &Path, recursive: bool) -> Result<Vec<Entry>, Fault>;
    /// Reads a file without making an event.
    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize, Fault>;

    /// Brings a range into the page cache and returns when it is there.
    fn load(&self, span: Span, how: How) -> Result<Loaded, Fault>;
    /// Stops the loads of this cookie that are in flight.
    fn stop(&self, cookie: u64);
    /// Drops a range; with `unmapped`, pages that processes map stay.
    fn evict(&self, span: Span, unmapped: bool) -> Result<Evicted, Fault>;
    /// How many bytes of the range are cached.
    fn resident(&self, span: Span) -> Result<u64, Fault>;

    /// Releases what would outlive the process. No other call follows.
    fn end(&self) {}

    /// Whether the kernel needs long to release this backend when the worker ends; a session does not wait for that.
    fn lets_go_late(&self) -> bool {
        false
    }
}
