//! The policy's own thread: calls the policy with what the queue has, and passes on the I/Os that it names.
//!
//! While memory is over the threshold, it calls evict with each event before prefetch, and at
//! intervals. A call that fails costs its own advice and nothing else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ppc::host::{Instance, Table};
use ppc::{Event, FileId, Io, LoadError, Xpu};

use crate::control::protocol::Settings;
use crate::error::{Refusal, RefusalKind};
use crate::sys;
use crate::worker::budget::Room as _;
use crate::worker::evictor::Evictor;
use crate::worker::guest::Guest;
use crate::worker::loader::Loader;
use crate::worker::messages::{EXIT_SOCKET_CLOSED, Note};
use crate::worker::plan::{self, World};
use crate::worker::queue::{Next, Queue, Task};
use crate::worker::services::PolicyServices;
use crate::worker::watchdog::Watchdog;

#[cfg(test)]
mod tests;

/// How many deadlines `init` and `exit` may take: they look at all files.
const LONG: u32 = 10;

/// How long a sample of memory stays valid.
const LOOK: Duration = Duration::from_millis(5);
/// How long the policy may take for the last events when it is to end.
const LAST: Duration = Duration::from_secs(1);

/// The thread's state.
pub(crate) struct PolicyThread {
    pub(crate) host: Arc<PolicyServices>,
    pub(crate) queue: Arc<Queue<Task>>,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) loader: Arc<Loader>,
    pub(crate) evictor: Arc<Evictor>,
    /// The process whose memory cgroup pays for I/Os that name none; 0 for no process.
    pub(crate) payer: Arc<AtomicU32>,
    /// Enters the cgroup that pays, where the backend cannot charge it otherwise.
    pub(crate) guest: Arc<Guest>,
    /// The worker's own cgroup pays for everything.
    pub(crate) pays_itself: bool,
    pub(crate) interval: Duration,
    /// Plans that the policy has made: the events' thread rests less while there are more.
    pub(crate) plans: Arc<AtomicU64>,
}

/// A callback of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callback {
    Prefetch,
    Evict,
}

impl PolicyThread {
    /// Starts the policy, reports whether that worked, and runs it until the queue is closed.
    pub(crate) fn run(mut self, table: Table, settings: &Settings, ready: impl FnOnce()) {
        let pairs: Vec<_> = settings
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let services = Arc::clone(&self.host);
        let started = self.watchdog.call("init", LONG, Instant::now(), || {
            Instance::start(table, services, &pairs)
        });
        let (mut instance, ios) = match started {
            Ok(started) => started,
            Err(error) => {
                let refusal = refusal(&table, &error, &self.host.last_words());
                self.host.outbox.say(&Note::Refused(refusal));
                return;
            }
        };
        // Before Ready, so that the first look at the counters includes these.
        self.act(&ios);
        self.host.outbox.say(&Note::Ready {
            backend: self.host.backend.name().to_owned(),
            features: features(self.host.backend.features()),
            limits: self.host.backend.limits(),
        });
        ready();
        let raw = table.raw();
        self.serve(&mut instance, (raw.prefetch.is_some(), raw.evict.is_some()));
        let watchdog = Arc::clone(&self.watchdog);
        if let Err(error) = watchdog.call("exit", LONG, Instant::now(), || instance.exit()) {
            log::warn!("its exit failed: {error}");
        }
    }

    fn serve(&mut self, instance: &mut Instance, (prefetches, evicts): (bool, bool)) {
        let queue = Arc::clone(&self.queue);
        loop {
            self.look_for_theft();
            let over = evicts && self.host.budget.is_over();
            match queue.next(over.then_some(self.interval)) {
                Next::Closed(rest) => {
                    // The policy needs the last events for what it writes at its end.
                    let until = Instant::now() + LAST;
                    return self.tell(instance, &rest, (prefetches, false), Some(until));
                }
                Next::Order(Task::Configure { id, settings }) => {
                    let refused = self.configure(instance, &settings);
                    self.host.outbox.say(&Note::Configured { id, refused });
                }
                Next::Woken if prefetches => {
                    self.call(instance, Callback::Prefetch, None, Instant::now());
                }
                Next::Interval if evicts && self.host.budget.sample().1 => {
                    self.host.budget.recount();
                    self.call(instance, Callback::Evict, None, Instant::now());
                }
                Next::Woken | Next::Interval => {}
                Next::Events(events) => {
                    self.tell(instance, &events, (prefetches, evicts), None);
                }
            }
        }
    }

    fn tell(
        &mut self,
        instance: &mut Instance,
        events: &VecDeque<Event>,
        (prefetches, evicts): (bool, bool),
        until: Option<Instant>,
    ) {
        let mut now = Instant::now();
        let mut looked = None;
        let mut over = false;
        for event in events {
            // No more often than samples are renewed.
            if evicts && looked.is_none_or(|then| now - then > LOOK) {
                over = self.host.budget.sample().1;
                looked = Some(now);
            }
            if over {
                now = self.call(instance, Callback::Evict, Some(event), now);
            }
            if prefetches {
                now = self.call(instance, Callback::Prefetch, Some(event), now);
            }
            if until.is_some_and(|until| now >= until) {
                break;
            }
        }
    }

