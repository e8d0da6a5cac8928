//! Events on their way from the threads that serve readers to the one that asks for events.
//!
//! The serving threads only leave records. Their number is bounded: those that do not fit are counted. The
//! thread that asks for events finds the processes, because that needs a look into `/proc`.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use ppc::{Event, FileId, Kind, Kinds};

use super::processes::ThreadOwners;
use crate::backend::Flow;
use crate::backend::fuse::mirror::Listener;
use crate::machine::ranges::Ranges;
use crate::sys;

/// Upper bound on records that wait.
const ROOM: usize = 1 << 16;

/// What a reader did.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    kind: Kind,
    file: u64,
    offset: u64,
    length: u64,
    thread: u32,
    direct: bool,
    time_ns: u64,
}

/// Records that wait. Pure.
#[derive(Debug)]
struct UnheardEvents {
    records: VecDeque<Record>,
    room: usize,
    lost: u64,
}

impl UnheardEvents {
    fn new(room: usize) -> Self {
        Self {
            records: VecDeque::new(),
            room,
            lost: 0,
        }
    }

    /// The kernel asks for a long range in several requests, which the worker's queue merges into one event.
    fn push(&mut self, record: Record) {
        if self.records.len() < self.room {
            self.records.push_back(record);
        } else {
            self.lost += 1;
        }
    }
}

#[derive(Debug)]
struct FuseEventsState {
    waiting: UnheardEvents,
    interrupted: bool,
    ended: bool,
}

/// The listener of a mount.
#[derive(Debug)]
pub(super) struct FuseEvents {
    state: Mutex<FuseEventsState>,
    changed: Condvar,
    wanted: AtomicU32,
    processes: Mutex<ThreadOwners>,
    /// Ranges that were read or stored and that we have not dropped: the kernel may have dropped them since.
    cached: Mutex<HashMap<u64, Ranges>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FuseEvents {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(FuseEventsState {
                waiting: UnheardEvents::new(ROOM),
                interrupted: false,
                ended: false,
            }),
            changed: Condvar::new(),
            wanted: AtomicU32::new(Kinds::from(Kind::Miss).bits()),
            processes: Mutex::default(),
            cached: Mutex::default(),
        }
    }

    pub(super) fn want(&self, kinds: Kinds) {
        self.wanted.store(kinds.bits(), Relaxed);
    }

    /// As [`crate::backend::Backend::events`].
    pub(super) fn events(&self, into: &mut Vec<Event>) -> Flow {
        let idle = |state: &mut FuseEventsState| {
            let waiting = &state.waiting;
            waiting.records.is_empty() && waiting.lost == 0 && !state.interrupted && !state.ended
        };
        let mut state = self
            .changed
            .wait_while(lock(&self.state), idle)
            .unwrap_or_else(PoisonError::into_inner);
        state.interrupted = false;
        let records = std::mem::take(&mut state.waiting.records);
        let lost = std::mem::take(&mut state.waiting.lost);
        let ended = state.ended;
        drop(state);
        let mut processes = lock(&self.processes);
        let own = std::process::id();
        for record in records {
            let process = processes.of(record.thread);
            // Our own accesses through the mount are not a reader's.
            if process != own {
                into.push(event(&record, process));
            }
        }
        if lost > 0 {
            let mut event = Event::new(Kind::Lost, FileId(0), 0, 0).by(0);
            (event.count, event.time_ns) = (lost, sys::monotonic_ns());
            into.push(event);
        }
        if ended { Flow::Ended } else { Flow::On }
    }

    pub(super) fn interrupt(&self) {
        lock(&self.state).interrupted = true;
        self.changed.notify_all();
    }

    pub(super) fn stored(&self, file: u64, range: &Range<u64>) {
        lock(&self.cached).entry(file).or_default().insert(range);
    }

    pub(super) fn evicted(&self, file: u64, range: &Range<u64>) {
        if let Some(ranges) = lock(&self.cached).get_mut(&file) {
            ranges.remove(range);
        }
    }

    /// How many bytes of a range are probably cached.
    pub(super) fn estimate(&self, file: u64, range: &Range<u64>) -> u64 {
        let cached = lock(&self.cached);
        cached.get(&file).map_or(0, |ranges| ranges.within(range))
    }

    fn tell(&self, record: Record) {
        if !Kinds::from_bits(self.wanted.load(Relaxed)).contains(record.kind) {
            return;
        }
        lock(&self.state).waiting.push(record);
        self.changed.notify_one();
    }
}

fn record(kind: Kind, file: u64, range: Range<u64>, thread: u32, direct: bool) -> Record {
    Record {
        kind,
        file,
        offset: range.start,
        length: range.end - range.start,
        thread,
        direct,
        time_ns: sys::monotonic_ns(),
    }
}

fn event(record: &Record, process: u32) -> Event {
    let file = FileId(record.file);
    let mut event = Event::new(record.kind, file, record.offset, record.length).by(process);
    event.thread = record.thread;
    event.time_ns = record.time_ns;
    event.direct = record.direct;
    event
}

impl Listener for FuseEvents {
    fn opened(&self, file: u64, size: u64, thread: u32, direct: bool) {
        self.tell(record(Kind::Open, file, 0..size, thread, direct));
    }

    fn closed(&self, file: u64, thread: u32) {
        self.tell(record(Kind::Close, file, 0..0, thread, false));
    }

    fn missed(&self, file: u64, offset: u64, length: u64, thread: u32, direct: bool) {
        let range = offset..offset.saturating_add(length);
        if !direct {
            self.stored(file, &range);
        }
        self.tell(record(Kind::Miss, file, range, thread, direct));
    }

    fn dropped(&self, file: u64) {
        lock(&self.cached).remove(&file);
    }

    fn ended(&self) {
        lock(&self.state).ended = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn miss(file: u64, range: Range<u64>, thread: u32) -> Record {
        record(Kind::Miss, file, range, thread, false)
    }

    #[test]
    fn events_beyond_the_limit_are_counted_as_lost() {
        let mut waiting = UnheardEvents::new(1);
        waiting.push(miss(5, 0..10, 1));
        waiting.push(miss(6, 0..10, 1));
        waiting.push(miss(7, 0..10, 1));
        assert_eq!((waiting.records.len(), waiting.lost), (1, 2));
    }

    #[test]
    fn unwanted_and_own_events_are_not_reported() {
        let listener = FuseEvents::new();
        listener.opened(5, 100, 999_999_999, false);
        listener.missed(5, 0, 10, 999_999_999, false);
        let own = u32::try_from(nix::unistd::gettid().as_raw()).expect("a number");
        listener.missed(5, 50, 10, own, false);
        let mut events = Vec::new();
        assert_eq!(listener.events(&mut events), Flow::On);
        assert_eq!(events.len(), 1);
        assert_eq!(
            (events[0].kind, events[0].process),
            (Kind::Miss, 999_999_999)
        );
        // What is cached does not depend on the reader.
        assert_eq!(listener.estimate(5, &(0..100)), 20);
        listener.evicted(5, &(0..55));
        assert_eq!(listener.estimate(5, &(0..100)), 5);
        listener.dropped(5);
        assert_eq!(listener.estimate(5, &(0..100)), 0);
    }

    #[test]
    fn an_interrupt_is_kept_and_the_end_stays() {
        let listener = FuseEvents::new();
        let mut events = Vec::new();
        listener.interrupt();
        assert_eq!(listener.events(&mut events), Flow::On);
        listener.ended();
        assert_eq!(listener.events(&mut events), Flow::Ended);
        assert_eq!(listener.events(&mut events), Flow::Ended);
        assert!(events.is_empty());
    }
}
