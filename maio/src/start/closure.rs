//! What a start without a record will link: the shared objects that touched ones depend on, directly or
//! indirectly. The linker opens them one after the other; asked for as soon as they are known, they load side by side.
//!
//! Objects are searched for as the linker does, except for its cache and the environment: in the folders that the
//! object itself names, in that of the linker, and in the usual ones. Objects not found there are left to the linker.

use std::collections::HashSet;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ppc::Waker;

use super::dynamic::{Dynamic, dynamic};
use super::object::{self, HEADER};
use crate::host::{IoThread, Reply};

/// Upper bound on the objects examined; no start links more.
const MOST: usize = 4096;
/// The default folders of objects, below the root.
const FOLDERS: [&str; 5] = ["lib64", "usr/lib64", "lib", "usr/lib", "usr/local/lib"];

/// An examined object: its path, what is read of it, and which others it needs.
#[derive(Debug)]
pub(super) struct Linked {
    /// From the root of the machine, without the slash.
    pub(super) path: String,
    pub(super) ranges: Vec<Range<u64>>,
    needs: Vec<String>,
}

/// The objects to ask for, found from those that have been touched.
#[derive(Debug)]
pub(super) struct Closure {
    asked: HashSet<String>,
    thread: IoThread<String, Linked>,
}

impl Closure {
    pub(super) fn start(waker: Waker) -> io::Result<Self> {
        let mut linker = Linker::new(Path::new("/"));
        let look = move |path: String| linker.look(path).map_or(Reply::Nothing, Reply::Urgent);
        Ok(Self {
            asked: HashSet::new(),
            thread: IoThread::start("maio-objects", waker, look)?,
        })
    }

    /// A file has been touched for the first time.
    pub(super) fn touch(&mut self, path: &str) {
        if self.asked.len() < MOST && self.asked.insert(path.to_owned()) {
            self.thread.ask(path.to_owned());
        }
    }

    /// Takes the objects examined since; the examination of those they need begins.
    pub(super) fn take(&mut self) -> Vec<Linked> {
        let found = self.thread.take();
        for path in found.iter().flat_map(|object| &object.needs) {
            self.touch(path);
        }
        found
    }

    /// Whether any objects have not been taken.
    pub(super) fn has_some(&self) -> bool {
        self.thread.has_urgent()
    }
}

/// A directory that programs see as their root, and the place of its linker, if known.
#[derive(Debug)]
struct Root {
    path: PathBuf,
    linker: Option<PathBuf>,
}

/// Finds objects.
#[derive(Debug)]
struct Linker {
    /// Of the machine.
    base: PathBuf,
    roots: Vec<Root>,
}

impl Linker {
    fn new(base: &Path) -> Self {
        let base = base.to_owned();
        let whole = Root {
            path: base.clone(),
            linker: None,
        };
        Self {
            base,
            roots: vec![whole],
        }
    }

    /// Examines a file; `None` if it is neither an executable nor a shared object.
    fn look(&mut self, path: String) -> Option<Linked> {
        let place = self.base.join(&path);
        let (size, header, found) = read(&place)?;
        if let Some(interpreter) = &found.interpreter {
            self.learn(&place, Path::new(interpreter));
        }
        let roots = self.roots.iter();
        let roots = roots.filter(|root| place.starts_with(&root.path));
        let root = roots.max_by_key(|root| root.path.as_os_str().len())?;
        let needs = found.needed.iter();
        let needs = needs.filter_map(|name| self.find(root, &place, &found, name));
        Some(Linked {
            needs: needs.collect(),
            ranges: object::needed(size, &header),
            path,
        })
    }

    /// An executable names the path of its linker as it sees it: that shows which directory is its root.
    fn learn(&mut self, executable: &Path, interpreter: &Path) {
        let Ok(interpreter) = interpreter.strip_prefix("/") else {
            return;
        };
        let has_it = |root: &Path| root.join(interpreter).symlink_metadata().is_ok();
        let above = executable.ancestors().skip(1);
        let mut above = above.filter(|above| above.starts_with(&self.base) && has_it(above));
        let Some(nearest) = above.next() else {
            return;
        };
        // Where /lib is a link into /usr, the linker is in /usr, too.
        let is_merged = nearest.ends_with("usr");
        let path = above.next().filter(|_| is_merged).unwrap_or(nearest);
        let is_known = |root: &Root| root.path == path && root.linker.is_some();
        if !self.roots.iter().any(is_known) {
            self.roots.retain(|root| root.path != path);
            self.roots.push(Root {
                path: path.to_owned(),
                linker: path.join(interpreter).canonicalize().ok(),
            });
        }
    }

