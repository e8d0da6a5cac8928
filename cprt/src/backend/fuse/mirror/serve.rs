//! Answers the kernel's requests from the lower directory.
//!
//! Every request that would change something is refused, even though the mount is read-only: it could be
//! remounted. The kernel checks permissions (`default_permissions`, with the lower ACLs) by the
//! attributes that it gets from here.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType,
    Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner,
    OpenAccMode, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use nix::unistd::Whence;

use crate::sys::xattr;

use super::attributes::attributes;
use super::lower::{Directory, Entry, Lower, Scratch};
use super::shared::{Core, shown};

/// How long the kernel trusts a name and attributes. A service that starts opens each file within this
/// time, so the kernel asks once for each; and no service restarts so soon after its model is replaced.
const BELIEVED: Duration = Duration::from_secs(1);

/// Upper bound on the kernel's readahead requests under way, of up to 1 MiB each.
const BACKGROUND: u16 = 32;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The file system as the kernel sees it.
#[derive(Debug)]
pub(super) struct Server {
    core: Arc<Core>,
    /// The number of file systems stacked, from the lower one up to this; `None` if passthrough is off in the settings.
    depth: Option<u32>,
    files: RwLock<HashMap<u64, OpenFile>>,
    listings: RwLock<HashMap<u64, Arc<Listing>>>,
    next: AtomicU64,
}

/// A file that a reader has opened.
#[derive(Clone, Debug)]
struct OpenFile {
    lower: Arc<Lower>,
    thread: u32,
    size: u64,
}

/// A directory that is being listed. Positions are indices into the names read when the listing began.
#[derive(Debug)]
struct Listing {
    directory: Arc<Directory>,
    names: Mutex<Arc<Vec<Entry>>>,
}

impl Listing {
    /// All names of the directory, for a listing from this position on; position 0 reads them again.
    fn from(&self, offset: u64) -> io::Result<Arc<Vec<Entry>>> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if offset == 0 {
            let metadata = self.directory.metadata()?;
            let up = std::fs::metadata(self.directory.magic().join(".."));
            let dot = |name: &str, inode| Entry {
                name: name.into(),
                inode,
                kind: FileType::Directory,
            };
            let mut all = vec![
                dot(".", metadata.ino()),
                dot("..", up.map_or(metadata.ino(), |up| up.ino())),
            ];
            all.extend(self.directory.list()?);
            *names = Arc::new(all);
        }
        Ok(Arc::clone(&names))
    }
}

impl Server {
    pub(super) fn new(core: Arc<Core>, depth: Option<u32>) -> Self {
        Self {
            core,
            depth,
            files: RwLock::default(),
            listings: RwLock::default(),
            next: AtomicU64::new(1),
        }
    }

    fn handle(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    fn attributes(&self, id: u64) -> io::Result<FileAttr> {
        let metadata = self.core.metadata(id)?;
        Ok(attributes(shown(id, &metadata), &metadata))
    }

    fn found(&self, parent: u64, name: &OsStr) -> io::Result<(FileAttr, Generation)> {
        let directory = self.core.directory(parent)?;
        let (known, metadata) = self.core.lookup(&directory, name)?;
        Ok((
            attributes(known.id, &metadata),
            Generation(known.generation),
        ))
    }

    fn file(&self, handle: FileHandle) -> io::Result<OpenFile> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let bad = || io::Error::from_raw_os_error(libc::EBADF);
        files.get(&handle.0).cloned().ok_or_else(bad)
    }

    fn listing(&self, handle: FileHandle) -> io::Result<Arc<Listing>> {
        let listings = self.listings.read().unwrap_or_else(PoisonError::into_inner);
        let bad = || io::Error::from_raw_os_error(libc::EBADF);
        listings.get(&handle.0).cloned().ok_or_else(bad)
    }

