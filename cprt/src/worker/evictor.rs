//! Drops ranges from the page cache, in their order, on its own thread.
//!
//! It counts what the backend reports as dropped and as kept; a policy may ask for the same range
//! again.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::backend::{Backend, Evicted, Fault, Span};
use crate::control::stats::Counters;
use crate::worker::budget::Room;
use crate::worker::parting;

/// Upper bound on ranges that wait: beyond it the oldest are dropped, because the policy now wants the newest.
const MAX_RANGES: usize = 1 << 17;

/// A range to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DropRange {
    pub(crate) span: Span,
    /// Pages that processes map stay.
    pub(crate) unmapped: bool,
}

/// The thread and its work.
pub(crate) struct Evictor {
    inner: Arc<EvictorShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct EvictorShared {
    backend: Arc<dyn Backend>,
    room: Arc<dyn Room>,
    counters: Arc<Counters>,
    state: Mutex<EvictorState>,
    work: Condvar,
}

#[derive(Default)]
struct EvictorState {
    ranges: VecDeque<DropRange>,
    ending: bool,
    complained: bool,
}

impl Evictor {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        room: Arc<dyn Room>,
        counters: Arc<Counters>,
    ) -> Self {
        let inner = EvictorShared {
            backend,
            room,
            counters,
            state: Mutex::default(),
            work: Condvar::new(),
        };
        Self {
            inner: Arc::new(inner),
            thread: Mutex::default(),
        }
    }

    /// Adds ranges.
    pub(crate) fn submit(&self, ranges: impl IntoIterator<Item = DropRange>) {
        let mut state = self.inner.lock();
        if state.ending {
            return;
        }
        state.ranges.extend(ranges);
        let excess = state.ranges.len().saturating_sub(MAX_RANGES);
        state.ranges.drain(..excess);
        let some = !state.ranges.is_empty();
        std::mem::drop(state);
        if some {
            self.start();
            self.inner.work.notify_one();
        }
    }

    /// Forgets what waits and ends the thread.
    pub(crate) fn end(&self) {
        {
            let mut state = self.inner.lock();
            state.ending = true;
            state.ranges.clear();
        }
        self.inner.work.notify_one();
        let thread = self.slot().take();
        parting::join(thread.into_iter().collect(), parting::PATIENCE);
    }

    fn slot(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread at the first range, as many policies never evict.
    fn start(&self) {
        let mut slot = self.slot();
        if slot.is_some() {
            return;
        }
        let inner = Arc::clone(&self.inner);
        let thread = std::thread::Builder::new()
            .name("evict".into())
            .stack_size(256 << 10)
            .spawn(move || inner.run());
        match thread {
            Ok(thread) => *slot = Some(thread),
            Err(error) => log::warn!("Starting the evictor: {error}"),
        }
    }
}

impl EvictorShared {
    fn lock(&self) -> MutexGuard<'_, EvictorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            if state.ending {
                return;
            }
            let Some(range) = state.ranges.pop_front() else {
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            std::mem::drop(state);
            self.evict(range);
            state = self.lock();
        }
    }

    fn evict(&self, range: DropRange) {
        match self.backend.evict(range.span, range.unmapped) {
            Ok(evicted) => {
                self.counters.evicted_bytes.add(evicted.dropped);
                self.counters.kept_bytes.add(evicted.kept);
                // Pages that the policy wanted to stay still count as ours.
                let kept = if range.unmapped { 0 } else { evicted.kept };
                self.room.went(range.span, Evicted { kept, ..evicted });
            }
            // Nothing is left to drop.
            Err(Fault::Stale | Fault::NoFile | Fault::Ended) => {}
            Err(fault) => {
                self.counters.evict_errors.add(1);
                let first = !std::mem::replace(&mut self.lock().complained, true);
                if first {
                    log::error!("Evicting file {}: {fault}", range.span.file);
                }
            }
        }
    }
}
