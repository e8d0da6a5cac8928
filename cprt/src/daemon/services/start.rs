//! A start of a service, from when its program is executed until reading has come to rest or its processes have ended.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::facts::{self, Facts};
use super::{POLICY, Registry, Shared};
use crate::control::config::ConfiguredService;
use crate::control::loads::LoadTotals;
use crate::control::protocol::{Settings, StartPhase, StartStatus};
use crate::control::stats::Stats;
use crate::daemon::trust::Trusted;
use crate::worker::handle::{
    self, LoadedWorker, RunningWorker, WorkerEnd, WorkerHandle, WorkerNews,
};
use crate::worker::keeper::{self, Keeper, Owner};
use crate::worker::messages::{BackendSource, Job};
use crate::worker::stop::Stop;
use crate::{Error, Result};

/// How often to look whether it is the model's turn.
const SOON: Duration = Duration::from_millis(20);
/// How often to look at the progress of a start, or whether its process is still there.
const TICK: Duration = Duration::from_millis(500);
/// Percent of what the last start read. If a start ends before reading comes to rest and has read less, the policy
/// does not keep it: a process that dies half-way predicts nothing about the next.
const LEAST: &str = "50";

/// A start to follow.
pub(super) struct Plan {
    pub(super) service: String,
    /// Its name.
    pub(super) start: String,
    pub(super) facts: Facts,
    pub(super) rule: ConfiguredService,
}

pub(super) fn thread(
    name: &'static str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(512 << 10)
        .spawn(run)
        .map_err(|source| Error::System {
            doing: "Starting a thread",
            source,
        })
}

/// Runs the thread of a start.
pub(super) fn attend(shared: &Arc<Shared>, plan: &Plan, standby: Option<LoadedWorker>) {
    let ended = follow(shared, plan, standby);
    shared.over(plan, ended.as_ref().err());
    // The service has come to rest, so loading the next worker does not disturb it.
    if shared.is_on()
        && let Err(error) = shared.stand_by()
    {
        shared.switch_off(&crate::error::chain(&error));
    }
    match ended {
        Ok(Some(model)) => model.stay(shared, plan),
        Ok(None) => {}
        Err(error) => shared.failed(&plan.service, &crate::error::chain(&error)),
    }
}

/// Has a worker record a start and load what is known of it, until it is over. Returns the model's loader, if any.
fn follow(
    shared: &Arc<Shared>,
    plan: &Plan,
    standby: Option<LoadedWorker>,
) -> Result<Option<Model>> {
    let late = || -> Result<LoadedWorker> {
        let loaded = shared.load()?;
        loaded.follow(plan.facts.life.process);
        Ok(loaded)
    };
    let loaded = standby.map_or_else(late, Ok)?;
    let model = facts::model_of(&plan.facts, plan.rule.model.as_deref());
    let model = model.as_deref();
    let log = |level, message: String| shared.hear_policy(plan, level, &message);
    let RunningWorker {
        handle, process, ..
    } = loaded.go(plan.settings(model), log)?;
    shared.begun(plan, &handle);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch(shared, plan, model, &handle));
        let end = process.attend(&handle, true, |news| match news {
            WorkerNews::Log { level, message } => shared.hear_policy(plan, level, &message),
            WorkerNews::Counted(stats) => shared.counted(plan, &stats),
            WorkerNews::Reported(load) => reported(&shared.registry, &plan.service, &load),
            WorkerNews::Unmounted => handle.exit(),
            // Its cgroup is the service's own affair: systemd would take a worker in it for a part of the service.
            WorkerNews::Reader { .. } | WorkerNews::Guest(_) | WorkerNews::IsGuest => {}
        });
        // A thread that panics has reported it.
        let model = watching.join().unwrap_or_default();
        match end {
            WorkerEnd::Told => Ok(model),
            WorkerEnd::Fault(fault) | WorkerEnd::Killed(fault) => Err(Error::Protocol(fault)),
        }
    })
}

