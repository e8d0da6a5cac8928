//! Services whose starts the daemon knows: it records them when they are executed, and loads ahead the next time.
//!
//! ```text
//! execs: the kernel reports a program ─ facts: /proc ─ which service ─ pace ─▶ start: a worker that stands by
//!                                                   └─ learning: what starts often and reads much
//! containers: a runtime reports one ┬ created ─ remembered ─▶ ahead: a worker that loads
//!                                   └ started ─▶ facts, as above
//! ```
//!
//! The worker that records and loads is that of `ppcctl run`, with the same policy and the same templates. It loads its
//! library and its kernel programs before it is needed, because the process that starts does not wait for it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use self::ahead::Ahead;
pub(super) use self::containers::{ContainerFacts, ContainerNews};
use self::containers::{Inbox, Memory};
use self::facts::Facts;
use self::known::{Known, Learnt};
use self::learning::Learning;
use self::pace::{Pace, Verdict};
use self::start::Plan;
use super::registry::Registry;
use super::{policies, trust};
use crate::backend::{Exec, Execs, Told, kernel_tells};
use crate::control::config::{Config, Executed};
use crate::control::protocol::{ServicesStatus, Settings};
use crate::error::{Refusal, RefusalKind};
use crate::worker::handle::{LoadedWorker, WorkerHandle};
use crate::{Error, Result};

mod ahead;
mod containers;
mod facts;
mod known;
mod learning;
mod pace;
mod start;
mod totals;

/// The policy that records and loads starts.
const POLICY: &str = "maio";
/// How often the daemon looks at processes that it may learn from, and at events that the kernel does not wake us for.
const LOOK: Duration = Duration::from_millis(500);

