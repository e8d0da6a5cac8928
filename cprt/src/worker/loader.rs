//! Brings ranges into the page cache, near the accelerator that will read them.
//!
//! A group of threads for each NUMA node, started when it gets its first work: they run on the
//! node's CPUs, take memory from it, and load a chunk at a time, so that whatever stops them waits
//! for no more than a chunk. They stop
//!
//! - for a newer plan of a process, when all of them are busy (`backlog.rs`);
//! - while memory is over the threshold: what waits, waits, and is dropped when that takes long;
//! - half of them, while readers miss something else and the device gives no more than it does
//!   (`pace.rs`);
//! - for good, at the end.
//!
//! What fails is logged once for each file, and the rest goes on.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ppc::FileId;

use crate::backend::{Backend, Fault, How, Loaded, Span};
use crate::control::config;
use crate::control::stats::Counters;
use crate::sys;
use crate::worker::budget::Room;

mod backlog;
mod pace;
#[cfg(test)]
mod tests;

pub(crate) use backlog::LoadRange;
use backlog::{Aside, Backlog, Chunk};
use pace::{Bucket, Pace};

/// How long loads wait for memory before they are given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often they look whether there is memory again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where threads of a group run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadGroup {
    /// Anywhere, if it is `None`.
    pub(crate) node: Option<u16>,
    pub(crate) cpus: Vec<u16>,
}

/// The threads and what they have to do.
pub(crate) struct Loader {
    inner: Arc<LoaderShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct LoaderShared {
    backend: Arc<dyn Backend>,
    room: Arc<dyn Room>,
    counters: Arc<Counters>,
    places: Vec<ThreadGroup>,
    threads: usize,
    state: Mutex<LoaderState>,
    work: Condvar,
    ending: AtomicBool,
    in_flight: AtomicI64,
}

struct LoaderState {
    backlog: Backlog,
    pace: Pace,
    bucket: Bucket,
    /// Groups whose threads run.
    started: Vec<bool>,
    /// Loads are to be stopped since; until the last one has stopped.
    stopping: Option<Instant>,
    over_since: Option<Instant>,
    complained: HashSet<FileId>,
}

impl Loader {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        room: Arc<dyn Room>,
        counters: Arc<Counters>,
        places: Vec<ThreadGroup>,
        config: config::LoaderConfig,
    ) -> Self {
        let threads = usize::from(config.threads);
        let state = LoaderState {
            backlog: Backlog::new(places.len(), threads, config.chunk.0),
            pace: Pace::new(),
            bucket: Bucket::new(config.bandwidth.0),
            started: vec![false; places.len()],
            stopping: None,
            over_since: None,
            complained: HashSet::new(),
        };
        let inner = LoaderShared {
            backend,
            room,
            counters,
            places,
            threads,
            state: Mutex::new(state),
            work: Condvar::new(),
            ending: AtomicBool::new(false),
            in_flight: AtomicI64::new(0),
        };
        Self {
            inner: Arc::new(inner),
            threads: Mutex::default(),
        }
    }

    /// The group for a node; the one without a node if there is none for it.
    pub(crate) fn group(&self, node: Option<u16>) -> usize {
        let places = &self.inner.places;
        let of = |node| places.iter().position(|place| place.node == node);
        of(node).or_else(|| of(None)).unwrap_or(0)
    }

    /// Adds a plan.
    pub(crate) fn submit(&self, plan: &[(usize, LoadRange)]) {
        if plan.is_empty() || self.inner.ending.load(Relaxed) {
            return;
        }
        let (aside, start) = {
            let mut state = self.inner.lock();
            let aside = state.backlog.submit(plan);
            (aside, state.unstarted(plan))
        };
        self.inner.stop(&aside);
        for group in start {
            self.start(group);
        }
        self.inner.work.notify_all();
    }

    /// These ranges are about to be dropped.
    pub(crate) fn cancel(&self, spans: &[Span]) {
        let bytes = self.inner.lock().backlog.cancel(spans);
        self.inner.counters.superseded_bytes.add(bytes);
    }

