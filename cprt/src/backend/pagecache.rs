//! The verbs of the page cache, by system calls on ordinary files.
//!
//! Every backend but the module and `fuse` by itself works through this. The calling thread decides which node
//! the pages come from, by its memory policy, and how urgent the I/O is.
//!
//! A load goes through its range in steps, and checks between two of them whether it is to stop. Whole folios of the
//! largest size come in by one page fault each, where kernel and file system can do that and the backend allows it:
//! this takes less CPU time, and readers copy such folios faster. The rest of a dense run is sent to `/dev/null`, which
//! copies nothing and has the kernel read ahead. Small or isolated ranges are requested exactly (WILLNEED), one piece
//! ahead, and then sent as well, to wait for them: the kernel reports neither when such a request is done,
//! nor that it has left out some of it, nor that a page could not be read.
//!
//! An eviction looks what is left and reports that: the kernel leaves pages that are mapped or being read,
//! and folios that are only partly asked for, and still reports success.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::hash::Hash;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::sendfile::sendfile64;
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, fstatfs};

use self::fresh::Before;
use self::plan::{FolioTries, Runs, Step, Way};
use crate::backend::{Evicted, Fault, How, Loaded};
use crate::machine::mappings::{self, Identity, Mapping};
use crate::sys::{self, cache};

mod fresh;
mod names;
mod plan;
#[cfg(test)]
mod tests;

/// Upper bound on files whose last requests are remembered.
const MAX_FILES: usize = 256;
/// How long an answer about which processes map a file is used again, as finding out takes long.
const MAPPERS_AGE: Duration = Duration::from_millis(500);
/// The size of the folios that huge pages are mapped from, where the kernel has huge pages.
const HUGE_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
/// Upper bound on folios that wait to be taken: 128 GiB.
const MOST_FOLIOS: usize = 1 << 16;
/// WILLNEED leaves out what is beyond the device's readahead, which is hardly ever below this.
const STEP: u64 = 128 << 10;

/// Loads and evicts.
#[derive(Debug)]
pub(crate) struct Engine {
    null: File,
    page: u64,
    /// The kernel has cachestat.
    cachestat: AtomicBool,
    /// A page fault can bring in a large folio,
    has_folios: bool,
    /// and that is allowed now.
    folios: AtomicBool,
    /// The device of a mirror through which files may be mapped as well.
    mirror: Option<u64>,
    state: Mutex<EngineState>,
}

#[derive(Debug, Default)]
struct EngineState {
    /// Loads in flight, by cookie.
    flying: HashMap<u64, Vec<Arc<AtomicBool>>>,
    loads: HashMap<Identity, Runs>,
    before: Before,
    drops: HashMap<Identity, Range<u64>>,
    mappers: HashMap<Identity, Mappers>,
    /// The largest folios that have come in, until they are taken.
    folios: Vec<(Identity, Range<u64>)>,
    /// By device.
    tries: HashMap<u64, FolioTries>,
}

/// The processes that map a file, as of `then`.
#[derive(Clone, Debug)]
struct Mappers {
    then: Instant,
    all: Arc<Vec<(u32, Vec<Mapping>)>>,
}

/// A load in flight, which may be stopped.
struct LoadInFlight<'a> {
    engine: &'a Engine,
    cookie: u64,
    stop: Arc<AtomicBool>,
}

impl LoadInFlight<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

impl Drop for LoadInFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.engine.lock();
        if let Some(flights) = state.flying.get_mut(&self.cookie) {
            flights.retain(|stop| !Arc::ptr_eq(stop, &self.stop));
            if flights.is_empty() {
                state.flying.remove(&self.cookie);
            }
        }
    }
}

