//! Brings files into the page cache, in the given order, by a worker's loader and within its budget.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::CacheFile;
use super::listed::Listed;
use crate::backend::pagecache::Engine;
use crate::backend::{Backend, Fault, Span};
use crate::control::config;
use crate::control::stats::{Counters, Stats};
use crate::machine::memory::{Roots, Watch};
use crate::machine::ranges::Ranges;
use crate::worker::budget::Budget;
use crate::worker::loader::{LoadRange, Loader, ThreadGroup, devices};
use crate::worker::queue::Queue;
use crate::{Error, Result};

/// How many ranges wait in the loader: fewer than it takes, so that none is left out.
const AT_ONCE: usize = 1 << 14;

/// How often what is missing is loaded: the kernel may reclaim pages of the first parts while the last ones come in.
const PASSES: u32 = 10;
/// It does so only if no more is missing than this part of all: otherwise there is not enough memory, and what is
/// loaded again pushes out the rest.
const SMALL_PART: u64 = 8;

/// A range of one of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The file's place in the list.
    pub file: usize,
    /// Its bytes.
    pub range: Range<u64>,
}

/// The parts in their order, each byte of a file once, and no more than `limit` bytes in all.
#[must_use]
pub fn distinct(parts: &[Part], limit: u64) -> Vec<Part> {
    let mut seen: HashMap<usize, Ranges> = HashMap::new();
    let mut left = limit;
    let mut distinct = Vec::new();
    for part in parts {
        let seen = seen.entry(part.file).or_default();
        for gap in seen.gaps(&part.range, 1) {
            let range = gap.start..gap.end.min(gap.start.saturating_add(left));
            if range.is_empty() {
                return distinct;
            }
            left -= range.end - range.start;
            seen.insert(&range);
            distinct.push(Part {
                file: part.file,
                range,
            });
        }
    }
    distinct
}

/// Loads under way in this process, whose memory cgroup pays for the pages.
pub struct Warming {
    files: Arc<Listed>,
    parts: Vec<Part>,
    bytes: u64,
    /// Ranges that the loader has not received yet.
    left: VecDeque<Part>,
    /// How many times the parts have been gone through.
    passes: u32,
    /// How many bytes of the parts turned out to be cached in the first pass.
    before: u64,
    loader: Loader,
    counters: Arc<Counters>,
    claim: Claim,
}

/// The memory that loads may claim.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// Below 0, they are in the background.
    priority: i32,
    /// The kernel is to reclaim other cache first.
    hold: bool,
    /// The node whose memory is preferred.
    node: Option<u16>,
}

impl std::fmt::Debug for Warming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Warming")
            .field("parts", &self.parts.len())
            .field("left", &self.left.len())
            .finish_non_exhaustive()
    }
}

impl Warming {
    /// Begins to load these parts, which should be [`distinct`], in their order, and into memory of this NUMA node, if
    /// one is given and has some.
    ///
    /// # Errors
    ///
    /// There is no `/dev/null`.
    pub fn start(
        files: Vec<CacheFile>,
        parts: Vec<Part>,
        memory: config::MemoryConfig,
        loader: config::LoaderConfig,
        node: Option<u16>,
    ) -> Result<Self> {
        let watch = Watch::new(memory, Roots::default());
        watch.follow_process(std::process::id());
        let claim = Claim {
            priority: 0,
            hold: false,
            node,
        };
        Self::watched(files, parts, watch, loader, claim)
    }

    /// The same in the background: a small piece at a time, while this process has nothing more urgent to load from
    /// the device. What it brings in, the kernel is to reclaim after other cache.
    pub(crate) fn in_background(
        files: Vec<CacheFile>,
        parts: Vec<Part>,
        watch: Watch,
        loader: config::LoaderConfig,
    ) -> Result<Self> {
        let claim = Claim {
            priority: -1,
            hold: true,
            node: None,
        };
        Self::watched(files, parts, watch, loader, claim)
    }

