//! A view of the file system for only a test's thread and the processes that it starts.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, mknod, stat};

/// Where [`own_view`] shows a folder: only root can change the path to it, wherever the tree is.
pub const TRUSTED: &str = "/mnt";

/// Gives this thread its own mount namespace, and shows a folder at [`TRUSTED`].
///
/// # Errors
///
/// The user is not root, or the container does not allow it.
pub fn own_view(folder: &Path) -> io::Result<()> {
    own_mounts()?;
    let nothing = None::<&str>;
    mount(Some(folder), TRUSTED, nothing, MsFlags::MS_BIND, nothing)?;
    Ok(())
}

/// Gives this thread its own mount namespace, and shows there a `/dev/fuse` that every user may open.
///
/// Without udev, as in most containers, the device is for root.
///
/// # Errors
///
/// The user is not root, or the container does not allow it.
pub fn own_fuse_device() -> io::Result<()> {
    own_mounts()?;
    let nothing = None::<&str>;
    let device = stat("/dev/fuse")?.st_rdev;
    mount(nothing, TRUSTED, Some("tmpfs"), MsFlags::empty(), nothing)?;
    let everyones = Path::new(TRUSTED).join("fuse");
    mknod(&everyones, SFlag::S_IFCHR, Mode::empty(), device)?;
    std::fs::set_permissions(&everyones, Permissions::from_mode(0o666))?;
    mount(
        Some(&everyones),
        "/dev/fuse",
        nothing,
        MsFlags::MS_BIND,
        nothing,
    )?;
    Ok(())
}

fn own_mounts() -> io::Result<()> {
    let nothing = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(nothing, "/", nothing, private, nothing)?;
    Ok(())
}
