//! A worker: the process that hosts one policy of one mount.
//!
//! Its keeper starts it with one end of a socket as its standard input and the library as its standard output. It
//! carries out the orders from that socket (`messages.rs`): it loads the library, which is the first moment that the
//! policy's code runs; then, when told to go, takes the mount's device and starts the policy. When the
//! socket closes, it ends: a daemon that has been killed leaves no workers behind.
//!
//! Its threads: this one receives orders; `events` receives the backend's events; `policy` calls the policy, and
//! `watchdog` times the calls; `load-…` and `evict` carry out plans.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use ppc::host::Table;
use ppc::{Kind, Kinds};

use crate::backend::fuse::mirror;
use crate::backend::{Ahead, Backend, Beneath, Module, Observe, Start, fuse};
use crate::control::stats::{Counters, Stats};
use crate::daemon::trust::Trusted;
use crate::error::{Refusal, RefusalKind};
use crate::machine::memory::{Roots, Watch};
use crate::machine::topology::Topology;
use crate::worker::budget::Budget;
use crate::worker::events::{EventsThread, FirstReaders};
use crate::worker::evictor::Evictor;
use crate::worker::guest::Guest;
use crate::worker::loader::{Loader, ThreadGroup, devices};
use crate::worker::messages::{
    BackendSource, EXIT_PANICKED, EXIT_SOCKET_CLOSED, Inbox, Job, Note, Order, Outbox, ends,
};
use crate::worker::others::OtherWorkers;
use crate::worker::parting;
use crate::worker::policy_thread::PolicyThread;
use crate::worker::queue::{Queue, Task};
use crate::worker::services::PolicyServices;
use crate::worker::watchdog;
use crate::worker::watchdog::Watchdog;
use crate::{Error, Result, sys};

/// Runs a worker, from its standard input on.
///
/// # Errors
///
/// No keeper started it. Later failures are reported to the keeper.
pub fn run() -> Result<()> {
    let system = |doing| move |source| Error::System { doing, source };
    // The process that started it may block signals, and children inherit the mask.
    let _ = nix::sys::signal::SigSet::empty().thread_set_mask();
    let socket = take_stdin().map_err(system("Taking over the keeper's socket"))?;
    let library = take_stdout().map_err(system("Taking over the library"))?;
    let (mut inbox, outbox) = ends(socket)?;
    let outbox = Arc::new(outbox);
    log_to(&outbox);
    end_by_panics();
    sys::return_freed_memory();
    // Should memory get short in spite of everything, the kernel is to kill the policy before the service.
    let _ = std::fs::write("/proc/self/oom_score_adj", "800");
    let Some(Order::Start(mut job)) = inbox.hear()? else {
        return Ok(());
    };
    let library = Trusted::handed(job.library.clone(), library);
    let table = match sys::load_policy(&library) {
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
    let refused = |error: &Error| {
        outbox.say(&Note::Refused(Refusal {
            kind: RefusalKind::Failed,
            message: crate::error::chain(error),
            remedy: None,
        }));
    };
    // The process that it waits for will not wait for it: all that takes time is done before.
    let waits = matches!(job.source, BackendSource::Start { parent: None });
    let standby = match waits.then(Start::standby).transpose() {
        Ok(standby) => standby,
        Err(error) => {
            refused(&error);
            return Ok(());
        }
    };
    outbox.say(&Note::Loaded {
        name: table.name().to_owned(),
        version: table.version().to_owned(),
    });
    let mut order = inbox.hear()?;
    let mut followed = Ok(());
    if let (Some(Order::Follow { process }), Some(standby)) = (&order, &standby) {
        followed = standby.follow(*process);
        order = inbox.hear()?;
    }
    let Some(Order::Go(more)) = order else {
        return Ok(());
    };
    job.settings.extend(more);
    let backend = match standby {
        Some(standby) => followed.map(|()| Arc::new(standby) as _),
        None => take(&job.mount, &job.source),
    };
    match backend.and_then(|backend| Worker::start(&job, table, backend, &outbox)) {
        Ok(worker) => worker.serve(&mut inbox),
        Err(error) => refused(&error),
    }
    Ok(())
}

/// Takes the keeper's socket, and leaves `/dev/null` in its place.
fn take_stdin() -> std::io::Result<UnixStream> {
    let socket: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    Ok(socket.into())
}

/// Takes the library, which its keeper has opened, and sends standard output to standard error.
fn take_stdout() -> std::io::Result<File> {
    let library = std::io::stdout().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdout(std::io::stderr())?;
    Ok(library.into())
}

/// Has a panic end the process: a worker without one of its threads would only seem to run. The panics of
/// a policy do not come here: its library has its own copy of the Rust runtime.
fn end_by_panics() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        sys::exit_now(EXIT_PANICKED);
    }));
}

