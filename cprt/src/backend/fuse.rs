//! A mirror through FUSE that reads by itself: the kernel's requests are the misses.
//!
//! Each READ is a miss, including the kernel's readahead; cached pages make no request. A load reads the
//! lower file past its page cache and stores the data in the mount's, so that nothing is cached
//! twice; an eviction invalidates there. Both wait for pages that are just being read, which the
//! threads that serve the mount have to fill: so those threads never load or evict, nor do anything
//! else that goes through the mount.
//!
//! Where the kernel passes reads through, the page cache is the lower one and no request shows a
//! miss. Then this module gives no backend but a [`Passthrough`]: what a source of events and its verbs
//! need to work on the lower files.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use ppc::{Entry, Event, Features, FileId, FileInfo, Kind, Kinds};

use self::events::FuseEvents;
use self::pieces::{gaps, pieces, whole_pages};
use super::{Backend, Evicted, Fault, Flow, How, Loaded, Span};
use crate::backend::fuse::mirror::lower::{Lower, Scratch};
use crate::backend::fuse::mirror::{Listener, Mirror, MirrorOptions, Mode};
use crate::machine::files::{self, Tree};
use crate::machine::mappings::Identity;
use crate::sys::cache::cachestat;

mod events;
pub(crate) mod mirror;
mod pieces;
mod processes;
#[cfg(test)]
mod tests;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A new mount, by how its files are read.
#[derive(Debug)]
pub(crate) enum Mounted {
    /// Requests are the events.
    Plain(Fuse),
    /// Events have to come from elsewhere.
    Passthrough(Passthrough),
}

/// Mirrors `lower` at `at`, which may be the same, in the best way that this kernel and our
/// privileges allow.
pub(crate) fn mount(lower: &Path, at: &Path, options: &MirrorOptions) -> io::Result<Mounted> {
    let events = Arc::new(FuseEvents::new());
    let listener = Arc::clone(&events) as Arc<dyn Listener>;
    let mirror = Mirror::mount(lower, at, options, Some(listener))?;
    Ok(match mirror.mode() {
        Mode::Passthrough => Mounted::Passthrough(Passthrough { mirror, events }),
        Mode::Plain(why) => Mounted::Plain(Fuse {
            mirror,
            events,
            why,
            page: page_size(),
            names: Mutex::default(),
            open: Mutex::default(),
            flying: Mutex::default(),
        }),
    })
}

/// A mirror whose files the kernel reads from below. Applications see other device numbers than those of
/// the lower files.
#[derive(Debug)]
pub(crate) struct Passthrough {
    mirror: Mirror,
    events: Arc<FuseEvents>,
}

impl Passthrough {
    pub(crate) fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// As [`Backend::want`], for OPEN and CLOSE: no other events come this way.
    pub(crate) fn want(&self, kinds: Kinds) {
        self.events.want(kinds);
    }

    /// As [`Backend::events`]. It also reports that the mount is gone.
    pub(crate) fn events(&self, into: &mut Vec<Event>) -> Flow {
        self.events.events(into)
    }

    /// The lower directory, even where the mount covers it: its path in `/proc/self/fd` can be used as
    /// a root directory.
    pub(crate) fn root(&self) -> io::Result<OwnedFd> {
        self.mirror.core().root().fd().try_clone_to_owned()
    }

    /// Which lower file a file of the mount is, if it has been opened.
    pub(crate) fn identity(&self, file: FileId) -> Option<Identity> {
        let below = self.mirror.core().below(file.0).ok()?.identity;
        Some(Identity {
            device: below.device,
            inode: below.inode,
        })
    }

    /// The lower file of a file of the mount, on which verbs act, and what it is by there.
    #[cfg(test)]
    pub(crate) fn lower(
        &self,
        file: FileId,
    ) -> Result<(File, mirror::identity::FileIdentity), Fault> {
        let below = self.mirror.core().below(file.0).map_err(fault)?;
        Ok((below.lower.file().try_clone()?, below.identity))
    }

    /// The file of the mount for this lower file, if it has been looked up.
    #[cfg(test)]
    pub(crate) fn file(&self, device: u64, inode: u64) -> Option<FileId> {
        self.mirror.core().number(device, inode).map(FileId)
    }
}

