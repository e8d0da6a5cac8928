//! What the threads of a mount share: the table, the way from a number to the lower file, and the listener
//! for what readers do.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::identity::{ContentStamp, FileIdentity};
use super::lower::{Directory, Lower, LowerFile};
use super::table::{KnownNode, LowerPlace, MirrorNode, NodeTable, ROOT};

/// Receives what readers do, on a thread that serves them: so it must not wait for anything that waits
/// for the mount.
pub(crate) trait Listener: Send + Sync {
    /// A thread has opened a file of `size` bytes.
    fn opened(&self, file: u64, size: u64, thread: u32, direct: bool);
    /// A file that this thread has opened is closed.
    fn closed(&self, file: u64, thread: u32);
    /// A thread waits for a range, or the kernel reads ahead for it.
    fn missed(&self, file: u64, offset: u64, length: u64, thread: u32, direct: bool);
    /// The kernel no longer caches any page of the file.
    fn dropped(&self, file: u64);
    /// The mount is gone.
    fn ended(&self);
}

/// The device and inode of the lower file, and the file.
#[derive(Clone, Debug)]
pub(crate) struct Below {
    pub(crate) identity: FileIdentity,
    pub(crate) lower: Arc<Lower>,
}

/// How files are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By the kernel, from the lower file; only opens come to us.
    Passthrough,
    /// By us, and why.
    Plain(String),
}

pub(crate) struct Core {
    root: Arc<Directory>,
    table: Mutex<NodeTable>,
    pub(super) listener: Option<Arc<dyn Listener>>,
    /// Set once, before there are readers.
    pub(super) mode: OnceLock<Mode>,
    /// Set if the kernel has passthrough.
    pub(super) offered: OnceLock<()>,
    /// Set if passthrough has been refused for a file; it is logged once.
    pub(super) refused: OnceLock<()>,
    ended: Mutex<bool>,
    ending: Condvar,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("root", &self.root)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

fn stale() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

impl Core {
    pub(super) fn new(root: Directory, listener: Option<Arc<dyn Listener>>) -> io::Result<Self> {
        let identity = FileIdentity::of(&root.metadata()?);
        let root = Arc::new(root);
        Ok(Self {
            table: Mutex::new(NodeTable::new(Arc::clone(&root), identity)),
            root,
            listener,
            mode: OnceLock::new(),
            offered: OnceLock::new(),
            refused: OnceLock::new(),
            ended: Mutex::new(false),
            ending: Condvar::new(),
        })
    }

    pub(crate) fn root(&self) -> &Directory {
        &self.root
    }

    pub(super) fn table(&self) -> MutexGuard<'_, NodeTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn passes_through(&self) -> bool {
        matches!(self.mode.get(), Some(Mode::Passthrough))
    }

    fn place(&self, id: u64) -> io::Result<(FileIdentity, LowerPlace)> {
        let table = self.table();
        let node = table.get(id).ok_or_else(stale)?;
        Ok((node.identity, node.place.clone()))
    }

