//! A device: opening it, agreeing on a version, reading its events.
//!
//! A [`Device`] is a non-blocking descriptor: [`Device::read_batch`] returns at once; [`Device::wait`]
//! or a poller sleeps. All methods take `&self`, so that one thread may read
//! events while others load and evict. The commands on files are in [`crate::verbs`].

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bitflags::bitflags;

use crate::bindings as c;
use crate::error::{Error, Result};
use crate::event::{Events, FileId, Kinds};
use crate::{VERSION, ioctl};

bitflags! {
    /// What the module can do on this kernel.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Features: u64 {
        /// [`LoadRequest::charge`](crate::LoadRequest::charge) works.
        const CHARGE = c::RFS_FEATURE_CHARGE as u64;
        /// [`LoadRequest::large`](crate::LoadRequest::large) works where the lower file system can.
        const LARGE = c::RFS_FEATURE_LARGE as u64;
        /// [`Device::evict`] reaches pages that processes map.
        const EVICT_MAPPED = c::RFS_FEATURE_EVICT_MAPPED as u64;
        // Features of a newer module are kept as they are.
        const _ = !0;
    }
}

/// What module and program have agreed on, and the module's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version to use: the major is this crate's, the minor the smaller of both.
    pub version: (u16, u16),
    /// N of `/dev/rfsN`.
    pub device: u32,
    /// What the module can do.
    pub features: Features,
    /// What [`Device::set_mask`] takes.
    pub kinds: Kinds,
    /// Bytes of one record.
    pub event_size: u32,
    /// Upper bound on bytes of one CPU's queue.
    pub queue_bytes: u32,
    /// The device number of the lower file system, as in `st_dev`.
    pub lower_dev: u64,
}

/// The events that the program wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    kinds: Kinds,
    progress_bytes: u64,
}

impl Mask {
    /// These kinds. [`Kinds::PROGRESS`] is for [`Mask::progress`] to add.
    #[must_use]
    pub const fn kinds(kinds: Kinds) -> Self {
        Self {
            kinds,
            progress_bytes: 0,
        }
    }

    /// Adds a PROGRESS each time a process has read this many bytes of a file, at least 64 KiB.
    #[must_use]
    pub const fn progress(self, bytes: u64) -> Self {
        Self {
            kinds: self.kinds.union(Kinds::PROGRESS),
            progress_bytes: bytes,
        }
    }
}

/// Counters since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Events that happened while they were wanted.
    pub events: u64,
    /// Events of these that were merged into a waiting record.
    pub merged: u64,
    /// Records that were read, LOST not counted.
    pub delivered: u64,
    /// Events that did not fit.
    pub lost: u64,
    /// Records waiting now.
    pub queued: u64,
    /// Memory that all queues hold now, in bytes.
    pub queue_bytes: u64,
    /// Load commands.
    pub loads: u64,
    /// Pages that they brought in.
    pub loaded: u64,
    /// Evict commands.
    pub evicts: u64,
    /// Pages that they dropped.
    pub evicted: u64,
    /// Inodes of this mount in memory now.
    pub files: u64,
}

/// The id of a file of a mount, and the device that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileInfo {
    /// N of `/dev/rfsN`.
    pub device: u32,
    /// The file's id on that device.
    pub file: FileId,
}

impl FileInfo {
    /// Asks the kernel about an open file. This takes no privilege.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotRfs`](crate::ErrorKind::NotRfs) if the file is not of an rfs mount.
    pub fn of<F: AsFd>(file: F) -> Result<Self> {
        let mut info = c::rfs_file_info {
            size: ioctl::size_of_argument::<c::rfs_file_info>(),
            ..Default::default()
        };
        command(file.as_fd(), &mut info)?;
        Ok(Self {
            device: info.device,
            file: FileId::from_raw(info.file),
        })
    }
}

/// The buffer into which [`Device::read_batch`] puts the records of one read.
#[derive(Clone, Debug)]
pub struct Batch {
    buf: Box<[u8]>,
}

