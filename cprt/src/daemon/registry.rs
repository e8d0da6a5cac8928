//! The supervisor: which mount has which policy, and a worker for each.
//!
//! A mount that has had a policy since the daemon started has a [`Seat`]. Registering loads the
//! library in a new worker while the old one goes on; only then does the old one end and the new one
//! take the device. If the new one refuses, the old policy comes back.
//!
//! A keeper thread listens to each worker. When one ends that was not told to, its mount is native
//! until the keeper has started another, a little later each time; after three in a minute it stays
//! native and says why. What is registered is written down, so that a daemon that comes back picks
//! it up again.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::control::config::Config;
use crate::control::kind::BackendKind;
use crate::control::protocol::{
    EventLine, Mount, MountStats, PolicyStatus, Settings, State, Status,
};
use crate::error::{Refusal, RefusalKind};
use crate::machine::memory::{self, Roots};
use crate::machine::mountinfo::{self, Changes};
use crate::worker::handle::{self, Ear, End, Hand, Heard, Running};
use crate::worker::messages::{Job, Source};
use crate::{Error, Result};

use super::crashes::{Crashes, Verdict};
use super::site::Site;
use super::state::{Registration, Registrations};
use super::{site, state, trust};

/// Lines of a policy's log that status shows.
const LINES: usize = 10;

/// The supervisor.
pub(crate) struct Supervisor {
    config: Config,
    topology: String,
    roots: Roots,
    started: Instant,
    seats: Mutex<BTreeMap<PathBuf, Arc<Seat>>>,
}

/// What somebody wants registered.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) mount: PathBuf,
    pub(crate) library: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) cgroup: Option<PathBuf>,
    /// Without it, what is there has to be a mount of rfs.
    pub(crate) backend: Option<BackendKind>,
}

/// A mount, for as long as it has a policy.
struct Seat {
    path: PathBuf,
    /// One change at a time.
    changing: Mutex<()>,
    sitting: Mutex<Sitting>,
    changed: Condvar,
}

/// Who sits there.
#[derive(Default)]
struct Sitting {
    site: Option<Site>,
    registration: Option<Registration>,
    /// Of the registration: whoever finds another one than they know has been replaced.
    generation: u64,
    hand: Option<Arc<Hand>>,
    keeper: Option<JoinHandle<()>>,
    name: String,
    version: String,
    backend: String,
    features: Vec<String>,
    cgroup: Option<PathBuf>,
    waits: bool,
    failed: bool,
    unmounted: bool,
    crashes: Crashes,
    log: VecDeque<String>,
}

impl Supervisor {
    pub(crate) fn new(config: Config, topology: String) -> Self {
        Self {
            config,
            topology,
            roots: Roots::default(),
            started: Instant::now(),
            seats: Mutex::default(),
        }
    }