    fn answer_open(&self, lower: &Arc<Lower>, keep: bool, handle: FileHandle, reply: ReplyOpen) {
        if self.core.passes_through() {
            // All opens of the file share one: the kernel accepts no second one.
            let backing = lower.backing.get_or_init(|| {
                let backing = reply.open_backing(lower.file());
                backing.inspect_err(|error| self.say_refused(error)).ok()
            });
            if let Some(backing) = backing {
                return reply.opened_passthrough(handle, FopenFlags::empty(), backing);
            }
        }
        let mut flags = FopenFlags::empty();
        flags.set(FopenFlags::FOPEN_KEEP_CACHE, keep);
        reply.opened(handle, flags);
    }

    fn say_refused(&self, error: &io::Error) {
        if self.core.refused.set(()).is_ok() {
            log::warn!(
                "the kernel refuses passthrough for a file ({error}): the worker reads it itself, and may have to do \
                 so for others"
            );
        }
    }

    fn attribute(&self, id: u64, name: &OsStr, size: u32) -> io::Result<Vec<u8>> {
        let (path, _held) = self.core.magic(id)?;
        let mut value = vec![0; size as usize];
        let length = xattr::getxattr(&path, name, &mut value)?;
        value.resize(length, 0);
        Ok(value)
    }

    fn attribute_names(&self, id: u64, trusted: bool) -> io::Result<Vec<u8>> {
        let (path, _held) = self.core.magic(id)?;
        let mut names = vec![0; 64 << 10];
        let length = xattr::listxattr(&path, &mut names)?;
        names.truncate(length);
        if trusted {
            return Ok(names);
        }
        let others = names
            .split_inclusive(|&byte| byte == 0)
            .filter(|name| !name.starts_with(b"trusted."));
        Ok(others.flatten().copied().collect())
    }
}

/// Replies with a value or, if the request has no room for one, its length.
fn answer_xattr(value: io::Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(error.into()),
    }
}

