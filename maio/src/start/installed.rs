//! Files of installed packages that a start looks up without opening them. Python 3.12 and later, asked which files a
//! package has, look whether each of them is there. Transformers asks for all packages: tens of thousands of names, one
//! after the other, from a device that may be slow to answer. So a start that reads a package's list of files needs the
//! directories of all these files.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use ppc::Waker;

use crate::host::{IoThread, Reply};

/// The name of such a list, in the package's directory of metadata,
const LIST: &str = "RECORD";
/// whose name ends with this.
const METADATA: &str = ".dist-info";
/// How much of a list is read: torch's has two million bytes.
const LONGEST: u64 = 64 << 20;
/// Upper bound on the directories of a package.
const MOST: usize = 8192;
/// The minor version of the first Python that looks up each file.
const FIRST: u32 = 12;

/// The directories to list, found from the lists that have been read.
#[derive(Debug)]
pub(super) struct Installed {
    waker: Waker,
    /// From the first list on: few programs read one.
    thread: Option<IoThread<String, Vec<String>>>,
}

impl Installed {
    pub(super) const fn new(waker: Waker) -> Self {
        Self {
            waker,
            thread: None,
        }
    }

    /// A file has been touched for the first time.
    pub(super) fn touch(&mut self, path: &str) -> io::Result<()> {
        if place(path).is_none() {
            return Ok(());
        }
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => IoThread::start("maio-packages", self.waker.clone(), |path: String| {
                Reply::Urgent(folders(Path::new("/"), &path))
            })?,
        };
        self.thread.insert(thread).ask(path.to_owned());
        Ok(())
    }

    /// The directories of packages whose lists have been read since.
    pub(super) fn take(&self) -> Vec<String> {
        let thread = self.thread.as_ref();
        thread.map(IoThread::take).unwrap_or_default().concat()
    }

    /// The same when the start has ended: waits for lists that are being looked at.
    pub(super) fn finish(&mut self) -> Vec<String> {
        let rest = self.thread.as_mut().map(|thread| thread.finish().0);
        rest.unwrap_or_default().concat()
    }

    /// Whether any directories have not been taken.
    pub(super) fn has_some(&self) -> bool {
        self.thread.as_ref().is_some_and(IoThread::has_urgent)
    }
}

/// The directory that a package is installed in, by the path of its list of files; `None` for other files, and if its
/// Python does not look these up.
fn place(path: &str) -> Option<&str> {
    let metadata = path.strip_suffix(LIST)?.strip_suffix('/')?;
    let (place, name) = metadata.rsplit_once('/')?;
    let version = place
        .split('/')
        .find_map(|part| part.strip_prefix("python3.")?.parse().ok());
    let looks_up = version.is_none_or(|version: u32| version >= FIRST);
    (looks_up && name.ends_with(METADATA)).then_some(place)
}

/// The directories of a package's files, by the path of its list below `root`; none if it cannot be read.
fn folders(root: &Path, path: &str) -> Vec<String> {
    let text = place(path).zip(read(&root.join(path)));
    text.map_or_else(Vec::new, |(place, text)| parents(place, &text))
}

fn read(list: &Path) -> Option<String> {
    // If it has been replaced by a pipe or a link, do not wait for it or follow it.
    let options = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(options)
        .open(list);
    let file = file.ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The directories of these files, each once, in their order. A line begins with a path, from `place`.
fn parents(place: &str, list: &str) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for line in list.lines() {
        // A path is quoted if it has a comma: the directory comes before that, or is left out.
        let file = line.trim_start_matches('"').split(',').next();
        let folder = file.and_then(|file| Some(file.rsplit_once('/')?.0));
        let folder = folder.unwrap_or_default();
        if seen.contains(folder) {
            continue;
        }
        seen.insert(folder);
        all.extend(below(place, folder));
        if all.len() >= MOST {
            break;
        }
    }
    all
}

/// A directory's path from the root, with a slash at its end; `None` if it leads out of that.
fn below(place: &str, folder: &str) -> Option<String> {
    let mut parts: Vec<&str> = place.split('/').collect();
    for part in folder.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| format!("{}/", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lists_are_those_of_packages_that_a_new_python_looks_up() {
        let table = [
            (
                "v/lib/python3.12/site-packages/six-1.dist-info/RECORD",
                Some("v/lib/python3.12/site-packages"),
            ),
            (
                "v/lib/python3.11/site-packages/six-1.dist-info/RECORD",
                None,
            ),
            (
                "usr/lib/python3/dist-packages/six-1.dist-info/RECORD",
                Some("usr/lib/python3/dist-packages"),
            ),
            (
                "v/lib/python3.12/site-packages/six-1.dist-info/METADATA",
                None,
            ),
            ("v/lib/python3.12/site-packages/six/RECORD", None),
            ("six-1.dist-info/RECORD", None),
            ("RECORD", None),
        ];
        for (path, expected) in table {
            assert_eq!(place(path), expected, "{path}");
        }
    }

    #[test]
    fn directories_come_once_in_their_order_and_none_is_outside() {
        let list = "../../../bin/six,sha256=x,1\n\
            six.py,sha256=x,1\n\
            six/moves/a.py,,\n\
            \"six/a,b.py\",,\n\
            six/moves/b.py,,\n\
            six-1.dist-info/RECORD,,\n\
            ../../../../../../etc/passwd,,\n\
            /etc/shadow,,\n";
        let expected = [
            "v/bin/",
            "v/lib/p/site-packages/",
            "v/lib/p/site-packages/six/moves/",
            "v/lib/p/site-packages/six/",
            "v/lib/p/site-packages/six-1.dist-info/",
            // As if it were below: this is no path from the root.
            "v/lib/p/site-packages/etc/",
        ];
        assert_eq!(parents("v/lib/p/site-packages", list), expected);
    }

    #[test]
    fn package_list_must_be_a_regular_file() {
        let root = std::env::temp_dir().join(format!("maio-installed-{}", std::process::id()));
        let inner = root.join("lib/python3.12/site-packages/six-1.dist-info");
        fs::create_dir_all(&inner).expect("a directory");
        let path = "lib/python3.12/site-packages/six-1.dist-info/RECORD";
        assert!(folders(&root, path).is_empty(), "there is none");
        fs::write(inner.join("other"), "six/a.py,,\n").expect("to write");
        std::os::unix::fs::symlink("other", inner.join(LIST)).expect("a link");
        assert!(folders(&root, path).is_empty(), "a link");
        fs::rename(inner.join("other"), inner.join(LIST)).expect("to rename");
        assert_eq!(folders(&root, path), ["lib/python3.12/site-packages/six/"]);
        fs::remove_file(inner.join(LIST)).expect("to remove");
        nix::unistd::mkfifo(&inner.join(LIST), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        assert!(folders(&root, path).is_empty(), "a FIFO without a writer");
        fs::remove_dir_all(root).expect("to clean up");
    }
}