    fn seats(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives what was registered before back its policies, and then what the configuration names.
    pub(crate) fn restore(self: &Arc<Self>) {
        let before = state::read(&self.config.state).unwrap_or_else(|error| {
            log::error!("{}", crate::error::chain(&error));
            Registrations::new()
        });
        for (path, registration) in before {
            let same = match registration.source {
                Source::Module { device } => {
                    let found = mountinfo::rfs_at(&path);
                    found.is_ok_and(|found| found.is_some_and(|found| found.device == device))
                }
                Source::Observe | Source::Fuse { .. } => true,
            };
            if !same {
                log::info!(
                    "{} has been unmounted; its policy is forgotten",
                    path.display()
                );
                continue;
            }
            let done = self.register(Wanted {
                mount: path.clone(),
                library: registration.library,
                settings: registration.settings,
                cgroup: registration.cgroup,
                backend: Some(site::kind(&registration.source)),
            });
            tell(&path, done.as_ref().map(drop));
        }
        self.persist();
    }

    /// Registers what the configuration names for mounts, as they appear. Never returns but on an
    /// error.
    pub(crate) fn follow_mounts(self: &Arc<Self>) -> Result<()> {
        let mut changes = Changes::watch()?;
        let mut done: BTreeMap<&Path, Source> = BTreeMap::new();
        loop {
            self.forget_unmounted();
            for (path, registration) in &self.config.mount {
                let Ok(site) = Site::of(path, registration.backend, self.config.fuse) else {
                    continue;
                };
                // Once for each mount: what somebody registers or removes later stays so.
                let seated = self.is_seated(&site);
                if done.insert(path, site.source.clone()) == Some(site.source) || seated {
                    continue;
                }
                let registered = self.register(Wanted {
                    mount: path.clone(),
                    library: registration.policy.clone(),
                    settings: registration.settings.clone(),
                    cgroup: registration.cgroup.clone(),
                    backend: registration.backend,
                });
                tell(path, registered.as_ref().map(drop));
            }
            changes.wait().map_err(|source| Error::System {
                doing: "Waiting for mounts",
                source,
            })?;
        }
    }

    fn is_seated(&self, site: &Site) -> bool {
        let seat = self.seats().get(&site.path).cloned();
        seat.is_some_and(|seat| {
            let sitting = seat.sitting();
            let registration = sitting.registration.as_ref();
            registration.is_some_and(|it| it.source == site.source)
        })
    }

    /// Of a directory that is observed, nobody else says that it is gone.
    fn forget_unmounted(&self) {
        let gone = |seat: &Arc<Seat>| {
            let sitting = seat.sitting();
            sitting.site.as_ref().is_some_and(|site| !site.is_there())
        };
        let seats: Vec<_> = self.seats().values().cloned().collect();
        for seat in seats.into_iter().filter(gone) {
            let _changing = seat.changing.lock().unwrap_or_else(PoisonError::into_inner);
            if gone(&seat) {
                log::info!("{} has been unmounted", seat.path.display());
                seat.vacate();
                self.seats().remove(&seat.path);
                self.persist();
            }
        }
    }

    /// Gives a mount a policy, instead of the one it has.
    pub(crate) fn register(self: &Arc<Self>, wanted: Wanted) -> Result<Mount> {
        let site = Site::of(&wanted.mount, wanted.backend, self.config.fuse)?;
        let library = trust::check(&wanted.library, nix::unistd::geteuid().as_raw())?;
        let cgroup = wanted
            .cgroup
            .map(|name| self.roots.resolve(&name))
            .transpose()?;
        let registration = Registration {
            source: site.source.clone(),
            library,
            settings: wanted.settings,
            cgroup,
        };
        let seat = self.seat(&site.path);
        let _changing = seat.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = self.load(&seat, &registration)?;
        // The library is sound; from here on the mount is native for a moment.
        let before = seat.vacate();
        match Self::go(&seat, &registration, loaded) {
            Ok(running) => self.install(&seat, registration, running, Crashes::default()),
            Err(error) => {
                if let Some(before) = before {
                    self.bring_back(&seat, before);
                } else {
                    self.seats().remove(&seat.path);
                }
                return Err(error);
            }
        }
        seat.sitting().site = Some(site.clone());
        self.persist();
        Ok(seat.mount(&site))
    }

    fn bring_back(self: &Arc<Self>, seat: &Arc<Seat>, before: Registration) {
        let again = self
            .load(seat, &before)
            .and_then(|loaded| Self::go(seat, &before, loaded));
        match again {
            Ok(running) => self.install(seat, before, running, Crashes::default()),
            Err(error) => {
                log::error!(
                    "The policy that {} had does not come back: {}",
                    seat.path.display(),
                    crate::error::chain(&error)
                );
                self.seats().remove(&seat.path);
                self.persist();
            }
        }
    }

    /// Takes a mount's policy away.
    pub(crate) fn remove(&self, mount: &Path) -> Result<Mount> {
        let site = self.find(mount)?;
        let seat = self.seated(&site.path)?;
        let _changing = seat.changing.lock().unwrap_or_else(PoisonError::into_inner);
        seat.vacate();
        self.seats().remove(&seat.path);
        self.persist();
        Ok(site.native())
    }

    /// Changes settings of a running policy.
    pub(crate) fn configure(&self, mount: &Path, settings: &Settings) -> Result<Mount> {
        let site = self.find(mount)?;
        let seat = self.seated(&site.path)?;
        let _changing = seat.changing.lock().unwrap_or_else(PoisonError::into_inner);
        seat.hand()?.configure(settings)?;
        if let Some(registration) = &mut seat.sitting().registration {
            registration.settings.extend(settings.clone());
        }
        self.persist();
        Ok(seat.mount(&site))
    }

    /// How things are, everywhere or at one mount.
    pub(crate) fn status(&self, mount: Option<&Path>) -> Result<Status> {
        let mut sites = match mount {
            Some(mount) => vec![self.find(mount)?],
            None => mountinfo::all_rfs()?.into_iter().map(Site::from).collect(),
        };
        if mount.is_none() {
            let seats: Vec<_> = self.seats().values().cloned().collect();
            let others = seats.iter().filter_map(|seat| seat.sitting().site.clone());
            sites.extend(others.filter(|site| !matches!(site.source, Source::Module { .. })));
            sites.sort_by(|a, b| a.path.cmp(&b.path));
        }
        let mounts = sites.iter().map(|site| {
            let seat = self.seats().get(&site.path).cloned();
            seat.map_or_else(|| site.native(), |seat| seat.mount(site))
        });
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            mounts: mounts.collect(),
        })
    }

    /// A mount of rfs, or a directory that has a policy.
    fn find(&self, path: &Path) -> Result<Site> {
        if let Some(found) = mountinfo::rfs_at(path)? {
            return Ok(found.into());
        }
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let seat = self.seats().get(&real).cloned();
        let site = seat.and_then(|seat| seat.sitting().site.clone());
        site.ok_or_else(|| site::no_mount(path).into())
    }

    /// The counters of workers, those that run.
    pub(crate) fn stats(&self, mount: Option<&Path>) -> Result<Vec<MountStats>> {
        let seats: Vec<_> = match mount {
            Some(mount) => {
                let seat = self.seated(&self.find(mount)?.path)?;
                seat.hand()?;
                vec![seat]
            }
            None => self.seats().values().cloned().collect(),
        };
        let counters = seats.iter().filter_map(|seat| {
            // Not in the structure: the lock would be held to its end, and hand() takes it, too.
            let policy = seat.sitting().name.clone();
            let counted = seat.hand().ok()?.stats()?;
            Some(MountStats {
                path: seat.path.clone(),
                policy,
                stats: counted,
            })
        });
        Ok(counters.collect())
    }

    /// What readers of a mount do, as it is told to its policy.
    pub(crate) fn events(&self, mount: &Path) -> Result<Receiver<EventLine>> {
        let hand = self.seated(&self.find(mount)?.path)?.hand()?;
        let (to, from) = sync_channel(4096);
        hand.events(to);
        Ok(from)
    }

    /// Ends all workers in good order. What is registered stays written down.
    pub(crate) fn end(&self) {
        let seats: Vec<_> = self.seats().values().cloned().collect();
        let ends: Vec<_> = seats.iter().map(|seat| seat.dismiss()).collect();
        for keeper in ends.into_iter().flatten() {
            // One that panicked has said so.
            let _ = keeper.join();
        }
    }

    fn seat(&self, path: &Path) -> Arc<Seat> {
        let mut seats = self.seats();
        let seat = seats.entry(path.to_owned()).or_insert_with(|| {
            Arc::new(Seat {
                path: path.to_owned(),
                changing: Mutex::default(),
                sitting: Mutex::default(),
                changed: Condvar::new(),
            })
        });
        Arc::clone(seat)
    }

    fn seated(&self, path: &Path) -> Result<Arc<Seat>> {
        let seat = self.seats().get(path).cloned();
        // One that nobody has sat down on yet is none.
        seat.filter(|seat| seat.sitting().registration.is_some())
            .ok_or_else(|| no_policy(path).into())
    }

    fn persist(&self) {
        let seats: Vec<_> = self.seats().values().cloned().collect();
        let registrations: Registrations = seats
            .iter()
            .filter_map(|seat| Some((seat.path.clone(), seat.sitting().registration.clone()?)))
            .collect();
        if let Err(error) = state::write(&self.config.state, &registrations) {
            log::error!(
                "{}; a daemon that comes back will not know of the policies",
                crate::error::chain(&error)
            );
        }
    }

    fn load(&self, seat: &Arc<Seat>, registration: &Registration) -> Result<handle::Loaded> {
        let job = Job {
            mount: seat.path.clone(),
            source: registration.source.clone(),
            library: registration.library.clone(),
            settings: registration.settings.clone(),
            cgroup: registration.cgroup.clone(),
            topology: self.topology.clone(),
            memory: self.config.memory,
            loader: self.config.loader,
            worker: self.config.worker,
        };
        let place = seat.path.display().to_string();
        let library = registration.library.display().to_string();
        let output = move |line| log::info!("{library} on {place} prints: {line}");
        handle::load(&job, Box::new(output))
    }

    fn go(
        seat: &Arc<Seat>,
        registration: &Registration,
        loaded: handle::Loaded,
    ) -> Result<Running> {
        if let Some(cgroup) = &registration.cgroup
            && let Err(error) = memory::join(cgroup, loaded.pid())
        {
            loaded.put_down();
            return Err(error);
        }
        {
            let mut sitting = seat.sitting();
            sitting.name.clone_from(&loaded.name);
            sitting.version.clone_from(&loaded.version);
            sitting.cgroup.clone_from(&registration.cgroup);
            sitting.log.clear();
        }
        loaded.go(|level, message| seat.log(level, message))
    }

    /// Sits it down, with a keeper.
    fn install(
        self: &Arc<Self>,
        seat: &Arc<Seat>,
        registration: Registration,
        running: Running,
        crashes: Crashes,
    ) {
        let Running {
            backend,
            features,
            hand,
            ear,
            ..
        } = running;
        let generation = {
            let mut sitting = seat.sitting();
            sitting.generation += 1;
            sitting.registration = Some(registration);
            (sitting.waits, sitting.failed, sitting.unmounted) = (false, false, false);
            sitting.crashes = crashes;
            sitting.sit(&hand, backend, features);
            sitting.generation
        };
        // It may have been unmounted meanwhile, and the seat with it.
        self.seats().insert(seat.path.clone(), Arc::clone(seat));
        let (this, of) = (Arc::clone(self), Arc::clone(seat));
        let keeper = std::thread::Builder::new()
            .name("keeper".into())
            .stack_size(256 << 10)
            .spawn(move || this.keep(&of, generation, hand, ear));
        match keeper {
            Ok(keeper) => seat.sitting().keeper = Some(keeper),
            Err(error) => log::error!("Starting a thread: {error}"),
        }
    }

    /// The life of a keeper.
    fn keep(&self, seat: &Arc<Seat>, generation: u64, mut hand: Arc<Hand>, mut ear: Ear) {
        loop {
            let end = ear.listen(&hand, |heard| seat.heard(heard, &hand));
            let fault = {
                let mut sitting = seat.sitting();
                if sitting.generation != generation {
                    return;
                }
                sitting.hand = None;
                match end {
                    _ if sitting.unmounted => None,
                    End::Told => Some("it ended by itself".to_owned()),
                    End::Fault(fault) => Some(fault),
                }
            };
            let Some(fault) = fault else {
                log::info!("{} has been unmounted", seat.path.display());
                self.seats().remove(&seat.path);
                self.persist();
                return;
            };
            match self.restart(seat, generation, fault) {
                Some(running) => (hand, ear) = (running.hand, running.ear),
                None => return,
            }
        }
    }

    /// Another worker after a crash, unless there were too many or it is not wanted any more.
    fn restart(&self, seat: &Arc<Seat>, generation: u64, mut fault: String) -> Option<Running> {
        loop {
            let registration = seat.mourn(generation, &fault)?;
            let again = self
                .load(seat, &registration)
                .and_then(|loaded| Self::go(seat, &registration, loaded));
            match again {
                Err(error) => fault = crate::error::chain(&error),
                Ok(running) => {
                    let mut sitting = seat.sitting();
                    if sitting.generation != generation {
                        running.hand.exit();
                        drop(sitting);
                        let _ = running.ear.listen(&running.hand, |_| {});
                        return None;
                    }
                    let (backend, features) = (running.backend.clone(), running.features.clone());
                    sitting.waits = false;
                    sitting.sit(&running.hand, backend, features);
                    return Some(running);
                }
            }
        }
    }
}

