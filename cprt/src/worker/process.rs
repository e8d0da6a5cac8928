//! A worker: the process that hosts one policy of one mount.
//!
//! It is started by the supervisor with one end of a socket as its standard input, and does what it
//! is told there (`words.rs`): loads the library, which is the first moment that somebody else's
//! code runs; then, when told to go, takes the mount's device and starts the policy. When the
//! socket closes, it ends: a daemon that has been killed leaves no workers behind.
//!
//! Its threads: this one hears orders; `events` hears the backend; `policy` calls the policy, and
//! `guard` watches it do so; `load-…` and `evict` do what it says.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use ppc::host::Table;
use ppc::{Event, Features, FileId, Kind, Kinds};

use crate::backend::fuse::mirror;
use crate::backend::{Backend, Beneath, Flow, Module, Observe, Span, fuse};
use crate::control::protocol::EventLine;
use crate::control::stats::Counters;
use crate::error::{Refusal, RefusalKind};
use crate::machine::memory::{Roots, Watch};
use crate::machine::topology::Topology;
use crate::worker::evictor::Evictor;
use crate::worker::loader::{Loader, Place};
use crate::worker::messages::{
    EXIT_PANICKED, EXIT_SOCKET_CLOSED, Inbox, Job, Note, Order, Outbox, Source, ends,
};
use crate::worker::policy_thread::Executor;
use crate::worker::queue::{Queue, Task};
use crate::worker::services::Host;
use crate::worker::watchdog;
use crate::worker::watchdog::Guard;
use crate::{Error, Result, sys};

/// After each batch of events the thread rests: what comes meanwhile is one batch. So long, if the
/// policy has something to say to them...
const SHORT_REST: Duration = Duration::from_millis(1);
/// ...and up to so long while it has not: nobody waits for it to hear of them.
const LONG_REST: Duration = Duration::from_millis(16);

/// The life of a worker, from its standard input on.
///
/// # Errors
///
/// It was not started by a supervisor. What goes wrong later, the supervisor is told.
pub fn run() -> Result<()> {
    let system = |doing| move |source| Error::System { doing, source };
    // Whoever started it may wait for signals in a way of its own, which children inherit.
    let _ = nix::sys::signal::SigSet::empty().thread_set_mask();
    let socket = take_stdin().map_err(system("Taking over the supervisor's socket"))?;
    let (mut inbox, outbox) = ends(socket)?;
    let outbox = Arc::new(outbox);
    log_to(&outbox);
    end_by_panics();
    sys::return_freed_memory();
    // Should memory get short in spite of all, the policy is to go before the service.
    let _ = std::fs::write("/proc/self/oom_score_adj", "800");
    let Some(Order::Start(job)) = inbox.hear()? else {
        return Ok(());
    };
    let table = match sys::load_policy(&job.library) {
        Ok(table) => table,
        Err(error) => {
            outbox.say(&Note::Refused(Refusal {
                kind: RefusalKind::Policy,
                message: format!("{}: {error}", job.library.display()),
                remedy: None,
            }));
            return Ok(());
        }
    };
    outbox.say(&Note::Loaded {
        name: table.name().to_owned(),
        version: table.version().to_owned(),
    });
    let Some(Order::Go) = inbox.hear()? else {
        return Ok(());
    };
    match Worker::start(&job, table, &outbox) {
        Ok(worker) => worker.serve(&mut inbox),
        Err(error) => outbox.say(&Note::Refused(Refusal {
            kind: RefusalKind::Failed,
            message: crate::error::chain(&error),
            remedy: None,
        })),
    }
    Ok(())
}

/// The supervisor's socket, and nothing in its place.
fn take_stdin() -> std::io::Result<UnixStream> {
    let socket: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    Ok(socket.into())
}

/// A worker of which a thread is missing would seem to run. The panics of a policy are its own: its
/// library has another copy of all this.
fn end_by_panics() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        sys::exit_now(EXIT_PANICKED);
    }));
}

/// What is logged, the supervisor hears.
fn log_to(outbox: &Arc<Outbox>) {
    struct Log(Arc<Outbox>);

    impl log::Log for Log {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            self.0.say(&Note::Log {
                level: record.level() as u32,
                message: record.args().to_string(),
            });
        }

        fn flush(&self) {}
    }

    // Somebody else's library may have set one; then it hears us.
    let _ = log::set_boxed_logger(Box::new(Log(Arc::clone(outbox))));
    log::set_max_level(log::LevelFilter::Info);
}

/// All that runs.
struct Worker {
    host: Arc<Host>,
    queue: Arc<Queue<Task>>,
    loader: Arc<Loader>,
    evictor: Arc<Evictor>,
    guard: Arc<Guard>,
    telling: Arc<AtomicBool>,
    ending: Arc<AtomicBool>,
    policy: JoinHandle<()>,
    events: JoinHandle<()>,
}