    /// A reader misses this. Loads yield to it, unless it is what they are at: nobody would be helped.
    pub(crate) fn reader_waits(&self, span: &Span) {
        let mut state = self.inner.lock();
        if !state.backlog.is_about(span) {
            state.pace.reader_waits(Instant::now());
        }
    }

    /// Bytes waiting, and bytes per second.
    pub(crate) fn state(&self) -> (u64, u64) {
        let state = self.inner.lock();
        (state.backlog.queued(), state.pace.rate(Instant::now()))
    }

    /// Stops everything and waits for the threads.
    pub(crate) fn end(&self) {
        self.inner.ending.store(true, Relaxed);
        let aside = self.inner.lock().backlog.clear();
        self.inner.stop(&aside);
        self.inner.work.notify_all();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }

    fn start(&self, group: usize) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for number in 0..self.inner.threads {
            let inner = Arc::clone(&self.inner);
            let started = std::thread::Builder::new()
                .name(format!("load-{group}-{number}"))
                .stack_size(256 << 10)
                .spawn(move || inner.run(group));
            match started {
                Ok(thread) => threads.push(thread),
                Err(error) => log::warn!("Starting a loader thread: {error}"),
            }
        }
    }
}

impl LoaderState {
    fn unstarted(&mut self, plan: &[(usize, LoadRange)]) -> Vec<usize> {
        let mut start = Vec::new();
        for &(group, _) in plan {
            if self.started.get(group) == Some(&false) {
                self.started[group] = true;
                start.push(group);
            }
        }
        start
    }
}

/// What a thread does next.
enum Turn {
    Load(Chunk),
    Wait(Option<Duration>),
    /// Wait for memory.
    Recount,
    End,
}

impl LoaderShared {
    fn lock(&self) -> MutexGuard<'_, LoaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops what is in flight; the time that takes is measured.
    fn stop(&self, aside: &Aside) {
        self.counters.superseded_bytes.add(aside.bytes);
        if aside.stop.is_empty() {
            return;
        }
        self.counters.interruptions.add(1);
        self.lock().stopping.get_or_insert_with(Instant::now);
        for &cookie in &aside.stop {
            self.backend.stop(cookie);
        }
    }