/// Keeps count of loads while the worker is there, and has the model loaded after the rest of the start.
fn watch(
    shared: &Arc<Shared>,
    plan: &Plan,
    model: Option<&Path>,
    handle: &WorkerHandle,
) -> Option<Model> {
    let mut model = model.and_then(|directory| Model::find(shared, plan, directory));
    let mut waits = model.is_some();
    while let Some(stats) = handle.stats() {
        shared.counted(plan, &stats);
        let loads = stats.queued_bytes + stats.in_flight_bytes > 0;
        if !loads {
            shared.loaded(plan);
        }
        if waits && !loads {
            waits = false;
            if let Some(model) = &mut model {
                model.begin_behind();
            }
        }
        std::thread::sleep(if loads || waits { SOON } else { TICK });
    }
    model
}

impl Plan {
    /// The policy's settings for this start.
    fn settings(&self, model: Option<&Path>) -> Settings {
        let mut settings = Settings::from([
            ("start".to_owned(), self.start.clone()),
            ("least".to_owned(), LEAST.to_owned()),
        ]);
        if let Some(model) = model {
            settings.insert("without".to_owned(), model.display().to_string());
        }
        settings.extend(self.rule.settings.clone());
        settings
    }
}

impl Shared {
    pub(super) fn job(&self, at: PathBuf, source: BackendSource, settings: Settings) -> Job {
        let state = self.state();
        let library = state.library.clone();
        Job::new(
            at,
            source,
            library,
            settings,
            None,
            &self.topology,
            &state.config,
        )
    }

    /// A worker that waits for a start.
    pub(super) fn load(&self) -> Result<LoadedWorker> {
        let source = BackendSource::Start { parent: None };
        let job = self.job("/".into(), source, Settings::new());
        let library = Trusted::open(&job.library, nix::unistd::geteuid().as_raw())?;
        handle::load(
            &job,
            &library,
            Box::new(|line| log::info!("{POLICY} of starts prints: {line}")),
            Arc::new(Stop::new()?),
        )
    }

    fn is_on(&self) -> bool {
        let state = self.state();
        state.off.is_none() && !state.ending && state.execs.is_some()
    }

    fn begun(&self, plan: &Plan, handle: &Arc<WorkerHandle>) {
        let mut state = self.state();
        // A reload may have removed the service by now.
        let is_known = state.known.contains_key(&plan.service);
        if state.ending || !is_known {
            handle.exit();
        }
        let process = plan.facts.life.process;
        let under_way = state.under_way.iter_mut();
        for it in under_way.filter(|it| it.process == process) {
            it.handle = Some(Arc::clone(handle));
            if it.stopped {
                handle.exit();
            }
        }
        if let Some(known) = state.known.get_mut(&plan.service) {
            known.totals.ready(process, Instant::now());
        }
        drop(state);
        self.last_of(plan, |last| last.phase = StartPhase::UnderWay);
        let (start, service) = (&plan.start, &plan.service);
        log::info!("{service} starts: process {process}, start {start}");
    }

    fn over(&self, plan: &Plan, error: Option<&Error>) {
        let process = plan.facts.life.process;
        self.state()
            .over(&plan.service, &plan.start, process, error.is_some());
        self.last_of(plan, |last| {
            last.phase = StartPhase::Over;
            if let Some(error) = error {
                last.phase = StartPhase::Failed;
                last.said = Some(crate::error::chain(error));
            }
        });
    }

    /// Changes the status of a start.
    fn last_of(&self, plan: &Plan, change: impl FnOnce(&mut StartStatus)) {
        let mut state = self.state();
        let known = state.known.get_mut(&plan.service);
        let process = plan.facts.life.process;
        let last = known.and_then(|known| known.last.as_mut());
        if let Some(last) = last.filter(|last| last.process == process) {
            change(last);
        }
    }

    /// All has been loaded that was known to be read.
    fn loaded(&self, plan: &Plan) {
        if let Some(known) = self.state().known.get_mut(&plan.service) {
            known.totals.loaded(plan.facts.life.process, Instant::now());
        }
    }

