//! The regular files that paths lead to.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statfs::fstatfs;
use serde::Serialize;

use crate::machine::files::is_of_storage;
use crate::machine::mappings::Identity;
use crate::{Error, Result};

/// A regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFile {
    /// Where it was found.
    pub path: PathBuf,
    /// The same without links.
    pub real: PathBuf,
    /// In bytes.
    pub size: u64,
    identity: Identity,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// Each file once, though several links may lead to it, in the order of the arguments and of their names.
    pub files: Vec<CacheFile>,
    /// What else was there.
    pub left_out: Vec<LeftOut>,
}

/// An entry that is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Where it was found.
    pub path: PathBuf,
    /// Why.
    pub why: Reason,
}

/// Why an entry is skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A pipe, a socket or a device.
    NoFile,
    /// A link to a folder inside of a folder; such a folder has to be named.
    LinkToFolder,
    /// A link that leads to no file: a download that is not complete, for example.
    DanglingLink,
    /// No disk and no network is behind its file system.
    NoStorage,
    /// The system's error.
    Unreadable(String),
}

impl Reason {
    /// Whether a file of the model may be missing, and not only something that no program loads.
    #[must_use]
    pub const fn is_failure(&self) -> bool {
        matches!(self, Self::DanglingLink | Self::Unreadable(_))
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoFile => f.write_str("no regular file"),
            Self::LinkToFolder => {
                f.write_str("a link to a folder: name the folder to include its files")
            }
            Self::DanglingLink => f.write_str("a dangling link: is the download complete?"),
            Self::NoStorage => f.write_str("on a file system without storage behind it"),
            Self::Unreadable(why) => write!(f, "cannot be read: {why}"),
        }
    }
}

impl CacheFile {
    /// Opens the same file again; another one may be at its path by now.
    ///
    /// # Errors
    ///
    /// It is gone, or may not be read.
    pub fn open(&self) -> io::Result<File> {
        let file = open_regular(&self.real)?;
        if Identity::of(&file.metadata()?) == self.identity {
            Ok(file)
        } else {
            Err(io::Error::from_raw_os_error(libc::ESTALE))
        }
    }

    pub(crate) const fn identity(&self) -> Identity {
        self.identity
    }
}

/// Finds the files that these paths lead to, those of folders with all folders in them. Links to files are followed.
///
/// # Errors
///
/// A path itself is not there.
pub fn find(paths: &[PathBuf]) -> Result<Found> {
    let mut search = Search::default();
    for path in paths {
        let at = |source| Error::Read {
            path: path.clone(),
            source,
        };
        if fs::metadata(path).map_err(at)?.is_dir() {
            search.folder(path);
        } else {
            search.entry(path.clone());
        }
    }
    Ok(search.found)
}

#[derive(Default)]
struct Search {
    found: Found,
    files: HashSet<Identity>,
    folders: HashSet<Identity>,
}

impl Search {
    /// Takes all that is in a folder, its files before those of its folders.
    fn folder(&mut self, path: &Path) {
        let mut todo = vec![path.to_owned()];
        while let Some(folder) = todo.pop() {
            let listed = self.list(&folder);
            let (files, mut folders) = match listed {
                Ok(listed) => listed,
                Err(error) => {
                    self.leave_out(folder, Reason::Unreadable(error.to_string()));
                    continue;
                }
            };
            for file in files {
                self.entry(file);
            }
            folders.reverse();
            todo.append(&mut folders);
        }
    }

    /// The entries of a folder in the order of their names: first those that are not folders, then folders. Nothing if
    /// it has been listed before.
    fn list(&mut self, folder: &Path) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        if !self.folders.insert(Identity::of(&fs::metadata(folder)?)) {
            return Ok((files, folders));
        }
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                files.push(entry.path());
            }
        }
        files.sort();
        folders.sort();
        Ok((files, folders))
    }

    fn entry(&mut self, path: PathBuf) {
        match look(&path) {
            Ok(file) => {
                if self.files.insert(file.identity) {
                    self.found.files.push(file);
                }
            }
            Err(why) => self.leave_out(path, why),
        }
    }

    fn leave_out(&mut self, path: PathBuf, why: Reason) {
        self.found.left_out.push(LeftOut { path, why });
    }
}