impl Sitting {
    fn sit(&mut self, hand: &Arc<Hand>, backend: String, features: Vec<String>) {
        self.hand = Some(Arc::clone(hand));
        (self.backend, self.features) = (backend, features);
    }
}

impl Seat {
    fn sitting(&self) -> MutexGuard<'_, Sitting> {
        self.sitting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker, if it runs.
    fn hand(&self) -> Result<Arc<Hand>> {
        let hand = self.sitting().hand.clone();
        hand.ok_or_else(|| {
            Refusal {
                kind: RefusalKind::Failed,
                message: format!("The policy of {} does not run", self.path.display()),
                remedy: Some("'ppcctl status' says why".into()),
            }
            .into()
        })
    }

    /// Has who sits there end, but does not wait.
    fn dismiss(&self) -> Option<JoinHandle<()>> {
        let mut sitting = self.sitting();
        sitting.generation += 1;
        if let Some(hand) = sitting.hand.take() {
            hand.exit();
        }
        self.changed.notify_all();
        sitting.keeper.take()
    }

    /// Has who sits there end, waits, and returns what it was.
    fn vacate(&self) -> Option<Registration> {
        if let Some(keeper) = self.dismiss() {
            // One that panicked has said so.
            let _ = keeper.join();
        }
        self.sitting().registration.take()
    }