    /// The path of an object that another needs, with links resolved.
    fn find(&self, root: &Root, needing: &Path, of: &Dynamic, name: &str) -> Option<String> {
        if name.contains('/') {
            return None;
        }
        let origin = needing.parent()?;
        let own = of.folders.iter().map(|folder| within(root, origin, folder));
        let beside = root.linker.as_deref().and_then(Path::parent);
        let beside = beside.map(Path::to_owned);
        let usual = FOLDERS.map(|folder| root.path.join(folder));
        let mut places = own.chain(beside).chain(usual);
        let found = places.find_map(|folder| folder.join(name).canonicalize().ok())?;
        if !found.starts_with(&root.path) || !found.metadata().is_ok_and(|it| it.is_file()) {
            return None;
        }
        Some(found.strip_prefix(&self.base).ok()?.to_str()?.to_owned())
    }
}

/// A folder that an object in `origin` names.
fn within(root: &Root, origin: &Path, folder: &str) -> PathBuf {
    for word in ["$ORIGIN", "${ORIGIN}"] {
        if let Some(rest) = folder.strip_prefix(word) {
            return origin.join(rest.trim_start_matches('/'));
        }
    }
    root.path.join(folder.trim_start_matches('/'))
}

/// The size of an ELF file, its beginning and its requests to the linker.
fn read(path: &Path) -> Option<(u64, Vec<u8>, Dynamic)> {
    if !may_be_linked(path, &path.symlink_metadata().ok()?) {
        return None;
    }
    // If it has been replaced by a pipe or a link, do not wait for it or follow it.
    let options = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(options)
        .open(path);
    let file = file.ok()?;
    let metadata = file.metadata().ok().filter(Metadata::is_file)?;
    let part = |range: Range<u64>| part(&file, &range).unwrap_or_default();
    let header = part(0..HEADER as u64);
    let found = dynamic(&header, part)?;
    Some((metadata.size(), header, found))
}

fn may_be_linked(path: &Path, metadata: &Metadata) -> bool {
    const EXECUTABLE: u32 = 0o111;

    let is_named_so = path.to_str().is_some_and(object::is_object);
    metadata.is_file() && (is_named_so || metadata.mode() & EXECUTABLE != 0)
}