    fn watched(
        files: Vec<CacheFile>,
        parts: Vec<Part>,
        watch: Watch,
        config: config::LoaderConfig,
        claim: Claim,
    ) -> Result<Self> {
        let engine = Engine::new().map_err(|source| Error::System {
            doing: "Opening /dev/null",
            source,
        })?;
        let listed = Arc::new(Listed::new(engine, files));
        let backend: Arc<dyn Backend> = Arc::clone(&listed) as _;
        let counters = Arc::new(Counters::default());
        // No policy waits for tasks.
        let tasks = Arc::new(Queue::new(1));
        let budget = Budget::new(Arc::clone(&backend), watch, tasks, Arc::clone(&counters));
        // While memory is over its threshold, the budget counts what is cached of these.
        for part in &parts {
            budget.touched(Listed::id(part.file));
        }
        let threads = ThreadGroup {
            node: claim.node,
            cpus: Vec::new(),
        };
        let loader = Loader::new(
            backend,
            Arc::new(budget),
            Arc::clone(&counters),
            vec![threads],
            config,
            devices(),
        );
        let mut warming = Self {
            files: listed,
            left: parts.iter().cloned().collect(),
            bytes: bytes(&parts),
            parts,
            passes: 0,
            before: 0,
            loader,
            counters,
            claim,
        };
        warming.goes_on();
        Ok(warming)
    }

    /// Whether anything is still to be loaded; to be called from time to time, as long as it returns true.
    pub fn goes_on(&mut self) -> bool {
        if !self.loader.is_idle() {
            return true;
        }
        if self.left.is_empty() {
            self.pass_ends();
        }
        if self.left.is_empty() || self.lacked_memory() {
            return false;
        }
        let next = self.left.len().min(AT_ONCE);
        let ranges: Vec<_> = self.left.drain(..next).collect::<Vec<_>>();
        let ranges: Vec<_> = ranges.iter().map(|part| self.load_of(part)).collect();
        self.loader.submit(&ranges);
        true
    }

    /// Loads uncached parts once more, after a pass without failed loads.
    fn pass_ends(&mut self) {
        self.before = self.cached_before();
        self.passes += 1;
        let stats = self.counters.snapshot();
        if self.passes < PASSES && stats.load_errors == 0 && stats.superseded_bytes == 0 {
            let missing = self.missing();
            if bytes(&missing) <= self.bytes / SMALL_PART {
                self.left = missing.into();
            }
        }
    }

    /// What of the parts is not cached, as far as that is known.
    fn missing(&self) -> Vec<Part> {
        let mut missing = Vec::new();
        for part in &self.parts {
            let span = span_of(part);
            let is_short = |there| there < span.length;
            if self.files.resident(span).is_ok_and(is_short)
                && let Ok(cached) = self.files.cached(span)
            {
                let gaps = cached.gaps(&part.range, 1).into_iter();
                missing.extend(gaps.map(|range| Part {
                    file: part.file,
                    range,
                }));
            }
        }
        missing
    }

    /// A part, for the loader.
    fn load_of(&self, part: &Part) -> (usize, LoadRange) {
        let range = LoadRange {
            span: span_of(part),
            process: 0,
            priority: self.claim.priority,
            charge: None,
            large: false,
            hold: self.claim.hold,
            replaces: false,
        };
        (0, range)
    }

    /// How many bytes of the parts have turned out to be cached before they were loaded.
    #[must_use]
    pub fn cached_before(&self) -> u64 {
        if self.passes > 0 {
            return self.before;
        }
        let stats = self.counters.snapshot();
        stats.load_bytes.saturating_sub(stats.loaded_bytes)
    }

    /// The counters, with all that is left as waiting.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.counters.snapshot();
        stats.load_rate = self.loader.state().1;
        // Parts that are loaded once more count once.
        stats.load_bytes = stats.load_bytes.min(self.bytes);
        let done = stats.load_bytes + stats.in_flight_bytes;
        stats.queued_bytes = self.bytes.saturating_sub(done);
        stats
    }

    /// Whether loads have been given up, as memory has been over its threshold for too long.
    #[must_use]
    pub fn lacked_memory(&self) -> bool {
        self.counters.snapshot().superseded_bytes > 0
    }

    /// Stops all loads, within a piece of each, and counts how many bytes of the parts of each file are cached then;
    /// `None` if the kernel does not tell this user.
    #[must_use]
    pub fn end(self) -> Option<Vec<u64>> {
        self.loader.end();
        let mut cached = vec![0; self.files.len()];
        for part in &self.parts {
            match self.files.resident(span_of(part)) {
                Ok(bytes) => cached[part.file] += bytes,
                Err(Fault::Io(error)) if error.raw_os_error() == Some(libc::EPERM) => return None,
                // It is gone, or another one.
                Err(_) => {}
            }
        }
        Some(cached)
    }
}

fn bytes(parts: &[Part]) -> u64 {
    parts.iter().map(|it| it.range.end - it.range.start).sum()
}

