//! The files below a directory: their numbers for policies, their names in stat and in the kernel, and
//! their paths. Pure.
//!
//! Our numbers count up and are never used again. A file keeps its number while it exists, wherever
//! it is moved to; another file at its path gets another number. A file that a policy has opened is
//! remembered when it is gone, so that the policy learns that it is.

use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::path::PathBuf;
use std::time::SystemTime;

use super::record::Key;
use crate::machine::mappings::Identity;

/// A file that has been found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    /// When it was made, if known: the file system reuses inode numbers.
    pub(super) born: Option<SystemTime>,
    pub(super) size: u64,
}

impl Found {
    pub(super) fn new(path: PathBuf, metadata: &Metadata) -> Self {
        Self {
            path,
            identity: Identity::of(metadata),
            born: metadata.created().ok(),
            size: metadata.len(),
        }
    }
}

/// A file that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    pub(super) born: Option<SystemTime>,
    pub(super) size: u64,
    /// The kernel's name for it; `None` until that is learned.
    key: Option<Key>,
    /// How often a policy has opened it.
    holders: usize,
    /// Whether it was there at the last scan.
    there: bool,
}

/// All known files.
#[derive(Debug, Default)]
pub(super) struct FileTable {
    last: u64,
    files: HashMap<u64, Known>,
    by_identity: HashMap<Identity, u64>,
    by_key: HashMap<Key, u64>,
}

impl FileTable {
    /// Replaces the existing files by these.
    pub(super) fn replace(&mut self, found: Vec<Found>) {
        let (mut seen, mut there) = (HashSet::new(), HashSet::new());
        for file in found {
            // The first of several paths is as good as any.
            if seen.insert(file.identity) {
                there.insert(self.add(file));
            }
        }
        for (file, known) in &mut self.files {
            known.there = there.contains(file);
        }
        let gone = |known: &Known| !known.there;
        self.by_identity.retain(|_, file| there.contains(file));
        let files = &self.files;
        self.by_key
            .retain(|_, file| files.get(file).is_some_and(|known| known.there));
        self.files
            .retain(|_, known| !gone(known) || known.holders > 0);
    }

    /// Adds or updates a file, and returns its number.
    pub(super) fn add(&mut self, found: Found) -> u64 {
        let Found {
            path,
            identity,
            born,
            size,
        } = found;
        if let Some(&file) = self.by_identity.get(&identity)
            && let Some(known) = self.files.get_mut(&file)
        {
            if known.born == born {
                (known.path, known.size) = (path, size);
                return file;
            }
            known.there = false;
        }
        self.last += 1;
        let known = Known {
            path,
            identity,
            born,
            size,
            key: None,
            holders: 0,
            there: true,
        };
        self.files.insert(self.last, known);
        self.by_identity.insert(identity, self.last);
        self.last
    }

    /// The files whose name in the kernel is unknown, the smallest first.
    pub(super) fn unknown(&self) -> Vec<(u64, Known)> {
        let unknown = |(_, known): &(&u64, &Known)| known.there && known.key.is_none();
        let mut files: Vec<_> = self
            .files
            .iter()
            .filter(unknown)
            .map(|(&file, known)| (file, known.clone()))
            .collect();
        files.sort_unstable_by_key(|(file, known)| (known.size, *file));
        files
    }

    pub(super) fn learn(&mut self, file: u64, key: Key) {
        if let Some(known) = self.files.get_mut(&file)
            && known.there
        {
            known.key = Some(key);
            self.by_key.insert(key, file);
        }
    }

