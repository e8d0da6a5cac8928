//! System calls around a FUSE mount: clearing dead ones, setting readahead, unmounting.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, umount2};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, fstatfs, statfs};

use crate::machine::mountinfo;

/// Unmounts what a killed mirror has left: its mount answers only ENOTCONN. Dead mounts of other
/// programs stay.
pub(super) fn clear_dead(at: &Path) -> io::Result<()> {
    loop {
        // Unlike attributes, the kernel never caches these.
        match statfs(at) {
            Ok(_) => return Ok(()),
            Err(nix::errno::Errno::ENOTCONN) if is_ours(at) => detach(at)?,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the topmost mount there is a mirror. It may be dead, so this looks only at the parent
/// directory and the list of mounts.
fn is_ours(at: &Path) -> bool {
    let parent = at.parent().and_then(|parent| parent.canonicalize().ok());
    let (Some(parent), Some(name)) = (parent, at.file_name()) else {
        return false;
    };
    mountinfo::mounted_at(&parent.join(name)).is_some_and(|mount| mount.kind == mountinfo::MIRROR)
}

/// Unmounts it now, or once it is no longer in use.
pub(super) fn detach(at: &Path) -> io::Result<()> {
    let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
    match umount2(at, flags) {
        Err(nix::errno::Errno::EPERM) => by_helper(at),
        done => Ok(done?),
    }
}

/// Unmounts as an ordinary user.
fn by_helper(at: &Path) -> io::Result<()> {
    let done = Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(at)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if done.success() {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

/// The device number of the mount there.
pub(super) fn device(at: &Path) -> io::Result<u64> {
    Ok(std::fs::metadata(at)?.dev())
}

/// Has the kernel read ahead this far for files opened from now on. More than its default has to be set
/// here: the FUSE protocol can only ask for less.
pub(super) fn raise_readahead(device: u64, kib: u64) -> io::Result<()> {
    let (major, minor) = (major(device), minor(device));
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let now = std::fs::read_to_string(&path)?;
    if now.trim().parse().is_ok_and(|now: u64| now >= kib) {
        return Ok(());
    }
    std::fs::write(path, kib.to_string())
}

/// How many file systems the mount may stack: one more where the lower one is itself on top of another.
/// As few as will do, because this counts against file systems that are stacked on the mount.
pub(super) fn depth(lower: BorrowedFd<'_>) -> u32 {
    let stacked = [OVERLAYFS_SUPER_MAGIC, FUSE_SUPER_MAGIC];
    let kind = fstatfs(lower).map(|stat| stat.filesystem_type());
    1 + u32::from(kind.is_ok_and(|kind| stacked.contains(&kind)))
}

/// Whether the kernel lets us register files for passthrough. It keeps an empty one of ours for as long
/// as the mount exists.
pub(super) fn may_pass_through(device: BorrowedFd<'_>) -> io::Result<()> {
    let file = memfd_create("passthrough", MFdFlags::MFD_CLOEXEC)?;
    fuser::BackingId::create_raw(device, file.as_fd()).map(drop)
}

/// Whether each thread can open its own descriptor, and so need not wait for the others. A mount made by the
/// helper program has only one.
pub(super) fn may_open_device() -> bool {
    let device = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    device.is_ok()
}

/// Raises the limit of descriptors: the mirror holds one for each directory that the kernel knows and each open file.
pub(super) fn allow_many_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // With fewer, it works until they run out.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
