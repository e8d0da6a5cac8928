//! The other services that load models on this node: each publishes which blocks of shared files its
//! readers have yet to read, how much memory it takes, and whose readers are its own.

mod claims;
mod demand;
mod leases;
mod members;

use std::collections::HashMap;
use std::io;
use std::path::Path;

pub(crate) use claims::{Claims, FileKey};
pub(crate) use demand::Demand;
pub(crate) use leases::default_directory;
pub(crate) use members::{Belongs, Members};

use leases::Lease;

/// What other services say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// What their readers have yet to read of this service's files.
    pub(crate) claims: Claims,
    /// How much memory those take that read other files.
    pub(crate) demands: Vec<Demand>,
}

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

    /// Publishes how much memory we take and, if given, what we have yet to read; returns what the others say.
    pub(crate) fn exchange(&self, demand: Demand, ours: Option<&Claims>) -> io::Result<Heard> {
        let mut bytes = demand.to_bytes().to_vec();
        match ours {
            Some(ours) => {
                bytes.extend(ours.to_bytes(&self.keys));
                self.lease.publish(&bytes)?;
            }
            None => self.lease.publish_beginning(&bytes)?,
        }
        let mut heard = Heard::default();
        for said in self.lease.read_others() {
            let Some((demand, claims)) = Demand::split(&said) else {
                continue;
            };
            // Those who read the same files use the same pages.
            if !heard.claims.merge(claims, &self.numbers) {
                heard.demands.push(demand);
            }
        }
        Ok(heard)
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
        let demand = |held| Demand {
            held,
            ..Demand::default()
        };
        let heard = other.exchange(demand(7), Some(&claims)).expect("heard");
        assert_eq!(heard, Heard::default());
        let heard = one.exchange(demand(8), Some(&Claims::default()));
        let heard = heard.expect("heard");
        assert!(heard.claims.has(&whole(1)) && !heard.claims.has(&whole(0)));
        assert_eq!(heard.demands, [], "they use the same pages");
        let third = Peers::join(&directory, vec![key(13)]).expect("a third");
        third.exchange(demand(9), Some(&claims)).expect("heard");
        third.exchange(demand(10), None).expect("heard");
        let heard = one.exchange(demand(8), None).expect("heard");
        assert_eq!(heard.demands, [demand(10)]);
        assert!(heard.claims.has(&whole(1)), "it has not said anything else");
        drop((other, third));
        let heard = one.exchange(demand(8), Some(&claims)).expect("heard");
        assert_eq!(heard, Heard::default());
        drop(one);
        fs::remove_dir_all(&directory).expect("cleared");
    }
}
