//! Where templates are kept: `ROOT/SERVICE/NODE.maio`.
//!
//! The root may be shared by nodes, and read-only for some. Each node writes its own template, by
//! renaming, so that readers see the old one or the new one. Names of temporary files begin with a
//! dot, which names of nodes do not.

mod recent;

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{Group, MAX_BYTES, Template, TemplateError, TemplateKind};

const SUFFIX: &str = ".maio";
const TEMPORARY: &str = ".tmp";
/// A writer that takes longer than that is dead.
const ABANDONED: Duration = Duration::from_hours(1);

/// Whether a service or node can be called that, so that its name is a file's anywhere.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=128).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}

/// What this node is called, if nobody says otherwise: by its host's name.
#[must_use]
pub fn this_node() -> String {
    let name = nix::unistd::gethostname().ok();
    let name = name.and_then(|name| name.into_string().ok());
    name.filter(|name| valid_name(name))
        .unwrap_or_else(|| "node".to_owned())
}

/// Where templates are kept if nobody says otherwise: `/var/lib/ppc/templates` for root, for others
/// in their home. `None` if they have none.
#[must_use]
pub fn default_root() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    root(
        nix::unistd::geteuid().is_root(),
        variable("XDG_STATE_HOME"),
        variable("HOME"),
    )
}

fn root(root: bool, state: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    if root {
        return Some(PathBuf::from("/var/lib/ppc/templates"));
    }
    // What is not absolute is to be ignored, says the specification.
    let absolute = |path: &PathBuf| path.is_absolute();
    let home = || Some(home.filter(absolute)?.join(".local/state"));
    let state = state.filter(absolute).or_else(home)?;
    Some(state.join("ppc/templates"))
}

/// A directory of templates. Nothing is opened before it is asked for.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// A template that is kept, as [`Store::list`] shows it.
#[derive(Debug)]
pub struct StoreEntry {
    /// Of which service.
    pub service: String,
    /// Of which node.
    pub node: String,
    /// Its size as it is kept.
    pub bytes: u64,
    /// When it was saved.
    pub modified: SystemTime,
    /// What is in it, or why it cannot be used.
    pub state: Result<Summary, TemplateError>,
}

/// A template in few numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// What it is of.
    pub kind: TemplateKind,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
    /// How many loads went like this.
    pub loads: u32,
    /// How many files are read.
    pub files: usize,
    /// How many groups there are.
    pub groups: usize,
    /// How much all groups read; of a start, how much the newest one did.
    pub reads: u64,
}

impl Summary {
    /// Of this template.
    #[must_use]
    pub fn of(template: &Template) -> Self {
        let bytes = |sum: u64, group: &Group| sum.saturating_add(group.bytes());
        Self {
            kind: template.kind,
            made_s: template.made_s,
            loads: template.loads,
            files: template.files.len(),
            groups: template.groups.len(),
            reads: match template.kind {
                TemplateKind::Model => template.groups.iter().fold(0, bytes),
                TemplateKind::Start => template.groups.first().map_or(0, Group::bytes),
            },
        }
    }
}

