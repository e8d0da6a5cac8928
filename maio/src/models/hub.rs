//! The Hugging Face cache: `models--OWNER--NAME` has files in `blobs`, and for each revision a folder in
//! `snapshots` with links to them. Revisions share identical files, so a file that a reader opens may belong to
//! several of them; all the files it has opened together show which one it loads. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{Folders, join};

const BLOBS: &str = "blobs";
const SNAPSHOTS: &str = "snapshots";
/// Upper bound on the processes whose revisions are remembered.
const MOST: usize = 1024;

/// The folder of a file's repository, if it is in such a cache.
pub(crate) fn repository<'p>(path: &'p str, folders: &dyn Folders) -> Option<&'p str> {
    let mut at = 0;
    for part in path.split('/') {
        if part == BLOBS || part == SNAPSHOTS {
            let repository = path[..at].trim_end_matches('/');
            let other = if part == BLOBS { SNAPSHOTS } else { BLOBS };
            let entries = folders.list(repository);
            if entries
                .iter()
                .any(|(name, size)| name == other && size.is_none())
            {
                return Some(repository);
            }
        }
        at += part.len() + 1;
    }
    None
}

/// The folder of a revision.
pub(crate) fn snapshot(repository: &str, revision: &str) -> String {
    join(repository, &format!("{SNAPSHOTS}/{revision}"))
}

/// The revision that a path belongs to.
pub(crate) fn revision<'p>(repository: &str, path: &'p str) -> Option<&'p str> {
    let below = super::below(&join(repository, SNAPSHOTS), path)?;
    below.split('/').next().filter(|it| !it.is_empty())
}

/// Which revisions readers may be loading, by repository and process.
#[derive(Debug, Default)]
pub(crate) struct Revisions {
    left: BTreeMap<(String, u32), BTreeSet<String>>,
}

impl Revisions {
    /// A process opens a file that is in `these` revisions of a repository. Returns the one that it loads, the
    /// `preferred` one if several are left.
    pub(crate) fn narrow(
        &mut self,
        repository: &str,
        process: u32,
        these: &BTreeSet<String>,
        preferred: Option<&str>,
    ) -> Option<String> {
        if self.left.len() >= MOST {
            self.left.clear();
        }
        let key = (repository.to_owned(), process);
        let left = self.left.entry(key).or_insert_with(|| these.clone());
        let both: BTreeSet<String> = left.intersection(these).cloned().collect();
        // A file that is in none of them begins another load.
        *left = if both.is_empty() { these.clone() } else { both };
        let preferred = preferred.filter(|it| left.contains(*it));
        let last = left.last().map(String::as_str);
        preferred.or(last).map(str::to_owned)
    }
}
