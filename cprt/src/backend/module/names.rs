//! The names of files: the kernel's current number, and the policy's, from when it opened them. Pure.
//!
//! The kernel numbers a file again when it has forgotten it meanwhile. For all other files both names
//! are the same.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Upper bound on numbers remembered as asked about; beyond it, all are asked about again.
const MAX_ASKED: usize = 1 << 16;

/// The two names of files that a policy has opened.
#[derive(Debug, Default)]
pub(super) struct Names {
    opened: HashMap<u64, OpenedFile>,
    by_path: HashMap<PathBuf, u64>,
    /// The policy's name by the kernel's, where they differ.
    alias: HashMap<u64, u64>,
    /// The kernel's names that are known not to be new ones.
    asked: HashSet<u64>,
}

#[derive(Debug)]
struct OpenedFile {
    path: PathBuf,
    now: u64,
    holders: usize,
}

impl Names {
    /// Notes that the policy opens a file; returns the policy's name for it.
    pub(super) fn open(&mut self, number: u64, path: &Path) -> u64 {
        let known = self.by_path.get(path).copied();
        // Another file may be there by now, which is not the one that the policy has opened.
        let known = known.filter(|&known| self.now(known) == number);
        let name = known.unwrap_or_else(|| self.known(number));
        let opened = self.opened.entry(name).or_insert_with(|| OpenedFile {
            path: path.to_owned(),
            now: number,
            holders: 0,
        });
        opened.holders += 1;
        self.by_path.insert(opened.path.clone(), name);
        self.asked.insert(number);
        name
    }

    /// Notes that the policy closes a file; returns whether it was open.
    pub(super) fn close(&mut self, name: u64) -> bool {
        let Some(opened) = self.opened.get_mut(&name) else {
            return false;
        };
        opened.holders -= 1;
        if opened.holders == 0
            && let Some(opened) = self.opened.remove(&name)
        {
            self.alias.remove(&opened.now);
            if self.by_path.get(&opened.path) == Some(&name) {
                self.by_path.remove(&opened.path);
            }
        }
        true
    }

    /// The kernel's current name for it.
    pub(super) fn now(&self, name: u64) -> u64 {
        self.opened.get(&name).map_or(name, |opened| opened.now)
    }

    /// The path by which the policy opened it.
    pub(super) fn path(&self, name: u64) -> Option<PathBuf> {
        self.opened.get(&name).map(|opened| opened.path.clone())
    }

    /// Notes the kernel's new name for it.
    pub(super) fn renumber(&mut self, name: u64, number: u64) {
        let Some(opened) = self.opened.get_mut(&name) else {
            return;
        };
        self.alias.remove(&opened.now);
        opened.now = number;
        self.asked.insert(number);
        if name != number {
            self.alias.insert(number, name);
        }
    }

    /// The policy's name for a file, by the kernel's.
    pub(super) fn known(&self, number: u64) -> u64 {
        self.alias.get(&number).copied().unwrap_or(number)
    }

    /// Whether this number may be a new one for a file that the policy has opened.
    pub(super) fn asks(&mut self, number: u64) -> bool {
        if self.opened.is_empty() || number == 0 {
            return false;
        }
        if self.asked.len() > MAX_ASKED {
            self.asked.clear();
        }
        self.asked.insert(number)
    }

    /// A file of this number is at that path.
    pub(super) fn seen(&mut self, number: u64, path: &Path) {
        if let Some(&name) = self.by_path.get(path)
            && self.now(name) != number
        {
            self.renumber(name, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_name_when_the_kernel_renumbers_it() {
        let mut names = Names::default();
        let model = Path::new("model");
        assert!(!names.asks(7), "nothing is open");
        assert_eq!(names.open(7, model), 7);
        assert!(!names.asks(7), "it is already known");
        assert!(names.asks(8) && !names.asks(8), "this may be, once");
        names.seen(8, model);
        assert_eq!((names.known(8), names.now(7)), (7, 8));
        assert_eq!(names.open(8, model), 7, "opened once more");
        names.renumber(7, 9);
        assert_eq!((names.known(9), names.known(8)), (7, 8));
        assert!(names.close(7) && names.close(7) && !names.close(7));
        assert_eq!((names.known(9), names.now(7)), (9, 7));
    }

    #[test]
    fn another_file_at_the_same_path_is_another() {
        let mut names = Names::default();
        let model = Path::new("model");
        assert_eq!(names.open(1, model), 1);
        assert_eq!(names.open(2, model), 2, "it was replaced");
        assert_eq!((names.now(1), names.now(2)), (1, 2));
        assert!(names.close(1));
        names.seen(3, model);
        assert_eq!(names.known(3), 2);
    }

    #[test]
    fn names_of_what_is_not_open_are_the_kernels() {
        let mut names = Names::default();
        assert_eq!((names.now(5), names.known(5), names.path(5)), (5, 5, None));
        names.renumber(5, 6);
        assert_eq!(names.now(5), 5);
    }
}