/// All services.
pub(crate) struct Services {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the threads share: the one that receives executed programs, and one for each start.
struct Shared {
    topology: String,
    registry: Weak<Registry>,
    wake: EventFd,
    /// What runtimes report of containers.
    inbox: Inbox,
    state: Mutex<State>,
}

struct State {
    config: Config,
    /// Why no start is followed, though services are configured.
    off: Option<String>,
    library: PathBuf,
    execs: Option<Arc<Execs>>,
    /// A worker that waits for a start.
    standby: Option<LoadedWorker>,
    known: BTreeMap<String, Known>,
    pace: Pace,
    learning: Learning,
    under_way: Vec<UnderWay>,
    /// How containers started.
    memory: Memory,
    /// Workers that load the files of containers that have no process yet.
    ahead: Vec<Ahead>,
    threads: Vec<JoinHandle<()>>,
    ending: bool,
}

/// A start that a worker follows.
struct UnderWay {
    service: String,
    process: u32,
    /// The container whose first process it is, as its runtime has it.
    container: Option<String>,
    handle: Option<Arc<WorkerHandle>>,
    /// Its container has been stopped.
    stopped: bool,
}

impl Services {
    /// Begins with no service; [`Self::apply`] adds them.
    pub(crate) fn new(registry: &Arc<Registry>, topology: String) -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags).map_err(|error| Error::System {
            doing: "Making an eventfd",
            source: error.into(),
        })?;
        let state = State {
            config: Config::default(),
            off: None,
            library: PathBuf::new(),
            execs: None,
            standby: None,
            known: BTreeMap::new(),
            pace: Pace::default(),
            learning: Learning::default(),
            under_way: Vec::new(),
            memory: Memory::default(),
            ahead: Vec::new(),
            threads: Vec::new(),
            ending: false,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                topology,
                registry: Arc::downgrade(registry),
                wake,
                inbox: Inbox::default(),
                state: Mutex::new(state),
            }),
            thread: Mutex::default(),
        })
    }

    /// Switches to the services of this configuration, and ends the worker of each start of another service.
    pub(crate) fn apply(&self, config: Config) {
        let wanted = config.learn || !config.service.is_empty();
        let learnt = if config.learn {
            known::read(&config.learnt)
        } else {
            Vec::new()
        };
        // Opened before the old ones close, so that no program executed meanwhile is lost.
        let ready = wanted.then(|| Ready::new(&config, &learnt)).transpose();
        let (error, standby) = {
            let mut state = self.shared.state();
            state.apply(config, learnt);
            let (ready, error) = match ready {
                Ok(ready) => (ready, None),
                Err(error) => (None, Some(error)),
            };
            let ready = ready.map(|it| (it.library, Arc::new(it.execs))).unzip();
            state.library = ready.0.unwrap_or_default();
            state.execs = ready.1;
            // It may have loaded another library.
            (error, state.standby.take())
        };
        if let Some(standby) = standby {
            standby.put_down();
        }
        let listens = match error {
            None if wanted => self.shared.stand_by().and_then(|()| self.listen()),
            None => Ok(()),
            Some(error) => Err(error),
        };
        if let Err(error) = listens {
            self.shared.switch_off(&crate::error::chain(&error));
        }
        self.shared.wake();
        if wanted {
            self.shared.find_running();
        }
    }

    fn listen(&self) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let run = move || shared.run();
        *thread = Some(start::thread("services", run)?);
        Ok(())
    }

    /// Passes on what a runtime reports of a container. It never waits.
    pub(super) fn container(&self, news: ContainerNews) {
        if self.shared.inbox.put(news) {
            self.shared.wake();
        } else {
            log::warn!("Too many containers start at once: not following one of them");
        }
    }

    /// The status of the services; `None` if none is configured.
    pub(crate) fn status(&self) -> Option<ServicesStatus> {
        self.shared.status()
    }

    /// Ends the starts under way, in good order.
    pub(crate) fn end(&self) {
        let (standby, handles) = {
            let mut state = self.shared.state();
            state.ending = true;
            let under_way = state.under_way.iter().map(|it| &it.handle);
            let ahead = state.ahead.iter().map(|it| &it.handle);
            let handles: Vec<_> = under_way.chain(ahead).filter_map(Clone::clone).collect();
            (state.standby.take(), handles)
        };
        self.shared.wake();
        for handle in handles {
            handle.exit();
        }
        if let Some(standby) = standby {
            standby.put_down();
        }
        let listener = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let starts = std::mem::take(&mut self.shared.state().threads);
        for thread in listener.into_iter().chain(starts) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

/// What it takes to receive starts and follow them.
struct Ready {
    library: PathBuf,
    execs: Execs,
}

impl Ready {
    fn new(config: &Config, learnt: &[Learnt]) -> Result<Self> {
        kernel_tells().map_err(cannot_listen)?;
        let library = policies::look_up(Path::new(POLICY)).map_err(|missing| Refusal {
            kind: RefusalKind::NotFound,
            message: missing.to_string(),
            remedy: None,
        })?;
        let library = trust::check(&library, nix::unistd::geteuid().as_raw())?;
        let told = told(config, learnt.iter());
        let execs = Execs::open(&told, config.learn).map_err(cannot_listen)?;
        Ok(Self { library, execs })
    }
}

fn cannot_listen(source: io::Error) -> Error {
    Error::System {
        doing: "Watching for executed programs",
        source,
    }
}

/// The programs that the kernel is to report at once.
fn told<'a>(config: &Config, learnt: impl Iterator<Item = &'a Learnt>) -> Told {
    let rules = config.service.values();
    let ends = rules.map(|rule| rule.end_of_exe().map(str::to_owned));
    let Some(mut ends) = ends.collect::<Option<Vec<_>>>() else {
        return Told::All;
    };
    ends.extend(learnt.map(|it| it.end().to_owned()));
    ends.sort();
    ends.dedup();
    Told::Ends(ends)
}

/// The name that the settings give a start, if any, as in `ppcctl run`.
fn said_name(settings: &Settings) -> Option<String> {
    let by_id = || Some(format!("start-{}", settings.get("service-id")?));
    settings.get("start").cloned().or_else(by_id)
}

impl State {
    fn apply(&mut self, config: Config, learnt: Vec<Learnt>) {
        let wanted = |name: &String| {
            config.service.contains_key(name) || learnt.iter().any(|it| it.name == *name)
        };
        for it in &self.under_way {
            if let Some(handle) = it.handle.as_ref().filter(|_| !wanted(&it.service)) {
                handle.exit();
            }
        }
        let mut before = std::mem::take(&mut self.known);
        let names = config.service.keys().cloned().map(|name| (name, None));
        let learnt = learnt.into_iter().map(|it| (it.name.clone(), Some(it)));
        for (name, learnt) in names.chain(learnt) {
            let mut known = before.remove(&name).unwrap_or_default();
            known.learnt = learnt;
            known.forgive();
            self.known.insert(name, known);
        }
        self.off = None;
        if !config.nri.socket.as_os_str().is_empty() {
            self.memory = Memory::read(&config.nri.containers);
        }
        self.config = config;
    }

