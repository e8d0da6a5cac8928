//! What is cached before a run: nothing, or everything.

use std::fs::File;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::error::{Failure, Result, file};
use crate::model::Model;
use crate::sys::Mapped;
use crate::units::PAGE;

/// A page that is just being looked at is not dropped.
const TRIES: u32 = 100;

fn names(model: &Model) -> impl Iterator<Item = &str> {
    let shards = model.shards.iter().map(|shard| shard.name.as_str());
    shards.chain(model.small.iter().map(|(name, _)| *name))
}

/// Drops all of a model from the page cache, and looks whether it is gone.
pub(crate) fn drop_all(model: &Model, folder: &Path) -> Result<()> {
    for name in names(model) {
        let path = folder.join(name);
        let dropped = drop_one(&path).map_err(file("Dropping", &path))?;
        if !dropped {
            return Err(Failure::Said(format!(
                "{} does not leave the page cache: the next run would not be cold",
                path.display()
            )));
        }
    }
    Ok(())
}

fn drop_one(path: &Path) -> std::io::Result<bool> {
    let file = File::open(path)?;
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
    for name in names(model) {
        let path = folder.join(name);
        let read =
            File::open(&path).and_then(|mut from| std::io::copy(&mut from, &mut std::io::sink()));
        read.map_err(file("Reading", &path))?;
    }
    Ok(())
}

/// Bytes of a model that are in the page cache.
pub(crate) fn cached(model: &Model, folder: &Path) -> Result<u64> {
    let mut pages = 0;
    for name in names(model) {
        let path = folder.join(name);
        let resident = File::open(&path).and_then(|file| Mapped::new(&file)?.resident());
        pages += resident.map_err(file("Looking at", &path))?;
    }
    Ok(pages * PAGE)
}
