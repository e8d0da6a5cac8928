//! A plain directory: events come from the kernel's tracepoints, system calls do the verbs.
//!
//! Nothing is mounted and nothing is between readers and their files, so there is nothing to break:
//! when the worker is killed, the kernel removes its tracepoints, and readers do not notice.
//!
//! ```text
//! tracepoints ─ source (bpf, perf) ─┐
//! page tables ─ look, faults ───────┼─ readers ─ events      table: which file it is
//! fanotify ──── opens ──────────────┘                        learn: the kernel's name for it
//! ```
//!
//! The events that the policy wants decide which tracepoints are on. Misses alone need only the pages that
//! come into the page cache, so that a hit makes no record at all. The files are found when the directory is
//! opened and whenever inotify reports changes. No thread wakes while no process reads.
//!
//! Kernels before 6.12 report only pages that come in; [`Backend::limits`] says what that means.
//!
//! [`Start`] follows processes instead of a directory, whatever files they read.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use ppc::{Entry, Event, Features, FileId, FileInfo, Kind, Kinds};

pub(crate) use self::execs::{Exec, Execs, Told, kernel_tells};
use self::hearing::Hearing;
use self::learn::LearntNames;
use self::opens::{NameChanges, Opens};
use self::reads::ReadPoints;
use self::record::{AT_ONCE, Point};
use self::source::RecordSource;
pub(crate) use self::start::Start;
use self::table::{FileTable, Found};
use super::{Backend, Evicted, Fault, Flow, How, Loaded, Span};
use crate::backend::pagecache::Engine;
use crate::machine::files::{self, Tree};
use crate::machine::mappings::Identity;
use crate::{Error, Result, sys};

mod asm;
mod attention;
mod available;
mod bpf;
mod by;
mod execs;
mod faults;
mod folios;
mod hearing;
mod learn;
mod look;
mod opens;
mod perf;
mod program;
mod reach;
mod readers;
mod reads;
mod record;
mod source;
mod start;
mod table;
#[cfg(test)]
mod tests;
mod who;

/// How long at least between two scans of the directory, whatever happens in it.
const SCAN_AGAIN: Duration = Duration::from_millis(200);

/// A directory, and the sources of its events.
#[derive(Debug)]
pub(crate) struct Observe {
    root: PathBuf,
    engine: Engine,
    source: Box<dyn RecordSource>,
    points: Vec<Point>,
    /// Why the better source does not work.
    second_best: Option<String>,
    opens: Option<Opens>,
    /// Directories are watched for opens.
    tells_opens: AtomicBool,
    /// What is said of the next events that the policy wants ([`Backend::rests_until_open`]).
    may_rest: AtomicBool,
    reads: Mutex<ReadPoints>,
    /// How many pages a reader may read without a record.
    merge: AtomicU64,
    changes: NameChanges,
    interrupt: EventFd,
    table: Mutex<FileTable>,
    names: Mutex<LearntNames>,
    /// The events that the policy wants, if that has changed.
    wanted: Mutex<Option<(Kinds, u64)>>,
    hearing: Mutex<Hearing>,
}

