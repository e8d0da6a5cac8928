//! Files that are on the disk and not in the page cache.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

/// Writes a file's dirty pages to the disk and drops the file from the page cache. This is best effort:
/// pages that a process maps stay, and on tmpfs all do.
///
/// # Errors
///
/// The file cannot be opened, or not be written to the disk.
pub fn drop_cached(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(posix_fadvise(
        &file,
        0,
        0,
        PosixFadviseAdvice::POSIX_FADV_DONTNEED,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;

    #[test]
    fn file_dropped_from_the_cache_is_still_readable() {
        let folder = Folder::new("test-support-cold");
        let file = folder.write("f", [7; 9000]);
        drop_cached(&file).expect("to drop it");
        assert_eq!(std::fs::read(&file).expect("to read it"), [7; 9000]);
        assert!(drop_cached(&folder.path().join("missing")).is_err());
    }
}
