//! Brings ranges into the page cache, near the accelerator that will read them.
//!
//! Each NUMA node has a group of threads, started when there is work for them: they run on the
//! node's CPUs, take memory from it, and load a chunk at a time, so that stopping them takes no longer
//! than a chunk. How many load at once, on all nodes, depends on what the device delivers
//! (`streams.rs`); threads beyond that end. Loads stop
//!
//! - for a newer plan of a process, when all threads are busy (`backlog.rs`);
//! - while memory is over the threshold: queued loads wait, and are dropped when that takes long;
//! - half of them, while readers miss something else and the device is saturated (`pace.rs`);
//! - for good, when the worker ends.
//!
//! A failure is logged once for each file, and other loads continue.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ppc::FileId;

use crate::backend::{Backend, Fault, How, Loaded, Span, loader_name};
use crate::control::config;
use crate::control::stats::Counters;
use crate::sys;
use crate::worker::budget::Room;
use crate::worker::parting;

mod background;
mod backlog;
mod common;
mod neighbours;
mod pace;
mod readahead;
mod streams;
#[cfg(test)]
mod tests;

pub(crate) use backlog::LoadRange;
use backlog::{Aside, Backlog, Chunk};
use common::OwnStreams;
pub(crate) use common::directory as devices;
use neighbours::Neighbours;
use pace::{Bucket, Pace, Rest};

/// How long loads wait for memory before they are dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often threads check whether there is memory again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a thread may be idle before it ends, if it is one of many.
const IDLE: Duration = Duration::from_secs(1);
/// Where the threads of a group run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadGroup {
    /// The NUMA node; `None` for anywhere.
    pub(crate) node: Option<u16>,
    pub(crate) cpus: Vec<u16>,
}

/// The threads and their work.
pub(crate) struct Loader {
    inner: Arc<LoaderShared>,
}

struct LoaderShared {
    backend: Arc<dyn Backend>,
    room: Arc<dyn Room>,
    counters: Arc<Counters>,
    places: Vec<ThreadGroup>,
    state: Mutex<LoaderState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// One for each group.
    work: Vec<Condvar>,
    ending: AtomicBool,
    in_flight: AtomicI64,
    /// Where workers publish their loads, and whether this one has tried to.
    devices: Option<PathBuf>,
    has_joined: AtomicBool,
    /// How far the kernel may read on beyond the end of a load.
    beyond: AtomicU64,
}

struct LoaderState {
    backlog: Backlog,
    pace: Pace,
    bucket: Bucket,
    rest: Rest,
    streams: OwnStreams,
    neighbours: Neighbours,
    /// How many threads of each group run.
    running: Vec<usize>,
    /// When stopping loads began, until the last one has stopped.
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
        devices: Option<PathBuf>,
    ) -> Self {
        let streams = OwnStreams::new(config.threads.into());
        let streams_at_once = streams.limit() as u64;
        let state = LoaderState {
            backlog: Backlog::new(places.len(), streams.limit(), config.chunk.0),
            pace: Pace::new(),
            bucket: Bucket::new(config.bandwidth.0),
            rest: Rest::default(),
            streams,
            neighbours: Neighbours::default(),
            running: vec![0; places.len()],
            stopping: None,
            over_since: None,
            complained: HashSet::new(),
        };
        counters.streams.set(streams_at_once);
        let inner = LoaderShared {
            backend,
            room,
            counters,
            work: places.iter().map(|_| Condvar::new()).collect(),
            places,
            state: Mutex::new(state),
            threads: Mutex::default(),
            ending: AtomicBool::new(false),
            in_flight: AtomicI64::new(0),
            devices,
            has_joined: AtomicBool::new(false),
            beyond: AtomicU64::new(readahead::UNKNOWN),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The group for a node; if it has none, the group without a node.
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
        let (aside, start, wake) = {
            let mut state = self.inner.lock();
            let aside = state.backlog.submit(plan);
            state.publish();
            (aside, state.lacking(), state.useful())
        };
        self.inner.stop(&aside);
        self.inner.start(&start);
        for (work, threads) in self.inner.work.iter().zip(wake) {
            (0..threads).for_each(|_| work.notify_one());
        }
    }

    /// Removes these ranges from the queue, because the evictor is about to drop them.
    pub(crate) fn cancel(&self, spans: &[Span]) {
        let bytes = self.inner.lock().backlog.cancel(spans);
        self.inner.counters.superseded_bytes.add(bytes);
    }

    /// A reader misses this. Loads yield to it, unless they are loading just that: yielding would help no reader.
    /// Returns whether they are.
    pub(crate) fn reader_waits(&self, span: &Span) -> bool {
        let mut state = self.inner.lock();
        let is_about = state.backlog.is_about(span);
        if !is_about {
            state.pace.reader_waits(Instant::now());
        }
        is_about
    }

    /// Whether there is nothing to load.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.inner.lock();
        state.backlog.queued() == 0 && state.backlog.flying() == 0
    }

    /// Bytes waiting, and bytes per second.
    pub(crate) fn state(&self) -> (u64, u64) {
        let state = self.inner.lock();
        (state.backlog.queued(), state.pace.rate(Instant::now()))
    }

    /// Stops all loads and waits for the threads, but not for those that the kernel holds up.
    pub(crate) fn end(&self) {
        self.inner.ending.store(true, Relaxed);
        let aside = self.inner.lock().backlog.clear();
        self.inner.stop(&aside);
        self.inner.wake_all();
        loop {
            let threads = std::mem::take(&mut *self.inner.threads());
            if threads.is_empty() {
                return self.inner.lock().streams.leave();
            }
            let held = parting::join(threads, parting::PATIENCE).len();
            if held > 0 {
                return log::warn!("{held} loads do not end: the file system does not answer");
            }
        }
    }
}