impl Observe {
    /// Opens the directory `root`.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let system = |doing| move |source| Error::System { doing, source };
        let layouts = available::layouts().map_err(system(
            "Looking for the kernel's tracepoints of the page cache",
        ))?;
        let (source, second_best) =
            available::open(&layouts).map_err(system("Listening to the page cache"))?;
        Self::with(root, source, second_best, &layouts)
    }

    fn with(
        root: &Path,
        source: Box<dyn RecordSource>,
        second_best: Option<String>,
        layouts: &[record::Layout],
    ) -> Result<Self> {
        let system = |doing| move |source| Error::System { doing, source };
        let interrupt = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(io::Error::from)
            .map_err(system("Making an eventfd"))?;
        let points: Vec<_> = layouts.iter().map(|layout| layout.point).collect();
        let partly = !points.contains(&Point::Get);
        let observe = Self {
            root: root.to_owned(),
            engine: Engine::new().map_err(system("Opening /dev/null"))?,
            source,
            points,
            second_best,
            opens: Opens::new().ok(),
            tells_opens: AtomicBool::new(false),
            may_rest: AtomicBool::new(false),
            reads: Mutex::default(),
            merge: AtomicU64::new(0),
            changes: NameChanges::new().map_err(system("Watching directories"))?,
            interrupt,
            table: Mutex::default(),
            names: Mutex::new(LearntNames::new(layouts)),
            wanted: Mutex::default(),
            hearing: Mutex::new(Hearing::new(partly)),
        };
        observe
            .scan()
            .map_err(system("Going through the directory"))?;
        Ok(observe)
    }

    /// The same, for readers that use a mount of that device, which passes reads through to here.
    pub(crate) fn mirrored(mut self, device: u64) -> Self {
        self.engine.mirrored(device);
        let hearing = self.hearing.get_mut();
        hearing
            .unwrap_or_else(PoisonError::into_inner)
            .mirrored(device);
        self
    }

    fn reads(&self) -> MutexGuard<'_, ReadPoints> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No reader has files open already.
    pub(crate) fn before_readers(&self) {
        self.reads().before_readers();
    }

    /// Listens to reads if it did not: there is a reader.
    fn wake(&self) -> io::Result<()> {
        let mut reads = self.reads();
        if reads.wake(Instant::now()) {
            self.source.enable(&reads.on(), self.merge.load(Relaxed))?;
        }
        Ok(())
    }

    /// Stops listening to reads if there has been no reader for a while, and the policy permits it.
    fn rest(&self) -> io::Result<()> {
        let mut reads = self.reads();
        if reads.rest(Instant::now()) {
            self.source.enable(&reads.on(), self.merge.load(Relaxed))?;
        }
        Ok(())
    }

    fn table(&self) -> MutexGuard<'_, FileTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the files below the directory.
    fn scan(&self) -> io::Result<()> {
        let mut found = Vec::new();
        let opens = self
            .opens
            .as_ref()
            .filter(|_| self.tells_opens.load(Relaxed));
        let mut deaf = None;
        Tree::open(&self.root)?.walk(|path, fd, metadata| {
            if metadata.is_dir() {
                let watched = self.changes.watch(fd);
                let heard = opens.map_or(Ok(()), |opens| opens.watch(fd));
                deaf = deaf.take().or(watched.and(heard).err());
            } else {
                found.push(Found::new(path, metadata));
            }
        });
        if let Some(error) = deaf {
            log::warn!(
                "Watching the directories of {}: {error}",
                self.root.display()
            );
        }
        self.table().replace(found);
        self.learn()
    }

    /// Has the kernel report all files that were found.
    fn learn(&self) -> io::Result<()> {
        let unknown = self.table().unknown();
        {
            let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            for (file, known) in unknown.iter().filter(|(_, known)| known.size > 0) {
                let open = || {
                    let tree = Tree::open(&self.root)?;
                    tree.file(&known.path).map_err(io::Error::other)
                };
                if let Some(key) = names.key(known.identity, open) {
                    self.table().learn(*file, key);
                }
            }
        }
        let keys = self.table().keys();
        self.source.files(&keys)
    }

    /// The policy's number for a file.
    pub(super) fn number(&self, identity: Identity) -> Option<FileId> {
        self.table().of_identity(identity).map(FileId)
    }

    /// Opens a file by the policy's number. Each load opens it again, because the kernel keeps the state of readahead
    /// in the open file.
    fn file(&self, file: FileId) -> Result<File, Fault> {
        match self.file_now(file) {
            // Looking is not worth it for a number that was never given out.
            Err(Fault::Stale) if self.table().get(file.0).is_some() => {}
            done => return done,
        }
        // It may have been moved.
        self.scan()?;
        self.file_now(file)
    }

    fn file_now(&self, file: FileId) -> Result<File, Fault> {
        let known = self.table().get(file.0).cloned().ok_or(Fault::Stale)?;
        let opened = match Tree::open(&self.root)?.file(&known.path) {
            Err(Fault::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Fault::Stale);
            }
            done => done?,
        };
        let now = Found::new(known.path, &opened.metadata()?);
        if (now.identity, now.born) != (known.identity, known.born) {
            return Err(Fault::Stale);
        }
        files::keep_access_time(&opened);
        Ok(opened)
    }

    /// The kinds of events that this kernel and this process's rights allow.
    fn kinds(&self) -> Kinds {
        let mut kinds = Kinds::from(Kind::Miss) | Kind::Lost | Kind::Progress;
        if self.points.contains(&Point::Get) {
            kinds = kinds | Kind::Touch;
        }
        if self.opens.is_some() {
            kinds = kinds | Kind::Open | Kind::Close;
        }
        kinds
    }

    fn listen_to_opens(&self, on: bool) -> io::Result<()> {
        let Some(opens) = &self.opens else {
            return Ok(());
        };
        if self.tells_opens.swap(on, Relaxed) == on {
            return Ok(());
        }
        if on { self.scan() } else { opens.rest() }
    }

    /// Sleeps until there is something to take, or until that time.
    fn sleep(&self, until: Option<Instant>) -> io::Result<()> {
        let mut fds = vec![
            PollFd::new(self.interrupt.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.changes.ready(), PollFlags::POLLIN),
        ];
        let opens = self.opens.as_ref().map(Opens::ready);
        let more = [self.source.ready(), opens].into_iter().flatten();
        fds.extend(more.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // Rounded up: rounded down, it would poll in a loop until then.
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        if fds[0].any().unwrap_or(true) {
            // Clears the interrupt; it does not matter whether it was set.
            let _ = self.interrupt.read();
        }
        Ok(())
    }
}

