//! Sets of files that stay in the page cache while memory allows: what a set consists of, and what became of it.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A set, as it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepSet {
    /// Files, and folders with all that is in them. Absolute.
    pub paths: Vec<PathBuf>,
    /// Only these ranges of the paths, which are files then, in this order; empty for all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<KeepPart>,
    /// Keep no more bytes than this, the first ones in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<u64>,
    /// Sets of a lower priority give way first; of equal ones, those whose names come later.
    #[serde(default)]
    pub priority: i32,
}

/// A range of a file: its place among the paths, the offset and the length in bytes.
pub type KeepPart = (usize, u64, u64);

impl KeepSet {
    /// Why this set is invalid under this name, if it is.
    ///
    /// # Errors
    ///
    /// A sentence that names what is wrong.
    pub fn check(&self, name: &str) -> Result<(), String> {
        plain_name(name)?;
        if self.paths.is_empty() {
            return Err("name at least one file or directory in paths".to_owned());
        }
        if let Some(path) = self.paths.iter().find(|path| !path.is_absolute()) {
            return Err(format!("\"{}\" must begin with a slash", path.display()));
        }
        if self.budget == Some(0) {
            return Err("a budget of 0 keeps nothing; omit it for no limit".to_owned());
        }
        let is_sound = |&(path, offset, length): &KeepPart| {
            let end = offset.checked_add(length);
            path < self.paths.len() && end.is_some_and(|end| i64::try_from(end).is_ok())
        };
        if !self.parts.iter().all(is_sound) {
            return Err("a part lies outside all paths".to_owned());
        }
        Ok(())
    }
}

/// Why a name may not be given to a set or a service, if it may not.
pub(crate) fn plain_name(name: &str) -> Result<(), String> {
    let plain = |it: char| it.is_ascii_alphanumeric() || matches!(it, '.' | '_' | '-');
    if name.is_empty() || !name.chars().all(plain) {
        return Err("a name may have letters, digits, '.', '_' and '-'".to_owned());
    }
    Ok(())
}

/// The state of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepStatus {
    /// Its name.
    pub name: String,
    /// It is in the daemon's configuration.
    pub configured: bool,
    /// What it consists of.
    pub paths: Vec<PathBuf>,
    /// Its rank among the sets.
    pub priority: i32,
    /// Upper bound on the bytes that are kept, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// Its progress.
    pub state: KeepState,
    /// Why not all that is wanted is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Files that the set keeps, in whole or in part.
    pub files: u64,
    /// Bytes of all its files or parts, those of sets of a higher priority included.
    pub whole_bytes: u64,
    /// Bytes to keep: within the budget, and without what sets of a higher priority keep.
    pub wanted_bytes: u64,
    /// Bytes of these that the page cache has.
    pub cached_bytes: u64,
    /// Bytes loaded from storage for it, since the daemon started.
    pub loaded_bytes: u64,
    /// Bytes that the daemon dropped to make room.
    pub released_bytes: u64,
    /// Bytes that the kernel reclaimed, or another program dropped.
    pub reclaimed_bytes: u64,
    /// Files and folders that were left out, and why: the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Whether one of those may be a file that a program reads.
    #[serde(default)]
    pub incomplete: bool,
}

/// The progress of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum KeepState {
    /// The daemon finds its files.
    Finding,
    /// What is missing is being loaded, or about to be.
    Loading,
    /// All that is wanted is in the page cache.
    Kept,
    /// There is not enough memory for all of it.
    Short,
    /// What was loaded was reclaimed again: the daemon waits before it loads that once more.
    Waiting,
    /// None of its files can be read, or loads failed.
    Failed,
}

impl fmt::Display for KeepState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Finding => "finding files",
            Self::Loading => "loading",
            Self::Kept => "kept",
            Self::Short => "short of memory",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
        })
    }
}

/// A set that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepRemoved {
    /// Its name.
    pub name: String,
    /// Bytes that were dropped from the page cache, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped_bytes: Option<u64>,
    /// Bytes of it that are still cached and that no other set keeps.
    pub cached_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(paths: &[&str]) -> KeepSet {
        KeepSet {
            paths: paths.iter().map(PathBuf::from).collect(),
            ..KeepSet::default()
        }
    }

    #[test]
    fn invalid_sets_are_rejected_with_the_reason() {
        assert_eq!(set(&["/m"]).check("llama-3.1_70b"), Ok(()));
        let beyond = KeepSet {
            parts: vec![(1, 0, 1)],
            ..set(&["/m"])
        };
        let huge = KeepSet {
            parts: vec![(0, u64::MAX, 1)],
            ..set(&["/m"])
        };
        let nothing = KeepSet {
            budget: Some(0),
            ..set(&["/m"])
        };
        for (name, set, problem) in [
            ("a b", set(&["/m"]), "a name may"),
            ("", set(&["/m"]), "a name may"),
            ("a", set(&[]), "at least one"),
            ("a", set(&["/m", "n"]), "\"n\" must begin with a slash"),
            ("a", beyond, "outside all paths"),
            ("a", huge, "outside all paths"),
            ("a", nothing, "omit it"),
        ] {
            let refused = set.check(name).expect_err(problem);
            assert!(refused.contains(problem), "{refused}");
        }
    }
}
