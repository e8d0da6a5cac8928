//! The thread that receives events, and passes them to the queue, the loader and clients that watch.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ppc::{Event, Features, FileId, Kind};

use crate::backend::{Backend, Flow, Span};
use crate::control::protocol::EventLine;
use crate::control::stats::Counters;
use crate::worker::budget::Budget;
use crate::worker::guest::Guest;
use crate::worker::loader::Loader;
use crate::worker::messages::{Note, Outbox};
use crate::worker::others::OtherWorkers;
use crate::worker::queue::{Queue, Task};
use crate::worker::watchdog::Watchdog;

/// How long the thread rests after each batch of events, so that those that come meanwhile make one
/// batch, if the policy answers events with plans.
const SHORT_REST: Duration = Duration::from_millis(1);
/// How long it rests at most while the policy makes no plans: then a delay does no harm.
const LONG_REST: Duration = Duration::from_millis(16);
/// How many batches without a plan there are before each rest is twice as long as the one before.
const MAY_ANSWER: u32 = 32;
/// How often events are taken once the worker is to end: readers that continue never stop making them.
const LAST_TAKES: u32 = 16;

/// The thread that receives events.
pub(super) struct EventsThread {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) budget: Arc<Budget>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) counters: Arc<Counters>,
    pub(super) queue: Arc<Queue<Task>>,
    pub(super) loader: Arc<Loader>,
    pub(super) watchdog: Arc<Watchdog>,
    /// Plans that the policy has made.
    pub(super) plans: Arc<AtomicU64>,
    /// Whether events are sent to clients that watch.
    pub(super) telling: Arc<AtomicBool>,
    pub(super) ending: Arc<AtomicBool>,
    /// The process whose memory cgroup pays; 0 for none.
    pub(super) payer: Arc<AtomicU32>,
    /// Moves the worker into that process's cgroup where the backend cannot charge it.
    pub(super) guest: Arc<Guest>,
    pub(super) others: OtherWorkers,
    /// `None` if the worker has its own cgroup, which pays.
    pub(super) readers: Option<FirstReaders>,
}

/// How long to rest.
#[derive(Debug, Default)]
struct Rest {
    /// Plans that the policy had made when the thread looked last.
    plans: u64,
    /// Batches since it made one.
    batches: u32,
}

impl Rest {
    /// How long to rest, given the number of plans that the policy has made by now.
    fn after(&mut self, plans: u64) -> Duration {
        if plans == self.plans {
            self.batches = self.batches.saturating_add(1);
        } else {
            (self.plans, self.batches) = (plans, 0);
        }
        let doublings = self.batches.saturating_sub(MAY_ANSWER);
        SHORT_REST
            .saturating_mul(2_u32.saturating_pow(doublings))
            .min(LONG_REST)
    }
}

/// Finds the first reader of a service, whose memory cgroup pays.
#[derive(Debug, Default)]
pub(super) struct FirstReaders {
    last: u32,
    seen: HashSet<u32>,
    first: Option<u32>,
}

impl FirstReaders {
    /// Whether this is the first reader of a service: there was none before, or it is gone.
    fn is_first(&mut self, process: u32, alive: impl Fn(u32) -> bool) -> bool {
        // Most events come from the same process as the one before.
        if process == 0 || std::mem::replace(&mut self.last, process) == process {
            return false;
        }
        if !self.seen.insert(process) {
            return false;
        }
        // The kernel reuses process numbers.
        if self.seen.len() > 4096 {
            self.seen.clear();
        }
        let first = !self.first.is_some_and(alive);
        if first {
            self.first = Some(process);
        }
        first
    }
}

impl EventsThread {
    /// Listens until the mount is gone, its events cannot be read or the worker ends; in the second case
    /// it returns why.
    pub(super) fn run(mut self) -> Option<String> {
        let mut events = Vec::new();
        let mut paths = Paths::default();
        let mut rest = Rest::default();
        while !self.ending.load(Relaxed) {
            events.clear();
            match self.backend.events(&mut events) {
                Ok(Flow::On) => {}
                Ok(Flow::Ended) => {
                    self.outbox.say(&Note::Unmounted);
                    return None;
                }
                Err(fault) => return Some(format!("its events cannot be read: {fault}")),
            }
            self.others.leave_out(&mut events);
            if events.is_empty() {
                continue;
            }
            self.hear(&events, &mut paths);
            if let Some(fault) = self.watchdog.too_much("between calls") {
                return Some(fault);
            }
            let time = rest.after(self.plans.load(Relaxed));
            self.backend.hurry(time == SHORT_REST);
            self.rest(time);
        }
        self.hear_last(&mut events, &mut paths);
        None
    }

    /// Sleeps for this time, or until the worker is to end, which unparks this thread.
    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.ending.load(Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
    }

