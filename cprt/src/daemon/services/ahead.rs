//! Loads the files of a container that is being made, before it has a process: what the last starts of its kind read,
//! from the layers and volumes where the container will find it.
//!
//! It is only a head start. Once the container has a process, its start is followed as any other: the worker of that
//! loads what is left, records, and loads the model.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::containers::{ContainerFacts, ContainerNews, Remembered};
use super::facts::{self, Facts};
use super::{POLICY, Shared, State, start};
use crate::control::protocol::Settings;
use crate::daemon::trust::Trusted;
use crate::machine::view;
use crate::worker::handle::{self, RunningWorker, WorkerEnd, WorkerHandle, WorkerNews};
use crate::worker::messages::BackendSource;
use crate::worker::stop::Stop;
use crate::{Error, Result};

/// How often to look whether all has been loaded.
const LOOK: Duration = Duration::from_millis(100);
/// How long a worker continues at most. If a container has not started by then, something else delays it.
const LONGEST: Duration = Duration::from_mins(1);
/// Upper bound on containers whose files are loaded at once: each takes a worker.
const AT_ONCE: usize = 4;

/// A container whose files are being loaded.
#[derive(Debug)]
pub(super) struct Ahead {
    container: String,
    layers: Vec<PathBuf>,
    pub(super) handle: Option<Arc<WorkerHandle>>,
    /// It is no longer needed.
    over: bool,
}

/// What a worker needs to know.
struct Plan {
    container: String,
    /// For people.
    name: String,
    service: String,
    settings: Settings,
    source: BackendSource,
    began: Instant,
}

impl State {
    /// Remembers how a container starts, for the next one of its kind. What it was taken for is given up if that was
    /// another image's: its tag has moved.
    pub(super) fn remember(&mut self, facts: &Facts, service: &str, start: &str) {
        let Some(container) = &facts.container else {
            return;
        };
        let layers = facts.layers();
        let is_other = |it: &&mut Ahead| it.container == container.id && it.layers != layers;
        for ahead in self.ahead.iter_mut().filter(is_other) {
            ahead.end();
        }
        let Some(kind) = container.kind().filter(|_| !layers.is_empty()) else {
            return;
        };
        if self.memory.add(kind, service, start, &layers) {
            self.memory.write(&self.config.nri.containers);
        }
    }

    /// How a container of this kind has started before, if its files should be loaded now.
    fn expected(&self, container: &ContainerFacts) -> Option<Remembered> {
        let found = self.memory.get(&container.kind()?)?;
        let is_known = self.known.contains_key(&found.service);
        let is_wanted = !self.ending && self.off.is_none() && self.ahead.len() < AT_ONCE;
        let is_expected = self.pace.expects(&found.start, Instant::now());
        (is_known && is_wanted && is_expected).then(|| found.clone())
    }
}

impl Ahead {
    fn end(&mut self) {
        self.over = true;
        if let Some(handle) = &self.handle {
            handle.exit();
        }
    }
}

impl Shared {
    /// The state of a container changes.
    pub(super) fn hear_container(self: &Arc<Self>, news: ContainerNews) {
        match news {
            ContainerNews::Created(container) => self.created(&container),
            ContainerNews::Started(container) => {
                if let Some(facts) = facts::of_container(container) {
                    self.consider(facts);
                }
            }
            ContainerNews::Stopped(container) => self.stopped(&container),
        }
    }

    /// Loads the files of a container of a kind that has started before.
    fn created(self: &Arc<Self>, container: &ContainerFacts) {
        let mut state = self.state();
        let Some(found) = state.expected(container) else {
            return;
        };
        let rule = state.config.service.get(&found.service);
        let mut settings = rule.map(|it| it.settings.clone()).unwrap_or_default();
        // There is nothing to record yet.
        settings.insert("record".to_owned(), "never".to_owned());
        settings.insert("start".to_owned(), found.start);
        state.ahead.push(Ahead {
            container: container.id.clone(),
            layers: found.layers.clone(),
            handle: None,
            over: false,
        });
        drop(state);
        let plan = Plan {
            began: Instant::now(),
            container: container.id.clone(),
            name: container.name.clone(),
            service: found.service,
            settings,
            source: BackendSource::Ahead {
                root: view::root_of(container.runtime),
                places: container.view(&found.layers),
            },
        };
        let shared = Arc::clone(self);
        if !self.keep(start::thread("ahead", move || shared.load_ahead(plan))) {
            self.forget_ahead(&container.id);
        }
    }

