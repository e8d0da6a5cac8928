//! A fake mount for tests: files of some size, a page cache of flags, a device with latency.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Backend, Evicted, Fault, Flow, How, Loaded, Span};
use ppc::{Entry, Event, Features, FileId, FileInfo, Kinds};
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const PAGE: u64 = 4096;

/// The mount.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    state: Mutex<FakeState>,
    changed: Condvar,
    /// For each page.
    latency: Duration,
}

#[derive(Debug, Default)]
struct FakeState {
    sizes: HashMap<u64, u64>,
    cached: BTreeSet<(u64, u64)>,
    broken: HashSet<(u64, u64)>,
    stopped: HashSet<u64>,
    loads: Vec<Span>,
    /// Of each load, whether nothing beyond it may be read.
    exact: Vec<bool>,
    charged: Vec<Option<u32>>,
    events: Vec<Event>,
    interrupted: bool,
    ended: bool,
    wanted: u32,
}

impl Fake {
    pub(crate) fn new(latency: Duration) -> Self {
        Self {
            latency,
            ..Self::default()
        }
    }

    pub(crate) fn file(self, id: u64, pages: u64) -> Self {
        self.lock().sizes.insert(id, pages * PAGE);
        self
    }

    /// Reading this page fails.
    pub(crate) fn broken(self, id: u64, page: u64) -> Self {
        self.lock().broken.insert((id, page));
        self
    }

    fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ranges that were loaded, in order.
    pub(crate) fn loads(&self) -> Vec<Span> {
        self.lock().loads.clone()
    }

    /// Of each load, whether nothing beyond it was to be read.
    pub(crate) fn exact(&self) -> Vec<bool> {
        self.lock().exact.clone()
    }

    /// The processes whose cgroups paid for them.
    pub(crate) fn charged(&self) -> Vec<Option<u32>> {
        self.lock().charged.clone()
    }

    /// How many pages of a file are cached.
    pub(crate) fn cached(&self, id: u64) -> u64 {
        self.lock().cached.range((id, 0)..(id + 1, 0)).count() as u64
    }

    /// Waits until `holds` is true.
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            assert!(since.elapsed() < Duration::from_secs(20), "never: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn features(&self) -> Features {
        Features::OPEN | Features::CHARGE
    }

    fn want(&self, kinds: Kinds, _: u64) -> Result<(), Fault> {
        self.lock().wanted = kinds.bits();
        Ok(())
    }

    fn events(&self, into: &mut Vec<Event>) -> Result<Flow, Fault> {
        let mut state = self.lock();
        while state.events.is_empty() && !state.interrupted && !state.ended {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.interrupted = false;
        into.append(&mut state.events);
        Ok(if state.ended { Flow::Ended } else { Flow::On })
    }

    fn interrupt(&self) {
        self.lock().interrupted = true;
        self.changed.notify_all();
    }

    fn open(&self, path: &Path) -> Result<FileId, Fault> {
        let id = path
            .to_str()
            .and_then(|name| name.parse().ok())
            .unwrap_or(0);
        self.info(FileId(id)).map(|_| FileId(id))
    }

    fn close(&self, _: FileId) -> Result<(), Fault> {
        Ok(())
    }

    fn info(&self, file: FileId) -> Result<FileInfo, Fault> {
        let size = self.lock().sizes.get(&file.0).copied();
        size.map(|size| FileInfo {
            size,
            inode: file.0,
            ..FileInfo::default()
        })
        .ok_or(Fault::Stale)
    }

    fn path(&self, file: FileId) -> Result<PathBuf, Fault> {
        Ok(file.to_string().into())
    }

    fn list(&self, _: &Path, _: bool) -> Result<Vec<Entry>, Fault> {
        let state = self.lock();
        let entries = state.sizes.iter().map(|(id, &size)| Entry {
            path: id.to_string().into(),
            size: Some(size),
        });
        Ok(entries.collect())
    }

    fn read(&self, _: FileId, _: u64, _: &mut [u8]) -> Result<usize, Fault> {
        Ok(0)
    }

    fn load(&self, span: Span, how: How) -> Result<Loaded, Fault> {
        let (first, end) = (
            span.offset / PAGE,
            (span.offset + span.length).div_ceil(PAGE),
        );
        {
            let mut state = self.lock();
            state.loads.push(span);
            state.exact.push(how.exact);
            state.charged.push(how.charge);
        }
        let mut loaded = Loaded::default();
        for page in first..end {
            std::thread::sleep(self.latency);
            let mut state = self.lock();
            if state.stopped.contains(&how.cookie) {
                loaded.stopped = true;
                break;
            }
            if state.broken.contains(&(span.file.0, page)) {
                return Err(io::Error::from_raw_os_error(libc::EIO).into());
            }
            if state.cached.insert((span.file.0, page)) {
                loaded.fresh += PAGE;
            }
            loaded.done += PAGE;
        }
        Ok(loaded)
    }

    fn stop(&self, cookie: u64) {
        self.lock().stopped.insert(cookie);
    }

    fn evict(&self, span: Span, unmapped: bool) -> Result<Evicted, Fault> {
        let mut evicted = Evicted::default();
        let mut state = self.lock();
        for page in span.offset / PAGE..(span.offset + span.length) / PAGE {
            if unmapped {
                evicted.kept += PAGE;
            } else if state.cached.remove(&(span.file.0, page)) {
                evicted.dropped += PAGE;
            }
        }
        Ok(evicted)
    }

    fn resident(&self, span: Span) -> Result<u64, Fault> {
        let first = span.offset / PAGE;
        let end = span.offset.saturating_add(span.length).div_ceil(PAGE);
        let state = self.lock();
        let cached = state.cached.range((span.file.0, first)..(span.file.0, end));
        Ok(cached.count() as u64 * PAGE)
    }
}
