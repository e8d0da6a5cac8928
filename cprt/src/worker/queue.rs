//! Events on their way to the policy.
//!
//! Readers may make events faster than a policy takes them. So neighbours are merged while they wait,
//! per process, file and kind, and the number that waits is bounded: events that do not fit are
//! counted, and reported to the policy as a LOST.
//!
//! The same queue wakes the policy's thread for everything else: calls of [`ppc::host::Services::wake`],
//! intervals while memory is short, and orders of the keeper.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ppc::{Event, FileId, Kind};

use crate::control::protocol::Settings;

/// What the keeper asks of the policy's thread.
#[derive(Debug)]
pub(crate) enum Task {
    /// Change settings, and answer under this number.
    Configure { id: u64, settings: Settings },
}

/// Events with equal keys may merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct MergeKey {
    process: u32,
    file: FileId,
    kind: Kind,
    mmap: bool,
}

/// Events that wait. Pure.
#[derive(Debug)]
struct WaitingEvents {
    events: VecDeque<Event>,
    /// The index in `events` of the last event of each key.
    last: HashMap<MergeKey, usize>,
    lost: u64,
    room: usize,
}

/// The fate of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pushed {
    Queued,
    Merged,
    Lost,
}

impl WaitingEvents {
    fn new(room: usize) -> Self {
        Self {
            events: VecDeque::new(),
            last: HashMap::new(),
            lost: 0,
            room,
        }
    }

    fn push(&mut self, event: &Event) -> Pushed {
        if event.kind == Kind::Lost {
            self.lost += event.count;
            return Pushed::Queued;
        }
        let key = MergeKey {
            process: event.process,
            file: event.file,
            kind: event.kind,
            mmap: event.mmap,
        };
        let merges = matches!(event.kind, Kind::Miss | Kind::Touch | Kind::Progress);
        if merges
            && let Some(&at) = self.last.get(&key)
            && let Some(waiting) = self.events.get_mut(at)
            && merge(waiting, event)
        {
            return Pushed::Merged;
        }
        if self.events.len() >= self.room {
            self.lost += event.count;
            return Pushed::Lost;
        }
        if merges {
            self.last.insert(key, self.events.len());
        }
        self.events.push_back(event.clone());
        Pushed::Queued
    }

    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.lost == 0
    }

    /// Takes all events; a LOST comes last.
    fn take(&mut self) -> VecDeque<Event> {
        self.last.clear();
        let mut events = std::mem::take(&mut self.events);
        if self.lost > 0 {
            let mut lost = Event::new(Kind::Lost, FileId(0), 0, 0).by(0);
            lost.count = std::mem::take(&mut self.lost);
            events.push_back(lost);
        }
        events
    }
}

/// Merges `event` into `waiting` if it can: ranges that touch become one; of PROGRESS events the
/// newest place counts. Returns whether it did.
fn merge(waiting: &mut Event, event: &Event) -> bool {
    if event.kind == Kind::Progress {
        waiting.offset = event.offset;
        waiting.length = waiting.length.saturating_add(event.length);
        waiting.count += event.count;
        return true;
    }
    if event.offset > waiting.end() || waiting.offset > event.end() {
        return false;
    }
    let end = waiting.end().max(event.end());
    waiting.offset = waiting.offset.min(event.offset);
    waiting.length = end - waiting.offset;
    waiting.count += event.count;
    true
}

/// What the policy's thread is to do next.
#[derive(Debug)]
pub(crate) enum Next<Order> {
    /// Pass these to the policy.
    Events(VecDeque<Event>),
    /// The policy asked to be woken.
    Woken,
    /// The interval is over.
    Interval,
    /// Carry out an order of the keeper.
    Order(Order),
    /// The queue is closed, with these events left.
    Closed(VecDeque<Event>),
}

/// The fate of a batch of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) merged: u64,
    pub(crate) lost: u64,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue<Order> {
    state: Mutex<QueueState<Order>>,
    changed: Condvar,
}

#[derive(Debug)]
struct QueueState<Order> {
    waiting: WaitingEvents,
    orders: VecDeque<Order>,
    wake_at: Option<Instant>,
    poked: bool,
    closed: bool,
}

