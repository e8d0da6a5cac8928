//! Where things are while something is measured: one folder, and only one process at a time has one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::error::{Failure, Result, file};
use crate::{cgroup, leftovers};

const ROOT: &str = "/run/ppc-bench";

/// A folder; it is gone when this is.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    _lock: Flock<File>,
}

impl Place {
    /// Takes it, and clears up after those that were killed.
    pub(crate) fn take() -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Failure::Unavailable {
                what: "A simulated SSD",
                why: "loop devices, mounts and memory cgroups are for root".to_owned(),
                remedy: "run it as root: 'sudo ppc-bench'",
            });
        }
        let root = Path::new(ROOT);
        fs::create_dir_all(root).map_err(file("Making", root))?;
        let path = root.join("lock");
        let lock = File::create(&path).map_err(file("Opening", &path))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|_| {
            Failure::Said("Another ppc-bench runs, and both would measure each other".to_owned())
        })?;
        cgroup::clear();
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            if entry.file_name() != "lock" {
                eprintln!(
                    "clearing up after one that was killed: {}",
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

    /// A folder in it.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).map_err(file("Making", &path))?;
        Ok(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is mounted there stays, should it not have gone.
        leftovers::clear(&self.path, None);
        let _ = fs::remove_dir_all(&self.path);
    }
}
