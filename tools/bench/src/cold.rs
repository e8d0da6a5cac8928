//! The page cache before a run: without any of the model, or with all of it.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::error::{Failure, Result, file};
use crate::model::Model;
use crate::sys::Mapped;
use crate::units::PAGE;

/// Number of attempts to drop a file's pages. A page that is being accessed is not dropped.
const TRIES: u32 = 100;

fn paths(model: &Model, folder: &Path) -> Vec<PathBuf> {
    let shards = model.shards.iter().map(|shard| shard.name.as_str());
    let names = shards.chain(model.small.iter().map(|(name, _)| *name));
    names.map(|name| folder.join(name)).collect()
}

/// Drops all of a model from the page cache, and checks that it is gone.
pub(crate) fn drop_all(model: &Model, folder: &Path) -> Result<()> {
    drop_files(&paths(model, folder))
}

/// Drops files from the page cache, and checks that they are gone.
pub(crate) fn drop_files(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let dropped = drop_one(path).map_err(file("Dropping", path))?;
        if !dropped {
            return Err(Failure::Said(format!(
                "{} does not leave the page cache, so the next load would not be cold: end the process \
                 that has it mapped or open for writing first",
                path.display()
            )));
        }
    }
    Ok(())
}

fn drop_one(path: &Path) -> std::io::Result<bool> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.len() == 0 {
        return Ok(true);
    }
    // For files of other users, the kernel reports all pages as cached.
    let ours = nix::unistd::geteuid().is_root()
        || metadata.uid() == nix::unistd::geteuid().as_raw()
        || nix::unistd::access(path, nix::unistd::AccessFlags::W_OK).is_ok();
    if !ours {
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        return Ok(true);
    }
    for _ in 0..TRIES {
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        if Mapped::new(&file)?.resident()? == 0 {
            return Ok(true);
        }
        sleep(Duration::from_millis(10));
    }
    Ok(false)
}

/// Reads all of a model.
pub(crate) fn warm_all(model: &Model, folder: &Path) -> Result<()> {
    for path in paths(model, folder) {
        let read =
            File::open(&path).and_then(|mut from| std::io::copy(&mut from, &mut std::io::sink()));
        read.map_err(file("Reading", &path))?;
    }
    Ok(())
}

/// Number of bytes of a model that are in the page cache.
pub(crate) fn cached(model: &Model, folder: &Path) -> Result<u64> {
    let mut pages = 0;
    for path in paths(model, folder) {
        let resident = File::open(&path).and_then(|file| Mapped::new(&file)?.resident());
        pages += resident.map_err(file("Looking at", &path))?;
    }
    Ok(pages * PAGE)
}