/// A mirror that reads by itself.
#[derive(Debug)]
pub(crate) struct Fuse {
    mirror: Mirror,
    events: Arc<FuseEvents>,
    why: String,
    page: u64,
    /// Files that the policy has opened, and how often: the kernel forgets files that are not in use.
    names: Mutex<HashMap<u64, (PathBuf, usize)>>,
    /// The files that loads under way have open.
    open: Mutex<HashMap<u64, Weak<Both>>>,
    /// The loads under way, by their cookies.
    flying: Mutex<HashMap<u64, FuseLoad>>,
}

#[derive(Debug, Default)]
struct FuseLoad {
    loads: usize,
    stop: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn page_size() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| u64::try_from(size).ok())
        .unwrap_or(4096)
}

fn fault(error: io::Error) -> Fault {
    match error.raw_os_error() {
        Some(libc::ESTALE) => Fault::Stale,
        Some(libc::EISDIR) => Fault::NoFile,
        Some(libc::ENOTCONN | libc::ENODEV) => Fault::Ended,
        _ => Fault::Io(error),
    }
}

/// How long an open file serves further loads: as long as the kernel trusts its attributes.
const FRESH: Duration = Duration::from_secs(1);

/// A file of the mount: the lower file, and the mount's own, which shows what is cached.
#[derive(Debug)]
struct Both {
    id: u64,
    since: Instant,
    size: u64,
    lower: Arc<Lower>,
    /// `None` if it no longer has a name.
    above: Option<File>,
}

impl Fuse {
    /// The mount.
    #[cfg(test)]
    pub(crate) fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Has the kernel look up a file again that it has forgotten, if the policy has opened it by a path.
    fn known(&self, file: FileId) -> Result<u64, Fault> {
        let id = file.0;
        if self.mirror.core().knows(id) {
            return Ok(id);
        }
        let path = lock(&self.names).get(&id).map(|(path, _)| path.clone());
        let path = self.mirror.at().join(path.ok_or(Fault::Stale)?);
        match path.symlink_metadata() {
            Ok(metadata) if metadata.ino() == id => Ok(id),
            _ => Err(Fault::Stale),
        }
    }

    fn lower(&self, file: FileId) -> Result<(u64, Arc<Lower>), Fault> {
        let id = self.known(file)?;
        let below = self.mirror.core().below(id).map_err(fault)?;
        Ok((id, below.lower))
    }

    /// Opens both sides of a file. Opening it through the mount makes the kernel drop pages of older
    /// contents before any are added.
    fn both(&self, file: FileId) -> Result<Both, Fault> {
        let (id, lower) = self.lower(file)?;
        let metadata = lower.file().metadata()?;
        let above = self.above(id);
        if above.is_none() && self.mirror.core().restamp(id, &metadata) {
            self.mirror
                .notifier()
                .inval_inode(fuser::INodeNo(id), 0, 0)?;
            self.events.dropped(id);
        }
        Ok(Both {
            id,
            since: Instant::now(),
            size: metadata.len(),
            lower,
            above,
        })
    }

    /// The same for a load, which shares the open file with other loads under way. Keeping it open for
    /// longer would keep the mount from being unmounted.
    fn shared(&self, file: FileId) -> Result<Arc<Both>, Fault> {
        let open = lock(&self.open).get(&file.0).and_then(Weak::upgrade);
        if let Some(both) = open.filter(|both| both.since.elapsed() < FRESH) {
            return Ok(both);
        }
        let both = Arc::new(self.both(file)?);
        let mut open = lock(&self.open);
        open.retain(|_, both| both.strong_count() > 0);
        open.insert(file.0, Arc::downgrade(&both));
        Ok(both)
    }

    fn above(&self, id: u64) -> Option<File> {
        let path = self.mirror.core().path(id).ok()?;
        let above = File::open(self.mirror.at().join(path)).ok()?;
        let metadata = above.metadata().ok()?;
        let is_it = (metadata.dev(), metadata.ino()) == (self.mirror.device(), id);
        is_it.then_some(above)
    }