/// Sends log lines to the keeper.
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

    // The policy's library may have set a logger already; then that one receives our lines.
    let _ = log::set_boxed_logger(Box::new(Log(Arc::clone(outbox))));
    log::set_max_level(log::LevelFilter::Info);
}

/// All parts of a running worker.
struct Worker {
    backend: Arc<dyn Backend>,
    budget: Arc<Budget>,
    outbox: Arc<Outbox>,
    counters: Arc<Counters>,
    queue: Arc<Queue<Task>>,
    loader: Arc<Loader>,
    evictor: Arc<Evictor>,
    watchdog: Arc<Watchdog>,
    telling: Arc<AtomicBool>,
    ending: Arc<AtomicBool>,
    policy: JoinHandle<()>,
    events: JoinHandle<()>,
}

impl Worker {
    fn start(
        job: &Job,
        table: Table,
        backend: Arc<dyn Backend>,
        outbox: &Arc<Outbox>,
    ) -> Result<Self> {
        let topology: Topology = job.topology.parse()?;
        let watch = watch(job);
        let queue = Arc::new(Queue::new(job.worker.queue as usize));
        let counters = Arc::new(Counters::default());
        let places = places(&topology);
        let budget = Arc::new(Budget::new(
            Arc::clone(&backend),
            watch,
            Arc::clone(&queue),
            Arc::clone(&counters),
        ));
        let services = Arc::new(PolicyServices::new(
            Arc::clone(&backend),
            Arc::clone(&budget),
            topology,
            Arc::clone(&queue),
            Arc::clone(outbox),
            Arc::clone(&counters),
            job.worker.deadline.0,
        ));
        let loader = Arc::new(Loader::new(
            Arc::clone(&backend),
            Arc::clone(&budget) as _,
            Arc::clone(&counters),
            places,
            job.loader,
            devices(),
        ));
        let evictor = Arc::new(Evictor::new(
            Arc::clone(&backend),
            Arc::clone(&budget) as _,
            Arc::clone(&counters),
        ));
        let watchdog = Arc::new(Watchdog::new(job.worker.deadline.0, job.worker.memory.0));
        let payer = Arc::new(AtomicU32::new(0));
        let of_guest = Arc::clone(&loader);
        let home = Roots::default().home_of(std::process::id());
        let guest = Guest::new(home, Arc::clone(outbox), move || of_guest.is_idle());
        let guest = Arc::new(guest);
        let plans = Arc::new(AtomicU64::new(0));
        let policy_thread = PolicyThread {
            host: services,
            queue: Arc::clone(&queue),
            watchdog: Arc::clone(&watchdog),
            loader: Arc::clone(&loader),
            evictor: Arc::clone(&evictor),
            payer: Arc::clone(&payer),
            guest: Arc::clone(&guest),
            pays_itself: job.cgroup.is_some(),
            interval: job.memory.interval.0,
            plans: Arc::clone(&plans),
        };
        let listener = EventsThread {
            backend: Arc::clone(&backend),
            budget: Arc::clone(&budget),
            outbox: Arc::clone(outbox),
            counters: Arc::clone(&counters),
            queue: Arc::clone(&queue),
            loader: Arc::clone(&loader),
            watchdog: Arc::clone(&watchdog),
            plans,
            telling: Arc::default(),
            ending: Arc::default(),
            payer,
            guest,
            others: OtherWorkers::default(),
            readers: job.cgroup.is_none().then(FirstReaders::default),
        };
        watched(&watchdog, outbox)?;
        let (telling, ending) = (Arc::clone(&listener.telling), Arc::clone(&listener.ending));
        let (settings, to_say) = (job.settings.clone(), Arc::clone(outbox));
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        Ok(Self {
            policy: thread("policy", 8 << 20, move || {
                policy_thread.run(table, &settings, || {
                    // Without a receiver, the events' thread has not begun.
                    let _ = ready.send(());
                });
            })?,
            events: thread("events", 256 << 10, move || {
                // A reader that has opened a file continues at once.
                let _ = sys::take_short_turns();
                // Until then events wait in the kernel: the outcome of init reaches the keeper first.
                if started.recv().is_ok()
                    && let Some(fault) = listener.run()
                {
                    fail(&to_say, fault);
                }
            })?,
            backend,
            budget,
            outbox: Arc::clone(outbox),
            counters,
            queue,
            loader,
            evictor,
            watchdog,
            telling,
            ending,
        })
    }

