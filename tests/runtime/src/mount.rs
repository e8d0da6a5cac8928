//! Mounts of rfs or of what replaces it, and their removal after a test.

use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::files::{self, Pattern};
use crate::outcome::{For as _, Outcome, wait_until};

/// A test's own directory on the file system under test.
pub(crate) fn lower_of(test: &str) -> PathBuf {
    files::lower().join(test)
}

/// The mount point of that directory.
pub(crate) fn point_of(test: &str) -> PathBuf {
    Path::new("/mnt").join(test)
}

/// A mount and what it mirrors.
#[derive(Clone, Debug)]
pub(crate) struct Mount {
    pub(crate) lower: PathBuf,
    pub(crate) path: PathBuf,
}

impl Mount {
    /// Mounts the running test's directory at the running test's mount point.
    pub(crate) fn new() -> Outcome<Self> {
        let name = crate::case::scratch();
        let name = name
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Self::at(&lower_of(&name), &point_of(&name))
    }

    /// Mounts any directory anywhere; below [`point_of`] it is unmounted after the test.
    pub(crate) fn at(lower: &Path, path: &Path) -> Outcome<Self> {
        fs::create_dir_all(path)?;
        crate::way::put(lower, path)?;
        Ok(Self {
            lower: lower.to_owned(),
            path: path.to_owned(),
        })
    }

    /// Makes a file of the pattern in the lower directory, not cached.
    pub(crate) fn file(&self, name: &str, seed: u64, size: u64) -> Outcome<Pattern> {
        Pattern::make(&self.lower.join(name), seed, size)
    }

    /// The path of a lower file in the mount.
    pub(crate) fn up(&self, file: &Pattern) -> PathBuf {
        let name = file.lower.strip_prefix(&self.lower);
        self.path.join(name.unwrap_or(&file.lower))
    }

    /// Unmounts it, once no process uses it.
    pub(crate) fn unmount(&self) -> Outcome {
        unmount(&self.path)
    }
}

/// Mounts a device, or another source that the file system takes.
pub(crate) fn mount_type(what: &Path, path: &Path, kind: &str, options: Option<&str>) -> Outcome {
    fs::create_dir_all(path)?;
    mount(Some(what), path, Some(kind), MsFlags::empty(), options)
        .of(format_args!("mounting {kind} on {}", path.display()))
}

pub(crate) fn unmount(path: &Path) -> Outcome {
    let what = format!("{} to be unmounted", path.display());
    wait_until(5, &what, || match umount2(path, MntFlags::empty()) {
        Ok(()) => Ok(Some(())),
        Err(Errno::EBUSY) => Ok(None),
        Err(error) => Err(error.into()),
    })
}

/// The mount points at or below a path, newest last.
fn below(prefix: &Path) -> Outcome<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let paths = table.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(paths
        .map(PathBuf::from)
        .filter(|path| path.starts_with(prefix))
        .collect())
}

/// Undoes the mounts of a test; one that is still in use is a failure.
pub(crate) fn clear(test: &str) -> Outcome {
    let mut outcome = Ok(());
    for prefix in [point_of(test), PathBuf::from("/tmp/cprt")] {
        for path in below(&prefix)?.iter().rev() {
            let undone = unmount(path);
            if undone.is_err() {
                let _ = umount2(path, MntFlags::MNT_DETACH);
            }
            outcome = outcome.and(undone);
        }
    }
    outcome
}