    /// How many bytes of a range are cached, as the kernel reports it; where it cannot, or the
    /// file has no name, as this backend remembers it.
    fn cached(&self, both: &Both, range: &Range<u64>) -> u64 {
        let length = range.end - range.start;
        let looked = both
            .above
            .as_ref()
            .and_then(|above| cachestat(above, range).ok());
        match looked {
            // The last page of a file is cached as a whole.
            Some(pages) => (pages * self.page).min(length),
            None => self.events.estimate(both.id, range),
        }
    }

    /// Reads the missing parts of a piece and stores them; returns how many bytes that were.
    fn fetch(&self, both: &Both, piece: &Range<u64>) -> Result<u64, Fault> {
        let mut fresh = 0;
        for gap in gaps(piece, |range| self.cached(both, range)) {
            let length = usize::try_from(gap.end - gap.start).unwrap_or(0);
            SCRATCH
                .with_borrow_mut(|scratch| {
                    let data = both.lower.read(scratch, gap.start, length)?;
                    let id = fuser::INodeNo(both.id);
                    self.mirror.notifier().store(id, gap.start, data)?;
                    self.events.stored(both.id, &gap);
                    fresh += data.len() as u64;
                    io::Result::Ok(())
                })
                .map_err(fault)?;
        }
        Ok(fresh)
    }

    fn begin(&self, cookie: u64) -> Arc<AtomicBool> {
        let mut flying = lock(&self.flying);
        let flight = flying.entry(cookie).or_default();
        flight.loads += 1;
        Arc::clone(&flight.stop)
    }

    fn finish(&self, cookie: u64) {
        let mut flying = lock(&self.flying);
        if let Some(flight) = flying.get_mut(&cookie) {
            flight.loads -= 1;
            if flight.loads == 0 {
                flying.remove(&cookie);
            }
        }
    }

    fn go_through(&self, both: &Both, span: Span, stop: &AtomicBool) -> Result<Loaded, Fault> {
        let mut loaded = Loaded::default();
        for piece in pieces(&range(span, both.size)) {
            if stop.load(Relaxed) {
                loaded.stopped = true;
                break;
            }
            loaded.fresh += self.fetch(both, &piece)?;
            loaded.done += piece.end - piece.start;
        }
        Ok(loaded)
    }
}

/// What a mirror that reads by itself can do.
pub(crate) fn features() -> Features {
    Features::OPEN | Features::EVICT_MAPPED | Features::AFFINITY
}

/// What no mirror through FUSE can do.
pub(crate) const NOT_OF_FUSE: &str = "it refuses RWF_NOWAIT, statx does not report the alignment that O_DIRECT needs, and a change of \
     names or attributes below shows up to a second later";

/// What a mirror that reads by itself cannot do, a sentence each.
pub(crate) fn limits() -> impl Iterator<Item = String> {
    let fixed = [
        "it reports no TOUCH and no PROGRESS: reads of cached pages do not reach it",
        "a MISS is a request of the kernel, readahead included; it does not tell a read from a \
         page fault, nor the CPU",
        "pages that a plan loads are charged to the worker and not to the reader",
        "cached pages have the smallest size, so page faults on mapped files cost more than \
         without the mount",
        "how much is cached is an estimate for deleted files that are still open, and for all \
         files before Linux 6.5",
        NOT_OF_FUSE,
        "if the worker is killed, reads fail until the directory is mounted again",
    ];
    fixed.into_iter().map(str::to_owned)
}

/// A span within the file.
fn range(span: Span, size: u64) -> Range<u64> {
    let end = span.offset.saturating_add(span.length).min(size);
    span.offset.min(end)..end
}

/// The limit that a user namespace without supplementary groups sets to a mirror; none outside of one.
fn limit_of_groups(setgroups: &str) -> Option<String> {
    (setgroups.trim() == "deny").then(|| {
        "files that only a supplementary group of the user may read cannot be read: the mirror's \
         user namespace has one group"
            .to_owned()
    })
}

impl Backend for Fuse {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn features(&self) -> Features {
        features()
    }

    fn limits(&self) -> Vec<String> {
        let why = format!("files are read by the worker: {}", self.why);
        let setgroups = std::fs::read_to_string("/proc/self/setgroups").unwrap_or_default();
        let groups = limit_of_groups(&setgroups);
        std::iter::once(why).chain(groups).chain(limits()).collect()
    }

