//! The file to read, and the state of the page cache before a run.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::cold;
use crate::error::{Failure, Result, file};
use crate::sys::Mapped;
use crate::tour::Folder;
use crate::units::{MIB, PAGE};

/// Upper bound on the reads of a file until all of it is cached: a virtual machine may have to give memory back.
const TRIES: u32 = 20;

/// A folder with the file, which is removed when this is dropped.
pub(super) struct MeasuredFile {
    _folder: Folder,
    pub(super) lower: PathBuf,
    pub(super) file: PathBuf,
    /// Another file, in another folder.
    pub(super) beside: PathBuf,
}

impl MeasuredFile {
    pub(super) const NAME: &str = "model";

    pub(super) fn make(base: &Path, mib: u64) -> Result<Self> {
        fs::create_dir_all(base).map_err(file("Making", base))?;
        let base = fs::canonicalize(base).map_err(file("Looking up", base))?;
        let folder = Folder::make(&base)?;
        let lower = folder.0.join("lower");
        fs::create_dir(&lower).map_err(file("Making", &lower))?;
        let (path, beside) = (lower.join(Self::NAME), folder.0.join("beside"));
        for path in [&path, &beside] {
            write(path, mib).map_err(file("Writing", path))?;
        }
        Ok(Self {
            _folder: folder,
            lower,
            file: path,
            beside,
        })
    }
}

fn write(path: &Path, mib: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    for number in 0..mib {
        let block: Vec<u8> = (0..MIB)
            .map(|at| ((at * 31 + number) % 251).to_le_bytes()[0])
            .collect();
        file.write_all(&block)?;
    }
    file.sync_all()
}

/// Drops the file from the page cache, by each of its paths.
pub(super) fn cool(paths: &[PathBuf]) -> Result<()> {
    cold::drop_files(paths)
}

/// Reads `path` until all of `cached` is in the page cache.
pub(super) fn warm(path: &Path, cached: &Path) -> Result<()> {
    for _ in 0..TRIES {
        File::open(path)
            .and_then(|mut from| std::io::copy(&mut from, &mut std::io::sink()))
            .map_err(file("Reading", path))?;
        if is_warm(cached)? {
            return Ok(());
        }
    }
    Err(Failure::Said(format!(
        "reading {} does not fill the page cache of {}: there is too little memory, or the kernel does \
         not pass reads of this file system through FUSE",
        path.display(),
        cached.display()
    )))
}

/// Whether nearly all of the file is in the page cache: a host may take some unused memory back.
pub(super) fn is_warm(path: &Path) -> Result<bool> {
    let look = || -> std::io::Result<(u64, u64)> {
        let file = File::open(path)?;
        let pages = file.metadata()?.len().div_ceil(PAGE);
        Ok((Mapped::new(&file)?.resident()?, pages))
    };
    let (cached, pages) = look().map_err(file("Looking at", path))?;
    Ok(cached + pages / 100 >= pages)
}