    /// A container has ended, or is about to: so is its start.
    fn stopped(&self, container: &str) {
        let mut state = self.state();
        let of_it = |it: &&mut Ahead| it.container == container;
        state.ahead.iter_mut().filter(of_it).for_each(Ahead::end);
        let under_way = state.under_way.iter_mut();
        for it in under_way.filter(|it| it.container.as_deref() == Some(container)) {
            it.stopped = true;
            if let Some(handle) = &it.handle {
                handle.exit();
            }
        }
    }

    /// Runs the thread of a worker that loads.
    fn load_ahead(self: &Arc<Self>, plan: Plan) {
        let (container, service) = (plan.container.clone(), plan.service.clone());
        if let Err(error) = self.try_ahead(plan) {
            let why = crate::error::chain(&error);
            log::warn!("The files of a container of {service} are not loaded ahead: {why}");
        }
        self.forget_ahead(&container);
    }

    fn forget_ahead(&self, container: &str) {
        self.state().ahead.retain(|it| it.container != container);
    }

    fn try_ahead(self: &Arc<Self>, plan: Plan) -> Result<()> {
        let job = self.job("/".into(), plan.source, plan.settings);
        let library = Trusted::open(&job.library, nix::unistd::geteuid().as_raw())?;
        let stop = Arc::new(Stop::new()?);
        let printed = Box::new(|line: String| log::info!("{POLICY} of a container prints: {line}"));
        let loaded = handle::load(&job, &library, printed, stop)?;
        let told = |level, line: String| log::debug!("{POLICY} of a container, {level}: {line}");
        let RunningWorker {
            handle, process, ..
        } = loaded.go(Settings::new(), told)?;
        if !self.is_expected_still(&plan.container, &handle) {
            handle.exit();
        }
        let mut bytes = 0;
        let end = std::thread::scope(|scope| {
            let watched = scope.spawn(|| until_loaded(&handle));
            let end = process.attend(&handle, true, |news| match news {
                WorkerNews::Log { level, message } => told(level, message),
                WorkerNews::Counted(stats) => bytes = stats.loaded_bytes,
                _ => {}
            });
            // A thread that panics has reported it.
            let _ = watched.join();
            end
        });
        let (mib, ms) = (bytes >> 20, plan.began.elapsed().as_millis());
        let (name, service) = (plan.name, plan.service);
        log::info!("{service}: {mib} MiB loaded for container {name} within {ms} ms");
        match end {
            WorkerEnd::Told => Ok(()),
            WorkerEnd::Fault(fault) | WorkerEnd::Killed(fault) => Err(Error::Protocol(fault)),
        }
    }

    /// Leaves the handle to those who may end the worker; false if it is over by now.
    fn is_expected_still(&self, container: &str, handle: &Arc<WorkerHandle>) -> bool {
        let mut state = self.state();
        let ending = state.ending;
        let mut ahead = state.ahead.iter_mut();
        let ahead = ahead.find(|it| it.container == container);
        ahead.is_some_and(|ahead| {
            ahead.handle = Some(Arc::clone(handle));
            !ahead.over && !ending
        })
    }
}

/// Ends the worker when all has been loaded that was known to be read.
fn until_loaded(handle: &WorkerHandle) {
    let until = Instant::now() + LONGEST;
    let mut rests = false;
    while let Some(stats) = handle.stats() {
        let is_idle = stats.queued_bytes + stats.in_flight_bytes == 0;
        // A policy that names more ranges than fit into a plan names the rest at once after it.
        if (is_idle && rests) || Instant::now() >= until {
            break;
        }
        rests = is_idle;
        std::thread::sleep(LOOK);
    }
    handle.exit();
}