impl Batch {
    /// Room for a thousand records, which is enough to keep up with a busy machine.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(1024)
    }

    /// Room for this many records of the version that this crate knows, at least one.
    #[must_use]
    pub fn with_capacity(records: usize) -> Self {
        Self {
            buf: vec![0; records.max(1) * size_of::<c::rfs_event>()].into(),
        }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// The one reader of a mount's events, and the handle for commands on its files.
#[derive(Debug)]
pub struct Device {
    file: File,
}

impl Device {
    /// Opens the device at `path`.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::ErrorKind::NoDevice), [`Permission`](crate::ErrorKind::Permission) or
    /// [`Busy`](crate::ErrorKind::Busy); the text names the path and what to do.
    pub fn open<P: AsRef<Path>>(path: P) -> Result<Self> {
        let path = path.as_ref();
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map(|file| Self { file })
            .map_err(|source| Error::open(path, source))
    }

    /// Opens `/dev/rfsN`; [`FileInfo::of`] and the mount's options have N.
    ///
    /// # Errors
    ///
    /// Those of [`Device::open`].
    pub fn open_number(number: u32) -> Result<Self> {
        Self::open(format!("/dev/rfs{number}"))
    }

    /// Agrees on a version and asks for features and limits.
    ///
    /// # Errors
    ///
    /// [`Version`](crate::ErrorKind::Version) if the module's major is another,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if this is not a device of rfs at all.
    pub fn hello(&self) -> Result<Hello> {
        let (major, minor) = VERSION;
        let mut hello = c::rfs_hello {
            size: ioctl::size_of_argument::<c::rfs_hello>(),
            major,
            minor,
            ..Default::default()
        };
        self.command(&mut hello)?;
        Ok(Hello {
            version: (hello.major, hello.minor),
            device: hello.device,
            features: Features::from_bits_retain(hello.features),
            kinds: Kinds::from_bits_retain(hello.kinds),
            event_size: hello.event_size,
            queue_bytes: hello.queue_bytes,
            lower_dev: hello.lower_dev,
        })
    }

    /// Sets which events are wanted; until then there are none.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for kinds that [`Hello::kinds`] lacks, for a PROGRESS
    /// distance below 64 KiB, and for [`Kinds::PROGRESS`] without a distance.
    pub fn set_mask(&self, mask: Mask) -> Result<()> {
        self.command(&mut c::rfs_mask {
            size: ioctl::size_of_argument::<c::rfs_mask>(),
            kinds: mask.kinds.bits(),
            progress_bytes: mask.progress_bytes,
            ..Default::default()
        })
    }

    /// Takes waiting events, up to the room there is; the batch may be empty. `None` is the end: the file
    /// system has been unmounted and all events have been read.
    ///
    /// # Errors
    ///
    /// Those of read(2). Bytes that are not events cause errors only when [`Events`] walks them.
    pub fn read_batch<'batch>(&self, batch: &'batch mut Batch) -> Result<Option<Events<'batch>>> {
        let len = match (&self.file).read(&mut batch.buf) {
            Ok(0) => return Ok(None),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(source) => {
                return Err(Error::Events {
                    doing: "Reading events",
                    source,
                });
            }
        };
        Ok(Some(Events::new(&batch.buf[..len])))
    }

    /// Sleeps until there is something to read, including the end, the time is up (`None`: never)
    /// or a signal comes; true in the first case only.
    ///
    /// # Errors
    ///
    /// Those of poll(2).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        ioctl::poll_in(self.as_fd(), timeout).map_err(|source| Error::Events {
            doing: "Waiting for events",
            source,
        })
    }

    /// Opens the file in the lower file system, read-only, as the user that mounted; with `direct`,
    /// past the page cache. No path is looked up, so that neither its mode nor a rename matters.
    ///
    /// # Errors
    ///
    /// [`Stale`](crate::ErrorKind::Stale), and those of opening the file there.
    pub fn lower_fd(&self, file: FileId, direct: bool) -> Result<OwnedFd> {
        let flags = if direct {
            libc::O_DIRECT.cast_unsigned()
        } else {
            0
        };
        ioctl::lower_fd(self.as_fd(), file.as_raw(), flags)
            .map_err(|source| Error::command("LOWER_FD", source))
    }

    /// The path of the file within the mount.
    ///
    /// # Errors
    ///
    /// [`NoName`](crate::ErrorKind::NoName) if it was unlinked, [`Stale`](crate::ErrorKind::Stale).
    pub fn path(&self, file: FileId) -> Result<PathBuf> {
        let mut buf = vec![0; 256];
        loop {
            match ioctl::path(self.as_fd(), file.as_raw(), &mut buf) {
                Ok(len) => return Ok(path_from(buf, len)),
                // Nothing in Linux makes a path of 64 KiB; the bound keeps a wrong errno from
                // eating memory.
                Err(error)
                    if error.raw_os_error() == Some(libc::ENAMETOOLONG) && buf.len() < 1 << 16 =>
                {
                    buf.resize(buf.len() * 4, 0);
                }
                Err(source) => return Err(Error::command("PATH", source)),
            }
        }
    }

    /// The counters of the mount.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::ErrorKind::NoDevice) once it is gone.
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = c::rfs_stats {
            size: ioctl::size_of_argument::<c::rfs_stats>(),
            ..Default::default()
        };
        self.command(&mut stats)?;
        Ok(Stats {
            events: stats.events,
            merged: stats.merged,
            delivered: stats.delivered,
            lost: stats.lost,
            queued: stats.queued,
            queue_bytes: stats.queue_bytes,
            loads: stats.loads,
            loaded: stats.loaded,
            evicts: stats.evicts,
            evicted: stats.evicted,
            files: stats.files,
        })
    }

    pub(crate) fn command<T: ioctl::Plain>(&self, argument: &mut T) -> Result<()> {
        command(self.as_fd(), argument)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn command<T: ioctl::Plain>(fd: BorrowedFd<'_>, argument: &mut T) -> Result<()> {
    ioctl::command(fd, argument).map_err(|source| Error::command(T::NAME, source))
}

/// The path that the kernel wrote, without its NUL.
fn path_from(mut buf: Vec<u8>, len: usize) -> PathBuf {
    buf.truncate(len.saturating_sub(1));
    OsString::from_vec(buf).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn missing_device_is_named_in_the_error() {
        let error = Device::open_number(u32::MAX).expect_err("there are never so many");
        assert_eq!(error.kind(), ErrorKind::NoDevice);
        assert!(
            error
                .to_string()
                .starts_with("Opening /dev/rfs4294967295: is rfs mounted?")
        );
    }

    #[test]
    fn a_file_of_another_file_system_is_not_rfs() {
        let file = File::open("/proc/self/exe").expect("this program");
        assert_eq!(
            FileInfo::of(&file).expect_err("not rfs").kind(),
            ErrorKind::NotRfs
        );
    }

    #[test]
    fn another_device_is_not_taken_for_rfs() {
        let device = Device::open("/dev/null").expect("a device");
        assert_eq!(
            device.hello().expect_err("no rfs").kind(),
            ErrorKind::Unsupported
        );
        let file = FileId::from_raw(1);
        assert_eq!(
            device.path(file).expect_err("no rfs").kind(),
            ErrorKind::Unsupported
        );
        assert_eq!(
            device.lower_fd(file, true).expect_err("no rfs").kind(),
            ErrorKind::Unsupported
        );
    }

    #[test]
    fn end_of_device_is_distinguished_from_no_events() {
        let mut batch = Batch::with_capacity(0);
        let null = Device::open("/dev/null").expect("a device");
        assert!(null.read_batch(&mut batch).expect("read").is_none(), "end");
        let (reader, _writer) = io::pipe().expect("a pipe");
        let idle = Device::open(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&reader)
        ))
        .expect("a pipe opened again");
        let events = idle
            .read_batch(&mut batch)
            .expect("read")
            .expect("not the end");
        assert_eq!(events.count(), 0);
    }

    #[test]
    fn the_nul_of_a_path_is_the_kernels_business() {
        assert_eq!(path_from(b"/a/b\0\0\0".to_vec(), 5), Path::new("/a/b"));
        assert_eq!(path_from(b"\0".to_vec(), 0), Path::new(""));
    }

    #[test]
    fn beacons_and_their_kind_go_together() {
        let mask = Mask::kinds(Kinds::OPEN).progress(1 << 20);
        assert_eq!(mask.kinds, Kinds::OPEN | Kinds::PROGRESS);
        assert_eq!(mask.progress_bytes, 1 << 20);
    }
}
