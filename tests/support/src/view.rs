//! A view of the file system for only a test's thread and the processes that it starts.

use std::io;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Where [`own_view`] shows a folder: only root can change the path to it, wherever the tree is.
pub const TRUSTED: &str = "/mnt";

/// Gives this thread its own mount namespace, and shows a folder at [`TRUSTED`].
///
/// # Errors
///
/// The user is not root, or the container does not allow it.
pub fn own_view(folder: &Path) -> io::Result<()> {
    let nothing = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(nothing, "/", nothing, private, nothing)?;
    mount(Some(folder), TRUSTED, nothing, MsFlags::MS_BIND, nothing)?;
    Ok(())
}
