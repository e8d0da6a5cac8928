//! Names: what a process finds out about files without reading them. It lists directories, and asks for the attributes
//! of entries before it opens some of them; each may have to wait for the device, behind whatever is being loaded.

use std::fs::{self, File};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::DirEntryExt as _;

use nix::fcntl::AtFlags;
use nix::sys::stat::fstatat;

use super::Engine;
use crate::backend::{Fault, How, Loaded};

/// Upper bound on the entries of a directory that are listed.
const MOST_LISTED: usize = 1 << 16;
/// Upper bound on the entries of a directory whose attributes are asked for: of larger ones, such as a system's
/// libraries, a start needs few.
const MOST: usize = 1024;

impl Engine {
    /// Brings the names of a directory's entries into memory, and their attributes.
    pub(crate) fn look_into(&self, folder: &File, how: How) -> Result<Loaded, Fault> {
        let flight = self.begin(how.cookie);
        let listed = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))?;
        let mut entries: Vec<_> = listed
            .take(MOST_LISTED)
            .flatten()
            .map(|entry| (entry.ino(), entry.file_name()))
            .collect();
        if entries.len() > MOST {
            entries.clear();
        }
        // Neighbouring inodes lie in the same block.
        entries.sort_unstable();
        for (_, name) in entries {
            if flight.stopped() {
                return Ok(Loaded {
                    stopped: true,
                    ..Loaded::default()
                });
            }
            // Gone meanwhile, or not for us: the process finds that out, too.
            let _ = fstatat(folder.as_fd(), &*name, AtFlags::AT_SYMLINK_NOFOLLOW);
        }
        Ok(Loaded {
            done: self.page,
            ..Loaded::default()
        })
    }
}