impl LoaderState {
    /// How many loads each group could have in flight with what waits now, where `limit` may be.
    fn possible(&self, limit: usize) -> Vec<usize> {
        (0..self.running.len())
            .map(|group| {
                limit.min(self.backlog.flying_in(group) + self.backlog.chunks(group, limit))
            })
            .collect()
    }

    /// How many threads of each group could begin a load beside those that are loading, now or once there is memory or
    /// the load is no longer in the background: nothing wakes them then.
    fn useful(&self) -> Vec<usize> {
        let limit = self.streams.limit().max(self.backlog.background_at_once());
        let possible = self.possible(limit).into_iter().enumerate();
        possible
            .map(|(group, most)| most.saturating_sub(self.backlog.flying_in(group)))
            .collect()
    }

    /// How many threads of each group to start for the waiting work. From now on they count as running.
    fn lacking(&mut self) -> Vec<(usize, usize)> {
        let limit = self.streams.limit();
        let limit = if self.backlog.is_for_background() {
            self.backlog.background_at_once()
        } else if self.backlog.is_paused() {
            limit.min(streams::START)
        } else {
            limit
        };
        let mut lacking = Vec::new();
        let possible = self.possible(limit);
        for ((group, running), most) in self.running.iter_mut().enumerate().zip(possible) {
            if *running < most {
                lacking.push((group, most - *running));
                *running = most;
            }
        }
        lacking
    }

    /// Publishes how many loads are in flight, and takes over how many may be.
    fn publish(&mut self) {
        let priority = self.backlog.priority();
        self.streams.flying(self.backlog.flying(), priority);
        self.backlog.set_streams(self.streams.limit());
    }

    /// Whether a group's thread may begin a load: the limit is for all nodes together, but each node may
    /// always have one load.
    fn may_load(&self, now: Instant, group: usize) -> bool {
        let behind = self.backlog.is_for_background();
        if !self.rest.left(now).is_zero() && (behind || self.streams.are_outranked()) {
            return false;
        }
        if behind {
            let (flying, limit) = (self.backlog.flying(), self.backlog.background_at_once());
            return !self.backlog.is_busy() && flying < limit && self.pace.may(now, flying, limit);
        }
        let here = self.backlog.flying_in(group);
        let limit = self.streams.limit();
        (here == 0 || self.backlog.flying() < limit) && self.pace.may(now, here, limit)
    }
}

/// Whether a thread has just asked [`Room::room`], and the answer.
#[derive(Debug, Default)]
enum Looked {
    #[default]
    Not,
    /// The answer, and how many bytes had been loaded before the question.
    Just(Option<u64>, u64),
}

/// What a thread does next.
enum Turn {
    Load(Chunk),
    Wait(Option<Duration>),
    /// Wait for work, and end if none comes.
    Rest,
    /// Find out how much memory there is.
    Look,
    /// Wait for memory.
    Recount,
    End,
}