fn span_of(part: &Part) -> Span {
    Span {
        file: Listed::id(part.file),
        offset: part.range.start,
        length: part.range.end - part.range.start,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use test_support::undisturbed;

    use super::*;
    use crate::control::config::{LoaderConfig, MemoryConfig};
    use crate::residency::find;

    fn part(file: usize, range: Range<u64>) -> Part {
        Part { file, range }
    }

    #[test]
    fn each_byte_is_loaded_once_up_to_the_limit() {
        let parts = [
            part(0, 10..20),
            part(1, 0..5),
            part(0, 0..30),
            part(1, 0..5),
        ];
        let all = [
            part(0, 10..20),
            part(1, 0..5),
            part(0, 0..10),
            part(0, 20..30),
        ];
        assert_eq!(distinct(&parts, u64::MAX), all);
        assert_eq!(
            distinct(&parts, 17),
            [part(0, 10..20), part(1, 0..5), part(0, 0..2)]
        );
        assert_eq!(distinct(&parts, 0), []);
        assert_eq!(
            distinct(&[part(0, 5..5), part(0, 5..6)], 9),
            [part(0, 5..6)]
        );
    }

    /// Files on storage, which are on it and not in the cache.
    struct Model(PathBuf);

    impl Model {
        const SIZE: u64 = 6 << 20;

        fn new(name: &str) -> Self {
            let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp");
            let top = top.join(format!("cprt-warming-{}-{name}", std::process::id()));
            fs::create_dir_all(&top).expect("a folder");
            for file in ["1", "2"] {
                let bytes = vec![7; usize::try_from(Self::SIZE).expect("small")];
                fs::write(top.join(file), bytes).expect("a file");
                let file = fs::File::open(top.join(file)).expect("it is there");
                file.sync_all().expect("to write it");
            }
            Self(top.canonicalize().expect("it is there"))
        }

        fn parts(&self) -> (Vec<CacheFile>, Vec<Part>) {
            let files = find(std::slice::from_ref(&self.0)).expect("there").files;
            assert_eq!(files.len(), 2);
            let cache = super::super::Cache::new().expect("a cache");
            for file in &files {
                let released = cache.release(file).expect("ours");
                assert_eq!(released.after, Some(0), "{released:?}");
            }
            (files, vec![part(0, 0..Self::SIZE), part(1, 0..Self::SIZE)])
        }
    }

    impl Drop for Model {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn wait(warming: &mut Warming) {
        let since = Instant::now();
        while warming.goes_on() {
            assert!(since.elapsed() < Duration::from_mins(1), "{warming:?}");
            sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn warming_caches_all_files_and_loads_nothing_again() {
        let model = Model::new("all");
        let memory = MemoryConfig {
            threshold: 100,
            pressure: 100,
            ..MemoryConfig::default()
        };
        let warm = |files: &[CacheFile], parts: &[Part]| {
            let (files, parts) = (files.to_vec(), parts.to_vec());
            let begun = Warming::start(files, parts, memory, LoaderConfig::default(), None);
            let mut warming = begun.expect("to begin");
            assert!(warming.stats().queued_bytes <= 2 * Model::SIZE);
            wait(&mut warming);
            let stats = warming.stats();
            assert!(!warming.lacked_memory());
            (stats, warming.cached_before(), warming.end())
        };
        let all = Some(vec![Model::SIZE; 2]);
        let (files, parts) = model.parts();
        let (stats, before, cached) = warm(&files, &parts);
        assert_eq!(before, 0);
        assert_eq!(stats.load_bytes, 2 * Model::SIZE, "{stats:?}");
        assert!(stats.loaded_bytes >= 2 * Model::SIZE, "{stats:?}");
        assert_eq!(cached, all, "passes make up for what is reclaimed");
        let again = || {
            let (stats, before, cached) = warm(&files, &parts);
            (stats.loaded_bytes, before, cached)
        };
        let expected = (0, 2 * Model::SIZE, all);
        assert_eq!(undisturbed(again, |it| *it == expected), expected);
    }

    #[test]
    fn warming_loads_nothing_into_full_memory() {
        let model = Model::new("full");
        let (files, parts) = model.parts();
        let full = MemoryConfig {
            threshold: 0,
            ..MemoryConfig::default()
        };
        let begun = Warming::start(files, parts, full, LoaderConfig::default(), None);
        let mut warming = begun.expect("to begin");
        wait(&mut warming);
        assert!(warming.lacked_memory());
        assert_eq!(warming.end(), Some(vec![0; 2]));
    }
}