    /// Whether to record and load this start of a service; if not, the status says why.
    fn is_attended_to(&mut self, service: &str, start: &str, life: facts::Life) -> bool {
        let Some(known) = self.known.get_mut(service) else {
            return false;
        };
        let left_out = match known.refusal(start) {
            Some(refusal) => Some(refusal),
            None => match self.pace.begin(start, Instant::now()) {
                Verdict::Attend => None,
                verdict => Some(verdict.reason().to_owned()),
            },
        };
        known.begins(life, start, left_out)
    }

    /// A start that was followed is over, or its worker has failed.
    fn over(&mut self, service: &str, start: &str, process: u32, failed: bool) {
        self.pace.over(start);
        self.under_way.retain(|it| it.process != process);
        if let Some(known) = self.known.get_mut(service) {
            known.totals.over(process, failed, Instant::now());
        }
    }

    /// The service that a process starts: a configured one, or else one that was learned.
    fn service_of(&self, facts: &Facts, start: &str) -> Option<String> {
        let arguments: Vec<_> = facts.words().collect();
        let executed = Executed {
            program: &facts.program,
            arguments: &arguments.join(" "),
            cgroup: &facts.cgroup,
        };
        let mut rules = self.config.service.iter();
        let image = || facts.image_name();
        let rule = rules.find(|(_, rule)| rule.is_started_by(&executed) && rule.is_of_image(image));
        let learnt = || self.known.get(start).is_some_and(|it| it.learnt.is_some());
        rule.map(|(name, _)| name.clone())
            .or_else(|| learnt().then(|| start.to_owned()))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It can only fail if it is set already.
        let _ = self.wake.write(1);
    }

    /// Has a worker stand by for the next start, unless one does.
    fn stand_by(&self) -> Result<()> {
        if self.state().standby.is_some() {
            return Ok(());
        }
        let loaded = self.load()?;
        let mut state = self.state();
        if state.ending || state.standby.is_some() {
            drop(state);
            loaded.put_down();
        } else {
            state.standby = Some(loaded);
        }
        Ok(())
    }

    /// Stops watching for executed programs.
    fn rest(&self) {
        let standby = {
            let mut state = self.state();
            state.execs = None;
            state.standby.take()
        };
        if let Some(standby) = standby {
            standby.put_down();
        }
    }

    /// Gives up all services, for this reason.
    fn switch_off(&self, why: &str) {
        log::warn!("Starts of services are neither recorded nor loaded ahead: {why}");
        self.rest();
        self.state().off = Some(why.to_owned());
    }

    /// A worker failed: after repeated failures, the service gets no more workers.
    fn failed(&self, service: &str, fault: &str) {
        log::error!("The start of {service} continues without a worker: {fault}");
        if let Some(known) = self.state().known.get_mut(service) {
            known.failed(fault);
        }
    }

    /// Finds services that already ran when they were configured, for the status.
    fn find_running(&self) {
        let all = facts::of_all();
        let mut state = self.state();
        let mut found: BTreeMap<String, Vec<facts::Life>> = BTreeMap::new();
        for facts in all {
            let start = facts.start_name();
            if let Some(service) = state.service_of(&facts, &start) {
                found.entry(service).or_default().push(facts.life);
            }
        }
        for (service, lives) in found {
            let others: Vec<_> = lives.iter().map(|it| it.process).collect();
            let is_first =
                |it: &facts::Life| !facts::ancestors(it.process).any(|one| others.contains(&one));
            if let Some(known) = state.known.get_mut(&service) {
                known.run(lives.into_iter().filter(is_first));
            }
        }
    }

    /// Runs the thread that receives executed programs.
    fn run(self: &Arc<Self>) {
        loop {
            let (execs, looks) = {
                let state = self.state();
                if state.ending {
                    return;
                }
                (state.execs.clone(), state.config.learn)
            };
            if let Err(error) = self.sleep(execs.as_deref(), looks) {
                return self.switch_off(&error.to_string());
            }
            // A container is reported before its program is executed.
            for news in self.inbox.take() {
                self.hear_container(news);
            }
            let mut all = execs.map(|it| it.take()).unwrap_or_default();
            for exec in all.drain(..) {
                self.hear(&exec);
            }
            self.learn();
        }
    }