impl Store {
    /// The store in that directory, which need not exist.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The template of a service on a node; `None` if there is none.
    ///
    /// Its place decides on whose it is: a copy of another node's template is this node's.
    ///
    /// # Errors
    /// Whatever keeps it from being used.
    pub fn load(&self, service: &str, node: &str) -> Result<Option<Template>, TemplateError> {
        let path = self.folder(service)?.join(file_name(node)?);
        let bytes = match read(&path) {
            Err(TemplateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            bytes => bytes?,
        };
        let mut template = Template::from_bytes(&bytes)?;
        service.clone_into(&mut template.service);
        node.clone_into(&mut template.node);
        Ok(Some(template))
    }

    /// The usable templates of a service, whichever nodes', the newest first. Each is read when it is
    /// asked for.
    ///
    /// # Errors
    /// Of the name or of reading the directory.
    pub fn load_all(&self, service: &str) -> Result<impl Iterator<Item = Template>, TemplateError> {
        let mut found = nodes(&self.folder(service)?)?;
        found.sort_by_key(|kept| kept.modified);
        let usable = |kept: StoredFile| self.load(service, &kept.node).ok().flatten();
        Ok(found.into_iter().rev().filter_map(usable))
    }

    /// Keeps a template, in place of the one there was.
    ///
    /// # Errors
    /// [`TemplateError::ReadOnly`] where nothing can be kept; otherwise what is wrong with the template or
    /// the disk.
    pub fn save(&self, template: &Template) -> Result<(), TemplateError> {
        let folder = self.folder(&template.service)?;
        let name = file_name(&template.node)?;
        let bytes = template.to_bytes()?;
        let writing = TemplateError::writing(&folder);
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o755)
            .create(&folder)
            .map_err(&writing)?;
        let temporary = folder.join(temporary_name(&template.node));
        let written = write(&temporary, &bytes)
            .and_then(|now| fs::rename(&temporary, folder.join(name)).map(|()| now));
        let now = written.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            writing(error)
        })?;
        sync(&folder).map_err(&writing)?;
        clean(&folder, now);
        Ok(())
    }

    /// When the template of a service on a node was saved; `None` if there is none. For tools.
    ///
    /// # Errors
    /// Of a name, or what the kernel said.
    pub fn saved_at(&self, service: &str, node: &str) -> Result<Option<SystemTime>, TemplateError> {
        let path = self.folder(service)?.join(file_name(node)?);
        match fs::symlink_metadata(&path).and_then(|found| found.modified()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            saved => saved.map(Some).map_err(TemplateError::io(&path)),
        }
    }

    /// All that is kept, by service and node. For tools, the policy asks for one service.
    ///
    /// # Errors
    /// Of reading the directories. A root that does not exist is empty.
    pub fn list(&self) -> Result<Vec<StoreEntry>, TemplateError> {
        let mut entries = Vec::new();
        for service in names(&self.root)?.filter(|name| valid_name(name)) {
            for kept in nodes(&self.root.join(&service))? {
                let state = match self.load(&service, &kept.node) {
                    Ok(None) => continue,
                    Ok(Some(template)) => Ok(Summary::of(&template)),
                    Err(error) => Err(error),
                };
                entries.push(StoreEntry {
                    service: service.clone(),
                    node: kept.node,
                    bytes: kept.bytes,
                    modified: kept.modified,
                    state,
                });
            }
        }
        let key = |entry: &StoreEntry| (entry.service.clone(), entry.node.clone());
        entries.sort_by_cached_key(key);
        Ok(entries)
    }

    /// Removes the templates of a service, of one node or of all, and returns how many there were. For
    /// tools: the policy only replaces its own.
    ///
    /// # Errors
    /// [`TemplateError::ReadOnly`] where nothing can be removed; otherwise what the kernel said.
    pub fn remove(&self, service: &str, node: Option<&str>) -> Result<usize, TemplateError> {
        let folder = self.folder(service)?;
        let nodes = match node {
            Some(node) => vec![node.to_owned()],
            None => nodes(&folder)?.into_iter().map(|kept| kept.node).collect(),
        };
        let mut removed = 0;
        for node in nodes {
            let path = folder.join(file_name(&node)?);
            match fs::remove_file(&path) {
                Ok(()) => removed += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(TemplateError::writing(&path)(error)),
            }
        }
        // Stays if it is not empty.
        let _ = fs::remove_dir(&folder);
        Ok(removed)
    }

    fn folder(&self, service: &str) -> Result<PathBuf, TemplateError> {
        Ok(self.root.join(checked(service)?))
    }
}

fn checked(name: &str) -> Result<&str, TemplateError> {
    if valid_name(name) {
        Ok(name)
    } else {
        Err(TemplateError::Name(name.to_owned()))
    }
}

fn file_name(node: &str) -> Result<String, TemplateError> {
    Ok(format!("{}{SUFFIX}", checked(node)?))
}

/// Of nobody else's choosing: processes of several nodes can have the same number.
fn temporary_name(node: &str) -> String {
    let process = std::process::id();
    let random = RandomState::new().build_hasher().finish();
    format!(".{node}.{process}-{random:016x}{TEMPORARY}")
}

