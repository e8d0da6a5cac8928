//! How much of memory the page cache may take before loads stop and the policy is asked to evict.
//!
//! # What limits
//!
//! The host, and the memory cgroup that pays for the pages together with every ancestor of it:
//! `memory.max` or `memory.high`, whichever is lower, in v2, `memory.limit_in_bytes` in v1. Each
//! limit has a threshold, 80 % of it by default. The tightest limit is the one whose use is nearest to
//! its threshold, not the smallest; a load must not be too much for any of them.
//!
//! One cgroup is followed at a time, the last one named. That is enough for a service whose
//! processes are in several: their common pod, container or unit is an ancestor of each, and limits
//! are set there.
//!
//! # What is in use
//!
//! On Linux memory is always full: unneeded memory holds old page cache. If that counted, nothing
//! would ever be loaded; if no page cache counted, we would load until processes are pushed
//! into swap. So the worker's own page cache counts, and the rest does not, because the kernel drops it
//! at no cost:
//!
//! ```text
//! cache = active_file + inactive_file - dirty - writeback
//! used  = usage - cache + min(cache, ours)        of a cgroup, without its swap
//! used  = total - MemAvailable + dirty + writeback + min(cache, ours)     of the host
//! ```
//!
//! `usage - cache` is the memory of the processes and of the kernel on their behalf. The rest of
//! the limit is the room for cache, and `available` comes only from that: anonymous memory of the
//! service is never reclaimed for our pages. Dirty pages have a cost, because they have to be written
//! first. The host's total does not include memory set aside for huge pages.
//!
//! `ours` is the caller's estimate of what it has brought in and not evicted, without pages that it wanted
//! to evict and processes map, which the kernel reclaims when it has to. An estimate that is too large counts
//! cache of other processes as ours, which is the careful side; it never counts more than there is.
//!
//! # When memory is over the threshold
//!
//! From the threshold on, until use is some percent below it; between the two the state stays, for each
//! limit on its own. Also when tasks waited for memory for a larger share of the time than is allowed,
//! until that share is half of it: pressure (PSI) shows what no sum does, a working set that is thrown out
//! and read again. `available` is 0 exactly while memory is over. So a loader continues until memory is over,
//! and does not stop where the next chunk would not fit: then evict would never be called.
//!
//! # Nodes
//!
//! Where kubelet runs, what it counts as used must stay below what makes it evict pods: its working set has recently
//! used page cache in it, ours or not, which the host's limit leaves out. It is a limit of the
//! machine, of the cgroup of all pods and of each pod's. Where a GPU shares the machine's memory, it needs memory that
//! is free, and in large blocks: both are limits of their own. `working_set.rs`, `kubelet.rs` and `guards.rs` say more.
//!
//! # Reading it
//!
//! [`Watch::sample`] may be called for every chunk by every thread: files stay open and are read at
//! most every 5 ms, every 25 ms while much is left, and less often where reading them takes long.

mod cgroup;
mod decide;
mod files;
mod guards;
mod kubelet;
mod parse;
mod working_set;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::cgroup::{Roots, join};
use self::decide::LimitVerdict;
pub use self::decide::Pressure;
use self::files::{Host, Level, PressureFile};
use self::guards::Guards;
pub use self::kubelet::{Eviction, EvictionOrigin};
use crate::control::config;

/// How long a reading stays valid.
const FRESH: Duration = Duration::from_millis(5);

/// The same while more than a part of the limit is left; our own pages are known in any case.
const CALM: Duration = Duration::from_millis(25);
const CALM_PART: u64 = 4;

/// Reading takes at most one part in this many of a core: with hundreds of CPUs the kernel needs
/// a while to add up their counters.
const SHARE: u32 = 5;

/// What limits the page cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LimitSource {
    /// All memory of the machine.
    Host,
    /// This memory cgroup.
    Cgroup(Arc<Path>),
    /// Kubelet's threshold for the memory that it takes for available on this machine.
    Kubelet(Eviction),
    /// The working set of this memory cgroup, a pod's or that of all pods.
    WorkingSet(Arc<Path>),
    /// Free memory, where a GPU shares the memory of the machine.
    Free,
    /// What is free in large blocks, likewise.
    Blocks,
    /// Nothing could be read, not even the host's memory.
    Unknown,
}