    fn want(&self, kinds: Kinds, _: u64) -> Result<(), Fault> {
        if kinds.contains(Kind::Touch) || kinds.contains(Kind::Progress) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP).into());
        }
        self.events.want(kinds);
        Ok(())
    }

    fn events(&self, into: &mut Vec<Event>) -> Result<Flow, Fault> {
        Ok(self.events.events(into))
    }

    fn interrupt(&self) {
        self.events.interrupt();
    }

    fn open(&self, path: &Path) -> Result<FileId, Fault> {
        let file = Tree::open(self.mirror.at())?.file(path)?;
        let id = file.metadata()?.ino();
        let mut names = lock(&self.names);
        let name = names.entry(id).or_default();
        // The latest path is the most likely to exist still.
        path.clone_into(&mut name.0);
        name.1 += 1;
        Ok(FileId(id))
    }

    fn close(&self, file: FileId) -> Result<(), Fault> {
        let mut names = lock(&self.names);
        let Some((_, holders)) = names.get_mut(&file.0) else {
            return Err(io::Error::from_raw_os_error(libc::EBADF).into());
        };
        *holders -= 1;
        if *holders == 0 {
            names.remove(&file.0);
        }
        Ok(())
    }

    fn info(&self, file: FileId) -> Result<FileInfo, Fault> {
        files::info(self.lower(file)?.1.file())
    }

    fn path(&self, file: FileId) -> Result<PathBuf, Fault> {
        let id = self.known(file)?;
        Ok(self.mirror.core().path(id)?)
    }

    fn list(&self, path: &Path, recursive: bool) -> Result<Vec<Entry>, Fault> {
        // In the lower directory, where it needs no requests.
        Tree::open(&self.mirror.core().root().magic())?.list(path, recursive)
    }

    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        let (_, lower) = self.lower(file)?;
        SCRATCH.with_borrow_mut(|scratch| {
            let data = lower.read(scratch, offset, buf.len())?;
            buf[..data.len()].copy_from_slice(data);
            Ok(data.len())
        })
    }

    fn load(&self, span: Span, how: How) -> Result<Loaded, Fault> {
        // From here on, a stop takes effect.
        let stop = self.begin(how.cookie);
        let loaded = self
            .shared(span.file)
            .and_then(|both| self.go_through(&both, span, &stop));
        self.finish(how.cookie);
        loaded
    }

    fn stop(&self, cookie: u64) {
        if let Some(flight) = lock(&self.flying).get(&cookie) {
            flight.stop.store(true, Relaxed);
        }
    }

    fn evict(&self, span: Span, unmapped: bool) -> Result<Evicted, Fault> {
        if !self.mirror.core().knows(span.file.0) {
            // The kernel caches no page of a file that it does not know.
            return Ok(Evicted::default());
        }
        let both = self.both(span.file)?;
        let pages = whole_pages(&range(span, both.size), both.size, self.page);
        let length = (pages.end - pages.start).cast_signed();
        if length == 0 {
            return Ok(Evicted::default());
        }
        let start = pages.start.cast_signed();
        let before = self.cached(&both, &pages);
        match (&both.above, unmapped) {
            (Some(above), true) => {
                let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
                posix_fadvise(above, start, length, advice).map_err(io::Error::from)?;
            }
            // It is unknown whether the file is mapped, so its pages stay.
            (None, true) => {}
            (_, false) => {
                let id = fuser::INodeNo(both.id);
                self.mirror.notifier().inval_inode(id, start, length)?;
            }
        }
        if !unmapped {
            self.events.evicted(both.id, &pages);
        }
        let kept = self.cached(&both, &pages);
        Ok(Evicted {
            dropped: before.saturating_sub(kept),
            kept,
        })
    }

    fn end(&self) {
        self.mirror.unmount();
    }

    fn resident(&self, span: Span) -> Result<u64, Fault> {
        if !self.mirror.core().knows(span.file.0) {
            let named = lock(&self.names).contains_key(&span.file.0);
            return if named { Ok(0) } else { Err(Fault::Stale) };
        }
        let both = self.both(span.file)?;
        Ok(self.cached(&both, &range(span, both.size)))
    }
}