/// Writes a new file to the disk. Returns when it was changed, by the clock of who keeps it.
fn write(path: &Path, bytes: &[u8]) -> io::Result<SystemTime> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    file.metadata()?.modified()
}

fn sync(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some file systems cannot; the file itself is on the disk.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        done => done,
    }
}

/// Removes what dead writers have left. Those of other nodes can be told by their age only.
fn clean(folder: &Path, now: SystemTime) {
    let temporary = |name: &String| name.starts_with('.') && name.ends_with(TEMPORARY);
    let Ok(names) = names(folder) else {
        return;
    };
    for name in names.filter(temporary) {
        let path = folder.join(name);
        let changed = fs::symlink_metadata(&path).and_then(|found| found.modified());
        let age = changed
            .ok()
            .and_then(|changed| now.duration_since(changed).ok());
        if age.is_some_and(|age| age > ABANDONED) {
            // Another node may have been faster.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Reads a regular file of no more than [`MAX_BYTES`].
fn read(path: &Path) -> Result<Vec<u8>, TemplateError> {
    let reading = TemplateError::io(path);
    // A pipe would wait for its writer.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO)) => {
            return Err(TemplateError::NotAFile(path.to_owned()));
        }
        file => file.map_err(&reading)?,
    };
    let found = file.metadata().map_err(&reading)?;
    if !found.is_file() {
        return Err(TemplateError::NotAFile(path.to_owned()));
    }
    if found.len() > MAX_BYTES as u64 {
        return Err(TemplateError::TooLarge(found.len()));
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(&reading)?;
    Ok(bytes)
}

/// A template's file.
struct StoredFile {
    node: String,
    bytes: u64,
    modified: SystemTime,
}

/// The nodes that have a template in a service's folder.
fn nodes(folder: &Path) -> Result<Vec<StoredFile>, TemplateError> {
    let node = |name: String| {
        let node = name.strip_suffix(SUFFIX).filter(|node| valid_name(node))?;
        // Gone since, if it cannot be asked.
        let found = fs::symlink_metadata(folder.join(&name)).ok()?;
        Some(StoredFile {
            node: node.to_owned(),
            bytes: found.len(),
            modified: found.modified().ok()?,
        })
    };
    Ok(names(folder)?.filter_map(node).collect())
}

/// What is in a directory, by names of UTF-8. Nothing if it is none or does not exist.
fn names(folder: &Path) -> Result<impl Iterator<Item = String>, TemplateError> {
    let entries = match fs::read_dir(folder) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            None
        }
        entries => Some(entries.map_err(TemplateError::io(folder))?),
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    Ok(entries.into_iter().flatten().filter_map(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::samples::small;
    use super::*;

    /// A directory that goes with its test.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("maio-store-{}-{count}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).expect("it is ours");
            Self(path)
        }

        fn store(&self) -> Store {
            Store::at(self.0.join("deep/templates"))
        }

        fn of_service(&self) -> PathBuf {
            self.0.join("deep/templates/qwen")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn of(node: &str, loads: u32) -> Template {
        Template {
            node: node.to_owned(),
            loads,
            ..small()
        }
    }

    /// Whose the newest template is.
    fn newest(store: &Store) -> Option<String> {
        let mut all = store.load_all("qwen").expect("to load");
        all.next().map(|template| template.node)
    }

    fn names_of(store: &Store) -> Vec<(String, bool)> {
        let entries = store.list().expect("to list").into_iter();
        entries
            .map(|it| (format!("{}/{}", it.service, it.node), it.state.is_ok()))
            .collect()
    }

    #[test]
    fn names_are_plain() {
        for name in ["a", "A-1_b.c", "0", "-", &"a".repeat(128)] {
            assert!(valid_name(name), "{name:?}");
        }
        for name in [
            "",
            ".",
            "..",
            ".a",
            "a/b",
            "a b",
            "é",
            "a\0",
            "a\n",
            &"a".repeat(129),
        ] {
            assert!(!valid_name(name), "{name:?}");
            let store = Store::at("/nonexistent");
            assert!(matches!(store.load(name, "n"), Err(TemplateError::Name(_))));
            assert!(matches!(store.load("s", name), Err(TemplateError::Name(_))));
            assert!(matches!(
                store.remove(name, None),
                Err(TemplateError::Name(_))
            ));
            assert!(matches!(
                store.save(&of(name, 1)),
                Err(TemplateError::Name(_))
            ));
        }
    }

    #[test]
    fn roots_are_where_state_is_kept() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            root(true, path("/s"), path("/h")),
            path("/var/lib/ppc/templates")
        );
        assert_eq!(
            root(false, path("/s"), path("/h")),
            path("/s/ppc/templates")
        );
        let home = path("/h/.local/state/ppc/templates");
        assert_eq!(root(false, None, path("/h")), home);
        assert_eq!(root(false, path("s"), path("/h")), home);
        assert_eq!(root(false, None, None), None);
    }

    #[test]
    fn what_is_saved_is_loaded_listed_and_removed() {
        let folder = Folder::new();
        let store = folder.store();
        assert_eq!(store.load("qwen", "node-1").expect("to load"), None);
        assert_eq!(newest(&store), None);
        assert!(store.list().expect("to list").is_empty());
        assert_eq!(store.remove("qwen", None).expect("to remove"), 0);

        store.save(&of("node-2", 1)).expect("to save");
        store.save(&of("node-1", 1)).expect("to save");
        store.save(&of("node-1", 2)).expect("to save");
        assert_eq!(
            store.load("qwen", "node-1").expect("to load"),
            Some(of("node-1", 2))
        );
        assert_eq!(store.load("qwen", "node-3").expect("to load"), None);
        let saved = |node| store.saved_at("qwen", node).expect("to ask");
        assert!(saved("node-1") >= saved("node-2") && saved("node-2").is_some());
        assert_eq!(saved("node-3"), None);
        let entries = store.list().expect("to list");
        assert_eq!(
            entries[0].state.as_ref().expect("a summary"),
            &Summary::of(&of("node-1", 2))
        );
        assert_eq!(
            entries[0].bytes,
            of("node-1", 2).to_bytes().expect("bytes").len() as u64
        );
        let names = [
            ("qwen/node-1".to_owned(), true),
            ("qwen/node-2".to_owned(), true),
        ];
        assert_eq!(names_of(&store), names);
        let mode = |path: &Path| {
            fs::metadata(path)
                .expect("it is there")
                .permissions()
                .mode()
                & 0o7777
        };
        assert_eq!(mode(&folder.of_service().join("node-1.maio")) & !0o644, 0);

        assert_eq!(store.remove("qwen", Some("node-9")).expect("to remove"), 0);
        assert_eq!(store.remove("qwen", Some("node-2")).expect("to remove"), 1);
        assert_eq!(store.remove("qwen", None).expect("to remove"), 1);
        assert!(!folder.of_service().exists());
    }

    #[test]
    fn the_newest_usable_template_of_others_is_found() {
        let folder = Folder::new();
        let store = folder.store();
        let hour = |hour: u64| SystemTime::UNIX_EPOCH + Duration::from_hours(hour);
        let set = |node: &str, time| {
            let path = folder.of_service().join(format!("{node}.maio"));
            File::options()
                .write(true)
                .open(path)
                .expect("it is ours")
                .set_modified(time)
                .expect("it is ours");
        };
        for (node, time) in [("a", 100), ("b", 300), ("c", 200)] {
            store.save(&of(node, 1)).expect("to save");
            set(node, hour(time));
        }
        assert_eq!(newest(&store).as_deref(), Some("b"));
        fs::write(folder.of_service().join("b.maio"), b"MAIOTPL\nno").expect("it is ours");
        set("b", hour(300));
        assert_eq!(newest(&store).as_deref(), Some("c"));
        assert!(matches!(
            store.load("qwen", "b"),
            Err(TemplateError::Truncated)
        ));
        let states: Vec<bool> = names_of(&store).into_iter().map(|it| it.1).collect();
        assert_eq!(states, [true, false, true]);
    }

    #[test]
    fn a_copy_of_another_nodes_template_is_this_nodes() {
        let folder = Folder::new();
        let store = folder.store();
        store.save(&of("a", 1)).expect("to save");
        let copy = folder.of_service().join("b.maio");
        fs::copy(folder.of_service().join("a.maio"), copy).expect("it is ours");
        assert_eq!(
            store
                .load("qwen", "b")
                .expect("to load")
                .expect("a template")
                .node,
            "b"
        );
    }

    #[test]
    fn writers_at_once_leave_one_whole_template() {
        let folder = Folder::new();
        let store = folder.store();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let store = &store;
                scope.spawn(move || {
                    for load in 0..10 {
                        store.save(&of("n", thread * 10 + load)).expect("to save");
                        let found = store
                            .load("qwen", "n")
                            .expect("to load")
                            .expect("a template");
                        assert_eq!(found, of("n", found.loads));
                    }
                });
            }
        });
        let left: Vec<String> = names(&folder.of_service()).expect("a directory").collect();
        assert_eq!(left, ["n.maio"]);
    }

    #[test]
    fn temporary_files_are_invisible_and_old_ones_go() {
        let folder = Folder::new();
        let store = folder.store();
        store.save(&of("n", 1)).expect("to save");
        let (young, old) = (temporary_name("n"), temporary_name("m"));
        for name in [&young, &old] {
            fs::write(folder.of_service().join(name), b"MAIOTPL").expect("it is ours");
        }
        let file = File::options()
            .write(true)
            .open(folder.of_service().join(&old))
            .expect("it is ours");
        file.set_modified(SystemTime::now() - ABANDONED - Duration::from_mins(1))
            .expect("it is ours");
        assert_eq!(names_of(&store), [("qwen/n".to_owned(), true)]);
        assert_eq!(newest(&store).as_deref(), Some("n"));

        store.save(&of("n", 2)).expect("to save");
        assert!(folder.of_service().join(&young).exists());
        assert!(!folder.of_service().join(&old).exists());
    }

    #[test]
    fn only_regular_files_of_a_sane_size_are_read() {
        let folder = Folder::new();
        let store = folder.store();
        store.save(&of("a", 1)).expect("to save");
        let path = |node: &str| folder.of_service().join(format!("{node}.maio"));
        symlink(path("a"), path("link")).expect("it is ours");
        fs::create_dir(path("folder")).expect("it is ours");
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("it is ours");
        for node in ["link", "folder", "pipe"] {
            let error = store.load("qwen", node);
            assert!(
                matches!(error, Err(TemplateError::NotAFile(_))),
                "{node} {error:?}"
            );
        }
        File::create(path("large"))
            .expect("it is ours")
            .set_len(MAX_BYTES as u64 + 1)
            .expect("it is ours");
        assert!(matches!(
            store.load("qwen", "large"),
            Err(TemplateError::TooLarge(_))
        ));
        // Saving replaces the link, not what it leads to.
        store.save(&of("link", 5)).expect("to save");
        assert_eq!(
            store
                .load("qwen", "a")
                .expect("to load")
                .expect("a template")
                .loads,
            1
        );
        assert_eq!(
            store
                .load("qwen", "link")
                .expect("to load")
                .expect("a template")
                .loads,
            5
        );
    }

    #[test]
    fn a_store_that_cannot_be_written_says_so() {
        // Nobody can make directories there, root neither.
        let error = Store::at("/proc/self/templates").save(&of("n", 1));
        assert!(error.is_err());
        let error = Store::at("/sys/kernel/templates").save(&of("n", 1));
        assert!(
            matches!(error, Err(TemplateError::ReadOnly { .. })),
            "{error:?}"
        );
        let folder = Folder::new();
        fs::write(folder.0.join("deep"), b"").expect("it is ours");
        assert!(matches!(
            folder.store().save(&of("n", 1)),
            Err(TemplateError::Io { .. })
        ));
        assert!(folder.store().list().expect("to list").is_empty());
    }
}