    /// The life of a thread.
    fn run(&self, group: usize) {
        let place = &self.places[group];
        if let Some(node) = place.node
            && let Err(error) = sys::bind_thread(&place.cpus, node)
        {
            log::warn!("Binding a loader thread to node {node}: {error}");
        }
        let mut state = self.lock();
        loop {
            match self.turn(&mut state, group) {
                Turn::End => return,
                Turn::Wait(None) => {
                    state = self
                        .work
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Turn::Wait(Some(time)) => {
                    state = self
                        .work
                        .wait_timeout(state, time)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
                Turn::Recount => {
                    drop(state);
                    self.room.recount();
                    state = self.lock();
                    state = self
                        .work
                        .wait_timeout(state, LOOK_AGAIN)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
                Turn::Load(chunk) => {
                    drop(state);
                    let outcome = self.load(chunk);
                    state = self.lock();
                    self.settle(&mut state, group, chunk, outcome);
                }
            }
        }
    }

    fn turn(&self, state: &mut LoaderState, group: usize) -> Turn {
        if self.ending.load(Relaxed) {
            return Turn::End;
        }
        if !state.backlog.has_work(group) {
            state.over_since = None;
            return Turn::Wait(None);
        }
        let now = Instant::now();
        if !state
            .pace
            .may(now, state.backlog.flying_in(group), self.threads)
        {
            return Turn::Wait(Some(LOOK_AGAIN));
        }
        let in_flight = u64::try_from(self.in_flight.load(Relaxed)).unwrap_or(0);
        let room = self.room.room();
        if room.is_none_or(|room| room <= in_flight) {
            state.backlog.pause(true);
            if room.is_none() && state.over_since.is_none() {
                self.hold(state, now);
            }
            self.out_of_memory(state, now);
            return if room.is_none() {
                Turn::Recount
            } else {
                Turn::Wait(Some(LOOK_AGAIN))
            };
        }
        state.backlog.pause(false);
        state.over_since = None;
        if let Some(wait) = state.bucket.wait(now) {
            return Turn::Wait(Some(wait));
        }
        let Some(chunk) = state.backlog.take(group) else {
            return Turn::Wait(None);
        };
        state.bucket.spend(chunk.range.span.length);
        self.fly(chunk.range.span.length.cast_signed());
        Turn::Load(chunk)
    }

    fn fly(&self, bytes: i64) {
        let now = self.in_flight.fetch_add(bytes, Relaxed) + bytes;
        self.counters
            .in_flight_bytes
            .set(u64::try_from(now).unwrap_or(0));
    }

    /// Memory is over the threshold: what is in flight stops, and is taken up again later.
    fn hold(&self, state: &mut LoaderState, now: Instant) {
        let flying = state.backlog.hold();
        if flying.is_empty() {
            return;
        }
        self.counters.interruptions.add(1);
        state.stopping.get_or_insert(now);
        for cookie in flying {
            self.backend.stop(cookie);
        }
    }

    /// Loads wait for memory, but not for ever.
    fn out_of_memory(&self, state: &mut LoaderState, now: Instant) {
        let since = *state.over_since.get_or_insert(now);
        if now.duration_since(since) < PATIENCE {
            return;
        }
        let aside = state.backlog.clear();
        self.counters.superseded_bytes.add(aside.bytes);
        state.over_since = None;
        log::info!(
            "Memory has been over the threshold for {} s; {} that waited are not loaded",
            PATIENCE.as_secs(),
            config::Bytes(aside.bytes)
        );
    }

    fn load(&self, chunk: Chunk) -> (Result<Loaded, Fault>, Duration) {
        let LoadRange {
            span,
            charge,
            large,
            hold,
            ..
        } = chunk.range;
        let mut how = How {
            cookie: chunk.cookie,
            charge,
            large,
            hold,
        };
        let began = Instant::now();
        let outcome = match self.backend.load(span, how) {
            Err(Fault::NoProcess) => {
                how.charge = None;
                self.backend.load(span, how)
            }
            done => done,
        };
        (outcome, began.elapsed())
    }

    fn settle(
        &self,
        state: &mut LoaderState,
        group: usize,
        chunk: Chunk,
        (outcome, took): (Result<Loaded, Fault>, Duration),
    ) {
        let length = chunk.range.span.length;
        self.fly(-length.cast_signed());
        let now = Instant::now();
        let mut back = None;
        match outcome {
            Ok(loaded) => {
                self.counters.load_bytes.add(loaded.done.min(length));
                self.counters.loaded_bytes.add(loaded.fresh);
                self.room.came(chunk.range.span, loaded.fresh);
                state.pace.loaded(now, loaded.fresh, took);
                if loaded.stopped && loaded.done < length {
                    back = state.backlog.rest(chunk, loaded.done);
                }
            }
            Err(fault) => self.failed(state, chunk, &fault),
        }
        state.backlog.done(group, chunk.cookie, back);
        self.stopped(state, now);
    }

    fn failed(&self, state: &mut LoaderState, chunk: Chunk, fault: &Fault) {
        let file = chunk.range.span.file;
        match fault {
            Fault::Stale | Fault::NoFile => {
                let bytes = state.backlog.forget(file);
                self.counters.superseded_bytes.add(bytes);
            }
            Fault::Ended => {
                state.backlog.clear();
            }
            Fault::NoProcess | Fault::Io(_) => {
                self.counters.load_errors.add(1);
                if state.complained.insert(file) {
                    let name = self.backend.path(file);
                    let name = name.map_or_else(
                        |_| format!("file {file}"),
                        |path| path.display().to_string(),
                    );
                    let offset = chunk.range.span.offset;
                    log::error!("Loading {name} at {offset}: {fault}; the rest goes on");
                }
            }
        }
    }

    /// Once nothing is left of what was to be stopped, the time is told.
    fn stopped(&self, state: &mut LoaderState, now: Instant) {
        if state.backlog.marked() {
            return;
        }
        if let Some(since) = state.stopping.take() {
            let took = now.duration_since(since);
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            self.counters.last_stop_ns.set(nanos);
            self.counters.longest_stop_ns.at_least(nanos);
        }
    }
}
