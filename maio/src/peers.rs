//! The other services that load models on this node: each publishes which blocks of shared files its
//! readers have yet to read.

mod claims;
mod leases;

use std::collections::HashMap;
use std::io;
use std::path::Path;

pub(crate) use claims::{Claims, FileKey};
pub(crate) use leases::default_directory;

use leases::Lease;

/// The other services of this node, for one load of ours.
#[derive(Debug)]
pub(crate) struct Peers {
    lease: Lease,
    keys: Vec<Option<FileKey>>,
    numbers: HashMap<FileKey, u32>,
}

impl Peers {
    /// Joins with the identities of our files, by their numbers.
    pub(crate) fn join(directory: &Path, keys: Vec<Option<FileKey>>) -> io::Result<Self> {
        let known = |(number, key): (u32, &Option<FileKey>)| Some(((*key)?, number));
        Ok(Self {
            lease: Lease::create(directory)?,
            numbers: (0..).zip(&keys).filter_map(known).collect(),
            keys,
        })
    }

    /// Publishes what we have yet to read, and returns what the others have yet to read of our files.
    pub(crate) fn exchange(&self, ours: &Claims) -> io::Result<Claims> {
        self.lease.publish(&ours.to_bytes(&self.keys))?;
        let mut theirs = Claims::default();
        for said in self.lease.read_others() {
            theirs.merge(&said, &self.numbers);
        }
        Ok(theirs)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::extent::Extent;

    #[test]
    fn two_services_hear_what_the_other_has_yet_to_read_of_the_files_they_share() {
        let directory = std::env::temp_dir().join(format!("maio-shared-{}", std::process::id()));
        let key = |inode| {
            Some(FileKey {
                device: 1,
                inode,
                mtime_ns: 5,
            })
        };
        let one = Peers::join(&directory, vec![key(10), key(11)]).expect("one");
        let other = Peers::join(&directory, vec![key(11), None]).expect("other");
        let whole = |file| Extent {
            file,
            first: 0,
            pages: 512,
        };
        let mut claims = Claims::default();
        claims.add(&whole(0));
        claims.add(&whole(1));
        let heard = other.exchange(&claims).expect("heard");
        assert!(heard.is_empty());
        let heard = one.exchange(&Claims::default()).expect("heard");
        assert!(heard.has(&whole(1)) && !heard.has(&whole(0)));
        drop(other);
        let heard = one.exchange(&claims).expect("heard");
        assert!(heard.is_empty());
        drop(one);
        fs::remove_dir_all(&directory).expect("cleared");
    }
}
