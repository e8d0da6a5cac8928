//! A test's own folders.

use std::fs;
use std::path::{Path, PathBuf};

/// A new folder below the system's folder for temporary files; it is removed with its value.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes a folder. Its path contains the process id, so `name` has to be unique only within a program.
    ///
    /// # Panics
    ///
    /// The folder cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        // Not below the target directory, whose path may be too long for a socket.
        Self::within(&std::env::temp_dir(), name)
    }

    /// Makes a folder elsewhere.
    ///
    /// # Panics
    ///
    /// The folder cannot be made.
    #[must_use]
    pub fn within(parent: &Path, name: &str) -> Self {
        let path = parent.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a folder that is not there yet");
        let path = path.canonicalize().expect("the new folder");
        Self { path }
    }

    /// Its path, without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into it, and makes the folders on the way.
    ///
    /// # Panics
    ///
    /// The file cannot be written.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("folders on the way to a file");
        }
        fs::write(&path, bytes).expect("a file of the test's own");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_gone_with_its_value() {
        let folder = Folder::new("test-support");
        let file = folder.write("a/b", "c");
        assert_eq!(fs::read(&file).expect("the file"), b"c");
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists(), "{}", path.display());
    }
}