    /// Receives the events from before the worker was asked to end.
    fn hear_last(&mut self, events: &mut Vec<Event>, paths: &mut Paths) {
        for _ in 0..LAST_TAKES {
            events.clear();
            // The call must not sleep if there are no events.
            self.backend.interrupt();
            if self.backend.events(events).is_err() || events.is_empty() {
                break;
            }
            self.others.leave_out(events);
            self.hear(events, paths);
        }
    }

    fn hear(&mut self, events: &[Event], paths: &mut Paths) {
        let counters = &self.counters;
        for event in events {
            if event.kind == Kind::Lost {
                counters.lost.add(event.count);
                continue;
            }
            counters.events.add(event.count);
            counters.merged.add(event.count.saturating_sub(1));
            self.budget.reader_missed(event);
            if event.kind == Kind::Miss {
                let (file, offset, length) = (event.file, event.offset, event.length);
                let is_late = self.loader.reader_waits(&Span {
                    file,
                    offset,
                    length,
                });
                count_miss(counters, event, is_late);
            }
            if event.kind == Kind::Progress {
                counters.reader_bytes.add(event.length);
            }
        }
        self.look_for_readers(events);
        let tally = self.queue.push(events);
        let counters = &self.counters;
        counters.merged.add(tally.merged);
        counters.lost.add(tally.lost);
        if self.telling.load(Relaxed) {
            for event in events {
                let path = paths.of(&*self.backend, event.file);
                self.outbox.say(&Note::Event(told(event, path)));
            }
        }
    }

    /// Has the first reader's memory cgroup pay.
    fn look_for_readers(&mut self, events: &[Event]) {
        let Some(readers) = &mut self.readers else {
            return;
        };
        let alive = |process: u32| Path::new("/proc").join(process.to_string()).exists();
        for event in events {
            if !readers.is_first(event.process, alive) {
                continue;
            }
            let process = event.process;
            self.payer.store(process, Relaxed);
            let cgroup = self.budget.follow_process(process);
            if !self.backend.features().contain(Features::CHARGE) {
                self.guest.pays(cgroup.clone());
            }
            self.outbox.say(&Note::Reader { process, cgroup });
        }
    }
}

/// Paths of files, for clients that watch events.
#[derive(Debug, Default)]
struct Paths {
    known: HashMap<FileId, Option<PathBuf>>,
}

impl Paths {
    fn of(&mut self, backend: &dyn Backend, file: FileId) -> Option<PathBuf> {
        if file.0 == 0 {
            return None;
        }
        if self.known.len() > 4096 {
            self.known.clear();
        }
        let ask = || backend.path(file).ok();
        self.known.entry(file).or_insert_with(ask).clone()
    }
}

/// Counts the bytes of a miss by what the reader had to wait for. What is opened with `O_DIRECT` cannot come too late.
fn count_miss(counters: &Counters, event: &Event, is_late: bool) {
    if event.direct {
        return counters.direct_bytes.add(event.length);
    }
    counters.missed_bytes.add(event.length);
    if is_late {
        counters.late_bytes.add(event.length);
    }
}

fn told(event: &Event, path: Option<PathBuf>) -> EventLine {
    EventLine {
        kind: format!("{:?}", event.kind).to_uppercase(),
        path,
        file: event.file.0,
        offset: event.offset,
        length: event.length,
        time_ns: event.time_ns,
        count: event.count,
        process: event.process,
        thread: event.thread,
        cpu: event.cpu,
        mmap: event.mmap,
        direct: event.direct,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reader_pays_until_it_is_gone() {
        let mut readers = FirstReaders::default();
        assert!(!readers.is_first(0, |_| true), "no process");
        assert!(readers.is_first(5, |_| true));
        assert!(!readers.is_first(5, |_| false), "it was seen before");
        assert!(!readers.is_first(6, |process| process == 5));
        assert!(readers.is_first(7, |_| false), "5 is gone");
        assert_eq!(readers.first, Some(7));
    }

    #[test]
    fn pause_grows_while_events_produce_no_plan() {
        let mut rest = Rest::default();
        let mut ms = |plans| rest.after(plans).as_millis();
        for plans in [1, 7] {
            assert_eq!(ms(plans), 1, "it has just made some");
            assert!((0..MAY_ANSWER).all(|_| ms(plans) == 1));
            assert_eq!([plans; 6].map(&mut ms), [2, 4, 8, 16, 16, 16]);
        }
    }

    #[test]
    fn misses_are_counted_by_what_readers_wait_for() {
        let counters = Counters::default();
        let mut miss = Event::new(Kind::Miss, FileId(1), 0, 100);
        count_miss(&counters, &miss, false);
        count_miss(&counters, &miss, true);
        miss.direct = true;
        count_miss(&counters, &miss, true);
        let counted = counters.snapshot();
        let bytes = (
            counted.missed_bytes,
            counted.late_bytes,
            counted.direct_bytes,
        );
        assert_eq!(bytes, (200, 100, 100));
    }

    #[test]
    fn event_kind_is_reported_by_name() {
        let event = Event::new(Kind::Progress, FileId(1), 2, 3);
        assert_eq!(told(&event, None).kind, "PROGRESS");
    }
}
