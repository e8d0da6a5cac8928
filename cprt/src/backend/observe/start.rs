//! A start: all that the children of a process read, or another process and its children, from any file, beginning with
//! the first page.
//!
//! ```text
//! tracepoints, of these processes only ─ bpf ─┐
//! fanotify on file systems ─────────── paths ─┴─ readers ─ events
//! ```
//!
//! The kernel follows forks and filters out all other processes. It reports inodes; their paths are known from when
//! they were opened. A file that a policy names by its path is opened only when it is loaded: a start has thousands
//! of files, and opening a cold one waits for the device.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use ppc::{Entry, Event, Features, FileId, FileInfo, Kind, Kinds};

use self::early::EarlyOpens;
use self::files::{StartFiles, is_folder};
use self::paths::{Opened, OpenedPaths};
use super::available;
use super::bpf::{Bpf, FORKS};
use super::hearing::{maps_whole_folios, tell_lost};
use super::learn::LearntNames;
use super::look::Looks;
use super::readers::Readers;
use super::record::{Key, Point, Raw};
use super::source::RecordSource as _;
use crate::backend::pagecache::Engine;
use crate::backend::{Backend, Evicted, Fault, Flow, How, Loaded, Span};
use crate::machine::files::{Tree, info, of_storage};
use crate::machine::mappings::Identity;
use crate::sys::pagemap::Pagemap;
use crate::sys::tracefs::Tracefs;
use crate::{Error, Result, sys};

mod early;
mod existing;
mod files;
mod paths;
#[cfg(test)]
mod tests;

/// How often to take opened files from fanotify while reads are being reported.
const LOOK: Duration = Duration::from_millis(100);

/// How often to take records while the policy answers them with plans: a reader is waiting for what it touched.
const SOON: Duration = Duration::from_millis(1);

/// The kernel's idle threads, which have no children.
const NO_PARENT: u32 = 0;

/// From this size on, a process reads most of a mapped file with few faults, so its page tables are looked at. For a
/// start's many smaller files, faults are enough.
const LARGE: u64 = 16 << 20;

/// The length of a directory, for policies: it is loaded whole.
const FOLDER: u64 = 4096;

/// Upper bound on unknown files for which a process that already ran is looked at again.
const MOST_UNKNOWN: usize = 4096;

/// The processes of a start, and the sources of their events.
#[derive(Debug)]
pub(crate) struct Start {
    /// The files as this process sees them.
    tree: Tree,
    /// The view of the followed process, if it differs from ours, as in a container.
    inside: OnceLock<Container>,
    engine: Engine,
    source: Bpf,
    points: Vec<Point>,
    paths: OpenedPaths,
    interrupt: EventFd,
    files: Mutex<StartFiles>,
    hearing: Mutex<StartHearing>,
    tells: AtomicBool,
    /// Whether the policy answers events with plans.
    hurries: AtomicBool,
    /// The followed process; 0 if there is none, or if the start is of this process's children.
    root: AtomicU32,
}

/// The view of a process whose root directory differs from the worker's.
#[derive(Debug)]
struct Container {
    process: u32,
    tree: Tree,
    /// Keeps the mounts when the last process has ended: files that were read are looked at then.
    _mounts: File,
}

impl Container {
    /// `None` if its view is ours, or it has ended, or we may not look at it.
    fn of(process: u32) -> Option<Self> {
        let identity = |path: PathBuf| Some(Identity::of(&path.metadata().ok()?));
        let (own, theirs) = (Path::new("/proc/self"), existing::folder(process));
        let is_same = |name| Some(identity(own.join(name))? == identity(theirs.join(name))?);
        if is_same("root")? && is_same("ns/mnt")? {
            return None;
        }
        let root = theirs.join("root");
        Some(Self {
            process,
            tree: Tree::of_root(&root).ok()?,
            _mounts: File::open(theirs.join("ns/mnt")).ok()?,
        })
    }

    /// Whether it has this file at that path: the kernel reports opens by the paths in the opener's view.
    fn has(&self, open: &Opened) -> bool {
        let path = open.path.strip_prefix("/").unwrap_or(&open.path);
        self.tree
            .identity(path)
            .is_ok_and(|found| found == open.identity)
    }
}

/// What the thread that receives events keeps between two calls.
#[derive(Debug)]
struct StartHearing {
    readers: Readers,
    looks: Looks,
    names: LearntNames,
    raws: Vec<Raw>,
    /// Processes of the start that have read something.
    processes: HashSet<u32>,
    early: EarlyOpens,
    /// Processes that ran before they were followed, and files that they read without a known open.
    existing: HashSet<u32>,
    unknown: HashSet<Key>,
    /// Events for what they had read by then.
    first: Vec<Event>,
    own: u32,
    page: u64,
}

