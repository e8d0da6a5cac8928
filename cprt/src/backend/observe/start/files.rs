//! The files of a start: their numbers for policies, their names in the kernel, and their paths. Pure.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ppc::FileId;

use super::super::record::Key;
use super::paths::Opened;
use crate::machine::mappings::Identity;

/// The size of a file that was named and not seen yet: the load finds out its length.
const UNKNOWN: u64 = i64::MAX as u64;

#[derive(Debug)]
struct StartFile {
    /// The path from the root of the machine. That of a directory ends with a slash.
    path: PathBuf,
    size: u64,
    /// Its identity when it was opened last.
    identity: Option<Identity>,
}

/// All files of the start. Numbers count up from 1, and stay.
#[derive(Debug, Default)]
pub(super) struct StartFiles {
    all: Vec<StartFile>,
    by_path: HashMap<PathBuf, FileId>,
    by_key: HashMap<Key, FileId>,
    /// Directories that have been opened.
    folders: HashSet<FileId>,
}

fn place(file: FileId) -> Option<usize> {
    usize::try_from(file.0).ok()?.checked_sub(1)
}

/// Whether a path is that of a directory, as a start names these.
pub(super) fn is_folder(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// The path from the root; not by `Path`, which would take the slash off the end as well.
fn from_root(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    Path::new(OsStr::from_bytes(bytes.strip_prefix(b"/").unwrap_or(bytes)))
}

impl StartFiles {
    /// The number of a file that a policy names, or that has been opened.
    pub(super) fn named(&mut self, path: &Path) -> FileId {
        let path = from_root(path);
        if let Some(&file) = self.by_path.get(path) {
            return file;
        }
        self.all.push(StartFile {
            path: path.to_owned(),
            size: UNKNOWN,
            identity: None,
        });
        let file = FileId(self.all.len() as u64);
        self.by_path.insert(path.to_owned(), file);
        file
    }

    /// Notes an opened file, with the kernel's name for it and its length.
    pub(super) fn found(&mut self, opened: &Opened, key: Key) {
        let file = self.named(&opened.path);
        if let Some(known) = place(file).and_then(|place| self.all.get_mut(place)) {
            (known.size, known.identity) = (opened.size, Some(opened.identity));
        }
        self.by_key.insert(key, file);
    }

    /// Notes an opened directory; its number when it is the first time.
    pub(super) fn found_folder(&mut self, path: &Path) -> Option<FileId> {
        let folder = self.named(path);
        self.folders.insert(folder).then_some(folder)
    }

    /// The number and the size of a file, by the kernel's name.
    pub(super) fn of_key(&self, key: Key) -> Option<(FileId, u64)> {
        let file = *self.by_key.get(&key)?;
        Some((file, self.size(file)?))
    }

    /// The identity of a file that has been opened and is not a shared object: for those, faults are enough, and
    /// looking at their mappings would hold faults up.
    pub(super) fn data(&self, file: FileId) -> Option<Identity> {
        let known = self.get(file)?;
        let name = known.path.file_name()?.to_string_lossy();
        let is_object = name.ends_with(".so") || name.contains(".so.");
        known.identity.filter(|_| !is_object)
    }

    pub(super) fn size(&self, file: FileId) -> Option<u64> {
        self.get(file).map(|known| known.size)
    }

    pub(super) fn path(&self, file: FileId) -> Option<PathBuf> {
        self.get(file).map(|known| known.path.clone())
    }

    fn get(&self, file: FileId) -> Option<&StartFile> {
        self.all.get(place(file)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &mut StartFiles, path: &str, inode: u64, size: u64) {
        let opened = Opened {
            process: 1,
            path: path.into(),
            identity: Identity { device: 1, inode },
            size,
        };
        files.found(&opened, Key { device: 1, inode });
    }

    #[test]
    fn a_file_is_one_by_whichever_way_it_became_known() {
        let mut files = StartFiles::default();
        let key = |inode| Key { device: 1, inode };
        let named = files.named(Path::new("usr/lib/a.so"));
        assert_eq!(files.size(named), Some(UNKNOWN));
        found(&mut files, "/usr/lib/a.so", 7, 100);
        assert_eq!(files.of_key(key(7)), Some((named, 100)));
        found(&mut files, "/usr/lib/b.so", 8, 50);
        let other = files.named(Path::new("usr/lib/b.so"));
        assert_eq!(files.of_key(key(8)), Some((other, 50)));
        assert_ne!(named, other);
        assert_eq!(files.data(other), None, "a shared object");
        found(&mut files, "/m.safetensors", 9, 50);
        let model = files.named(Path::new("m.safetensors"));
        assert_eq!(
            files.data(model),
            Some(Identity {
                device: 1,
                inode: 9
            })
        );
        assert_eq!(
            files.path(other).as_deref(),
            Some(Path::new("usr/lib/b.so"))
        );
        assert_eq!(
            (files.of_key(key(7777)), files.path(FileId(0))),
            (None, None)
        );
    }

    #[test]
    fn a_directory_keeps_the_slash_at_its_end_and_is_found_once() {
        let mut files = StartFiles::default();
        let folder = files.named(Path::new("usr/lib/"));
        assert_eq!(
            files.found_folder(Path::new("/usr/lib/")),
            Some(folder),
            "naming it does not open it"
        );
        assert_eq!(files.found_folder(Path::new("/usr/lib/")), None);
        let path = files.path(folder).expect("its path");
        assert_eq!(path.as_os_str(), "usr/lib/");
        assert!(is_folder(&path) && !is_folder(Path::new("usr/lib/a.so")));
    }

    #[test]
    fn replacement_file_inherits_the_file_id() {
        let mut files = StartFiles::default();
        let key = |inode| Key { device: 1, inode };
        found(&mut files, "/a", 1, 10);
        found(&mut files, "/a", 2, 20);
        let new = files.of_key(key(2)).expect("the new one");
        assert_eq!(new, (files.named(Path::new("a")), 20));
    }
}