fn look(path: &Path) -> Result<CacheFile, Reason> {
    let unreadable = |error: io::Error| Reason::Unreadable(error.to_string());
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Reason::DanglingLink),
        done => done.map_err(unreadable)?,
    };
    if metadata.is_dir() {
        return Err(Reason::LinkToFolder);
    }
    if !metadata.is_file() {
        return Err(Reason::NoFile);
    }
    let real = path.canonicalize().map_err(unreadable)?;
    let file = open_regular(&real).map_err(unreadable)?;
    let kind = fstatfs(&file).map_err(|error| unreadable(error.into()))?;
    if !is_of_storage(kind.filesystem_type()) {
        return Err(Reason::NoStorage);
    }
    let metadata = file.metadata().map_err(unreadable)?;
    Ok(CacheFile {
        path: path.to_owned(),
        real,
        size: metadata.len(),
        identity: Identity::of(&metadata),
    })
}

/// Opens a regular file and nothing else: opening a pipe or a device has effects.
fn open_regular(path: &Path) -> io::Result<File> {
    let found = File::from(open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?);
    if !found.metadata()?.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // The same file, even if another one is at its path by now.
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder on storage: the one for temporary files may be in memory.
    fn scratch(name: &str) -> PathBuf {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp");
        let top = top.join(format!("cprt-find-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        fs::create_dir_all(&top).expect("a folder");
        top.canonicalize().expect("it is there")
    }

    #[test]
    fn a_cache_of_downloads_has_each_of_its_files_once() {
        let top = scratch("hub");
        for folder in ["blobs", "snapshots/1/onnx", "snapshots/2"] {
            fs::create_dir_all(top.join(folder)).expect("a folder");
        }
        for blob in ["a", "b"] {
            fs::write(top.join("blobs").join(blob), blob).expect("a file");
        }
        symlink("../../blobs/b", top.join("snapshots/1/z")).expect("a link");
        symlink("../../../blobs/a", top.join("snapshots/1/onnx/a")).expect("a link");
        symlink("../../blobs/a", top.join("snapshots/2/a")).expect("a link");
        symlink("../../blobs/gone", top.join("snapshots/2/gone")).expect("a link");
        symlink("../1", top.join("snapshots/2/folder")).expect("a link");
        let names = |paths: &[&str]| {
            let paths: Vec<_> = paths.iter().map(|path| top.join(path)).collect();
            let found = find(&paths).expect("they are there");
            let real = found.files.iter().map(|file| {
                let real = file.real.strip_prefix(&top).expect("below");
                real.display().to_string()
            });
            (real.collect::<Vec<_>>(), found.left_out)
        };
        let (files, left_out) = names(&["snapshots/1"]);
        assert_eq!(files, ["blobs/b", "blobs/a"], "files before folders");
        assert_eq!(left_out, []);
        let (files, left_out) = names(&["."]);
        assert_eq!(files, ["blobs/a", "blobs/b"]);
        let why: Vec<_> = left_out.into_iter().map(|it| it.why).collect();
        assert_eq!(why, [Reason::LinkToFolder, Reason::DanglingLink]);
        assert!(find(&[top.join("none")]).is_err());
        fs::remove_dir_all(&top).expect("ours");
    }

    #[test]
    fn pipes_are_not_opened_and_another_file_is_not_taken_for_it() {
        let top = scratch("pipe");
        nix::unistd::mkfifo(&top.join("pipe"), Mode::S_IRWXU).expect("a pipe");
        fs::write(top.join("file"), "abc").expect("a file");
        let found = find(&[top.clone(), "/proc/self/status".into()]).expect("there");
        assert_eq!(found.files.len(), 1);
        let why: Vec<_> = found.left_out.into_iter().map(|it| it.why).collect();
        assert_eq!(why, [Reason::NoFile, Reason::NoStorage]);
        let file = &found.files[0];
        file.open().expect("the same");
        fs::write(top.join("new"), "abc").expect("a file");
        fs::rename(top.join("new"), top.join("file")).expect("to replace it");
        let error = file.open().expect_err("another one");
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
        fs::remove_dir_all(&top).expect("ours");
    }
}
