//! The thread that hears what readers do, and tells the queue, the loader and those who watch.

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
use crate::worker::queue::{Queue, Task};
use crate::worker::watchdog::Watchdog;

/// After each batch of events the thread rests: what comes meanwhile is one batch. So long, if the
/// policy has something to say to them...
const SHORT_REST: Duration = Duration::from_millis(1);
/// ...and up to so long while it has not: nobody waits for it to hear of them.
const LONG_REST: Duration = Duration::from_millis(16);
/// When the worker is to end, events are taken so often: those of readers that go on have no end.
const LAST_TAKES: u32 = 16;

/// The thread that hears what readers do.
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
    /// Events are sent to those who watch.
    pub(super) telling: Arc<AtomicBool>,
    pub(super) ending: Arc<AtomicBool>,
    /// The process whose memory cgroup pays; 0 for none.
    pub(super) payer: Arc<AtomicU32>,
    /// Of that process's cgroup, where the backend cannot charge it.
    pub(super) guest: Arc<Guest>,
    /// `None` if the worker has a cgroup of its own, which pays.
    pub(super) readers: Option<FirstReaders>,
}

/// How long to rest.
#[derive(Debug)]
struct Rest {
    /// Plans that the policy had made when the thread looked last.
    plans: u64,
    time: Duration,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            plans: 0,
            time: SHORT_REST,
        }
    }
}

impl Rest {
    /// The policy has made so many plans by now.
    fn after(&mut self, plans: u64) -> Duration {
        self.time = if plans == self.plans {
            (self.time * 2).min(LONG_REST)
        } else {
            SHORT_REST
        };
        self.plans = plans;
        self.time
    }
}

/// The processes that read, as far as it matters whose memory they take.
#[derive(Debug, Default)]
pub(super) struct FirstReaders {
    last: u32,
    seen: HashSet<u32>,
    first: Option<u32>,
}

impl FirstReaders {
    /// Whether this is the first reader of a service: nobody was before, or they are gone.
    fn is_first(&mut self, process: u32, alive: impl Fn(u32) -> bool) -> bool {
        // Most events are of whoever made the one before.
        if process == 0 || std::mem::replace(&mut self.last, process) == process {
            return false;
        }
        if !self.seen.insert(process) {
            return false;
        }
        // Numbers come back.
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
            if events.is_empty() {
                continue;
            }
            self.hear(&events, &mut paths);
            if let Some(fault) = self.watchdog.too_much("between calls") {
                return Some(fault);
            }
            self.rest(rest.after(self.plans.load(Relaxed)));
        }
        self.hear_last(&mut events, &mut paths);
        None
    }

    /// Until so much time has passed, or the worker is to end: that unparks this thread.
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

    /// What readers did until the worker was told to end, as far as it was not heard.
    fn hear_last(&mut self, events: &mut Vec<Event>, paths: &mut Paths) {
        for _ in 0..LAST_TAKES {
            events.clear();
            // It is not to sleep, whether or not there is something.
            self.backend.interrupt();
            if self.backend.events(events).is_err() || events.is_empty() {
                break;
            }
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
                self.loader.reader_waits(&Span {
                    file,
                    offset,
                    length,
                });
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

    /// The first reader's memory cgroup pays.
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

/// Paths of files, for those who watch events.
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
        assert!(!readers.is_first(0, |_| true), "nobody");
        assert!(readers.is_first(5, |_| true));
        assert!(!readers.is_first(5, |_| false), "it is no news");
        assert!(!readers.is_first(6, |process| process == 5));
        assert!(readers.is_first(7, |_| false), "5 is gone");
        assert_eq!(readers.first, Some(7));
    }

    #[test]
    fn rests_get_longer_while_nothing_comes_of_events() {
        let mut rest = Rest::default();
        let ms: Vec<_> = [0, 0, 0, 0, 0, 7, 7, 9, 9]
            .map(|plans| rest.after(plans).as_millis())
            .into();
        assert_eq!(ms, [2, 4, 8, 16, 16, 1, 2, 1, 2]);
    }

    #[test]
    fn kinds_are_told_by_their_names() {
        let event = Event::new(Kind::Progress, FileId(1), 2, 3);
        assert_eq!(told(&event, None).kind, "PROGRESS");
    }
}