impl Start {
    /// Follows the children that `parent` has from now on, and theirs.
    pub(crate) fn of_children(parent: u32) -> Result<Self> {
        let system = |doing| move |source| Error::System { doing, source };
        let layouts =
            available::layouts().map_err(system("Looking for the kernel's tracepoints"))?;
        let points: Vec<_> = layouts.iter().map(|layout| layout.point).collect();
        if !points.contains(&Point::Get) {
            let source = io::Error::other("kernels before 6.12 do not report all reads");
            return Err(system("Listening to a start")(source));
        }
        let forks = Tracefs::open().and_then(|it| it.read(FORKS, "format"));
        let forks = forks.map_err(system("Looking for the kernel's tracepoint of forks"))?;
        let source = Bpf::of_children(&layouts, &forks, parent);
        let mut readers = Readers::new(false, maps_whole_folios());
        readers.want(Kind::Touch.into(), 0);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let interrupt = EventFd::from_flags(flags).map_err(io::Error::from);
        Ok(Self {
            tree: Tree::of_root(Path::new("/")).map_err(system("Opening the root directory"))?,
            inside: OnceLock::new(),
            engine: Engine::new().map_err(system("Opening /dev/null"))?,
            source: source.map_err(system("Listening to a start"))?,
            points,
            paths: OpenedPaths::new().map_err(system("Asking for what is opened"))?,
            interrupt: interrupt.map_err(system("Making an eventfd"))?,
            files: Mutex::default(),
            hearing: Mutex::new(StartHearing {
                readers,
                looks: Looks::default(),
                names: LearntNames::new(&layouts),
                raws: Vec::new(),
                processes: HashSet::new(),
                early: EarlyOpens::default(),
                existing: HashSet::new(),
                unknown: HashSet::new(),
                first: Vec::new(),
                own: std::process::id(),
                page: sys::page_size(),
            }),
            tells: AtomicBool::new(false),
            hurries: AtomicBool::new(false),
            root: AtomicU32::new(0),
        })
    }

    /// Stands by for a process that is not known yet: there are no events, and other programs pay nothing, until
    /// [`Self::follow`].
    pub(crate) fn standby() -> Result<Self> {
        Self::of_children(NO_PARENT)
    }

    /// Follows this process and its children from now on.
    pub(crate) fn follow(&self, process: u32) -> Result<()> {
        let system = |source| Error::System {
            doing: "Listening to a process",
            source,
        };
        if let Some(container) = Container::of(process) {
            // A worker follows one process.
            let _ = self.inside.set(container);
        }
        let mut existing = Vec::new();
        let mut follow = |one| {
            existing.push(one);
            self.source.follow(one)
        };
        existing::with_children(process, &mut follow).map_err(system)?;
        self.root.store(process, Relaxed);
        let wanted = self.want(Kind::Touch.into(), 0);
        wanted.map_err(|fault| system(io::Error::other(fault)))?;
        let mut hearing = self.hearing();
        for one in existing {
            hearing.begin(self, one);
        }
        Ok(())
    }

    /// The view in which the start's paths are looked up.
    fn tree(&self) -> &Tree {
        self.inside.get().map_or(&self.tree, |it| &it.tree)
    }

    /// Whether the followed process has ended, with all that it started, or its events are no longer wanted.
    fn is_over(&self, hearing: &StartHearing) -> bool {
        let root = self.root.load(Relaxed);
        if root == 0 {
            return false;
        }
        let mut all = std::iter::once(root).chain(hearing.processes.iter().copied());
        !self.tells.load(Relaxed) || !all.any(existing::is_alive)
    }

    fn hearing(&self) -> MutexGuard<'_, StartHearing> {
        self.hearing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> MutexGuard<'_, StartFiles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file by the policy's number. Each load opens it again, because the kernel keeps the state of readahead
    /// in the open file.
    fn file(&self, file: FileId) -> Result<File, Fault> {
        let path = self.files().path(file).ok_or(Fault::Stale)?;
        there(self.tree().file(&path))
    }

    fn folder(&self, path: &Path) -> Result<File, Fault> {
        there(self.tree().folder(path))
    }

