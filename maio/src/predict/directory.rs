//! A model's folder on disk, for tools: the policy reads through its host.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use super::Library;

/// Upper bound on the nesting of a model's folders; a loop of mounts would exceed it.
const DEEPEST: usize = 8;
/// Upper bound on the files: more than a model has, few enough to list in a second.
const MOST_ENTRIES: usize = 100_000;

/// The files below a folder.
///
/// Links to files are followed, because the cache of Hugging Face consists of them; links to folders
/// are not. Only regular files that are not hidden count.
#[derive(Clone, Debug)]
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    /// The files below this folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Lists the files of a folder, and adds its folders to `todo`.
    fn list(&self, folder: &str, left: &mut usize, todo: &mut Vec<String>) -> Vec<(String, u64)> {
        // The framework does not read a folder that may not be listed, either.
        let Ok(entries) = fs::read_dir(self.root.join(folder)) else {
            return Vec::new();
        };
        let mut files = Vec::new();
        for entry in entries.flatten().take(*left) {
            *left -= 1;
            let (name, Ok(kind)) = (entry.file_name(), entry.file_type()) else {
                continue;
            };
            let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else {
                continue;
            };
            let path = match folder {
                "" => name.to_owned(),
                _ => format!("{folder}/{name}"),
            };
            if kind.is_dir() {
                todo.push(path);
            } else if let Ok(found) = fs::metadata(self.root.join(&path))
                && found.is_file()
            {
                files.push((path, found.len()));
            }
        }
        files
    }
}

impl Library for Directory {
    fn files(&self) -> Vec<(String, u64)> {
        let (mut files, mut left) = (Vec::new(), MOST_ENTRIES);
        let mut level = vec![String::new()];
        for _ in 0..DEEPEST {
            let mut below = Vec::new();
            level.sort();
            for folder in level {
                files.extend(self.list(&folder, &mut left, &mut below));
            }
            level = below;
        }
        files.sort();
        files
    }

    fn read(&self, path: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let below = |part| matches!(part, Component::Normal(_));
        if !Path::new(path).components().all(below) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // O_NONBLOCK: a pipe may have taken the file's place.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(self.root.join(path))?;
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        file.read_at(buf, offset)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("maio-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).expect("a folder");
            Self(path)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn links_of_a_cache_are_followed_and_what_is_no_model_is_left_out() {
        let top = Temporary::new("cache");
        let snapshot = top.0.join("snapshots/abc");
        for folder in [
            top.0.join("blobs"),
            snapshot.join("sub"),
            snapshot.join("a/b/c/d/e/f/g/h"),
        ] {
            fs::create_dir_all(folder).expect("a folder");
        }
        fs::write(top.0.join("blobs/one"), b"weights").expect("a file");
        symlink("../../blobs/one", snapshot.join("model.safetensors")).expect("a link");
        symlink("../../../blobs/one", snapshot.join("sub/more.json")).expect("a link");
        symlink("../../blobs/gone", snapshot.join("gone.json")).expect("a link");
        symlink("../../blobs", snapshot.join("folder")).expect("a link");
        symlink(".", snapshot.join("loop")).expect("a link");
        symlink("/dev/zero", snapshot.join("zero")).expect("a link");
        fs::write(snapshot.join(".hidden"), b"x").expect("a file");
        fs::write(snapshot.join("a/b/c/d/e/f/g/deep"), b"x").expect("a file");
        fs::write(snapshot.join("a/b/c/d/e/f/g/h/deeper"), b"x").expect("a file");

        let directory = Directory::new(&snapshot);
        let expected = [
            ("a/b/c/d/e/f/g/deep", 1),
            ("model.safetensors", 7),
            ("sub/more.json", 7),
        ];
        let files = directory.files();
        assert_eq!(files.len(), expected.len(), "{files:?}");
        for ((path, size), expected) in files.iter().zip(expected) {
            assert_eq!((path.as_str(), *size), expected);
        }

        let mut bytes = [0; 16];
        let read = directory.read("model.safetensors", 2, &mut bytes);
        assert_eq!(read.ok(), Some(5));
        assert_eq!(&bytes[..5], b"ights");
        for path in ["../../blobs/one", "/etc/passwd", "zero", "sub", "none"] {
            assert!(directory.read(path, 0, &mut bytes).is_err(), "{path}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_has_no_files() {
        assert_eq!(Directory::new("/no/such/folder").files(), []);
    }
}