fn position(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [
            // Drops cached pages of files that have changed below.
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Without it, the mask of a file's ACL would be taken for its group's permissions.
            InitFlags::FUSE_POSIX_ACL,
        ] {
            // The mirror works without those that an older kernel lacks.
            let _ = config.add_capabilities(wanted);
        }
        let _ = config.set_max_background(BACKGROUND);
        if let Some(depth) = self.depth
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(depth).is_ok()
        {
            let _ = self.core.offered.set(());
        }
        Ok(())
    }

    fn destroy(&mut self) {
        self.core.end();
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.found(parent.0, name) {
            Ok((attributes, generation)) => reply.entry(&BELIEVED, &attributes, generation),
            Err(error) => reply.error(error.into()),
        }
    }

    fn forget(&self, _: &Request, id: INodeNo, lookups: u64) {
        self.core.forget(id.0, lookups);
    }

    fn getattr(&self, _: &Request, id: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(id.0) {
            Ok(attributes) => reply.attr(&BELIEVED, &attributes),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readlink(&self, _: &Request, id: INodeNo, reply: ReplyData) {
        match self.core.leaf(id.0).and_then(|found| found.target()) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn open(&self, request: &Request, id: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY || flags.0 & libc::O_TRUNC != 0 {
            return reply.error(Errno::EROFS);
        }
        let (lower, metadata, keep) = match self.core.open(id.0) {
            Ok(opened) => opened,
            Err(error) => return reply.error(error.into()),
        };
        let handle = self.handle();
        let thread = request.pid();
        let open = OpenFile {
            lower: Arc::clone(&lower),
            thread,
            size: metadata.len(),
        };
        self.files
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(handle, open);
        if let Some(listener) = &self.core.listener {
            let direct = flags.0 & libc::O_DIRECT != 0;
            listener.opened(id.0, metadata.len(), thread, direct);
        }
        self.answer_open(&lower, keep, FileHandle(handle), reply);
    }

    fn read(
        &self,
        request: &Request,
        id: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let open = match self.file(handle) {
            Ok(open) => open,
            Err(error) => return reply.error(error.into()),
        };
        if let Some(listener) = &self.core.listener {
            let direct = flags.0 & libc::O_DIRECT != 0;
            // The kernel asks for whole pages, even at the end of the file.
            let length = u64::from(size).min(open.size.saturating_sub(offset));
            listener.missed(id.0, offset, length, request.pid(), direct);
        }
        SCRATCH.with_borrow_mut(
            |scratch| match open.lower.read(scratch, offset, size as usize) {
                Ok(data) => reply.data(data),
                Err(error) => reply.error(error.into()),
            },
        );
    }

    fn release(
        &self,
        _: &Request,
        id: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let closed = files.remove(&handle.0);
        drop(files);
        if let Some(open) = closed {
            self.core.close(id.0);
            if let Some(listener) = &self.core.listener {
                listener.closed(id.0, open.thread);
            }
        }
        reply.ok();
    }

    fn opendir(&self, _: &Request, id: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let directory = match self.core.directory(id.0) {
            Ok(directory) => directory,
            Err(error) => return reply.error(error.into()),
        };
        let handle = self.handle();
        let listing = Arc::new(Listing {
            directory,
            names: Mutex::default(),
        });
        self.listings
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(handle, listing);
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let names = match self.listing(handle).and_then(|it| it.from(offset)) {
            Ok(names) => names,
            Err(error) => return reply.error(error.into()),
        };
        for (at, name) in names.iter().enumerate().skip(position(offset)) {
            if reply.add(
                INodeNo(name.inode),
                at as u64 + 1,
                name.kind,
                name.name.as_os_str(),
            ) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listing = self.listing(handle);
        let both = listing.and_then(|it| Ok((it.from(offset)?, Arc::clone(&it.directory))));
        let (names, directory) = match both {
            Ok(both) => both,
            Err(error) => return reply.error(error.into()),
        };
        for (at, name) in names.iter().enumerate().skip(position(offset)) {
            let is_dot = name.name == "." || name.name == "..";
            let (attributes, generation) = if is_dot {
                // The kernel uses only the inode number of these two.
                let Ok(metadata) = directory.metadata() else {
                    continue;
                };
                (attributes(name.inode, &metadata), Generation(0))
            } else {
                match self.core.lookup(&directory, &name.name) {
                    Ok((known, metadata)) => (
                        attributes(known.id, &metadata),
                        Generation(known.generation),
                    ),
                    // The file is gone by now.
                    Err(_) => continue,
                }
            };
            let full = reply.add(
                attributes.ino,
                at as u64 + 1,
                name.name.as_os_str(),
                &BELIEVED,
                &attributes,
                generation,
            );
            if full {
                if !is_dot {
                    self.core.forget(attributes.ino.0, 1);
                }
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match nix::sys::statvfs::fstatvfs(self.core.root().fd()) {
            Ok(stat) => reply.statfs(
                stat.blocks(),
                stat.blocks_free(),
                stat.blocks_available(),
                stat.files(),
                stat.files_free(),
                u32::try_from(stat.block_size()).unwrap_or(4096),
                u32::try_from(stat.name_max()).unwrap_or(255),
                u32::try_from(stat.fragment_size()).unwrap_or(4096),
            ),
            Err(error) => reply.error(Errno::from_i32(error as i32)),
        }
    }

    fn getxattr(&self, _: &Request, id: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        answer_xattr(self.attribute(id.0, name, size), size, reply);
    }

    fn listxattr(&self, request: &Request, id: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.attribute_names(id.0, request.uid() == 0);
        answer_xattr(names, size, reply);
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let whence = match whence {
            libc::SEEK_DATA => Whence::SeekData,
            libc::SEEK_HOLE => Whence::SeekHole,
            // The kernel handles the other kinds itself.
            _ => return reply.error(Errno::EINVAL),
        };
        let sought = self.file(handle).and_then(|open| {
            // No other code uses the position of this descriptor.
            Ok(nix::unistd::lseek(
                open.lower.file().as_fd(),
                offset,
                whence,
            )?)
        });
        match sought {
            Ok(offset) => reply.offset(offset),
            Err(error) => reply.error(error.into()),
        }
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    // For these, ENOSYS means that there is nothing to do; the kernel does not send them again.

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _: &Request, _: INodeNo, _: u32, _: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    // Requests that would change something.

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(Errno::EROFS);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::EROFS);
    }

    fn setxattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: &[u8],
        _: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EROFS);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::EROFS);
    }
}
