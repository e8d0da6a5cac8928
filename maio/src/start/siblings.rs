//! What a start that nothing is known of will read: who imports two modules of a directory imports more of them, and who
//! maps a small object needs most of it. What is decided is pure; the thread lists directories.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use ppc::Waker;

use crate::extent::{Extent, PAGE};
use crate::host::{IoThread, Reply};

/// Endings of what interpreters import, a file for each module.
const MODULES: [&str; 8] = ["pyc", "py", "js", "mjs", "cjs", "rb", "lua", "php"];
/// A directory is listed when so many of its modules have been touched.
const SOME: u32 = 2;
/// It is believed to be one of modules if it has no more of them than this.
const MOST: usize = 4096;
/// So much is asked for of each: nearly all of them are shorter.
const MODULE: u32 = 64;
/// An object that is no larger is asked for as a whole, in bytes.
const OBJECT: u64 = 4 << 20;

/// A directory, and how its modules end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModuleDirectory {
    path: String,
    ending: String,
}

/// Which directories have been touched how often.
#[derive(Debug, Default)]
struct Touched(HashMap<ModuleDirectory, u32>);

impl Touched {
    /// A file has been touched for the first time. Returns its directory if that is to be listed now.
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

/// What is asked for because of what has been touched.
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

    /// Whether there are some that have not been taken.
    pub(super) fn has_some(&self) -> bool {
        self.thread.has_urgent()
    }
}

/// So much of a module.
pub(super) const fn module(file: u32) -> Extent {
    Extent {
        file,
        first: 0,
        pages: MODULE,
    }
}

/// All of a small object that is mapped.
pub(super) fn object(file: u32, path: &str, size: u64) -> Option<Extent> {
    let name = path.rsplit('/').next()?;
    let is_object = name.split('.').skip(1).any(|part| part == "so");
    let pages = u32::try_from(size.div_ceil(PAGE)).ok()?;
    (is_object && (1..=OBJECT).contains(&size)).then_some(Extent {
        file,
        first: 0,
        pages,
    })
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

    #[test]
    fn small_objects_are_asked_for_whole() {
        let pages = |path, size| object(1, path, size).map(|it| it.pages);
        assert_eq!(pages("usr/lib/libc.so.6", PAGE + 1), Some(2));
        assert_eq!(
            pages("x/_C.cpython-311-x86_64-linux-gnu.so", OBJECT),
            Some(1024)
        );
        assert_eq!(pages("usr/lib/libtorch.so", OBJECT + 1), None);
        assert_eq!(pages("usr/lib/data", PAGE), None);
        assert_eq!(pages("usr/lib/empty.so", 0), None);
    }
}