    /// The names of all files that the kernel is to report.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.by_key.keys().copied().collect()
    }

    /// The number and the size of a file by the kernel's name.
    pub(super) fn of_key(&self, key: Key) -> Option<(u64, u64)> {
        let file = *self.by_key.get(&key)?;
        Some((file, self.files.get(&file)?.size))
    }

    pub(super) fn of_identity(&self, identity: Identity) -> Option<u64> {
        self.by_identity.get(&identity).copied()
    }

    pub(super) fn get(&self, file: u64) -> Option<&Known> {
        self.files.get(&file)
    }

    pub(super) fn resize(&mut self, file: u64, size: u64) {
        if let Some(known) = self.files.get_mut(&file) {
            known.size = size;
        }
    }

    /// Notes that a policy has opened it.
    pub(super) fn hold(&mut self, file: u64) {
        if let Some(known) = self.files.get_mut(&file) {
            known.holders += 1;
        }
    }

    /// Notes that the policy has closed it; returns whether it was open.
    pub(super) fn release(&mut self, file: u64) -> bool {
        let Some(known) = self.files.get_mut(&file) else {
            return false;
        };
        let had = known.holders > 0;
        known.holders = known.holders.saturating_sub(1);
        if known.holders == 0 && !known.there {
            self.files.remove(&file);
        }
        had
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_identity.len()
    }

    /// The number of the file at a path, for tests.
    #[cfg(test)]
    fn at(&self, path: &std::path::Path) -> Option<u64> {
        let mut files = self.files.iter();
        let at = |(_, known): &(&u64, &Known)| known.there && known.path == path;
        files.find(at).map(|(&file, _)| file)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn found(path: &str, inode: u64) -> Found {
        let identity = Identity { device: 1, inode };
        Found {
            path: path.into(),
            identity,
            born: Some(SystemTime::UNIX_EPOCH),
            size: inode * 10,
        }
    }

    fn key(inode: u64) -> Key {
        Key { device: 2, inode }
    }

    #[test]
    fn file_number_follows_moves_and_is_never_reused() {
        let mut table = FileTable::default();
        table.replace(vec![found("a", 1), found("b", 2), found("also-a", 1)]);
        let (a, b) = (table.at(Path::new("a")), table.at(Path::new("b")));
        assert_eq!(
            (a, b, table.len()),
            (Some(1), Some(2), 2),
            "a file with two paths is one"
        );
        let unknown: Vec<_> = table.unknown().into_iter().map(|(file, _)| file).collect();
        assert_eq!(unknown, [1, 2]);
        table.learn(1, key(7));
        table.learn(2, key(8));
        assert_eq!(table.of_key(key(7)), Some((1, 10)));
        assert_eq!(table.unknown(), []);
        table.replace(vec![found("moved", 1), found("b", 3)]);
        assert_eq!(table.at(Path::new("moved")), Some(1));
        assert_eq!(table.at(Path::new("b")), Some(3), "another file is another");
        assert_eq!(
            (table.of_key(key(7)), table.of_key(key(8))),
            (Some((1, 10)), None)
        );
        assert_eq!(table.keys(), [key(7)]);
        assert_eq!(table.get(2), None);
        table.replace(vec![found("back", 2)]);
        assert_eq!(
            table.at(Path::new("back")),
            Some(4),
            "numbers are not used again"
        );
    }

    #[test]
    fn another_file_with_the_number_of_an_old_one_is_another() {
        let mut table = FileTable::default();
        let old = table.add(found("a", 1));
        table.hold(old);
        table.learn(old, key(1));
        let new = Found {
            born: None,
            ..found("a", 1)
        };
        table.replace(vec![new]);
        assert_eq!(table.at(Path::new("a")), Some(2));
        assert_eq!(table.of_key(key(1)), None);
        table.learn(2, key(1));
        assert_eq!(table.of_key(key(1)), Some((2, 10)));
        assert!(table.release(old));
        assert_eq!((table.get(old), table.keys()), (None, vec![key(1)]));
    }

    #[test]
    fn held_file_stays_in_the_table_until_released() {
        let mut table = FileTable::default();
        let file = table.add(found("a", 1));
        table.learn(file, key(1));
        table.hold(file);
        table.hold(file);
        table.replace(Vec::new());
        assert!(table.get(file).is_some());
        assert_eq!((table.of_key(key(1)), table.keys()), (None, Vec::new()));
        assert_eq!(table.unknown(), [], "it cannot be learned any more");
        assert!(table.release(file) && table.release(file));
        assert!(!table.release(file));
        assert_eq!(table.get(file), None);
        let file = table.add(found("b", 2));
        assert!(!table.release(file), "it is not open");
        table.resize(file, 5);
        assert_eq!(table.get(file).map(|known| known.size), Some(5));
    }
}
