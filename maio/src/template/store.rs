//! Where templates are kept: `ROOT/SERVICE/NODE.maio`.
//!
//! Nodes may share the root, and for some it may be read-only. Each node writes its own template, by
//! renaming, so that readers see either the old one or the new one. Names of temporary files begin with a
//! dot, unlike names of nodes.
//!
//! What other nodes of a fleet have recorded may be in a folder of the store (`fleet`), with the same structure.

mod fleet;
mod life;
mod recent;
#[cfg(test)]
mod tests;
mod trust;

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{Group, MAX_BYTES, Template, TemplateError, TemplateKind};
pub use fleet::Stamp;
use trust::{TrustedFolder, untrusted};

const SUFFIX: &str = ".maio";
const TEMPORARY: &str = ".tmp";
/// How long a write may take; a writer that takes longer counts as dead.
const ABANDONED: Duration = Duration::from_hours(1);

/// Whether a service or node can have this name: it has to be a valid file name everywhere.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=128).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}

/// The default name of this node: its host name.
#[must_use]
pub fn this_node() -> String {
    let name = nix::unistd::gethostname().ok();
    let name = name.and_then(|name| name.into_string().ok());
    name.filter(|name| valid_name(name))
        .unwrap_or_else(|| "node".to_owned())
}

/// The default place of templates: `/var/lib/ppc/templates` for root, in their home for other
/// users. `None` if they have none.
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
    // The specification says that relative paths must be ignored.
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
    /// The service.
    pub service: String,
    /// The node.
    pub node: String,
    /// The size of the template's file, in bytes.
    pub bytes: u64,
    /// When it was saved.
    pub modified: SystemTime,
    /// Its summary, or why it cannot be used.
    pub state: Result<Summary, TemplateError>,
}

/// A template, summarised in a few numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Whether it is of a model or of a start.
    pub kind: TemplateKind,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
    /// The number of loads that went like this.
    pub loads: u32,
    /// The number of files that are read.
    pub files: usize,
    /// The number of groups.
    pub groups: usize,
    /// The bytes that all groups read; for a start, those that the newest one read.
    pub reads: u64,
}

impl Summary {
    /// The summary of this template.
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
    /// The store in this directory, which need not exist.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The template of a service on a node; `None` if there is none. Without one in the store itself, that of the fleet
    /// by this name.
    ///
    /// Its place decides which node it belongs to: a copy of another node's template is this node's.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn load(&self, service: &str, node: &str) -> Result<Option<Template>, TemplateError> {
        match load_from(&self.root, service, node)? {
            Some(template) => Ok(Some(template)),
            None => match self.fleet_folder() {
                Some(fleet) => load_from(&fleet, service, node),
                None => Ok(None),
            },
        }
    }

    /// The usable templates that other nodes have of a service, the newest first: only those saved after `since`,
    /// if given, and together no larger than one template may be. Each is read when the iterator reaches it.
    ///
    /// # Errors
    /// Of the name or of reading the directory.
    pub fn load_others(
        &self,
        service: &str,
        node: &str,
        since: Option<SystemTime>,
    ) -> Result<impl Iterator<Item = Template>, TemplateError> {
        let mut found = self.nodes(service)?;
        found.retain(|kept| kept.node != node && since.is_none_or(|since| kept.modified > since));
        let mut left = MAX_BYTES as u64;
        let fits = move |kept: &StoredFile| match left.checked_sub(kept.bytes) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        Ok(self.newest_first(service, found, fits))
    }

    /// Reads the templates of all nodes, without a bound on bytes; for tools.
    ///
    /// # Errors
    /// Of the name or of reading the directory.
    pub fn load_all(&self, service: &str) -> Result<impl Iterator<Item = Template>, TemplateError> {
        let found = self.nodes(service)?;
        Ok(self.newest_first(service, found, |_| true))
    }

    fn newest_first(
        &self,
        service: &str,
        mut found: Vec<StoredFile>,
        fits: impl FnMut(&StoredFile) -> bool,
    ) -> impl Iterator<Item = Template> {
        found.sort_by_key(|kept| kept.modified);
        let usable = |kept: StoredFile| self.load(service, &kept.node).ok().flatten();
        found.into_iter().rev().filter(fits).filter_map(usable)
    }

    /// Keeps a template, replacing the previous one.
    ///
    /// # Errors
    /// [`TemplateError::ReadOnly`] where nothing can be kept; otherwise what is wrong with the template or
    /// the disk.
    pub fn save(&self, template: &Template) -> Result<(), TemplateError> {
        self.save_of(template, None)
    }

    /// The same, of a template that was saved at that time elsewhere.
    ///
    /// # Errors
    /// Those of [`Store::save`].
    pub fn save_copy(&self, template: &Template, saved: SystemTime) -> Result<(), TemplateError> {
        self.save_of(template, Some(saved))
    }

    fn save_of(&self, template: &Template, saved: Option<SystemTime>) -> Result<(), TemplateError> {
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
        let Some(trusted) = TrustedFolder::open(&self.root, &template.service)? else {
            return Err(writing(io::ErrorKind::NotFound.into()));
        };
        // If another folder takes its path from now on, nothing is written there.
        let folder = trusted.within();
        let temporary = folder.join(temporary_name(&template.node));
        let written = write(&temporary, &bytes, saved)
            .and_then(|now| fs::rename(&temporary, folder.join(name)).map(|()| now));
        let now = written.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            writing(error)
        })?;
        sync(&folder).map_err(&writing)?;
        clean(&folder, now);
        self.tidy_now_and_then(now);
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
        for service in self.services()? {
            for kept in self.nodes(&service)? {
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
        if is_link(&folder) {
            return Err(untrusted(&folder, "it is a link, not a directory"));
        }
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

/// A template of the store at this root.
fn load_from(root: &Path, service: &str, node: &str) -> Result<Option<Template>, TemplateError> {
    let name = file_name(node)?;
    let Some(folder) = TrustedFolder::open(root, checked(service)?)? else {
        return Ok(None);
    };
    let bytes = match folder.read(&name) {
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

/// A name that no other process chooses: processes of several nodes can have the same number.
fn temporary_name(node: &str) -> String {
    let process = std::process::id();
    let random = RandomState::new().build_hasher().finish();
    format!(".{node}.{process}-{random:016x}{TEMPORARY}")
}

/// Writes a new file to the disk. Returns when it was changed, by the clock of its file system.
fn write(path: &Path, bytes: &[u8], saved: Option<SystemTime>) -> io::Result<SystemTime> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)?;
    file.write_all(bytes)?;
    let now = file.metadata()?.modified()?;
    if let Some(saved) = saved {
        file.set_modified(saved.min(now))?;
    }
    file.sync_all()?;
    Ok(now)
}

fn sync(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some file systems cannot; the file itself is on the disk.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        done => done,
    }
}

/// Removes what dead writers have left. Writers on other nodes can be recognised as dead only by age.
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
        // If its attributes cannot be read, it is gone by now.
        let found = fs::symlink_metadata(folder.join(&name)).ok()?;
        Some(StoredFile {
            node: node.to_owned(),
            bytes: found.len(),
            modified: found.modified().ok()?,
        })
    };
    if is_link(folder) {
        return Ok(Vec::new());
    }
    Ok(names(folder)?.filter_map(node).collect())
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata()
        .is_ok_and(|found| found.file_type().is_symlink())
}

/// The names in a directory that are UTF-8. None if it does not exist or is not a directory.
fn names(folder: &Path) -> Result<impl Iterator<Item = String> + use<>, TemplateError> {
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