    /// A policy has failed: says so, and waits until another worker may be started. `None` if none
    /// is to be.
    fn mourn(&self, generation: u64, fault: &str) -> Option<Registration> {
        let mut sitting = self.sitting();
        if sitting.generation != generation {
            return None;
        }
        let verdict = sitting.crashes.add(Instant::now(), fault);
        let (name, path) = (sitting.name.clone(), self.path.display());
        let wait = match verdict {
            Verdict::Again(wait) => {
                log::error!("Policy {name} on {path} failed: {fault}; it is started again");
                sitting.waits = true;
                wait
            }
            Verdict::Never(reason) => {
                log::error!(
                    "Policy {name} on {path} failed: {fault}; {reason}, so the mount stays native \
                     until a policy is registered"
                );
                sitting.failed = true;
                return None;
            }
        };
        let (sitting, _) = self
            .changed
            .wait_timeout_while(sitting, wait, |sitting| sitting.generation == generation)
            .unwrap_or_else(PoisonError::into_inner);
        if sitting.generation != generation {
            return None;
        }
        sitting.registration.clone()
    }

    fn heard(&self, heard: Heard, hand: &Hand) {
        match heard {
            Heard::Log { level, message } => self.log(level, message),
            Heard::Reader {
                process,
                join,
                cgroup,
            } => {
                if let Some(cgroup) = cgroup.as_ref().filter(|_| join)
                    && let Err(error) = memory::join(cgroup, hand.pid)
                {
                    let error = crate::error::chain(&error);
                    self.log(2, format!("The worker stays in its own cgroup: {error}"));
                }
                log::debug!("{}: the first reader is {process}", self.path.display());
                self.sitting().cgroup = cgroup;
            }
            Heard::Unmounted => {
                self.sitting().unmounted = true;
                hand.exit();
            }
        }
    }