    /// Two threads count: the one that asks from time to time, and the one that receives the worker's last report.
    fn counted(&self, plan: &Plan, stats: &Stats) {
        let cached = stats.load_bytes.saturating_sub(stats.loaded_bytes);
        if let Some(known) = self.state().known.get_mut(&plan.service) {
            let process = plan.facts.life.process;
            known.totals.counted(process, stats.loaded_bytes, cached);
        }
        self.last_of(plan, |last| {
            last.loaded_bytes = last.loaded_bytes.max(stats.loaded_bytes);
            last.cached_bytes = last.cached_bytes.max(cached);
        });
    }

    /// Logs a line of a start's policy.
    fn hear_policy(&self, plan: &Plan, level: u32, message: &str) {
        tell(&plan.service, level, message);
        if level <= 3 {
            self.last_of(plan, |last| last.said = Some(message.to_owned()));
        }
    }
}

fn tell(service: &str, level: u32, message: &str) {
    let severity = match level {
        0 | 1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        _ => log::Level::Debug,
    };
    log::log!(severity, "Start of {service}: {message}");
}

/// What loads the model of a service.
enum Model {
    /// The daemon's own worker, because no policy is registered for the directory.
    Own(Keeper),
    /// The worker of the policy that is registered for the directory.
    Registered(Arc<WorkerHandle>),
}

/// Receives what the keeper of a model's policy reports.
struct ModelOwner {
    service: String,
    registry: Weak<Registry>,
}

/// Counts a load as one of this service, by whatever ID the policy knows it.
fn reported(registry: &Weak<Registry>, service: &str, load: &LoadTotals) {
    if let Some(registry) = registry.upgrade() {
        registry.reported(&LoadTotals {
            service: service.to_owned(),
            ..load.clone()
        });
    }
}

impl Model {
    fn find(shared: &Arc<Shared>, plan: &Plan, directory: &Path) -> Option<Self> {
        let registry = shared.registry.upgrade()?;
        if let Some(handle) = registry.handle_of(directory) {
            return Some(Self::Registered(handle));
        }
        let mut settings = plan.rule.settings.clone();
        // These concern the start, not the model.
        for key in ["start", "least", "without"] {
            settings.remove(key);
        }
        let process = plan.facts.life.process.to_string();
        settings.entry("process".to_owned()).or_insert(process);
        let job = shared.job(directory.to_owned(), BackendSource::OBSERVE, settings);
        let owner: Arc<dyn Owner> = Arc::new(ModelOwner {
            service: plan.service.clone(),
            registry: Weak::clone(&shared.registry),
        });
        let started = keeper::load(&job, &owner).and_then(|it| Keeper::start(it, job, owner));
        match started {
            Ok(keeper) => Some(Self::Own(keeper)),
            Err(error) => {
                let (service, why) = (&plan.service, crate::error::chain(&error));
                log::warn!("The model of {service} is not loaded ahead: {why}");
                None
            }
        }
    }

    /// Has the model loaded before it is opened, in the background: what the service imports and no earlier start has
    /// read would wait for the weights.
    fn begin_behind(&self) {
        let settings = Settings::from([("begin".to_owned(), "early".to_owned())]);
        // A policy that failed, or that knows no such setting, begins when the model is opened.
        let _ = match self {
            Self::Own(keeper) => keeper.configure(&settings),
            Self::Registered(handle) => handle.configure(&settings),
        };
    }

    /// Keeps our worker for the model: the service may read on when its start is over.
    fn stay(self, shared: &Shared, plan: &Plan) {
        let Self::Own(keeper) = self else { return };
        let is_wanted = || {
            let state = shared.state();
            !state.ending && state.known.contains_key(&plan.service)
        };
        while plan.facts.life.is_there() && is_wanted() {
            std::thread::sleep(TICK);
        }
        keeper.stop();
        keeper.join();
    }
}

impl Owner for ModelOwner {
    fn log(&self, _: &str, level: u32, message: &str) {
        tell(&self.service, level, message);
    }

    fn reported(&self, load: &LoadTotals) {
        reported(&self.registry, &self.service, load);
    }

    fn printed(&self, line: &str) {
        log::info!("{POLICY} of the model of {} prints: {line}", self.service);
    }

    fn failed(&self, _: &str, fault: &str, never: Option<&str>) {
        let next = never.unwrap_or("starting it again");
        log::error!(
            "The policy of the model of {} failed: {fault}; {next}",
            self.service
        );
    }
}