impl<Order> Queue<Order> {
    /// A queue with room for this many events.
    pub(crate) fn new(room: usize) -> Self {
        Self {
            state: Mutex::new(QueueState {
                waiting: WaitingEvents::new(room),
                orders: VecDeque::new(),
                wake_at: None,
                poked: false,
                closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<Order>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds events of the backend.
    pub(crate) fn push(&self, events: &[Event]) -> Tally {
        let mut tally = Tally::default();
        let mut state = self.lock();
        let before = state.waiting.is_empty();
        for event in events {
            match state.waiting.push(event) {
                Pushed::Queued => {}
                Pushed::Merged => tally.merged += 1,
                Pushed::Lost => tally.lost += event.count,
            }
        }
        if before && !state.waiting.is_empty() {
            self.changed.notify_one();
        }
        tally
    }

    pub(crate) fn order(&self, order: Order) {
        self.lock().orders.push_back(order);
        self.changed.notify_one();
    }

    /// Sets when the policy is woken; the latest call counts.
    pub(crate) fn wake(&self, after: Duration) {
        self.lock().wake_at = Instant::now().checked_add(after);
        self.changed.notify_one();
    }

    /// Ends the current interval, so that the thread decides about it again.
    pub(crate) fn poke(&self) {
        self.lock().poked = true;
        self.changed.notify_one();
    }

    /// Closes the queue: [`Next::Closed`] comes next.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Sleeps until there is something to do, at most for the interval if there is one.
    pub(crate) fn next(&self, interval: Option<Duration>) -> Next<Order> {
        let due = interval.and_then(|interval| Instant::now().checked_add(interval));
        let mut state = self.lock();
        loop {
            if let Some(next) = state.ready(due) {
                return next;
            }
            let until = match (state.wake_at, due) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            state = match until {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.changed
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }
}

impl<Order> QueueState<Order> {
    fn ready(&mut self, due: Option<Instant>) -> Option<Next<Order>> {
        if self.closed {
            return Some(Next::Closed(self.waiting.take()));
        }
        if let Some(order) = self.orders.pop_front() {
            return Some(Next::Order(order));
        }
        if !self.waiting.is_empty() {
            return Some(Next::Events(self.waiting.take()));
        }
        let now = Instant::now();
        if self.wake_at.is_some_and(|at| at <= now) {
            self.wake_at = None;
            return Some(Next::Woken);
        }
        let poked = std::mem::take(&mut self.poked);
        (poked || due.is_some_and(|due| due <= now)).then_some(Next::Interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(1);

    fn miss(process: u32, offset: u64, length: u64) -> Event {
        Event::new(Kind::Miss, FILE, offset, length).by(process)
    }

    fn ranges(events: &VecDeque<Event>) -> Vec<(u32, u64, u64, u64)> {
        events
            .iter()
            .map(|event| (event.process, event.offset, event.length, event.count))
            .collect()
    }

    #[test]
    fn neighbours_of_a_process_merge_whatever_is_between() {
        let mut waiting = WaitingEvents::new(16);
        for event in [
            miss(1, 0, 10),
            miss(2, 100, 10),
            miss(1, 10, 10),
            miss(2, 95, 8),
            miss(1, 30, 10),
            miss(1, 20, 10),
            miss(1, 40, 5),
        ] {
            waiting.push(&event);
        }
        let expected = [(1, 0, 20, 2), (2, 95, 15, 2), (1, 20, 25, 3)];
        assert_eq!(ranges(&waiting.take()), expected);
        assert!(waiting.is_empty());
    }

    #[test]
    fn kinds_files_and_faults_stay_apart() {
        let mut waiting = WaitingEvents::new(16);
        let mut fault = miss(1, 10, 10);
        fault.mmap = true;
        let mut other = miss(1, 10, 10);
        other.file = FileId(2);
        let mut touch = miss(1, 10, 10);
        touch.kind = Kind::Touch;
        for event in [&miss(1, 0, 10), &fault, &other, &touch] {
            assert_eq!(waiting.push(event), Pushed::Queued);
        }
        assert_eq!(waiting.take().len(), 4);
    }

    #[test]
    fn opens_are_never_merged_and_beacons_move() {
        let mut waiting = WaitingEvents::new(16);
        let open = Event::new(Kind::Open, FILE, 0, 100);
        assert_eq!(waiting.push(&open), Pushed::Queued);
        assert_eq!(waiting.push(&open), Pushed::Queued);
        let mut beacon = Event::new(Kind::Progress, FILE, 64, 64);
        waiting.push(&beacon);
        beacon.offset = 16;
        assert_eq!(waiting.push(&beacon), Pushed::Merged, "backwards as well");
        let events = waiting.take();
        assert_eq!(events.len(), 3);
        assert_eq!((events[2].offset, events[2].length), (16, 128));
    }

    #[test]
    fn overflowing_events_are_counted_and_reported_as_lost() {
        let mut waiting = WaitingEvents::new(2);
        for i in 0..10 {
            waiting.push(&miss(1, i * 100, 10));
        }
        let mut lost = Event::new(Kind::Lost, FileId(0), 0, 0);
        lost.count = 5;
        waiting.push(&lost);
        assert_eq!(waiting.push(&miss(1, 110, 10)), Pushed::Merged);
        let events = waiting.take();
        let end = events.back().expect("a last one");
        assert_eq!((events.len(), end.kind, end.count), (3, Kind::Lost, 13));
        assert_eq!(
            waiting.push(&miss(1, 120, 10)),
            Pushed::Queued,
            "room again"
        );
    }

    #[test]
    fn the_sum_of_counts_is_what_was_pushed() {
        let queue = Queue::<()>::new(3);
        let events: Vec<_> = (0..100).map(|i| miss(i % 7, u64::from(i) * 3, 3)).collect();
        let tally = queue.push(&events);
        let Next::Events(taken) = queue.next(None) else {
            panic!("events");
        };
        assert_eq!(taken.iter().map(|event| event.count).sum::<u64>(), 100);
        assert!(tally.lost > 0);
    }

    #[test]
    fn orders_come_first_and_the_end_before_all() {
        let queue = Queue::new(3);
        queue.push(&[miss(1, 0, 1)]);
        queue.order("order");
        queue.wake(Duration::ZERO);
        assert!(matches!(queue.next(None), Next::Order("order")));
        assert!(matches!(queue.next(None), Next::Events(_)));
        assert!(matches!(queue.next(None), Next::Woken));
        assert!(matches!(
            queue.next(Some(Duration::from_millis(1))),
            Next::Interval
        ));
        queue.push(&[miss(1, 0, 1)]);
        queue.close();
        assert!(matches!(queue.next(None), Next::Closed(rest) if rest.len() == 1));
    }

    #[test]
    fn the_latest_wake_counts() {
        let queue = Queue::<()>::new(3);
        queue.wake(Duration::ZERO);
        queue.wake(Duration::from_hours(1));
        assert!(matches!(
            queue.next(Some(Duration::from_millis(2))),
            Next::Interval
        ));
    }
}