    /// Sleeps until there is something to take, or it is time to look.
    fn sleep(&self, look: Option<Instant>) -> io::Result<()> {
        let mut fds = vec![PollFd::new(self.interrupt.as_fd(), PollFlags::POLLIN)];
        fds.extend(
            self.source
                .ready()
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
        );
        let tells = self.tells.load(Relaxed);
        let soon = self.hurries.load(Relaxed).then(|| Instant::now() + SOON);
        let take = self
            .source
            .due()
            .map(|due| soon.map_or(due, |soon| due.min(soon)));
        let dues = [take, look].into_iter().flatten();
        let due = dues.map(|due| due.saturating_duration_since(Instant::now()));
        let left = due.chain(tells.then_some(LOOK)).min();
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            // Rounded up: rounded down, it would poll in a loop until then.
            let millis = left.as_nanos().div_ceil(1_000_000);
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Clears the interrupt; it does not matter whether it was set.
        let _ = self.interrupt.read();
        Ok(())
    }
}

/// Notes what a process of the start has opened; `key` is the kernel's name of a file. A directory is reported as if its
/// first page had been touched: its names are not in its own page cache on all file systems, and a start that looks at
/// one reads nearly all of it.
fn found(files: &mut StartFiles, open: &Opened, key: Option<Key>, into: &mut Vec<Event>) {
    if let Some(key) = key {
        return files.found(open, key);
    }
    into.extend(files.found_folder(&open.path).map(|file| Event {
        kind: Kind::Touch,
        file,
        offset: 0,
        length: FOLDER,
        time_ns: sys::monotonic_ns(),
        count: 1,
        process: open.process,
        thread: open.process,
        cpu: 0,
        mmap: false,
        direct: false,
    }));
}

/// What has been opened, if it is of storage; a file that is gone is stale.
fn there(opened: Result<File, Fault>) -> Result<File, Fault> {
    match opened {
        Err(Fault::Io(error)) if error.kind() == io::ErrorKind::NotFound => Err(Fault::Stale),
        done => of_storage(done?),
    }
}

impl StartHearing {
    /// Begins to follow a process, and catches up with what it has opened and mapped so far.
    fn begin(&mut self, from: &Start, process: u32) {
        self.processes.insert(process);
        self.existing.insert(process);
        let mut pagemap = Pagemap::open(process).ok();
        let mut files = from.files();
        let time = sys::monotonic_ns();
        for (opened, file) in existing::files_of(process, from.tree()) {
            let identity = opened.identity;
            let Some(key) = self.names.key_by_rule(identity, || Ok(file)) else {
                continue;
            };
            files.found(&opened, key);
            let Some((file, _)) = files.of_key(key) else {
                continue;
            };
            let there = |pagemap| existing::mapped(process, identity, pagemap);
            let found = pagemap.as_mut().map(there).unwrap_or_default();
            if found.iter().next().is_some() {
                let readers = &mut self.readers;
                readers.looked(process, file, found, time, &mut self.first);
            }
        }
    }

    /// An unknown file has been read. A process in the middle of exec has opened its files already but not mapped them
    /// yet: returns the process to look at again, once for each file.
    fn unknown(&mut self, raw: &Raw) -> Option<u32> {
        let may_be_new = self.existing.contains(&raw.process) && self.unknown.len() < MOST_UNKNOWN;
        (may_be_new && self.unknown.insert(raw.key)).then_some(raw.process)
    }

    fn hear(&mut self, from: &Start, into: &mut Vec<Event>) {
        let now = Instant::now();
        let mut again = HashSet::new();
        into.append(&mut self.first);
        // Reads first: whatever has been read was opened before, so its open is there by then.
        tell_lost(from.source.take(&mut self.raws), into);
        let mut files = from.files();
        for raw in self.raws.iter().filter(|raw| raw.process != self.own) {
            if self.processes.insert(raw.process) {
                for (open, key) in self.early.take(raw.process) {
                    found(&mut files, &open, key, into);
                }
            }
        }
        let lost = self.hear_opens(from, &mut files, now, into);
        tell_lost(lost, into);
        let mut raws = std::mem::take(&mut self.raws);
        for raw in raws.drain(..) {
            let Some((file, size)) = files.of_key(raw.key) else {
                again.extend(self.unknown(&raw));
                continue;
            };
            if raw.process == self.own {
                self.readers.loaded(&raw, file, self.page);
                continue;
            }
            if raw.point.maps()
                && size >= LARGE
                && let Some(identity) = files.data(file)
            {
                self.looks
                    .reads(raw.process, file, identity, now, raw.time_ns);
            }
            self.readers.hear(&raw, (file, size), self.page, into);
        }
        self.raws = raws;
        drop(files);
        for process in again {
            self.begin(from, process);
        }
        into.append(&mut self.first);
        self.look(now, into);
    }

