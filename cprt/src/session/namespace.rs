//! A view of the file system of our own, in which a directory can be mounted over and nobody else
//! notices.
//!
//! For root that is a mount namespace. An ordinary user gets a user namespace with it, in which to be
//! root: whoever mounts has to be. A command is to notice nothing of that, so it runs in another user
//! namespace within, in which the user is who they were ([`become_user`]).

use std::io;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::{Error, Result};

/// Whom a command is to be run as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// As outside.
    pub uid: u32,
    /// As outside.
    pub gid: u32,
}

/// Leaves everybody else's view. Without being root, the process must not have threads yet.
///
/// Returns who a command is to become, if that takes anything.
///
/// # Errors
///
/// The system does not allow it.
pub fn leave() -> Result<Option<User>> {
    let system = |doing| move |source: io::Error| Error::System { doing, source };
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    // In a container, root may be no more than others.
    let plain = uid.is_root() && unshare(CloneFlags::CLONE_NEWNS).is_ok();
    if !plain {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
            .map_err(io::Error::from)
            .map_err(system("Leaving the others' view of the file system"))?;
        map((0, uid.as_raw()), (0, gid.as_raw())).map_err(system("Naming users of a namespace"))?;
    }
    // What others mount or unmount later shows here, and nothing of ours there.
    let nothing = None::<&str>;
    let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(nothing, "/", nothing, flags, nothing)
        .map_err(io::Error::from)
        .map_err(system("Keeping mounts from the others"))?;
    Ok((!uid.is_root()).then(|| User {
        uid: uid.as_raw(),
        gid: gid.as_raw(),
    }))
}

/// Becomes that user again, in the view that we are in.
///
/// # Errors
///
/// The system does not allow it.
pub fn become_user(user: User) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    map((user.uid, 0), (user.gid, 0))
}

/// Names the one user and the one group there are: inside, outside.
fn map(uid: (u32, u32), gid: (u32, u32)) -> io::Result<()> {
    let of = |(inside, outside): (u32, u32)| format!("{inside} {outside} 1\n");
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", of(uid))?;
    std::fs::write("/proc/self/gid_map", of(gid))
}
