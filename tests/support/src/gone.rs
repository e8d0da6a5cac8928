//! A file system whose server never answers, as a hard mount of NFS whose server is gone.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::Folder;

/// A mount on which each access waits until this is dropped, or until its process is killed.
#[derive(Debug)]
pub struct Gone {
    folder: Folder,
    _server: File,
}

impl Gone {
    /// Mounts it, for all processes.
    ///
    /// # Errors
    ///
    /// The user is not root, or the machine has no FUSE.
    pub fn mount(name: &str) -> io::Result<Self> {
        let server = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse")?;
        let folder = Folder::new(name);
        let fd = server.as_raw_fd();
        let data = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(
            Some("gone"),
            folder.path(),
            Some("fuse"),
            flags,
            Some(data.as_str()),
        )?;
        Ok(Self {
            folder,
            _server: server,
        })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        // Processes that wait go on once the server's descriptor is closed.
        let _ = umount2(self.folder.path(), MntFlags::MNT_DETACH);
    }
}
