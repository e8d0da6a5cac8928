//! The files that the kernel knows, by their numbers. Pure: the caller looks files up.
//!
//! A file's number is its inode number on the lower file system, so that it stays the same as long
//! as the file exists, whatever the kernel forgets meanwhile. Two kinds of files get a number of ours
//! instead: inode 1, which in FUSE is the root, and files on another device, as in a subvolume, where
//! the same numbers occur again.
//!
//! Only directories are held open. A file is known by its directory and name, and the file found there
//! later is compared with the one found first: holding every file open would keep deleted models on the
//! disk, and take a descriptor for each. When the lower file system gives a number to a new file
//! while the kernel still knows the old one, the time of birth, which the kernel gets as the generation,
//! tells them apart.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;

use super::identity::{ContentStamp, FileIdentity};
use super::lower::{Directory, Lower};

/// The number of the root in FUSE.
pub(crate) const ROOT: u64 = 1;

/// Numbers from here on are ours.
const OURS: u64 = 1 << 63;

/// Where a file is on the lower file system.
#[derive(Clone, Debug)]
pub(crate) enum LowerPlace {
    Directory(Arc<Directory>),
    Leaf {
        parent: Arc<Directory>,
        name: OsString,
    },
}

/// A file that the kernel knows.
#[derive(Debug)]
pub(crate) struct MirrorNode {
    pub(crate) identity: FileIdentity,
    pub(crate) place: LowerPlace,
    /// The contents that the kernel's pages come from.
    pub(crate) stamp: ContentStamp,
    /// The lower file, while a process has it open.
    pub(crate) opened: Option<Arc<Lower>>,
    opens: u64,
    lookups: u64,
}

/// What [`NodeTable::intern`] returns about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownNode {
    pub(crate) id: u64,
    pub(crate) generation: u64,
    /// The kernel has cached no part of the file.
    pub(crate) fresh: bool,
}

/// All files that the kernel knows.
#[derive(Debug)]
pub(crate) struct NodeTable {
    nodes: HashMap<u64, MirrorNode>,
    numbers: HashMap<(u64, u64), u64>,
    device: u64,
    next: u64,
}

impl NodeTable {
    pub(crate) fn new(root: Arc<Directory>, identity: FileIdentity) -> Self {
        let node = MirrorNode {
            identity,
            place: LowerPlace::Directory(root),
            stamp: ContentStamp::default(),
            opened: None,
            opens: 0,
            lookups: 1,
        };
        Self {
            nodes: HashMap::from([(ROOT, node)]),
            numbers: HashMap::from([((identity.device, identity.inode), ROOT)]),
            device: identity.device,
            next: OURS,
        }
    }

    pub(crate) fn get(&self, id: u64) -> Option<&MirrorNode> {
        self.nodes.get(&id)
    }