/// What this machine does not let us report or do, found out without opening a directory.
pub(crate) fn probe() -> Result<Vec<String>> {
    let system = |doing| move |source| Error::System { doing, source };
    let layouts = available::layouts().map_err(system("Reading the kernel's tracepoints"))?;
    let second_best = available::probe(&layouts).map_err(system("Listening to the page cache"))?;
    let hits = layouts.iter().any(|layout| layout.point == Point::Get);
    Ok(limits(hits, second_best.as_deref(), Opens::new().is_ok()))
}

/// The features, given whether there are records of hits, and fanotify.
pub(crate) fn features(hits: bool, opens: bool) -> Features {
    let table = [
        (opens, Features::OPEN),
        (hits, Features::TOUCH),
        (true, Features::PROGRESS),
    ];
    table
        .into_iter()
        .filter_map(|(has, feature)| has.then_some(feature))
        .fold(Features::AFFINITY, Features::union)
}

/// The limits as sentences, given whether there are records of hits, why events come by perf only if they do, and
/// whether there is fanotify.
pub(crate) fn limits(hits: bool, second_best: Option<&str>, opens: bool) -> Vec<String> {
    let mut limits = vec![
        "a MISS covers all pages that a process causes to be cached, including readahead and its \
         own writes"
            .to_owned(),
        "pages that several processes map are not evicted, and those that one maps not always; \
         the pages that stayed are counted"
            .to_owned(),
        "loaded pages are charged to the worker and not to the reader".to_owned(),
    ];
    if !hits {
        limits.push(
            "kernels before 6.12 do not report reads that the page cache answers: there is no \
             TOUCH, and PROGRESS covers only misses and mappings"
                .to_owned(),
        );
    }
    if let Some(why) = second_best {
        limits.push(format!(
            "events come by perf, which costs readers more than programs in the kernel would: {why}"
        ));
    }
    if !opens {
        limits.push("it reports no OPEN and CLOSE: fanotify is for root".to_owned());
    }
    limits
}

/// The tracepoints that these kinds of events need.
fn points_for(kinds: Kinds) -> Vec<Point> {
    let reads = kinds.contains(Kind::Touch) || kinds.contains(Kind::Progress);
    let misses = kinds.contains(Kind::Miss);
    let table = [
        // Where the kernel has no other tracepoint, PROGRESS comes from this one, too.
        (misses || reads, Point::Add),
        // Rare even for readers that miss; distinguishes pages that come in for a fault from those for a read.
        (misses || reads, Point::Fault),
        (reads, Point::Get),
        (reads, Point::Map),
    ];
    table
        .into_iter()
        .filter_map(|(on, point)| on.then_some(point))
        .collect()
}

