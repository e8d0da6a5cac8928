//! Files and directories that are opened on the file systems of this machine, with their paths, by fanotify.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::readlinkat;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use nix::sys::stat::SFlag;

use crate::machine::mappings::Identity;
use crate::machine::mountinfo::{self, Mount};

/// A file or a directory that a process has opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) process: u32,
    /// That of a directory ends with a slash.
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    pub(super) size: u64,
}

/// The source of opens.
#[derive(Debug)]
pub(super) struct OpenedPaths {
    opens: Fanotify,
    /// `/proc/self/fd`, which would otherwise be looked up for each open.
    descriptors: File,
}

impl OpenedPaths {
    pub(super) fn new() -> io::Result<Self> {
        let flags = InitFlags::FAN_CLASS_NOTIF
            | InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_UNLIMITED_QUEUE;
        let files = EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC | EventFFlags::O_LARGEFILE;
        Ok(Self {
            opens: Fanotify::init(flags, files)?,
            descriptors: File::open("/proc/self/fd")?,
        })
    }

    /// Watches all file systems with storage behind them that this process sees, or that `also` does.
    pub(super) fn watch(&self, also: Option<u32>) -> io::Result<()> {
        let mounts = mountinfo::read(Path::new("/proc"))?;
        let mut points = points(&mounts);
        if let Some(process) = also {
            // The process may have ended.
            points.extend(points_of(process).unwrap_or_default());
        }
        for point in points {
            let flags = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
            let opens = MaskFlags::FAN_OPEN | MaskFlags::FAN_ONDIR;
            let here = nix::fcntl::AT_FDCWD;
            if let Err(error) = self.opens.mark(flags, opens, here, Some(&point)) {
                // Something may be mounted over it, or the file system cannot be watched.
                log::debug!("Watching {}: {error}", point.display());
            }
        }
        Ok(())
    }

    /// Stops watching.
    pub(super) fn rest(&self) -> io::Result<()> {
        let all = MarkFlags::FAN_MARK_FLUSH | MarkFlags::FAN_MARK_FILESYSTEM;
        let here = nix::fcntl::AT_FDCWD;
        Ok(self.opens.mark(all, MaskFlags::empty(), here, Some("/"))?)
    }

    /// Passes on files that other processes have opened. Returns how many opens were lost.
    pub(super) fn take(&self, mut each: impl FnMut(Opened, BorrowedFd<'_>)) -> u64 {
        let mut lost = 0;
        // An error means that there is nothing more, or that a file could not be opened for us.
        while let Ok(events) = self.opens.read_events() {
            if events.is_empty() {
                break;
            }
            for event in events {
                let Some(fd) = event.fd() else {
                    lost += u64::from(event.mask().contains(MaskFlags::FAN_Q_OVERFLOW));
                    continue;
                };
                let process = u32::try_from(event.pid()).unwrap_or(0);
                if process == std::process::id() {
                    continue;
                }
                if let Some(opened) = self.look(process, fd) {
                    each(opened, fd);
                }
            }
        }
        lost
    }

    /// Path, identity and size of a file; `None` if it has no path here.
    fn look(&self, process: u32, fd: BorrowedFd<'_>) -> Option<Opened> {
        let stat = nix::sys::stat::fstat(fd.as_fd()).ok()?;
        if stat.st_nlink == 0 {
            return None;
        }
        let number = fd.as_raw_fd().to_string();
        let mut path = PathBuf::from(readlinkat(&self.descriptors, number.as_str()).ok()?);
        if SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR {
            path.push("");
        }
        let identity = Identity {
            device: stat.st_dev,
            inode: stat.st_ino,
        };
        path.is_absolute().then_some(Opened {
            process,
            path,
            identity,
            size: u64::try_from(stat.st_size).unwrap_or(0),
        })
    }
}

/// As [`points`], for the mounts that another process sees, through its root directory.
fn points_of(process: u32) -> io::Result<Vec<PathBuf>> {
    let folder = Path::new("/proc").join(process.to_string());
    let mounts = mountinfo::parse(&std::fs::read(folder.join("mountinfo"))?);
    let root = folder.join("root");
    let below = |point: PathBuf| Some(root.join(point.strip_prefix("/").ok()?));
    Ok(points(&mounts).into_iter().filter_map(below).collect())
}

/// One mount of each file system that has storage behind it.
fn points(mounts: &[Mount]) -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    let has_storage = |mount: &&Mount| {
        !mountinfo::is_made_up(&mount.kind) && !mountinfo::is_in_memory(&mount.kind)
    };
    let new = |mount: &&Mount| seen.insert((mount.major, mount.minor));
    let points = mounts.iter().filter(has_storage).filter(new);
    points.map(|mount| mount.point.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::files::is_of_storage;

    #[test]
    fn file_systems_with_storage_are_watched_once() {
        let text = b"1 0 254:0 / / rw - ext4 /dev/vda rw\n\
            2 1 0:5 / /proc rw - proc proc rw\n\
            3 1 0:6 / /tmp rw - tmpfs tmpfs rw\n\
            4 1 254:0 /srv /srv rw - ext4 /dev/vda rw\n\
            5 1 254:16 / /models rw - xfs /dev/vdb rw\n\
            6 1 0:44 / /net rw - nfs4 server:/ rw\n";
        let points = points(&mountinfo::parse(text));
        let expected = ["/", "/models", "/net"].map(PathBuf::from);
        assert_eq!(points, expected);
    }

    #[test]
    fn proc_and_sys_are_not_storage() {
        for path in [
            "/proc/version",
            "/sys/kernel/mm/transparent_hugepage/enabled",
        ] {
            let file = std::fs::File::open(path).expect("a file");
            let kind = nix::sys::statfs::fstatfs(&file).expect("its file system");
            assert!(!is_of_storage(kind.filesystem_type()), "{path}");
        }
    }
}