    /// The number of a file that is known.
    #[cfg(test)]
    pub(crate) fn find(&self, device: u64, inode: u64) -> Option<u64> {
        self.numbers.get(&(device, inode)).copied()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Notes that a lookup of the kernel found this file: from now on it knows the file, by one more lookup.
    pub(crate) fn intern(
        &mut self,
        identity: FileIdentity,
        place: LowerPlace,
        stamp: ContentStamp,
    ) -> KnownNode {
        let key = (identity.device, identity.inode);
        let id = match self.numbers.get(&key) {
            Some(&id) => id,
            None => self.number(identity),
        };
        self.numbers.insert(key, id);
        let generation = identity.birth;
        if let Some(node) = self.nodes.get_mut(&id) {
            let fresh = node.identity != identity;
            node.lookups += 1;
            if fresh {
                (node.identity, node.stamp) = (identity, stamp);
            }
            // A directory that is held stays; of a file's names, the last one counts.
            if fresh || matches!(place, LowerPlace::Leaf { .. }) {
                node.place = place;
            }
            return KnownNode {
                id,
                generation,
                fresh,
            };
        }
        let node = MirrorNode {
            identity,
            place,
            stamp,
            opened: None,
            opens: 0,
            lookups: 1,
        };
        self.nodes.insert(id, node);
        KnownNode {
            id,
            generation,
            fresh: true,
        }
    }

    fn number(&mut self, identity: FileIdentity) -> u64 {
        let usual = identity.device == self.device && (ROOT + 1..OURS).contains(&identity.inode);
        if usual {
            return identity.inode;
        }
        self.next += 1;
        self.next
    }

    /// Notes that the kernel forgets this many lookups; returns whether it has forgotten the file.
    pub(crate) fn forget(&mut self, id: u64, lookups: u64) -> bool {
        if id == ROOT {
            return false;
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        self.drop_if_unused(id)
    }

    /// Notes that a process opens the file. Returns the lower file to use: the one that is open already, or `lower`.
    pub(crate) fn open(&mut self, id: u64, lower: Arc<Lower>) -> Option<Arc<Lower>> {
        let node = self.nodes.get_mut(&id)?;
        node.opens += 1;
        Some(Arc::clone(node.opened.get_or_insert(lower)))
    }

    /// Notes that a process closes the file.
    pub(crate) fn close(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.opens = node.opens.saturating_sub(1);
            if node.opens == 0 {
                node.opened = None;
            }
        }
        self.drop_if_unused(id);
    }

    /// Sets the current contents; returns whether the kernel's pages are of earlier ones.
    pub(crate) fn restamp(&mut self, id: u64, stamp: ContentStamp) -> bool {
        match self.nodes.get_mut(&id) {
            Some(node) => std::mem::replace(&mut node.stamp, stamp) != stamp,
            None => false,
        }
    }

    fn drop_if_unused(&mut self, id: u64) -> bool {
        let unused = |node: &MirrorNode| node.lookups == 0 && node.opens == 0;
        if !self.nodes.get(&id).is_some_and(unused) {
            return false;
        }
        if let Some(node) = self.nodes.remove(&id) {
            let key = (node.identity.device, node.identity.inode);
            self.numbers.remove(&key);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn table() -> (Arc<Directory>, NodeTable) {
        let root = Arc::new(Directory::root(Path::new("/")).expect("the root"));
        let table = NodeTable::new(Arc::clone(&root), of(7, 2, 1));
        (root, table)
    }

    fn of(device: u64, inode: u64, birth: u64) -> FileIdentity {
        FileIdentity {
            device,
            inode,
            birth,
        }
    }

    fn leaf(parent: &Arc<Directory>, name: &str) -> LowerPlace {
        LowerPlace::Leaf {
            parent: Arc::clone(parent),
            name: name.into(),
        }
    }

    fn sized(size: u64) -> ContentStamp {
        ContentStamp {
            size,
            ..ContentStamp::default()
        }
    }

    #[test]
    fn numbers_are_the_lower_ones_and_come_back() {
        let (root, mut table) = table();
        let first = table.intern(of(7, 40, 5), leaf(&root, "a"), sized(1));
        assert_eq!((first.id, first.generation, first.fresh), (40, 5, true));
        assert!(table.forget(40, 1));
        assert!(table.get(40).is_none());
        let again = table.intern(of(7, 40, 5), leaf(&root, "a"), sized(1));
        assert_eq!((again.id, again.fresh), (40, true));
    }

    #[test]
    fn foreign_and_reserved_inode_numbers_are_replaced() {
        let (root, mut table) = table();
        let one = table.intern(of(7, 1, 5), leaf(&root, "one"), sized(1)).id;
        let other = table
            .intern(of(8, 40, 5), leaf(&root, "other"), sized(1))
            .id;
        let usual = table
            .intern(of(7, 40, 5), leaf(&root, "usual"), sized(1))
            .id;
        let root_again = table.intern(of(7, 2, 1), leaf(&root, "."), sized(1)).id;
        assert!(one > OURS && other > OURS && one != other);
        assert_eq!((usual, root_again), (40, ROOT));
    }

    #[test]
    fn hard_links_are_one_and_are_counted() {
        let (root, mut table) = table();
        table.intern(of(7, 40, 5), leaf(&root, "a"), sized(1));
        let second = table.intern(of(7, 40, 5), leaf(&root, "b"), sized(1));
        assert!(!second.fresh);
        assert!(!table.forget(40, 1));
        let Some(LowerPlace::Leaf { name, .. }) = table.get(40).map(|node| &node.place) else {
            panic!("no leaf");
        };
        assert_eq!(name, "b");
        assert!(table.forget(40, 1));
    }

    #[test]
    fn a_number_that_is_given_to_another_file_has_another_generation() {
        let (root, mut table) = table();
        table.intern(of(7, 40, 5), leaf(&root, "a"), sized(1));
        let other = table.intern(of(7, 40, 6), leaf(&root, "b"), sized(9));
        assert_eq!((other.id, other.generation, other.fresh), (40, 6, true));
        assert_eq!(table.get(40).map(|node| node.stamp), Some(sized(9)));
        // The kernel has to forget both lookups.
        assert!(!table.forget(40, 1));
        assert!(table.forget(40, 1));
    }

    #[test]
    fn an_open_file_outlives_being_forgotten() {
        let (root, mut table) = table();
        table.intern(of(7, 40, 5), leaf(&root, "a"), sized(1));
        let lower = |name| Arc::new(Lower::open_path(Path::new(name)).expect("a file"));
        let first = table.open(40, lower("/dev/null")).expect("it is known");
        let second = table.open(40, lower("/dev/zero")).expect("it is known");
        assert!(Arc::ptr_eq(&first, &second), "one lower file for all");
        assert!(!table.forget(40, 1));
        table.close(40);
        assert!(table.get(40).is_some_and(|node| node.opened.is_some()));
        table.close(40);
        assert!(table.get(40).is_none());
    }

    #[test]
    fn changed_contents_are_noticed_once() {
        let (root, mut table) = table();
        table.intern(of(7, 40, 5), leaf(&root, "a"), sized(1));
        assert!(!table.restamp(40, sized(1)));
        assert!(table.restamp(40, sized(2)));
        assert!(!table.restamp(40, sized(2)));
        // Looking at it again does not make the pages new.
        table.intern(of(7, 40, 5), leaf(&root, "a"), sized(3));
        assert!(table.restamp(40, sized(3)));
    }

    #[test]
    fn the_root_is_never_forgotten() {
        let (_root, mut table) = table();
        assert!(!table.forget(ROOT, 100));
        assert_eq!(table.len(), 1);
    }
}
