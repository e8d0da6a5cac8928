//! Opens and closes of files, by fanotify, and new and removed files, by inotify.
//!
//! Both watch directories. Opens are watched only while the policy wants them: every read of a watched
//! file costs a little more.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags as Flags, Inotify};
use ppc::Kind;

use crate::machine::mappings::Identity;

/// An open or close of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    /// OPEN or CLOSE.
    pub(super) kind: Kind,
    pub(super) process: u32,
    pub(super) file: Identity,
    pub(super) size: u64,
}

/// The source of opens and closes.
#[derive(Debug)]
pub(super) struct Opens(Fanotify);

impl Opens {
    pub(super) fn new() -> io::Result<Self> {
        let flags = InitFlags::FAN_CLASS_NOTIF | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
        let files = EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC | EventFFlags::O_LARGEFILE;
        Ok(Self(Fanotify::init(flags, files)?))
    }

    /// Watches the files of a directory.
    pub(super) fn watch(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        let mask = MaskFlags::FAN_OPEN
            | MaskFlags::FAN_CLOSE_WRITE
            | MaskFlags::FAN_CLOSE_NOWRITE
            | MaskFlags::FAN_EVENT_ON_CHILD;
        let path = through(directory);
        Ok(self.0.mark(
            MarkFlags::FAN_MARK_ADD,
            mask,
            directory,
            Some(path.as_str()),
        )?)
    }

    /// Stops watching.
    pub(super) fn rest(&self) -> io::Result<()> {
        let all = MarkFlags::FAN_MARK_FLUSH;
        let root = std::fs::File::open("/")?;
        Ok(self.0.mark(all, MaskFlags::empty(), &root, None::<&Path>)?)
    }

    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Takes all opens and closes but those of this process; returns how many were lost.
    pub(super) fn take(&self, into: &mut Vec<Opened>) -> u64 {
        let mut lost = 0;
        // An error means that there is nothing more, or that a file could not be opened for us; there
        // will be other events of that file.
        while let Ok(events) = self.0.read_events() {
            if events.is_empty() {
                break;
            }
            for event in events {
                let mask = event.mask();
                let Some(fd) = event.fd() else {
                    lost += u64::from(mask.contains(MaskFlags::FAN_Q_OVERFLOW));
                    continue;
                };
                let process = u32::try_from(event.pid()).unwrap_or(0);
                if process == 0 || process == std::process::id() {
                    continue;
                }
                let Ok(stat) = nix::sys::stat::fstat(fd) else {
                    continue;
                };
                let opened = |kind| Opened {
                    kind,
                    process,
                    file: Identity {
                        device: stat.st_dev,
                        inode: stat.st_ino,
                    },
                    size: u64::try_from(stat.st_size).unwrap_or(0),
                };
                let closes = MaskFlags::FAN_CLOSE_WRITE | MaskFlags::FAN_CLOSE_NOWRITE;
                // The kernel reports both in one event if they come shortly after each other.
                if mask.contains(MaskFlags::FAN_OPEN) {
                    into.push(opened(Kind::Open));
                }
                if mask.intersects(closes) {
                    into.push(opened(Kind::Close));
                }
            }
        }
        lost
    }
}

/// Reports that files have come, gone or moved.
#[derive(Debug)]
pub(super) struct NameChanges(Inotify);

/// The changes since the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) files: bool,
    /// A file system is no longer mounted.
    pub(super) unmounted: bool,
}

impl NameChanges {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Inotify::init(Flags::IN_CLOEXEC | Flags::IN_NONBLOCK)?))
    }

    /// Watches a directory, once or again.
    pub(super) fn watch(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        let mask = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_ONLYDIR;
        self.0.add_watch(through(directory).as_str(), mask)?;
        Ok(())
    }

    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(super) fn take(&self) -> Changed {
        let mut changed = Changed::default();
        loop {
            match self.0.read_events() {
                Ok(events) if events.is_empty() => break,
                Ok(events) => {
                    for event in events {
                        let gone = AddWatchFlags::IN_UNMOUNT;
                        changed.unmounted |= event.mask.contains(gone);
                        changed.files = true;
                    }
                }
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        changed
    }
}

/// A path to the file of a descriptor.
fn through(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