    fn sleep(&self, execs: Option<&Execs>, looks: bool) -> io::Result<()> {
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        fds.extend(execs.map(|it| PollFd::new(it.ready(), PollFlags::POLLIN)));
        let timeout = looks.then(|| PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::MAX));
        match poll(&mut fds, timeout.unwrap_or(PollTimeout::NONE)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Clears the wakeup; it does not matter whether there was one.
        let _ = self.wake.read();
        Ok(())
    }

    /// A program has been executed.
    fn hear(self: &Arc<Self>, exec: &Exec) {
        if let Some(facts) = facts::of(exec.process, &exec.path) {
            self.consider(facts);
        }
    }

    /// A process executes a program, or is about to: follows it if that starts a service.
    fn consider(self: &Arc<Self>, facts: Facts) {
        let process = facts.life.process;
        let start = facts.start_name();
        let mut state = self.state();
        let Some(service) = state.service_of(&facts, &start) else {
            // A container's program is reported when it is executed, too.
            if state.config.learn && facts.container.is_none() {
                state
                    .learning
                    .seen(&start, &facts.program, facts.life, Instant::now());
            }
            return;
        };
        let under_way: Vec<_> = state.under_way.iter().map(|it| it.process).collect();
        if facts::is_attended(process, &under_way) {
            return;
        }
        let rule = state.config.service.get(&service);
        let rule = rule.cloned().unwrap_or_default();
        let start = said_name(&rule.settings).unwrap_or(start);
        state.remember(&facts, &service, &start);
        if !state.is_attended_to(&service, &start, facts.life) {
            return;
        }
        state.under_way.push(UnderWay {
            service: service.clone(),
            process,
            container: facts.container.as_ref().map(|it| it.id.clone()),
            handle: None,
            stopped: false,
        });
        // Where memory is short, the kernel may have killed it.
        let standby = state.standby.take().and_then(LoadedWorker::if_alive);
        drop(state);
        if let Some(standby) = &standby {
            // Before all else: the process does not wait.
            standby.follow(process);
        }
        let plan = Plan {
            service,
            start,
            facts,
            rule,
        };
        self.begin(plan, standby);
    }

    fn begin(self: &Arc<Self>, plan: Plan, standby: Option<LoadedWorker>) {
        let (shared, process) = (Arc::clone(self), plan.facts.life.process);
        let (service, name) = (plan.service.clone(), plan.start.clone());
        let begun = start::thread("start", move || start::attend(&shared, &plan, standby));
        if !self.keep(begun) {
            self.state().over(&service, &name, process, true);
        }
    }

    /// Keeps a thread until it has ended; false if it could not be started.
    fn keep(&self, thread: Result<JoinHandle<()>>) -> bool {
        let mut state = self.state();
        state.threads.retain(|thread| !thread.is_finished());
        match thread {
            Ok(thread) => state.threads.push(thread),
            Err(error) => {
                log::error!("{}", crate::error::chain(&error));
                return false;
            }
        }
        true
    }

    /// Looks at processes that may be learned from.
    fn learn(self: &Arc<Self>) {
        let told = {
            let mut state = self.state();
            if !state.config.learn {
                return;
            }
            let read = |life: facts::Life| {
                let bytes = facts::bytes_read(life.process);
                bytes.filter(|_| life.is_there())
            };
            let new = state.learning.look(Instant::now(), read);
            if new.is_empty() {
                return;
            }
            for one in new {
                log::info!("Learned of {}, which starts often and reads much", one.name);
                known::add(&mut state.known, one);
            }
            known::write(&state.config.learnt, &state.known);
            let learnt = state.known.values().filter_map(|it| it.learnt.as_ref());
            told(&state.config, learnt)
        };
        match Execs::open(&told, true) {
            Ok(execs) => self.state().execs = Some(Arc::new(execs)),
            // Programs that were known before are still reported.
            Err(error) => log::warn!("Watching for learned programs: {error}"),
        }
    }

    fn status(&self) -> Option<ServicesStatus> {
        let state = self.state();
        let wanted = state.config.learn || !state.config.service.is_empty();
        wanted.then(|| ServicesStatus {
            off: state.off.clone(),
            learn: state.config.learn,
            known: state
                .known
                .iter()
                .map(|(name, it)| it.status(name))
                .collect(),
        })
    }
}