    /// Learns the paths of files from opens, and which directories are listed, only from processes of the start: a
    /// process that opens files of a mount of ours, or another worker that does so, also opens the files below it,
    /// which are the same pages under another path.
    fn hear_opens(
        &mut self,
        from: &Start,
        files: &mut StartFiles,
        now: Instant,
        into: &mut Vec<Event>,
    ) -> u64 {
        let (names, early) = (&mut self.names, &mut self.early);
        from.paths.take(|open, file| {
            // A file opened in another view has its path there.
            if let Some(container) = from.inside.get()
                && !container.has(&open)
            {
                return;
            }
            let again = || file.try_clone_to_owned().map(File::from);
            let key = if is_folder(&open.path) {
                None
            } else {
                let Some(key) = names.key_by_rule(open.identity, again) else {
                    return;
                };
                Some(key)
            };
            if self.processes.contains(&open.process) {
                found(files, &open, key, into);
            } else {
                early.keep(open, key, now);
            }
        })
    }

    /// Reports what processes read through large mappings.
    fn look(&mut self, now: Instant, into: &mut Vec<Event>) {
        let readers = &mut self.readers;
        let time = sys::monotonic_ns();
        self.looks.look(now, |process, file, found| {
            if let Some(found) = found {
                return readers.looked(process, file, found, time, into);
            }
            readers.unmapped(process, file);
            false
        });
    }
}

impl Backend for Start {
    fn name(&self) -> &'static str {
        "start"
    }

    fn features(&self) -> Features {
        Features::TOUCH.union(Features::AFFINITY)
    }

    fn limits(&self) -> Vec<String> {
        vec!["what processes outside of our PID namespace read is not told".to_owned()]
    }

    fn want(&self, kinds: Kinds, _: u64) -> Result<(), Fault> {
        let tells = kinds.contains(Kind::Touch);
        if self.tells.swap(tells, Relaxed) == tells {
            return Ok(());
        }
        if tells {
            let also = self.inside.get().map(|it| it.process);
            self.paths.watch(also)?;
            self.source.enable(&self.points, 0)?;
        } else {
            self.source.enable(&[], 0)?;
            self.paths.rest()?;
        }
        self.interrupt();
        Ok(())
    }

    fn events(&self, into: &mut Vec<Event>) -> Result<Flow, Fault> {
        let mut hearing = self.hearing();
        self.sleep(hearing.looks.due())?;
        hearing.hear(self, into);
        if into.is_empty() && self.is_over(&hearing) {
            return Ok(Flow::Ended);
        }
        Ok(Flow::On)
    }

    fn hurry(&self, soon: bool) {
        self.hurries.store(soon, Relaxed);
    }

    fn interrupt(&self) {
        // It can only fail as it is set already.
        let _ = self.interrupt.write(1);
    }

    fn open(&self, path: &Path) -> Result<FileId, Fault> {
        Ok(self.files().named(path))
    }

    fn close(&self, file: FileId) -> Result<(), Fault> {
        // It keeps its number: a start has thousands, and ends.
        self.files().path(file).map(drop).ok_or(Fault::Stale)
    }

    fn info(&self, file: FileId) -> Result<FileInfo, Fault> {
        info(&self.file(file)?)
    }

    fn size(&self, file: FileId) -> Result<u64, Fault> {
        // It may be cold: the load finds out.
        self.files().size(file).ok_or(Fault::Stale)
    }

    fn path(&self, file: FileId) -> Result<PathBuf, Fault> {
        self.files().path(file).ok_or(Fault::Stale)
    }

    fn list(&self, path: &Path, recursive: bool) -> Result<Vec<Entry>, Fault> {
        self.tree().list(path, recursive)
    }

    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        Ok(self.file(file)?.read_at(buf, offset)?)
    }

    fn load(&self, span: Span, how: How) -> Result<Loaded, Fault> {
        let path = self.files().path(span.file).ok_or(Fault::Stale)?;
        if is_folder(&path) {
            return self.engine.look_into(&self.folder(&path)?, how);
        }
        self.engine.load(&self.file(span.file)?, &span.range(), how)
    }

    fn stop(&self, cookie: u64) {
        self.engine.stop(cookie);
    }

    fn evict(&self, span: Span, unmapped: bool) -> Result<Evicted, Fault> {
        self.engine
            .evict(&self.file(span.file)?, &span.range(), unmapped)
    }

    fn resident(&self, span: Span) -> Result<u64, Fault> {
        self.engine.resident(&self.file(span.file)?, &span.range())
    }

    fn end(&self) {
        // What was opened and is not taken yet keeps its file system from being unmounted, and the process may take
        // long to end.
        if self.paths.rest().is_ok() {
            self.paths.take(|_, _| {});
        }
    }

    fn lets_go_late(&self) -> bool {
        true
    }
}