impl LimitSource {
    /// The number of the cgroup whose limit it is, which all see alike, whatever their view of cgroups; 0 if there is
    /// none.
    fn group(&self) -> u64 {
        match self {
            Self::Cgroup(dir) | Self::WorkingSet(dir) => dir.metadata().map_or(0, |it| it.ino()),
            Self::Host | Self::Kubelet(_) | Self::Free | Self::Blocks | Self::Unknown => 0,
        }
    }
}

impl std::fmt::Display for LimitSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.pad("host"),
            Self::Cgroup(dir) => dir.display().fmt(f),
            Self::Kubelet(_) => f.pad("kubelet"),
            Self::WorkingSet(dir) => write!(f, "working set of {}", dir.display()),
            Self::Free => f.pad("free memory"),
            Self::Blocks => f.pad("large free blocks"),
            Self::Unknown => f.pad("unknown"),
        }
    }
}

/// The state of memory at one moment, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryState {
    /// The tightest limit.
    pub limit: u64,
    /// The part of it in use.
    pub used: u64,
    /// From this use on, memory is over.
    pub threshold: u64,
    /// How much can be loaded before that; 0 exactly if memory is over.
    pub available: u64,
    /// Memory is over the threshold: loads stop and evict is called.
    pub over: bool,
    /// Memory pressure, if the system reports it and the configuration uses it.
    pub pressure: Option<Pressure>,
    /// Which limit is the tightest.
    pub source: LimitSource,
}

impl From<&MemoryState> for ppc::Memory {
    fn from(state: &MemoryState) -> Self {
        Self {
            limit: state.limit,
            used: state.used,
            threshold: state.threshold,
            available: state.available,
            group: state.source.group(),
        }
    }
}

/// Watches the memory of one mount. All of it may be called from any thread.
#[derive(Debug)]
pub struct Watch {
    config: config::MemoryConfig,
    roots: Roots,
    inner: Mutex<WatchState>,
}

#[derive(Debug)]
struct WatchState {
    guards: Guards,
    host: Host,
    /// The followed cgroup, then those above it.
    levels: Vec<Level>,
    pressure: PressureFile,
    buffer: Vec<u8>,
    fresh_until: Option<Instant>,
    /// How much the worker had brought in at the time of the reading.
    ours: u64,
}

impl Watch {
    /// Follows nothing yet: the host limits.
    #[must_use]
    pub fn new(config: config::MemoryConfig, roots: Roots) -> Self {
        let inner = WatchState {
            guards: Guards::default(),
            host: Host::new(&roots.proc),
            levels: Vec::new(),
            pressure: PressureFile::new(&roots.proc),
            buffer: vec![0; 16 << 10],
            fresh_until: None,
            ours: 0,
        };
        Self {
            config,
            roots,
            inner: Mutex::new(inner),
        }
    }

    /// Follows the memory cgroup of a process, and returns its directory.
    ///
    /// `None`: the process is in the root or its cgroup is not visible here, so the host limits from
    /// now on; or it is gone, and the earlier cgroup is still followed. The kernel's files for this may
    /// be long, so ask once for a process and not for each of its events.
    pub fn follow_process(&self, pid: u32) -> Option<PathBuf> {
        let place = match self.roots.place(pid) {
            Ok(place) => place,
            Err(error) => {
                log::debug!("{error}: the limits of its memory cgroup are ignored");
                return None;
            }
        };
        let pressure = place.memory.as_deref().filter(|dir| has_pressure(dir));
        self.follow(
            place.memory.as_deref(),
            pressure.or(place.unified.as_deref()),
        );
        place.memory
    }

    /// Follows a memory cgroup. It need not exist yet: it counts as soon as it does.
    pub fn follow_cgroup(&self, dir: &Path) {
        self.follow(Some(dir), Some(dir));
    }

    /// Memory now, if `ours` bytes of page cache are there because of us.
    pub fn sample(&self, ours: u64) -> MemoryState {
        self.sample_at(Instant::now(), ours)
    }

    fn sample_at(&self, now: Instant, ours: u64) -> MemoryState {
        let mut inner = self.lock();
        let due = inner.fresh_until.is_none_or(|until| now >= until);
        if due {
            inner.update(now, &self.config, &self.roots);
            inner.ours = ours;
        }
        let state = inner.judge(&self.config, ours);
        if due && state.available > state.limit / CALM_PART {
            inner.fresh_until = inner.fresh_until.max(Some(now + CALM));
        }
        state
    }