    /// Carries out orders until it is asked to end, or the keeper has gone.
    fn serve(self, inbox: &mut Inbox) {
        let outbox = Arc::clone(&self.outbox);
        loop {
            match inbox.hear() {
                Ok(Some(Order::Configure { id, settings })) => {
                    self.queue.order(Task::Configure { id, settings });
                }
                Ok(Some(Order::Stats { id })) => {
                    let stats = Box::new(stats(&self.loader, &self.counters, &self.budget));
                    outbox.say(&Note::Stats { id, stats });
                }
                Ok(Some(Order::Events(on))) => self.telling.store(on, Relaxed),
                Ok(Some(Order::Start(_) | Order::Follow { .. } | Order::Go(_))) => {}
                Ok(Some(Order::Exit) | None) | Err(_) => break,
            }
        }
        self.end();
    }

    /// Ends in this order: loads stop, the policy gets the last events, the policy's exit is called.
    fn end(self) {
        self.ending.store(true, Relaxed);
        self.backend.interrupt();
        self.events.thread().unpark();
        self.loader.end();
        // A thread that the kernel holds up must not hold up the policy's end; the process ends in any case.
        parting::join(vec![self.events], parting::PATIENCE);
        self.queue.close();
        // The watchdog times its calls: one that does not return ends the process.
        let _ = self.policy.join();
        self.evictor.end();
        self.watchdog.end();
        self.backend.end();
        // Before the backend is dropped, which may take long.
        let late = self.backend.lets_go_late();
        let stats = Box::new(stats(&self.loader, &self.counters, &self.budget));
        self.outbox.say(&Note::Ended { late, stats });
    }
}

fn stats(loader: &Loader, counters: &Counters, budget: &Budget) -> Stats {
    let (queued, rate) = loader.state();
    counters.queued_bytes.set(queued);
    counters.load_rate.set(rate);
    counters.worker_rss.set(watchdog::rss());
    let cpu = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
    let cpu = cpu.map_or(Duration::ZERO, Duration::from);
    let millis = u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX);
    counters.worker_cpu_ms.set(millis);
    budget.sample();
    counters.snapshot()
}

/// Opens the directory with the chosen backend.
fn take(directory: &Path, source: &BackendSource) -> Result<Arc<dyn Backend>> {
    let backend: Arc<dyn Backend> = match source {
        BackendSource::Module { device } => Arc::new(Module::open(directory, *device)?),
        BackendSource::Observe { before_readers } => {
            let observe = Observe::open(directory)?;
            if *before_readers {
                observe.before_readers();
            }
            Arc::new(observe)
        }
        BackendSource::Start { parent } => {
            let parent =
                parent.ok_or_else(|| Error::Protocol("A start without a process".into()))?;
            Arc::new(Start::of_children(parent)?)
        }
        BackendSource::Ahead { root, places } => Arc::new(Ahead::open(root, places)?),
        BackendSource::Fuse {
            lower,
            options,
            others,
        } => {
            let options = mirror::MirrorOptions {
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
    };
    backend
        .want(Kinds::from(Kind::Miss), 0)
        .map_err(|fault| Error::Protocol(format!("Asking for events: {fault}")))?;
    Ok(backend)
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

/// What limits the page cache. Until a reader is known, what is loaded is charged to this process.
fn watch(job: &Job) -> Watch {
    let watch = Watch::new(job.memory, Roots::default());
    match &job.cgroup {
        Some(cgroup) => watch.follow_cgroup(cgroup),
        None => drop(watch.follow_process(std::process::id())),
    }
    watch
}

/// Starts the watchdog's thread. On a fault, it reports the fault and ends this process.
fn watched(watchdog: &Arc<Watchdog>, outbox: &Arc<Outbox>) -> Result<()> {
    let (watchdog, outbox) = (Arc::clone(watchdog), Arc::clone(outbox));
    thread("watchdog", 256 << 10, move || {
        if let Some(fault) = watchdog.watch() {
            fail(&outbox, fault);
        }
    })
    .map(drop)
}

/// Ends the process without `exit`: functions that the policy has registered there may hang as well.
fn fail(outbox: &Outbox, fault: String) {
    if !outbox.is_intact() {
        sys::exit_now(EXIT_SOCKET_CLOSED);
    }
    outbox.say(&Note::Fault(fault));
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::SIGKILL);
}

/// A group that runs anywhere, and one for each node if several nodes have memory.
fn places(topology: &Topology) -> Vec<ThreadGroup> {
    let anywhere = ThreadGroup {
        node: None,
        cpus: Vec::new(),
    };
    let with_memory = || topology.nodes().iter().filter(|node| node.memory);
    if with_memory().count() < 2 {
        return vec![anywhere];
    }
    let near = with_memory().map(|node| ThreadGroup {
        node: Some(node.id),
        cpus: node.cpus.iter().collect(),
    });
    std::iter::once(anywhere).chain(near).collect()
}
