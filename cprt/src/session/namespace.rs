//! A private view of the file system, in which we can mount over a directory unseen by other processes.
//!
//! For root that is a mount namespace. An ordinary user gets a user namespace with it and is root there,
//! as mounting requires. A command must not notice that, so it runs in another user namespace within,
//! in which the user has the original ids again ([`become_user`]).

use std::io;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::{Error, Result};

/// The user that a command runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The user's id outside.
    pub uid: u32,
    /// The group's id outside.
    pub gid: u32,
}

/// Leaves the view that other processes share. An ordinary user's process must not have threads yet.
///
/// Returns the user that a command has to become, if it has to.
///
/// # Errors
///
/// The system does not allow it.
pub fn leave() -> Result<Option<User>> {
    let system = |doing| move |source: io::Error| Error::System { doing, source };
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    // In a container, root may have no more rights than other users.
    let plain = uid.is_root() && unshare(CloneFlags::CLONE_NEWNS).is_ok();
    if !plain {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
            .map_err(io::Error::from)
            .map_err(system("Making a private view of the file system"))?;
        map((0, uid.as_raw()), (0, gid.as_raw()))
            .map_err(system("Mapping users of a namespace"))?;
    }
    // Later mounts and unmounts outside show here, and none of ours there.
    let nothing = None::<&str>;
    let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(nothing, "/", nothing, flags, nothing)
        .map_err(io::Error::from)
        .map_err(system("Making mounts private"))?;
    Ok((!uid.is_root()).then(|| User {
        uid: uid.as_raw(),
        gid: gid.as_raw(),
    }))
}

/// Becomes that user again, within the current view.
///
/// # Errors
///
/// The system does not allow it.
pub fn become_user(user: User) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    map((user.uid, 0), (user.gid, 0))
}

/// Maps the namespace's only user and group: (inside, outside).
fn map(uid: (u32, u32), gid: (u32, u32)) -> io::Result<()> {
    let of = |(inside, outside): (u32, u32)| format!("{inside} {outside} 1\n");
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", of(uid))?;
    std::fs::write("/proc/self/gid_map", of(gid))
}