impl LoaderShared {
    fn lock(&self) -> MutexGuard<'_, LoaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the loads in flight that are aside, and begins to measure how long that takes.
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

    fn wake_all(&self) {
        self.work.iter().for_each(Condvar::notify_all);
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts threads: a list of groups and counts.
    fn start(self: &Arc<Self>, lacking: &[(usize, usize)]) {
        if lacking.is_empty() {
            return;
        }
        let mut threads = self.threads();
        threads.retain(|thread| !thread.is_finished());
        for &(group, count) in lacking {
            for begun in 0..count {
                let inner = Arc::clone(self);
                let started = std::thread::Builder::new()
                    .name(loader_name())
                    .stack_size(256 << 10)
                    .spawn(move || inner.run(group));
                match started {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        log::warn!("Starting a loader thread: {error}");
                        self.lock().running[group] -= count - begun;
                        break;
                    }
                }
            }
        }
    }

    /// Runs a loader thread.
    fn run(self: &Arc<Self>, group: usize) {
        let place = &self.places[group];
        if let Some(node) = place.node
            && let Err(error) = sys::bind_thread(&place.cpus, node)
        {
            log::warn!("Binding a loader thread to node {node}: {error}");
        }
        let mut state = self.lock();
        let mut memory = Looked::Not;
        loop {
            match self.turn(&mut state, group, &std::mem::take(&mut memory)) {
                Turn::Look => {
                    // Asking the kernel takes a while, and each miss waits for this lock.
                    drop(state);
                    let loaded = self.counters.loaded_bytes.get();
                    memory = Looked::Just(self.room.room(), loaded);
                    state = self.lock();
                }
                Turn::End => {
                    state.running[group] -= 1;
                    // What it was woken for is left to another.
                    self.work[group].notify_one();
                    return;
                }
                Turn::Rest => {
                    let (rested, timeout) = self.work[group]
                        .wait_timeout(state, IDLE)
                        .unwrap_or_else(PoisonError::into_inner);
                    state = rested;
                    if timeout.timed_out() && !state.backlog.has_work(group) {
                        state.running[group] -= 1;
                        return;
                    }
                }
                Turn::Wait(None) => {
                    state = self.work[group]
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Turn::Wait(Some(time)) => {
                    state = self.work[group]
                        .wait_timeout(state, time)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
                Turn::Recount => {
                    drop(state);
                    self.room.recount();
                    state = self.lock();
                    state = self.work[group]
                        .wait_timeout(state, LOOK_AGAIN)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
                Turn::Load(chunk) => {
                    drop(state);
                    let outcome = self.load(chunk);
                    self.join(chunk.range.span.file);
                    state = self.lock();
                    self.settle(&mut state, group, chunk, outcome);
                    let lacking = state.lacking();
                    if !lacking.is_empty() {
                        drop(state);
                        self.start(&lacking);
                        state = self.lock();
                    }
                }
            }
        }
    }

    /// Decides what a thread does next. `memory`: the answer, if it has just looked.
    fn turn(&self, state: &mut LoaderState, group: usize, memory: &Looked) -> Turn {
        let behind = state.backlog.background_at_once();
        let most = state.streams.limit().max(streams::START).max(behind);
        if self.ending.load(Relaxed) || state.running[group] > most {
            return Turn::End;
        }
        if !state.backlog.has_work(group) {
            state.over_since = None;
            let flying = state.backlog.flying();
            state.streams.starved(flying);
            return if state.running[group] > streams::START {
                Turn::Rest
            } else {
                Turn::Wait(None)
            };
        }
        let now = Instant::now();
        if !state.may_load(now, group) {
            let rest = Some(state.rest.left(now)).filter(|rest| !rest.is_zero());
            return Turn::Wait(Some(rest.map_or(LOOK_AGAIN, |rest| rest.min(LOOK_AGAIN))));
        }
        let Looked::Just(room, loaded) = *memory else {
            return Turn::Look;
        };
        let in_flight = u64::try_from(self.in_flight.load(Relaxed)).unwrap_or(0);
        // Loads that have ended since the question are in flight no longer, and not in the answer.
        let since = self.counters.loaded_bytes.get().saturating_sub(loaded);
        if since > 0 && room.is_some_and(|room| room <= in_flight + since) {
            return Turn::Look;
        }
        if room.is_none_or(|room| room <= in_flight) {
            if state.running[group] > streams::START {
                // A few threads are enough to check whether there is memory again.
                return Turn::End;
            }
            state.backlog.pause(true);
            let flying = state.backlog.flying();
            state.streams.starved(flying);
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
        self.take(state, group, room, in_flight)
    }

    /// Takes the next piece of a group, where `in_flight` bytes of the room are taken already.
    fn take(
        &self,
        state: &mut LoaderState,
        group: usize,
        room: Option<u64>,
        in_flight: u64,
    ) -> Turn {
        if self.has_joined.load(Relaxed)
            && state.backlog.is_for_background()
            && state.backlog.background_is_to_look()
        {
            let reads = state.neighbours.read();
            state.backlog.background_look(Instant::now(), reads);
        }
        let Some(mut chunk) = state.backlog.take(group) else {
            return Turn::Wait(None);
        };
        // What the kernel reads on beyond loads must not exceed the room either.
        let flying = state.backlog.flying() as u64;
        let beyond = self.beyond.load(Relaxed).saturating_mul(flying);
        let taken = in_flight + chunk.range.span.length;
        chunk.exact |= room.is_some_and(|room| room < taken.saturating_add(beyond));
        state.publish();
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

    /// Stops the loads in flight, to resume them later: memory is over the threshold.
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

    /// Drops the queue if loads have waited too long for memory.
    fn out_of_memory(&self, state: &mut LoaderState, now: Instant) {
        let since = *state.over_since.get_or_insert(now);
        if now.duration_since(since) < PATIENCE {
            return;
        }
        let aside = state.backlog.clear();
        self.counters.superseded_bytes.add(aside.bytes);
        state.over_since = None;
        log::info!(
            "Memory has been over the threshold for {} s; {} in the queue will not be loaded",
            PATIENCE.as_secs(),
            config::Bytes(aside.bytes)
        );
    }

    /// From the first load on, the loads of this device are counted together with those of other workers. Files of
    /// other devices count as that one's.
    fn join(&self, file: FileId) {
        if self.has_joined.load(Relaxed) {
            return;
        }
        if let Ok(info) = self.backend.info(file)
            && !self.has_joined.swap(true, Relaxed)
        {
            self.beyond.store(readahead::of(info.device), Relaxed);
            let mut state = self.lock();
            state.neighbours = Neighbours::of(info.device);
            if let Some(directory) = &self.devices {
                state.streams.join(directory, info.device);
            }
        }
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
            exact: chunk.exact,
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
        if state.streams.are_outranked() {
            state.rest.begin(now, took.saturating_mul(Rest::OUTRANKED));
        }
        if chunk.range.priority < 0 {
            let rest = state.backlog.background_rest(took);
            state.rest.begin(now, rest);
        }
        let mut back = None;
        match outcome {
            Ok(loaded) => {
                self.counters.load_bytes.add(loaded.done.min(length));
                self.counters.loaded_bytes.add(loaded.fresh);
                self.room.came(chunk.range.span, loaded.fresh);
                state.pace.loaded(now, loaded.fresh, took);
                if chunk.range.priority >= 0 {
                    self.learn(state, &loaded, took);
                } else if loaded.fresh == length {
                    state.backlog.background_loaded(length, took);
                }
                if loaded.stopped && loaded.done < length {
                    back = state.backlog.rest(chunk, loaded.done);
                }
            }
            Err(fault) => self.failed(state, chunk, &fault),
        }
        state.backlog.done(group, chunk.cookie, back);
        state.publish();
        self.stopped(state, now);
    }

    /// Learns from a load about the device, if it read from the device.
    fn learn(&self, state: &mut LoaderState, loaded: &Loaded, took: Duration) {
        // The bytes of a load may have come in with another load of the same file: only the sum of all loads counts.
        if loaded.stopped || loaded.fresh == 0 {
            return;
        }
        let beside = state.backlog.flying().saturating_sub(1);
        if state.streams.loaded(loaded.fresh, took, beside) {
            self.counters.streams.set(state.streams.limit() as u64);
            self.wake_all();
        }
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
                    log::error!("Loading {name} at {offset}: {fault}; the rest continues");
                }
            }
        }
    }

    /// Counts the time that stopping took, once no load that was to stop is left.
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
