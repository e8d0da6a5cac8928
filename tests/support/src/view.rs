//! A view of the file system that only a test's thread has, and what it starts.

use std::io;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Where [`own_view`] shows a folder: only root can change what is on the way there, wherever the tree lies.
pub const TRUSTED: &str = "/mnt";

/// Gives this thread mounts of its own, and shows a folder at [`TRUSTED`].
///
/// # Errors
///
/// That is for root, and not allowed in every container.
pub fn own_view(folder: &Path) -> io::Result<()> {
    let nothing = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(nothing, "/", nothing, private, nothing)?;
    mount(Some(folder), TRUSTED, nothing, MsFlags::MS_BIND, nothing)?;
    Ok(())
}
