//! The working folder of a measurement, which only one process at a time can have.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::error::{Failure, Result, file};
use crate::{cgroup, leftovers};

const ROOT: &str = "/run/ppc-bench";
const LOCK: &str = "lock";

/// The folder, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    _lock: Flock<File>,
}

impl Place {
    /// Takes the folder, and cleans up after processes that were killed.
    pub(crate) fn take() -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Failure::Unavailable {
                what: "The testbed",
                why: "loop devices, mounts, memory cgroups and tracepoints are for root".to_owned(),
                remedy: "run it as root",
            });
        }
        let root = Path::new(ROOT);
        let lock = lock(root)?;
        cgroup::clear();
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            if entry.file_name() != LOCK {
                eprintln!(
                    "cleaning up after a ppc-bench that was killed: {}",
                    entry.path().display()
                );
                leftovers::clear(&entry.path(), None);
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let path = root.join(std::process::id().to_string());
        fs::create_dir(&path).map_err(file("Making", &path))?;
        Ok(Self { path, _lock: lock })
    }

    /// A copy of the library of an installed policy, by its name.
    pub(crate) fn library(&self, name: &str) -> Result<PathBuf> {
        self.copy_of(&cprt::daemon::policies::look_up(Path::new(name))?, name)
    }

    /// A copy of a policy's library that only root can change: a worker run by root accepts no other, and
    /// the tree may be below a user's home or `/tmp`. A user who could change the library there could
    /// change this program as well.
    pub(crate) fn copy_of(&self, from: &Path, name: &str) -> Result<PathBuf> {
        let to = self.folder("lib")?.join(format!("{name}.so"));
        if !to.exists() {
            fs::copy(from, &to).map_err(file("Copying", from))?;
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(&to, mode).map_err(file("Closing", &to))?;
        }
        Ok(to)
    }

    /// A folder inside it, created if necessary.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).map_err(file("Making", &path))?;
        Ok(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A mount that cannot be removed stays.
        leftovers::clear(&self.path, None);
        let _ = fs::remove_dir_all(&self.path);
        let root = Path::new(ROOT);
        let _ = fs::remove_file(root.join(LOCK));
        let _ = fs::remove_dir(root);
    }
}

/// A lock that only one process holds. Its previous holder may be removing the lock file just now.
fn lock(root: &Path) -> Result<Flock<File>> {
    let path = root.join(LOCK);
    loop {
        fs::create_dir_all(root).map_err(file("Making", root))?;
        let lock = File::create(&path).map_err(file("Opening", &path))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|_| {
            Failure::Said(
                "Another ppc-bench is running, and the two would disturb each other".to_owned(),
            )
        })?;
        let ours = lock.metadata().map_err(file("Looking at", &path))?;
        if fs::metadata(&path).is_ok_and(|there| there.ino() == ours.ino()) {
            return Ok(lock);
        }
    }
}