/// How many bytes of a reader may go without a record, so that PROGRESS events still come about where they
/// are due. TOUCH needs all records.
fn merge_for(kinds: Kinds, progress_bytes: u64) -> u64 {
    if kinds.contains(Kind::Touch) {
        0
    } else {
        (progress_bytes / 4).min(AT_ONCE / 4)
    }
}

impl Backend for Observe {
    fn name(&self) -> &'static str {
        "observe"
    }

    fn features(&self) -> Features {
        features(self.points.contains(&Point::Get), self.opens.is_some())
    }

    fn limits(&self) -> Vec<String> {
        limits(
            self.points.contains(&Point::Get),
            self.second_best.as_deref(),
            self.opens.is_some(),
        )
    }

    fn rests_until_open(&self, rests: bool) {
        self.may_rest.store(rests, Relaxed);
    }

    fn want(&self, kinds: Kinds, progress_bytes: u64) -> Result<(), Fault> {
        if kinds.bits() & !self.kinds().bits() != 0 {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP).into());
        }
        let merge = merge_for(kinds, progress_bytes) / sys::page_size();
        let points = points_for(kinds);
        // Without opens it would not be known when to begin.
        let rests = self.may_rest.load(Relaxed) && self.opens.is_some();
        let wakes = rests && points.contains(&Point::Get);
        let opens = kinds.contains(Kind::Open) || kinds.contains(Kind::Close) || wakes;
        {
            let mut reads = self.reads();
            reads.want(points, rests, Instant::now());
            self.merge.store(merge, Relaxed);
            self.source.enable(&reads.on(), merge)?;
        }
        self.listen_to_opens(opens)?;
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        *wanted = Some((kinds, progress_bytes));
        Ok(())
    }

    fn events(&self, into: &mut Vec<Event>) -> Result<Flow, Fault> {
        let mut hearing = self.hearing.lock().unwrap_or_else(PoisonError::into_inner);
        let dues = [hearing.due(), self.source.due(), self.reads().due()];
        self.sleep(dues.into_iter().flatten().min())?;
        let wanted = self
            .wanted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((kinds, progress)) = wanted {
            hearing.want(kinds, progress);
        }
        hearing.hear(self, into)
    }

    fn interrupt(&self) {
        // It can only fail if it is set already.
        let _ = self.interrupt.write(1);
    }

    fn open(&self, path: &Path) -> Result<FileId, Fault> {
        let opened = Tree::open(&self.root)?.file(path)?;
        let metadata = opened.metadata()?;
        let identity = Identity::of(&metadata);
        let (file, new) = {
            let mut table = self.table();
            let known = table.of_identity(identity);
            let file = known.unwrap_or_else(|| table.add(Found::new(path.to_owned(), &metadata)));
            table.hold(file);
            (file, known.is_none())
        };
        if new {
            self.learn()?;
        }
        Ok(FileId(file))
    }

    fn close(&self, file: FileId) -> Result<(), Fault> {
        if self.table().release(file.0) {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EBADF).into())
        }
    }

    fn info(&self, file: FileId) -> Result<FileInfo, Fault> {
        files::info(&self.file(file)?)
    }

    fn path(&self, file: FileId) -> Result<PathBuf, Fault> {
        // Looks for the file's current path; a file that is gone has none.
        match self.file(file) {
            Ok(_) => {}
            Err(Fault::Stale) if self.table().get(file.0).is_some() => {
                return Err(io::Error::from_raw_os_error(libc::ENOENT).into());
            }
            Err(fault) => return Err(fault),
        }
        let path = self.table().get(file.0).map(|known| known.path.clone());
        path.ok_or(Fault::Stale)
    }

    fn list(&self, path: &Path, recursive: bool) -> Result<Vec<Entry>, Fault> {
        Tree::open(&self.root)?.list(path, recursive)
    }

    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        Ok(self.file(file)?.read_at(buf, offset)?)
    }

    fn load(&self, span: Span, how: How) -> Result<Loaded, Fault> {
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

    /// The kernel needs a tenth of a second to end each perf event at a tracepoint, and as long for one of several
    /// programs there, whether the others are this worker's or another process's.
    fn lets_go_late(&self) -> bool {
        true
    }
}