    /// What a policy or its worker says.
    fn log(&self, level: u32, message: String) {
        let mut sitting = self.sitting();
        let severity = match level {
            0 | 1 => log::Level::Error,
            2 => log::Level::Warn,
            3 => log::Level::Info,
            _ => log::Level::Debug,
        };
        log::log!(
            severity,
            "Policy {} on {}: {message}",
            sitting.name,
            self.path.display()
        );
        if severity <= log::Level::Warn {
            if sitting.log.len() == LINES {
                sitting.log.pop_front();
            }
            sitting.log.push_back(message);
        }
    }

    fn mount(&self, site: &Site) -> Mount {
        let sitting = self.sitting();
        let Some(registration) = &sitting.registration else {
            return site.native();
        };
        let state = if sitting.failed {
            State::Failed
        } else if sitting.waits || sitting.hand.is_none() {
            State::Waiting
        } else {
            State::Running
        };
        Mount {
            state,
            reason: (state != State::Running)
                .then(|| sitting.crashes.reason())
                .flatten(),
            policy: Some(PolicyStatus {
                name: sitting.name.clone(),
                version: sitting.version.clone(),
                library: registration.library.clone(),
                settings: registration.settings.clone(),
                backend: sitting.backend.clone(),
                features: sitting.features.clone(),
                worker: sitting.hand.as_ref().map(|hand| hand.pid),
                cgroup: sitting.cgroup.clone(),
                crashes: sitting.crashes.count(),
                last_fault: sitting.crashes.last(),
                log: sitting.log.iter().cloned().collect(),
            }),
            ..site.native()
        }
    }
}

fn no_policy(path: &Path) -> Refusal {
    Refusal {
        kind: RefusalKind::NotFound,
        message: format!("{} has no policy", path.display()),
        remedy: Some(format!(
            "try 'ppcctl reg-policy {} LIBRARY'; the library null.so only looks on",
            path.display()
        )),
    }
}

fn tell(path: &Path, done: std::result::Result<(), &Error>) {
    match done {
        Ok(()) => log::info!("{} has its policy", path.display()),
        Err(error) => log::error!("{}: {}", path.display(), crate::error::chain(error)),
    }
}
