//! What a start without a record will import: after two modules of a directory, more of them. The decision is
//! pure; the thread lists directories.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use ppc::Waker;

use crate::extent::Extent;
use crate::host::{IoThread, Reply};

/// Suffixes of files that interpreters import, one file per module.
const MODULES: [&str; 8] = ["pyc", "py", "js", "mjs", "cjs", "rb", "lua", "php"];
/// How many of a directory's modules must have been touched for it to be listed.
const SOME: u32 = 2;
/// A directory with more modules than this is left alone.
const MOST: usize = 4096;
/// How many pages of each module are loaded: nearly all modules are shorter.
const MODULE: u32 = 64;

/// A directory, and the suffix of its modules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModuleDirectory {
    path: String,
    ending: String,
}

/// How often modules of each directory have been touched.
#[derive(Debug, Default)]
struct Touched(HashMap<ModuleDirectory, u32>);

impl Touched {
    /// A file has been touched for the first time. Returns its directory if it should be listed now.
    fn file(&mut self, path: &str) -> Option<ModuleDirectory> {
        let (directory, name) = path.rsplit_once('/')?;
        let (_, ending) = name.rsplit_once('.')?;
        if !MODULES.contains(&ending) {
            return None;
        }
        let directory = ModuleDirectory {
            path: directory.to_owned(),
            ending: ending.to_owned(),
        };
        let count = self.0.entry(directory.clone()).or_default();
        *count += 1;
        (*count == SOME).then_some(directory)
    }
}

/// The modules to ask for, beside those that have been touched.
#[derive(Debug)]
pub(super) struct Siblings {
    touched: Touched,
    thread: IoThread<ModuleDirectory, Vec<String>>,
}

impl Siblings {
    pub(super) fn start(waker: Waker) -> io::Result<Self> {
        let list = |directory| Reply::Urgent(modules(Path::new("/"), &directory));
        Ok(Self {
            touched: Touched::default(),
            thread: IoThread::start("maio-modules", waker, list)?,
        })
    }

    /// A file has been touched for the first time.
    pub(super) fn touch(&mut self, path: &str) {
        if let Some(directory) = self.touched.file(path) {
            self.thread.ask(directory);
        }
    }

    /// Modules beside those that have been touched.
    pub(super) fn take(&self) -> Vec<String> {
        self.thread.take().concat()
    }

    /// Whether any modules have not been taken.
    pub(super) fn has_some(&self) -> bool {
        self.thread.has_urgent()
    }
}

/// The range to ask for of a module.
pub(super) const fn module(file: u32) -> Extent {
    Extent {
        file,
        first: 0,
        pages: MODULE,
    }
}

/// The modules of a directory below `root`, by their paths; none if there are too many, or if it cannot be read.
fn modules(root: &Path, directory: &ModuleDirectory) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join(&directory.path)) else {
        return Vec::new();
    };
    let module = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let name = entry.file_name();
        let ending = Path::new(&name).extension().and_then(OsStr::to_str)?;
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let name = name
            .to_str()
            .filter(|_| is_file && ending == directory.ending)?;
        Some(format!("{}/{name}", directory.path))
    };
    let found: Vec<_> = entries.filter_map(module).take(MOST + 1).collect();
    if found.len() > MOST {
        Vec::new()
    } else {
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_listed_once_when_two_of_its_modules_have_been_touched() {
        let mut touched = Touched::default();
        let listed = [
            "p/a.pyc", "p/x.json", "q/a.pyc", "p/b.pyc", "p/c.pyc", "a.pyc", "p/d",
        ]
        .map(|path| touched.file(path).map(|it| it.path));
        assert_eq!(
            listed,
            [None, None, None, Some("p".into()), None, None, None]
        );
    }

    #[test]
    fn modules_are_files_with_the_same_ending() {
        let root = std::env::temp_dir().join(format!("maio-modules-{}", std::process::id()));
        fs::create_dir_all(root.join("p/sub.pyc")).expect("folders");
        for name in ["a.pyc", "b.pyc", "b.txt", "pyc"] {
            fs::write(root.join("p").join(name), "x").expect("a file");
        }
        std::os::unix::fs::symlink("a.pyc", root.join("p/link.pyc")).expect("a link");
        let directory = |path: &str| ModuleDirectory {
            path: path.into(),
            ending: "pyc".into(),
        };
        let mut found = modules(&root, &directory("p"));
        found.sort_unstable();
        assert_eq!(found, ["p/a.pyc", "p/b.pyc"]);
        assert!(modules(&root, &directory("gone")).is_empty());
        fs::remove_dir_all(&root).expect("it is ours");
    }
}