/// The bytes of a range, up to the end of the file.
fn part(file: &File, range: &Range<u64>) -> io::Result<Vec<u8>> {
    let length = range.end.saturating_sub(range.start);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], range.start + filled as u64)? {
            0 => break,
            more => filled += more,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A separate root with this program, its linker and its libraries, and with links and folders as in Debian.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("maio-closure-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).expect("a folder");
            Self(path.canonicalize().expect("the folder"))
        }

        fn copy(&self, from: &Path, to: &str) {
            let to = self.0.join(to);
            std::fs::create_dir_all(to.parent().expect("a folder")).expect("folders");
            std::fs::copy(from, to).expect("a copy");
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            // If this fails, the rest stays in the directory for temporary files.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn this_program() -> PathBuf {
        std::env::current_exe().expect("this program")
    }

    #[test]
    fn the_objects_of_a_program_are_those_that_are_mapped() {
        let mut linker = Linker::new(Path::new("/"));
        let this = this_program().canonicalize().expect("a path");
        let this = this.strip_prefix("/").expect("absolute");
        let mut todo = vec![this.to_str().expect("plain").to_owned()];
        let mut found = HashSet::new();
        while let Some(path) = todo.pop() {
            let object = linker.look(path).expect("an object");
            let new = object.needs.into_iter();
            todo.extend(new.filter(|need| found.insert(need.clone())));
        }
        let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
        let mapped = maps.lines().filter_map(|line| line.split_once('/'));
        let mapped = mapped.map(|(_, path)| path);
        let mapped: HashSet<_> = mapped.filter(|path| object::is_object(path)).collect();
        assert!(
            found.iter().any(|path| path.contains("libc.so")),
            "{found:?}"
        );
        for path in &found {
            assert!(
                mapped.contains(path.as_str()),
                "{path} is not linked: {mapped:?}"
            );
        }
        // The linker maps itself, whether a program needs it or not.
        let missing = mapped.iter().filter(|path| !found.contains(**path));
        assert!(
            missing.clone().all(|path| path.contains("/ld-linux")),
            "{:?}",
            missing.collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_program_in_another_root_has_the_objects_of_that() {
        let scratch = Scratch::new("root");
        let this = this_program();
        let (_, _, found) = read(&this).expect("an executable");
        let interpreter = found.interpreter.expect("a linker");
        let inner = interpreter.strip_prefix("/").expect("absolute");
        scratch.copy(&this, "chroot/usr/bin/program");
        scratch.copy(Path::new(&interpreter), &format!("chroot/{inner}"));
        let libc = found
            .needed
            .iter()
            .find(|name| name.starts_with("libc.so"))
            .expect("it needs libc");
        scratch.copy(&this, &format!("chroot/usr/lib/{libc}"));
        let mut linker = Linker::new(Path::new("/"));
        let program = scratch.0.join("chroot/usr/bin/program");
        let path = program
            .strip_prefix("/")
            .expect("absolute")
            .to_str()
            .expect("plain");
        let object = linker.look(path.to_owned()).expect("an executable");
        // It finds only libraries that have been put there.
        let folder = scratch.0.join("chroot");
        let below = |need: &String| Path::new("/").join(need).starts_with(&folder);
        assert!(object.needs.iter().all(below), "{:?}", object.needs);
        let is_libc = |need: &&String| need.ends_with(&format!("chroot/usr/lib/{libc}"));
        assert_eq!(
            object.needs.iter().filter(is_libc).count(),
            1,
            "{:?}",
            object.needs
        );
    }

    #[test]
    fn linker_ignores_paths_outside_the_root_and_non_files() {
        let scratch = Scratch::new("out");
        let root = Root {
            path: scratch.0.join("root"),
            linker: None,
        };
        std::fs::create_dir_all(root.path.join("lib/folder.so")).expect("folders");
        std::fs::write(scratch.0.join("secret.so"), "x").expect("a file");
        std::os::unix::fs::symlink("../../secret.so", root.path.join("lib/secret.so"))
            .expect("a link");
        nix::unistd::mkfifo(
            &root.path.join("lib/pipe.so"),
            nix::sys::stat::Mode::S_IRWXU,
        )
        .expect("a FIFO");
        std::fs::write(root.path.join("lib/good.so"), "x").expect("a file");
        let linker = Linker::new(&scratch.0);
        let find =
            |name: &str| linker.find(&root, &root.path.join("bin/x"), &Dynamic::default(), name);
        assert_eq!(find("good.so").as_deref(), Some("root/lib/good.so"));
        for name in [
            "secret.so",
            "folder.so",
            "pipe.so",
            "none.so",
            "../../secret.so",
        ] {
            assert_eq!(find(name), None, "{name}");
        }
        let own = Dynamic {
            folders: vec!["${ORIGIN}/../lib".into()],
            ..Dynamic::default()
        };
        let own = linker.find(&root, &root.path.join("bin/x"), &own, "good.so");
        assert_eq!(own.as_deref(), Some("root/lib/good.so"));
    }

    #[test]
    fn files_that_are_no_objects_are_not_read() {
        let scratch = Scratch::new("none");
        scratch.copy(&this_program(), "data.json");
        std::fs::set_permissions(
            scratch.0.join("data.json"),
            std::os::unix::fs::PermissionsExt::from_mode(0o644),
        )
        .expect("permissions");
        std::fs::write(scratch.0.join("text.so"), "GROUP ( libc.so.6 )").expect("a file");
        let mut linker = Linker::new(&scratch.0);
        for name in ["data.json", "text.so", "none"] {
            assert!(linker.look(name.to_owned()).is_none(), "{name}");
        }
    }
}