impl Worker {
    fn start(job: &Job, table: Table, outbox: &Arc<Outbox>) -> Result<Self> {
        let topology: Topology = job.topology.parse()?;
        let backend = take(&job.mount, &job.source)?;
        backend
            .want(Kinds::from(Kind::Miss), 0)
            .map_err(|fault| Error::Protocol(format!("Asking for events: {fault}")))?;
        let watch = Watch::new(job.memory, Roots::default());
        if let Some(cgroup) = &job.cgroup {
            watch.follow_cgroup(cgroup);
        }
        let queue = Arc::new(Queue::new(job.worker.queue as usize));
        let counters = Arc::new(Counters::default());
        let places = places(&topology);
        let host = Arc::new(Host::new(
            Arc::clone(&backend),
            watch,
            topology,
            Arc::clone(&queue),
            Arc::clone(outbox),
            Arc::clone(&counters),
            job.worker.deadline.0,
        ));
        let loader = Arc::new(Loader::new(
            Arc::clone(&backend),
            Arc::clone(&host) as _,
            Arc::clone(&counters),
            places,
            job.loader,
        ));
        let evictor = Arc::new(Evictor::new(
            Arc::clone(&backend),
            Arc::clone(&host) as _,
            counters,
        ));
        let guard = Arc::new(Guard::new(job.worker.deadline.0, job.worker.memory.0));
        let payer = Arc::new(AtomicU32::new(0));
        let executor = Executor {
            host: Arc::clone(&host),
            queue: Arc::clone(&queue),
            guard: Arc::clone(&guard),
            loader: Arc::clone(&loader),
            evictor: Arc::clone(&evictor),
            payer: Arc::clone(&payer),
            pays_itself: job.cgroup.is_some(),
            interval: job.memory.interval.0,
        };
        let listener = Listener {
            host: Arc::clone(&host),
            queue: Arc::clone(&queue),
            loader: Arc::clone(&loader),
            guard: Arc::clone(&guard),
            telling: Arc::default(),
            ending: Arc::default(),
            payer,
            readers: job.cgroup.is_none().then(Readers::default),
        };
        watched(&guard, outbox)?;
        let (telling, ending) = (Arc::clone(&listener.telling), Arc::clone(&listener.ending));
        let settings = job.settings.clone();
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        Ok(Self {
            policy: thread("policy", 8 << 20, move || {
                executor.run(table, &settings, || {
                    // That nobody waits means that the events' thread has not begun.
                    let _ = ready.send(());
                });
            })?,
            events: thread("events", 256 << 10, move || {
                // Until then they wait in the kernel: the supervisor first hears how init went.
                if started.recv().is_ok() {
                    listener.run();
                }
            })?,
            host,
            queue,
            loader,
            evictor,
            guard,
            telling,
            ending,
        })
    }

    /// Does what it is told until it is told to end, or nobody is there any more to tell.
    fn serve(self, inbox: &mut Inbox) {
        let outbox = Arc::clone(&self.host.outbox);
        loop {
            match inbox.hear() {
                Ok(Some(Order::Configure { id, settings })) => {
                    self.queue.order(Task::Configure { id, settings });
                }
                Ok(Some(Order::Stats { id })) => {
                    let stats = Box::new(self.stats());
                    outbox.say(&Note::Stats { id, stats });
                }
                Ok(Some(Order::Events(on))) => self.telling.store(on, Relaxed),
                Ok(Some(Order::Start(_) | Order::Go)) => {}
                Ok(Some(Order::Exit) | None) | Err(_) => break,
            }
        }
        self.end();
        outbox.say(&Note::Ended);
    }

    /// Loads stop first, then the policy hears of it.
    fn end(self) {
        self.ending.store(true, Relaxed);
        self.host.backend.interrupt();
        self.loader.end();
        self.queue.close();
        // One that panicked has said so; the process ends in any case.
        let _ = self.policy.join();
        self.evictor.end();
        let _ = self.events.join();
        self.guard.end();
        self.host.backend.end();
    }

    fn stats(&self) -> crate::control::stats::Stats {
        let counters = &self.host.counters;
        let (queued, rate) = self.loader.state();
        counters.queued_bytes.set(queued);
        counters.load_rate.set(rate);
        counters.worker_rss.set(watchdog::rss());
        let cpu = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
        let cpu = cpu.map_or(Duration::ZERO, Duration::from);
        let millis = u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX);
        counters.worker_cpu_ms.set(millis);
        self.host.sample();
        counters.snapshot()
    }
}

/// Takes the directory, in the way that has been chosen.
fn take(directory: &Path, source: &Source) -> Result<Arc<dyn Backend>> {
    Ok(match source {
        Source::Module { device } => Arc::new(Module::open(directory, *device)?),
        Source::Observe => Arc::new(Observe::open(directory)?),
        Source::Fuse {
            lower,
            options,
            others,
        } => {
            let options = mirror::Options {
                passthrough: options.passthrough,
                threads: options.threads.into(),
                readahead_kib: options.readahead.0 >> 10,
                others: *others,
            };
            let mounted =
                fuse::mount(lower, directory, &options).map_err(|source| Error::System {
                    doing: "Mounting through FUSE",
                    source,
                })?;
            match mounted {
                fuse::Mounted::Plain(plain) => Arc::new(plain),
                fuse::Mounted::Passthrough(passthrough) => Arc::new(Beneath::new(passthrough)?),
            }
        }
    })
}

