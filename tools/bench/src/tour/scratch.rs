//! The working folder of a tour: templates, output of commands, and a policy that only the user can
//! change.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Failure, Result, file};
use crate::place::Place;

/// The folder, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) path: PathBuf,
    /// Root's working folder, which the next run cleans up if we are killed.
    place: Option<Place>,
}

impl Scratch {
    pub(super) fn take() -> Result<Self> {
        if nix::unistd::geteuid().is_root() {
            let place = Place::take()?;
            let path = place.path.clone();
            let place = Some(place);
            return Ok(Self { path, place });
        }
        // The user's private directory; without one, the shared temporary directory.
        let base = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let base = base
            .filter(|path| path.is_dir())
            .unwrap_or_else(env::temp_dir);
        let path = own(&base)?;
        Ok(Self { path, place: None })
    }

    /// The place for simulated disks.
    pub(super) fn place(&self) -> Result<&Place> {
        self.place.as_ref().ok_or_else(|| Failure::Unavailable {
            what: "A simulated disk",
            why: "it needs root".to_owned(),
            remedy: "run it as root",
        })
    }

    /// MAIO's library, at a path where no other user can change it, as it would not be run otherwise.
    pub(super) fn library(&self) -> Result<PathBuf> {
        if let Some(place) = &self.place {
            return place.library("maio");
        }
        let built = cprt::daemon::policies::look_up(Path::new("maio"))?;
        if cprt::daemon::trust::check(&built, nix::unistd::geteuid().as_raw()).is_ok() {
            return Ok(built);
        }
        let copy = self.path.join("maio.so");
        fs::copy(&built, &copy).map_err(file("Copying", &built))?;
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&copy, mode).map_err(file("Closing", &copy))?;
        Ok(copy)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A folder on a disk for generated files, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn make(base: &Path) -> Result<Self> {
        fs::create_dir_all(base).map_err(file("Making", base))?;
        own(base).map(Self)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const PREFIX: &str = "ppc-bench.";

/// Makes a folder named after our PID; removes those of processes that have ended.
fn own(base: &Path) -> Result<PathBuf> {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let number = number.and_then(|it| it.parse::<u32>().ok());
        if number.is_some_and(|it| !Path::new("/proc").join(it.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let path = base.join(format!("{PREFIX}{}", std::process::id()));
    fs::create_dir(&path).map_err(file("Making", &path))?;
    let mode = fs::Permissions::from_mode(0o700);
    fs::set_permissions(&path, mode).map_err(file("Closing", &path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_dead_processes_are_removed_others_kept() {
        let base = env::temp_dir().join(format!("ppc-bench-{}-scratch", std::process::id()));
        // No PID is that large.
        for name in ["ppc-bench.99999999", "ppc-bench.x", "other"] {
            fs::create_dir_all(base.join(name)).expect("a folder");
        }
        let folder = Folder::make(&base).expect("a folder of ours");
        let there = |name: &str| base.join(name).exists();
        assert!(!there("ppc-bench.99999999") && there("ppc-bench.x") && there("other"));
        let ours = folder.0.clone();
        assert!(ours.is_dir());
        drop(folder);
        assert!(!ours.exists());
        let _ = fs::remove_dir_all(&base);
    }
}