    fn follow(&self, dir: Option<&Path>, pressure: Option<&Path>) {
        // Looked up before taking the lock, as other threads sample.
        let dirs: Vec<&Path> = dir
            .map(|dir| cgroup::lineage(dir).collect())
            .unwrap_or_default();
        let mut inner = self.lock();
        let mut known = std::mem::take(&mut inner.levels);
        for dir in dirs {
            // Common ancestors keep their state of being over.
            let mut level = match known.iter().position(|level| *level.dir == *dir) {
                Some(index) => known.swap_remove(index),
                None => Level::new(dir),
            };
            level.renew();
            inner.levels.push(level);
        }
        inner.pressure.follow(pressure);
        inner.fresh_until = None;
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        // State that a panic left half done is read again.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchState {
    fn update(&mut self, now: Instant, config: &config::MemoryConfig, roots: &Roots) {
        self.guards.update(now, config, roots);
        let begin = Instant::now();
        self.host.update(now, self.guards.unified, &mut self.buffer);
        for level in &mut self.levels {
            level.update(now, &mut self.buffer);
        }
        if config.pressure < 100 {
            self.pressure.update(now, &mut self.buffer);
        }
        self.fresh_until = Some(now + FRESH.max(begin.elapsed() * SHARE));
    }

    fn judge(&mut self, config: &config::MemoryConfig, ours: u64) -> MemoryState {
        // Loads are faster than readings: count what has come in since.
        let new = ours.saturating_sub(self.ours);
        let tightest = self
            .verdicts(config, ours, new)
            .into_iter()
            .min_by_key(|(verdict, _)| verdict.tightness());
        let pressure = self.pressure.judge(config.pressure);
        // Memory of unknown state is not filled.
        let over = tightest.as_ref().is_none_or(|(verdict, _)| verdict.over)
            || pressure.is_some_and(|pressure| pressure.over);
        let (verdict, source) = tightest.unwrap_or((LimitVerdict::default(), LimitSource::Unknown));
        let left = verdict.threshold.saturating_sub(verdict.used);
        MemoryState {
            limit: verdict.limit,
            used: verdict.used,
            threshold: verdict.threshold,
            available: if over { 0 } else { left },
            over,
            pressure,
            source,
        }
    }
}

impl WatchState {
    /// The verdicts on all limits that there are.
    fn verdicts(
        &mut self,
        config: &config::MemoryConfig,
        ours: u64,
        new: u64,
    ) -> Vec<(LimitVerdict, LimitSource)> {
        let mut verdicts = Vec::new();
        let mut add = |verdict: Option<LimitVerdict>, source: LimitSource| {
            verdicts.extend(verdict.map(|verdict| (verdict, source)));
        };
        let host = &mut self.host;
        add(host.limit.judge(config, ours, new), LimitSource::Host);
        if self.guards.unified {
            add(host.free.judge(config, ours, new), LimitSource::Free);
            let config = decide::for_blocks(config);
            add(host.blocks.judge(&config, ours, new), LimitSource::Blocks);
        }
        let thresholds = self.guards.kubelet.as_ref();
        let total = host.working_set.reading.map_or(0, |reading| reading.limit);
        if let Some(eviction) = thresholds.and_then(|it| it.highest(total)) {
            let verdict = host.working_set.judge(config, eviction.below, ours, new);
            add(verdict, LimitSource::Kubelet(eviction));
        }
        for level in &mut self.levels {
            let source = LimitSource::Cgroup(Arc::clone(&level.dir));
            add(level.limit.judge(config, ours, new), source);
            // Kubelet evicts for want of what pods may allocate, too, by the same thresholds.
            let Some(thresholds) = thresholds else {
                continue;
            };
            let set = &mut level.working_set;
            let limit = set.reading.map_or(0, |reading| reading.limit);
            let eviction = thresholds.highest(limit).filter(|_| level.is_kubepods);
            let below = eviction.map_or(0, |eviction| eviction.below);
            let source = LimitSource::WorkingSet(Arc::clone(&level.dir));
            add(set.judge(config, below, ours, new), source);
        }
        verdicts
    }
}

fn has_pressure(dir: &Path) -> bool {
    dir.join("memory.pressure").is_file()
}

#[cfg(test)]
#[path = "memory/tests.rs"]
mod tests;