    pub(super) fn directory(&self, id: u64) -> io::Result<Arc<Directory>> {
        match self.place(id)?.1 {
            LowerPlace::Directory(directory) => Ok(directory),
            LowerPlace::Leaf { .. } => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }

    /// The file at the place of a non-directory, if it is still the same one. Otherwise the error is
    /// ESTALE, upon which the kernel looks its path up once more.
    pub(super) fn leaf(&self, id: u64) -> io::Result<LowerFile> {
        let (identity, LowerPlace::Leaf { parent, name }) = self.place(id)? else {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        };
        match parent.find(&name) {
            Ok(found) if found.identity() == identity => Ok(found),
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Err(stale()),
        }
    }

    pub(super) fn metadata(&self, id: u64) -> io::Result<Metadata> {
        let open = |node: &MirrorNode| node.opened.clone();
        let opened = self.table().get(id).and_then(open);
        if let Some(lower) = opened {
            return lower.file().metadata();
        }
        match self.place(id)?.1 {
            LowerPlace::Directory(directory) => directory.metadata(),
            LowerPlace::Leaf { .. } => Ok(self.leaf(id)?.metadata),
        }
    }

    /// A path to the file itself, for calls that take nothing else, and what keeps it valid.
    pub(super) fn magic(&self, id: u64) -> io::Result<(PathBuf, Held)> {
        match self.place(id)?.1 {
            LowerPlace::Directory(directory) => Ok((directory.magic(), Held::Directory(directory))),
            LowerPlace::Leaf { .. } => {
                let found = self.leaf(id)?;
                Ok((found.magic(), Held::LowerFile(found)))
            }
        }
    }

    /// Looks a name up for the kernel, which from now on knows the file there.
    pub(super) fn lookup(
        &self,
        parent: &Arc<Directory>,
        name: &OsStr,
    ) -> io::Result<(KnownNode, Metadata)> {
        let found = parent.find(name)?;
        let (identity, stamp) = (found.identity(), ContentStamp::of(&found.metadata));
        let metadata = found.metadata.clone();
        let place = if metadata.is_dir() {
            LowerPlace::Directory(Arc::new(found.into_directory()))
        } else {
            LowerPlace::Leaf {
                parent: Arc::clone(parent),
                name: name.to_owned(),
            }
        };
        let known = self.table().intern(identity, place, stamp);
        if known.fresh {
            self.dropped(known.id);
        }
        Ok((known, metadata))
    }

    pub(super) fn forget(&self, id: u64, lookups: u64) {
        let gone = self.table().forget(id, lookups);
        if gone {
            self.dropped(id);
        }
    }

    pub(super) fn dropped(&self, id: u64) {
        if let Some(listener) = &self.listener {
            listener.dropped(id);
        }
    }

    /// Opens a file for a reader. The flag returned says whether the kernel's cached pages are still valid.
    pub(super) fn open(&self, id: u64) -> io::Result<(Arc<Lower>, Metadata, bool)> {
        let lower = self.below(id)?.lower;
        let lower = self.table().open(id, lower).ok_or_else(stale)?;
        let metadata = match lower.file().metadata() {
            Ok(metadata) => metadata,
            Err(error) => {
                self.table().close(id);
                return Err(error);
            }
        };
        let changed = self.table().restamp(id, ContentStamp::of(&metadata));
        if changed {
            self.dropped(id);
        }
        Ok((lower, metadata, !changed))
    }

    pub(super) fn close(&self, id: u64) {
        self.table().close(id);
    }

    /// Notes that the mount is gone.
    pub(super) fn end(&self) {
        if let Some(listener) = &self.listener {
            listener.ended();
        }
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ending.notify_all();
    }

    /// Whether the mount is gone; waits at most `within` for that.
    pub(crate) fn ended(&self, within: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .ending
            .wait_timeout_while(ended, within, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// The lower file of a regular file that the kernel knows.
    pub(crate) fn below(&self, id: u64) -> io::Result<Below> {
        let (identity, opened) = {
            let table = self.table();
            let node = table.get(id).ok_or_else(stale)?;
            (node.identity, node.opened.clone())
        };
        let lower = match opened {
            Some(lower) => lower,
            None => Arc::new(Lower::open(&self.leaf(id)?)?),
        };
        Ok(Below { identity, lower })
    }

    /// Whether the kernel knows the file.
    pub(crate) fn knows(&self, id: u64) -> bool {
        self.table().get(id).is_some()
    }

    /// Sets the contents of a file before it is loaded; returns whether the kernel's pages are of earlier ones.
    pub(crate) fn restamp(&self, id: u64, metadata: &Metadata) -> bool {
        self.table().restamp(id, ContentStamp::of(metadata))
    }

    /// The path of a file, from the root.
    pub(crate) fn path(&self, id: u64) -> io::Result<PathBuf> {
        let (directory, name) = match self.place(id)?.1 {
            LowerPlace::Directory(directory) => (directory, OsString::new()),
            LowerPlace::Leaf { parent, name } => {
                // The file may be gone.
                self.leaf(id)
                    .map_err(|_| io::Error::from_raw_os_error(libc::ENOENT))?;
                (parent, name)
            }
        };
        let path = directory.path()?.join(name);
        let path = path.strip_prefix(self.root.path()?);
        path.map(|path| path.components().collect())
            .map_err(|_| io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// The number of an inode of the lower directory's own file system that the kernel knows.
    #[cfg(test)]
    pub(crate) fn number(&self, device: u64, inode: u64) -> Option<u64> {
        self.table().find(device, inode)
    }
}

/// The number that `stat` shows: the root has number 1 only in the FUSE protocol.
pub(super) fn shown(id: u64, metadata: &Metadata) -> u64 {
    if id == ROOT { metadata.ino() } else { id }
}

/// Keeps the path from [`Core::magic`] valid.
#[derive(Debug)]
pub(super) enum Held {
    Directory(#[expect(dead_code, reason = "held, not used")] Arc<Directory>),
    LowerFile(#[expect(dead_code, reason = "held, not used")] LowerFile),
}