fn thread(
    name: &'static str,
    stack: usize,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(stack)
        .spawn(run)
        .map_err(|source| Error::System {
            doing: "Starting a thread",
            source,
        })
}

/// Has somebody watch the policy. A fault is told, and then there is no more of this process.
fn watched(guard: &Arc<Guard>, outbox: &Arc<Outbox>) -> Result<()> {
    let (guard, outbox) = (Arc::clone(guard), Arc::clone(outbox));
    thread("guard", 256 << 10, move || {
        if let Some(fault) = guard.watch() {
            fail(&outbox, fault);
        }
    })
    .map(drop)
}

/// Not by `exit`: what the policy has put there to be called at the end may hang as well.
fn fail(outbox: &Outbox, fault: String) {
    if !outbox.is_intact() {
        sys::exit_now(EXIT_SOCKET_CLOSED);
    }
    outbox.say(&Note::Fault(fault));
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::SIGKILL);
}

/// A group anywhere, and one on each node if there are several to choose from.
fn places(topology: &Topology) -> Vec<Place> {
    let anywhere = Place {
        node: None,
        cpus: Vec::new(),
    };
    let with_memory = || topology.nodes().iter().filter(|node| node.memory);
    if with_memory().count() < 2 {
        return vec![anywhere];
    }
    let near = with_memory().map(|node| Place {
        node: Some(node.id),
        cpus: node.cpus.iter().collect(),
    });
    std::iter::once(anywhere).chain(near).collect()
}

/// The thread that hears what readers do.
struct Listener {
    host: Arc<Host>,
    queue: Arc<Queue<Task>>,
    loader: Arc<Loader>,
    guard: Arc<Guard>,
    telling: Arc<AtomicBool>,
    ending: Arc<AtomicBool>,
    payer: Arc<AtomicU32>,
    /// Nobody is looked for if the worker has a cgroup of its own.
    readers: Option<Readers>,
}

/// How long to rest.
#[derive(Debug)]
struct Rest {
    /// Ranges that the policy had named when we looked last.
    advice: u64,
    time: Duration,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            advice: 0,
            time: SHORT_REST,
        }
    }
}

impl Rest {
    /// The policy has named so many ranges by now.
    fn after(&mut self, advice: u64) -> Duration {
        self.time = if advice == self.advice {
            (self.time * 2).min(LONG_REST)
        } else {
            SHORT_REST
        };
        self.advice = advice;
        self.time
    }
}

/// The processes that read, as far as it matters whose memory they take.
#[derive(Debug, Default)]
struct Readers {
    last: u32,
    seen: HashSet<u32>,
    first: Option<u32>,
}

impl Readers {
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

impl Listener {
    fn run(mut self) {
        let mut events = Vec::new();
        let mut paths = Paths::default();
        let mut rest = Rest::default();
        while !self.ending.load(Relaxed) {
            events.clear();
            match self.host.backend.events(&mut events) {
                Ok(Flow::On) => {}
                Ok(Flow::Ended) => {
                    self.host.outbox.say(&Note::Unmounted);
                    return;
                }
                Err(fault) => {
                    let fault = format!("its events cannot be read: {fault}");
                    return fail(&self.host.outbox, fault);
                }
            }
            if events.is_empty() {
                continue;
            }
            self.hear(&events, &mut paths);
            if let Some(fault) = self.guard.too_much("between calls") {
                return fail(&self.host.outbox, fault);
            }
            let counters = &self.host.counters;
            let advice = counters.load_ranges.get() + counters.evict_ranges.get();
            std::thread::sleep(rest.after(advice));
        }
    }

    fn hear(&mut self, events: &[Event], paths: &mut Paths) {
        let counters = &self.host.counters;
        for event in events {
            if event.kind == Kind::Lost {
                counters.lost.add(event.count);
                continue;
            }
            counters.events.add(event.count);
            counters.merged.add(event.count.saturating_sub(1));
            self.host.reader_did(event);
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
        let counters = &self.host.counters;
        counters.merged.add(tally.merged);
        counters.lost.add(tally.lost);
        if self.telling.load(Relaxed) {
            for event in events {
                let path = paths.of(&*self.host.backend, event.file);
                self.host.outbox.say(&Note::Event(told(event, path)));
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
            let cgroup = self.host.watch.follow_process(process);
            let join = !self.host.backend.features().contain(Features::CHARGE);
            self.host.outbox.say(&Note::Reader {
                process,
                join,
                cgroup,
            });
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
        let mut readers = Readers::default();
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
            .map(|advice| rest.after(advice).as_millis())
            .into();
        assert_eq!(ms, [2, 4, 8, 16, 16, 1, 2, 1, 2]);
    }

    #[test]
    fn kinds_are_told_by_their_names() {
        let event = Event::new(Kind::Progress, FileId(1), 2, 3);
        assert_eq!(told(&event, None).kind, "PROGRESS");
    }
}
