//! How much memory a worker may fill, and how much of the page cache counts as its own.
//!
//! The loader and the evictor ask for [`Room`] and report what they did; the events' thread reports what
//! readers brought in by themselves, which the policy may evict as well.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ppc::{Event, FileId, Kind, Memory};

use self::brought_in::BroughtIn;
use crate::backend::{Backend, Evicted, Fault, Span};
use crate::control::stats::Counters;
use crate::machine::memory::Watch;
use crate::worker::queue::{Queue, Task};

mod brought_in;

/// Upper bound on files that are counted again: with more, the estimate stays.
const MAX_FILES: usize = 1 << 14;
/// How often files are counted again, at most.
const COUNT_AGAIN: Duration = Duration::from_secs(5);

/// How much may be loaded.
pub(crate) trait Room: Send + Sync {
    /// Bytes that may be loaded; `None` if memory is over the threshold.
    fn room(&self) -> Option<u64>;
    /// Notes that a range has come in, of which `fresh` bytes were not cached before.
    fn came(&self, span: Span, fresh: u64);
    /// Notes how much of a range has been dropped.
    fn went(&self, span: Span, evicted: Evicted);
    /// Counts what is still cached, as memory stays over the threshold: it may be less than estimated.
    fn recount(&self);
}

/// The memory of one worker.
pub(crate) struct Budget {
    backend: Arc<dyn Backend>,
    watch: Watch,
    queue: Arc<Queue<Task>>,
    counters: Arc<Counters>,
    brought_in: BroughtIn,
    over: AtomicBool,
    /// Files that may be in the page cache because of us, and when they were counted last.
    touched_last: AtomicU64,
    files: Mutex<(HashSet<FileId>, Option<Instant>)>,
}

impl Budget {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        watch: Watch,
        queue: Arc<Queue<Task>>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            backend,
            watch,
            queue,
            counters,
            brought_in: BroughtIn::default(),
            over: AtomicBool::new(false),
            touched_last: AtomicU64::new(0),
            files: Mutex::default(),
        }
    }

    /// Has the memory cgroup of this process pay from now on. Returns its directory, if it is visible here.
    pub(crate) fn follow_process(&self, process: u32) -> Option<PathBuf> {
        self.watch.follow_process(process)
    }

    /// The current state of memory, and whether it is over the threshold.
    pub(crate) fn sample(&self) -> (Memory, bool) {
        let state = self.watch.sample(self.brought_in.bytes());
        self.counters.memory_limit.set(state.limit);
        self.counters.memory_used.set(state.used);
        if !self.over.swap(state.over, Relaxed) && state.over {
            self.counters.memory_over.add(1);
            // The policy's thread has to know that there is an interval now.
            self.queue.poke();
        }
        (Memory::from(&state), state.over)
    }

    /// Whether memory was over the threshold at the last sample.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Counts what a reader brought in by itself as ours: the policy may evict it.
    pub(crate) fn reader_missed(&self, event: &Event) {
        if event.kind == Kind::Miss {
            let span = Span {
                file: event.file,
                offset: event.offset,
                length: event.length,
            };
            self.brought_in.came(span, event.length);
            self.touched(event.file);
        }
    }

    /// Notes that pages of this file are or will be cached because of us.
    pub(crate) fn touched(&self, file: FileId) {
        if self.touched_last.swap(file.0, Relaxed) == file.0 {
            return;
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.0.len() < MAX_FILES {
            files.0.insert(file);
        }
    }

    #[cfg(test)]
    pub(crate) fn own_bytes(&self) -> u64 {
        self.brought_in.bytes()
    }
}

impl Room for Budget {
    fn room(&self) -> Option<u64> {
        let (memory, over) = self.sample();
        (!over).then_some(memory.available)
    }

    fn came(&self, span: Span, fresh: u64) {
        self.brought_in.came(span, fresh);
    }

    fn went(&self, span: Span, evicted: Evicted) {
        self.brought_in.went(span, evicted);
    }

    /// The kernel drops pages without notification, so the cached pages are counted now and then.
    fn recount(&self) {
        let files = {
            let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            let lately = files.1.is_some_and(|then| then.elapsed() < COUNT_AGAIN);
            if lately || files.0.len() >= MAX_FILES {
                return;
            }
            files.1 = Some(Instant::now());
            files.0.clone()
        };
        let mut sum = 0;
        for file in files {
            let span = Span {
                file,
                offset: 0,
                length: i64::MAX.cast_unsigned(),
            };
            match self.backend.resident(span) {
                Ok(bytes) => sum += bytes,
                Err(Fault::Stale) => {
                    let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                    files.0.remove(&file);
                    self.touched_last.store(0, Relaxed);
                }
                // Without this file, the sum is not known.
                Err(_) => return,
            }
        }
        let resident = |span| self.backend.resident(span).unwrap_or(0);
        self.brought_in.at_most(sum, resident);
    }
}