impl Engine {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            null: OpenOptions::new().write(true).open("/dev/null")?,
            page: sys::page_size(),
            cachestat: AtomicBool::new(true),
            has_folios: has_large_folios(),
            folios: AtomicBool::new(false),
            mirror: None,
            state: Mutex::default(),
        })
    }

    /// Notes that files are also read through a mirror of that device, which passes reads through.
    pub(crate) fn mirrored(&mut self, device: u64) {
        self.mirror = Some(device);
    }

    /// Sets whether loads may bring in the largest folios, for the best speed. A process that maps one gets all of it
    /// by a single fault, of which the kernel makes no record.
    pub(crate) fn allow_folios(&self, allowed: bool) {
        self.folios.store(self.has_folios && allowed, Relaxed);
    }

    /// Takes the largest folios that have come in since the last call.
    pub(crate) fn take_folios(&self) -> Vec<(Identity, Range<u64>)> {
        std::mem::take(&mut self.lock().folios)
    }

    fn lock(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings a range of a file into the page cache; the part beyond the end of the file is left out.
    ///
    /// The file should have been opened for this load: the kernel keeps the state of readahead in the
    /// open file.
    pub(crate) fn load(&self, file: &File, range: &Range<u64>, how: How) -> Result<Loaded, Fault> {
        let (range, identity) = clip(file, range)?;
        let length = range.end - range.start;
        let flight = self.begin(how.cookie);
        self.count_before(file, identity, &range);
        let done = self.load_counted(file, &range, identity, how, || flight.stopped());
        // A load that fails is credited with nothing.
        let came = range.start..range.start + done.as_ref().map_or(0, |&done| done);
        let fresh = self.count_after(file, identity, &range, &came);
        let done = done?;
        Ok(Loaded {
            done,
            fresh,
            stopped: done < length && flight.stopped(),
        })
    }

    /// Loads a range, and returns how many bytes of it were processed.
    fn load_counted(
        &self,
        file: &File,
        range: &Range<u64>,
        identity: Identity,
        how: How,
        stopped: impl Fn() -> bool,
    ) -> Result<u64, Fault> {
        let length = range.end - range.start;
        let run = some_of(&mut self.lock().loads, identity).add(range);
        let done = if self.resident(file, range).ok() == Some(length) {
            length
        } else {
            let way = if how.exact {
                Way::Exact
            } else {
                plan::way(run, how.large)
            };
            self.bring(file, range, way, stopped)?
        };
        if how.hold {
            self.hold(file, &(range.start..range.start + done))?;
        }
        Ok(done)
    }

    /// Stops the loads of this cookie that are in flight.
    pub(crate) fn stop(&self, cookie: u64) {
        for stop in self.lock().flying.get(&cookie).into_iter().flatten() {
            stop.store(true, Relaxed);
        }
    }

    /// How many bytes of a range are cached, up to the end of the file.
    pub(crate) fn resident(&self, file: &File, range: &Range<u64>) -> Result<u64, Fault> {
        let (range, _) = clip(file, range)?;
        if range.is_empty() {
            return Ok(0);
        }
        let start = range.start / self.page * self.page;
        let pages = self.pages(file, &(start..range.end))?;
        let length = range.end - range.start;
        let all = (range.end - start).div_ceil(self.page);
        // Partial pages make no difference unless all pages are cached.
        Ok(if pages >= all {
            length
        } else {
            length.min(pages * self.page)
        })
    }

    /// Drops a range; with `unmapped`, pages that processes map stay.
    pub(crate) fn evict(
        &self,
        file: &File,
        range: &Range<u64>,
        unmapped: bool,
    ) -> Result<Evicted, Fault> {
        let (range, identity) = clip(file, range)?;
        if range.is_empty() {
            return Ok(Evicted::default());
        }
        let reach = {
            let mut state = self.lock();
            let reach = plan::reach(state.drops.get(&identity), &range);
            *some_of(&mut state.drops, identity) = reach.clone();
            reach
        };
        let before = self.resident(file, &reach)?;
        if before == 0 {
            return Ok(Evicted::default());
        }
        self.lock().before.forget(identity, &reach);
        advise(file, &reach, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        let mut after = self.resident(file, &reach)?;
        if after > 0 && !unmapped && self.page_out(identity, &reach) {
            advise(file, &reach, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
            after = self.resident(file, &reach)?;
        }
        Ok(Evicted {
            dropped: before.saturating_sub(after),
            kept: after.min(range.end - range.start),
        })
    }

    /// Counts what is cached before a load, including the range that the kernel may read ahead after it.
    fn count_before(&self, file: &File, identity: Identity, range: &Range<u64>) {
        let size = file.metadata().map_or(range.end, |metadata| metadata.len());
        let now = Instant::now();
        let unknown = {
            let mut state = self.lock();
            state.before.begin(identity, range);
            state.before.unknown(identity, range, size, now)
        };
        for bucket in unknown {
            // If this is unknown, counting memory twice is better than not at all.
            let pages = self.pages(file, &fresh::bytes(bucket)).unwrap_or(0);
            self.lock().before.learn(identity, bucket, pages, now);
        }
    }

    /// How many bytes a load of a range has brought in, of which it has processed a part. Counts its last page as
    /// whole.
    fn count_after(
        &self,
        file: &File,
        identity: Identity,
        range: &Range<u64>,
        came: &Range<u64>,
    ) -> u64 {
        let count = |bucket| {
            let bytes = fresh::bytes(bucket);
            let all = (bytes.end - bytes.start) / self.page;
            let most = fresh::shared(came, &bytes).div_ceil(self.page);
            let pages = self.pages(file, &bytes).unwrap_or(all);
            self.lock().before.take(identity, bucket, pages, most)
        };
        let pages: u64 = fresh::buckets(range).map(count).sum();
        (pages * self.page).min(came.end - came.start)
    }

    fn begin(&self, cookie: u64) -> LoadInFlight<'_> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut state = self.lock();
        let flights = state.flying.entry(cookie).or_default();
        flights.push(Arc::clone(&stop));
        LoadInFlight {
            engine: self,
            cookie,
            stop,
        }
    }

    /// Returns how many bytes of the range were processed.
    fn bring(
        &self,
        file: &File,
        range: &Range<u64>,
        way: Way,
        stopped: impl Fn() -> bool,
    ) -> Result<u64, Fault> {
        if way == Way::Stream {
            // Twice the device's readahead: half as many waits.
            advise(file, &(0..0), PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL)?;
        }
        let metadata = file.metadata()?;
        let (size, identity) = (metadata.len(), Identity::of(&metadata));
        let mut at = range.start;
        let mut named = at;
        while at < range.end && !stopped() {
            let piece = match plan::step(at, range.end, size) {
                Step::Folio(folio) if self.fault_in(file, identity, &folio) => {
                    at = folio.end;
                    continue;
                }
                Step::Folio(_) => plan::piece(at, range.end),
                Step::Piece(piece) => piece,
            };
            if way == Way::Exact {
                named = named.max(at);
                // One ahead, so that the device has something to do while we wait.
                while named < range.end && named <= piece.end {
                    let next = plan::piece(named, range.end);
                    self.name(file, &next)?;
                    named = next.end;
                }
            }
            let sent = self.send(file, &piece)?;
            at += sent;
            if at < piece.end {
                // The file has become shorter: nothing is left to do.
                return Ok(range.end - range.start);
            }
        }
        Ok(at - range.start)
    }

    /// Brings in a whole folio by a page fault; returns whether that has succeeded. If not, the caller reads it the
    /// other way, which finds out why.
    fn fault_in(&self, file: &File, identity: Identity, folio: &Range<u64>) -> bool {
        if !self.folios.load(Relaxed) || !some_of(&mut self.lock().tries, identity.device).goes_on()
        {
            return false;
        }
        let came = cache::fault_in(file, folio, self.page);
        let is_one = matches!(came, Ok(true));
        let mut state = self.lock();
        some_of(&mut state.tries, identity.device).tried(is_one);
        // A backend that does not take them does not need them.
        if is_one && state.folios.len() < MOST_FOLIOS {
            state.folios.push((identity, folio.clone()));
        }
        came.is_ok()
    }

    /// The kernel takes pages that are asked for twice as in use, and reclaims others first. It is unknown whether
    /// these were asked for before: a page fault does not count.
    fn hold(&self, file: &File, range: &Range<u64>) -> Result<(), Fault> {
        self.send(file, range)?;
        self.send(file, range).map(drop)
    }

    /// Has the kernel begin to read exactly these pages.
    fn name(&self, file: &File, piece: &Range<u64>) -> Result<(), Fault> {
        advise(file, piece, PosixFadviseAdvice::POSIX_FADV_WILLNEED)?;
        let length = piece.end - piece.start;
        // Of files of other users, the kernel may not tell.
        if length <= STEP || self.resident(file, piece).ok() == Some(length) {
            return Ok(());
        }
        // The kernel has left out some.
        let mut at = piece.start;
        while at < piece.end {
            let end = piece.end.min(at + STEP);
            advise(file, &(at..end), PosixFadviseAdvice::POSIX_FADV_WILLNEED)?;
            at = end;
        }
        Ok(())
    }

    /// Reads a piece without copying it, and returns how many bytes there were.
    fn send(&self, file: &File, piece: &Range<u64>) -> Result<u64, Fault> {
        let mut offset = signed(piece.start)?;
        let end = signed(piece.end)?;
        while offset < end {
            let count = usize::try_from(end - offset).unwrap_or(usize::MAX);
            match sendfile64(&self.null, file, Some(&mut offset), count) {
                Ok(0) => break,
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(Fault::Io(error.into())),
            }
        }
        Ok(offset.cast_unsigned().saturating_sub(piece.start))
    }

    fn pages(&self, file: &File, range: &Range<u64>) -> Result<u64, Fault> {
        // The pages of an overlayfs file belong to the file below.
        let stacked =
            || fstatfs(file).is_ok_and(|fs| fs.filesystem_type() == OVERLAYFS_SUPER_MAGIC);
        if self.cachestat.load(Relaxed) && !stacked() {
            match cache::cachestat(file, range) {
                Ok(pages) => return Ok(pages),
                Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                    self.cachestat.store(false, Relaxed);
                }
                // Some file systems do not support it; of some files we may not ask.
                Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => {
                    return Err(error.into());
                }
                Err(_) => {}
            }
        }
        if !cache::may_ask(file) {
            return Err(io::Error::from_raw_os_error(libc::EPERM).into());
        }
        Ok(cache::mincore(file, range, self.page)?)
    }

    /// Has the kernel drop pages that one process maps; returns whether it was asked to. Where several
    /// processes map the file, it would drop nothing, after a long search.
    fn page_out(&self, file: Identity, range: &Range<u64>) -> bool {
        let mappers = self.mappers(file);
        let maps = |mapping: &Mapping| mapping.addresses_of(range);
        let mut here = mappers
            .iter()
            .filter(|(_, mappings)| mappings.iter().any(|mapping| maps(mapping).is_some()));
        let (Some((process, mappings)), None) = (here.next(), here.next()) else {
            return false;
        };
        let Ok(pidfd) = cache::pidfd(*process) else {
            return false;
        };
        let mut asked = false;
        for addresses in mappings.iter().filter_map(maps) {
            // The process may have unmapped them since; the caller counts what is left.
            asked |= cache::page_out(&pidfd, &addresses).is_ok();
        }
        asked
    }

    fn mappers(&self, file: Identity) -> Arc<Vec<(u32, Vec<Mapping>)>> {
        if let Some(known) = self.lock().mappers.get(&file)
            && known.then.elapsed() < MAPPERS_AGE
        {
            return Arc::clone(&known.all);
        }
        let all = Arc::new(mappings::all_of(file, self.mirror));
        let mappers = Mappers {
            then: Instant::now(),
            all: Arc::clone(&all),
        };
        let mut state = self.lock();
        if state.mappers.len() >= MAX_FILES {
            state.mappers.clear();
        }
        state.mappers.insert(file, mappers);
        all
    }
}

/// The entry of a file or device in a bounded table, which starts over when it is full.
fn some_of<K: Eq + Hash, T: Default>(all: &mut HashMap<K, T>, one: K) -> &mut T {
    if all.len() >= MAX_FILES && !all.contains_key(&one) {
        all.clear();
    }
    all.entry(one).or_default()
}

/// Whether a page fault can bring in a folio as large as [`plan::FOLIO`].
fn has_large_folios() -> bool {
    let size = fs::read_to_string(HUGE_SIZE);
    size.is_ok_and(|size| size.trim() == plan::FOLIO.to_string())
}

/// Clips a range to the file.
fn clip(file: &File, range: &Range<u64>) -> Result<(Range<u64>, Identity), Fault> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Fault::NoFile);
    }
    let end = range.end.min(metadata.len());
    Ok((range.start.min(end)..end, Identity::of(&metadata)))
}

fn signed(at: u64) -> Result<i64, Fault> {
    i64::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG).into())
}

fn advise(file: &File, range: &Range<u64>, advice: PosixFadviseAdvice) -> Result<(), Fault> {
    let length = signed(range.end - range.start)?;
    posix_fadvise(file, signed(range.start)?, length, advice)
        .map_err(|error| Fault::Io(error.into()))
}