    /// Ends the worker if the policy has closed its socket: the worker could neither receive nor report anything.
    fn look_for_theft(&self) {
        if !self.host.outbox.is_intact() {
            sys::exit_now(EXIT_SOCKET_CLOSED);
        }
    }

    /// Makes a call that begins now, at `began`; returns the time after it.
    fn call(
        &mut self,
        instance: &mut Instance,
        which: Callback,
        event: Option<&Event>,
        began: Instant,
    ) -> Instant {
        let counters = &self.host.counters;
        let (name, calls) = match which {
            Callback::Prefetch => ("prefetch", &counters.prefetch_calls),
            Callback::Evict => ("evict", &counters.evict_calls),
        };
        calls.add(1);
        let advice = self.watchdog.call(name, 1, began, || match which {
            Callback::Prefetch => instance.prefetch(event),
            Callback::Evict => instance.evict(event),
        });
        let after = Instant::now();
        let took = u64::try_from((after - began).as_nanos()).unwrap_or(u64::MAX);
        counters.policy_ns.add(took);
        counters.policy_max_ns.at_least(took);
        match advice {
            Ok(ios) => self.act(&ios.unwrap_or_default()),
            Err(error) => {
                counters.policy_errors.add(1);
                let errors = counters.policy_errors.get();
                // The first lines show what is wrong; all of them would fill a disk.
                if errors <= 3 || errors.is_multiple_of(1000) {
                    log::warn!("its {name} failed: {error} ({errors} so far)");
                }
            }
        }
        after
    }

    /// Carries out a plan: drops come first, because they make room for its loads.
    fn act(&mut self, ios: &[Io]) {
        if ios.is_empty() {
            return;
        }
        self.plans.fetch_add(1, Relaxed);
        let drops = plan::drops(ios, self);
        self.host.counters.evict_ranges.add(drops.named());
        let cancels = plan::cancels(ios, self);
        let dropped = drops.ranges.iter().map(|range| range.span);
        let unwanted: Vec<_> = dropped.chain(cancels.ranges).collect();
        if !unwanted.is_empty() {
            self.loader.cancel(&unwanted);
        }
        if !drops.ranges.is_empty() {
            self.evictor.submit(drops.ranges);
        }
        let loads = plan::loads(ios, self);
        self.host.counters.load_ranges.add(loads.named());
        self.host.counters.load_refused.add(loads.refused);
        if !loads.ranges.is_empty() {
            self.guest.enter();
        }
        self.loader.submit(&loads.ranges);
    }

    fn configure(&self, instance: &mut Instance, settings: &Settings) -> Option<Refusal> {
        settings.iter().find_map(|(key, value)| {
            let done = self.watchdog.call("configure", 1, Instant::now(), || {
                instance.configure(key, value)
            });
            let error = done.err()?;
            let (message, remedy) = if error.errno() == libc::EOPNOTSUPP {
                (
                    "The policy takes no settings while it runs".to_owned(),
                    Some("register it again with the new settings".to_owned()),
                )
            } else {
                let said = self.host.last_words();
                (
                    format!("The policy refuses {key}={value}: {error}; it said last: {said}"),
                    None,
                )
            };
            Some(Refusal {
                kind: RefusalKind::Policy,
                message,
                remedy,
            })
        })
    }
}

impl World for PolicyThread {
    fn size(&mut self, file: FileId) -> Option<u64> {
        let size = self.host.backend.size(file).ok()?;
        self.host.budget.touched(file);
        Some(size)
    }

    fn group(&mut self, xpu: Option<Xpu>, process: Option<u32>) -> usize {
        self.loader.group(self.host.node(xpu, process))
    }

    fn charge(&mut self, process: Option<u32>) -> Option<u32> {
        if self.pays_itself {
            return None;
        }
        let payer = self.payer.load(Relaxed);
        process.or((payer != 0).then_some(payer))
    }
}

/// Explains in one sentence why the policy does not run.
pub(crate) fn refusal(table: &Table, error: &LoadError, said: &str) -> Refusal {
    let message = match error {
        LoadError::Init(_) if !said.is_empty() => {
            format!("The policy {} refuses to start: {said}", table.name())
        }
        LoadError::Init(_) => format!("The policy {} refuses to start: {error}", table.name()),
        LoadError::Needs(bits) => format!(
            "The policy {} needs what this mount cannot do: {}",
            table.name(),
            features(ppc::Features(*bits)).join(", ")
        ),
        other => other.to_string(),
    };
    Refusal {
        kind: RefusalKind::Policy,
        message,
        remedy: None,
    }
}

/// The names of these features.
fn features(features: ppc::Features) -> Vec<String> {
    const NAMES: [&str; 6] = [
        "open",
        "touch",
        "progress",
        "evict-mapped",
        "affinity",
        "charge",
    ];
    let known = NAMES.iter().enumerate();
    known
        .filter(|(bit, _)| features.0 & (1 << bit) != 0)
        .map(|(_, name)| (*name).to_owned())
        .collect()
}
