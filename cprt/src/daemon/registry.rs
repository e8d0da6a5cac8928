//! Which mount has which policy, and a worker for each.
//!
//! A mount that has had a policy since the daemon started has a [`Slot`]. Registering loads the
//! library in a new worker while the old one continues; only then does the old one end and the new one
//! take the device. If the new one refuses, the registry starts the old policy again.
//!
//! A [`Keeper`] restarts a worker that fails; while it waits to do so, and when it has given up, the
//! mount is native. Registrations are saved, so that a restarted daemon picks them up again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::owner::SlotOwner;
use super::site::Site;
use super::state::{Registration, Registrations};
use super::{site, state, trust};
use crate::control::config::Config;
use crate::control::kind::BackendKind;
use crate::control::loads::{LoadTable, LoadTotals};
use crate::control::protocol::{
    EventLine, MountState, MountStats, MountStatus, PolicyStatus, Settings, Status,
};
use crate::error::{Refusal, RefusalKind};
use crate::machine::memory::Roots;
use crate::machine::{look, mountinfo};
use crate::worker::handle::{self, LoadedWorker, WorkerHandle};
use crate::worker::keeper::{self, Keeper, Owner, Phase};
use crate::worker::messages::{BackendSource, Job};
use crate::{Error, Result};

mod owner;
#[cfg(test)]
mod tests;

/// How long the daemon waits for earlier policies to be registered again before it answers requests.
const TO_RESTORE: Duration = Duration::from_secs(10);

/// The policies of all mounts.
pub(crate) struct Registry {
    config: Config,
    topology: String,
    roots: Roots,
    started: Instant,
    slots: Mutex<BTreeMap<PathBuf, Arc<Slot>>>,
    /// Earlier registrations that are not back yet.
    before: Mutex<Registrations>,
    /// Held while registrations are saved, so that the file never ends up older than the registry.
    saving: Mutex<()>,
    /// Numbers keepers.
    keepers: AtomicU64,
    /// A thread looks for directories that are gone.
    looking: AtomicBool,
    loads: LoadTable,
}

/// A registration to make.
#[derive(Clone, Debug)]
pub(crate) struct RegistrationRequest {
    pub(crate) mount: PathBuf,
    pub(crate) library: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) cgroup: Option<PathBuf>,
    /// Without it, the path has to be a mount of rfs.
    pub(crate) backend: Option<BackendKind>,
}

/// A mount, for as long as it has a policy.
struct Slot {
    path: PathBuf,
    /// One change at a time.
    changing: Mutex<()>,
    state: Mutex<SlotState>,
    /// A thread is ending its policy.
    leaving: AtomicBool,
}

/// What is registered for a mount.
#[derive(Default)]
struct SlotState {
    site: Option<Site>,
    registration: Option<Registration>,
    keeper: Option<Arc<Keeper>>,
    /// The number of the keeper.
    number: u64,
}

impl Registry {
    pub(crate) fn new(config: Config, topology: String) -> Self {
        Self {
            config,
            topology,
            roots: Roots::default(),
            started: Instant::now(),
            slots: Mutex::default(),
            before: Mutex::default(),
            saving: Mutex::default(),
            keepers: AtomicU64::new(1),
            looking: AtomicBool::new(false),
            loads: LoadTable::default(),
        }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers earlier policies again, each in its own thread, because looking at a directory may take long. Those
    /// that take too long come later.
    pub(crate) fn restore(self: &Arc<Self>) {
        let before = state::read(&self.config.state, "register the policies again");
        let before = before.unwrap_or_else(|error| {
            log::error!("{}", crate::error::chain(&error));
            Registrations::new()
        });
        self.before().clone_from(&before);
        let (done, all_done) = std::sync::mpsc::channel::<()>();
        for (path, registration) in before {
            let (registry, done) = (Arc::clone(self), done.clone());
            in_thread("restore", move || {
                registry.restore_one(&path, registration);
                drop(done);
            });
        }
        drop(done);
        // Nothing is ever sent: the channel closes when all threads are done.
        let late = all_done.recv_timeout(TO_RESTORE);
        if late == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let late: Vec<_> = self.before().keys().cloned().collect();
            log::warn!("Policies that take long are registered later: {late:?}");
        }
        self.persist();
    }

    fn restore_one(self: &Arc<Self>, path: &Path, registration: Registration) {
        let same = match registration.source {
            BackendSource::Module { device } => {
                let found = mountinfo::rfs_exactly_at(path);
                found.is_ok_and(|found| found.is_some_and(|found| found.device == device))
            }
            BackendSource::Observe { .. }
            | BackendSource::Start { .. }
            | BackendSource::Ahead { .. }
            | BackendSource::Fuse { .. } => true,
        };
        if same {
            let done = self.register(RegistrationRequest {
                mount: path.to_owned(),
                library: registration.library,
                settings: registration.settings,
                cgroup: registration.cgroup,
                backend: Some(site::kind(&registration.source)),
            });
            tell(path, done.as_ref().map(drop));
        } else {
            let path = path.display();
            log::info!("{path} has been unmounted; its policy is forgotten");
        }
        self.before().remove(path);
    }

    fn before(&self) -> MutexGuard<'_, Registrations> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_policy(&self, site: &Site) -> bool {
        let slot = self.slots().get(&site.path).cloned();
        slot.is_some_and(|slot| {
            let state = slot.state();
            let registration = state.registration.as_ref();
            let there = state.site.as_ref().map(|it| it.number);
            registration.is_some_and(|it| it.source == site.source) && there == Some(site.number)
        })
    }

    /// A worker does not report that the directory it observes is gone, so the registry looks. Other threads do what
    /// takes long: the caller follows all mounts.
    pub(super) fn forget_unmounted(self: &Arc<Self>) {
        let slots: Vec<_> = self.slots().values().cloned().collect();
        for slot in slots {
            if !slot.is_at(Site::is_another) || slot.leaving.swap(true, Relaxed) {
                continue;
            }
            let registry = Arc::clone(self);
            in_thread("unmounted", move || {
                registry.forget_if(&slot, Site::is_another);
                slot.leaving.store(false, Relaxed);
            });
        }
        if self.looking.swap(true, Relaxed) {
            return;
        }
        let registry = Arc::clone(self);
        in_thread("directories", move || {
            let slots: Vec<_> = registry.slots().values().cloned().collect();
            for slot in slots
                .into_iter()
                .filter(|slot| slot.is_at(Site::is_removed))
            {
                registry.forget_if(&slot, Site::is_removed);
            }
            registry.looking.store(false, Relaxed);
        });
    }

    fn forget_if(&self, slot: &Arc<Slot>, gone: fn(&Site) -> bool) {
        let _changing = slot.changing.lock().unwrap_or_else(PoisonError::into_inner);
        // The slot may have a new policy by now, for the new mount.
        if slot.is_at(gone) {
            log::info!("{} has been unmounted", slot.path.display());
            slot.vacate();
            self.drop_slot(slot);
            self.persist();
        }
    }

    /// Takes a slot out, if it is still the one of its path.
    fn drop_slot(&self, slot: &Arc<Slot>) {
        let mut slots = self.slots();
        if slots
            .get(&slot.path)
            .is_some_and(|it| Arc::ptr_eq(it, slot))
        {
            slots.remove(&slot.path);
        }
    }

    /// Registers a policy for a mount, instead of the one it has.
    pub(crate) fn register(self: &Arc<Self>, wanted: RegistrationRequest) -> Result<MountStatus> {
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
        let slot = self.slot(&site.path);
        let _changing = slot.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = match self.load(&slot, &registration) {
            Ok(loaded) => loaded,
            Err(error) => {
                if slot.state().registration.is_none() {
                    self.drop_slot(&slot);
                }
                return Err(error);
            }
        };
        // The library has loaded; from here on the mount is native for a moment.
        let before = slot.vacate();
        let number = loaded.number;
        match loaded.start() {
            Ok(keeper) => self.install(&slot, registration, keeper, number),
            Err(error) => {
                if let Some(before) = before {
                    self.bring_back(&slot, before);
                } else {
                    self.drop_slot(&slot);
                }
                return Err(error);
            }
        }
        slot.state().site = Some(site.clone());
        self.persist();
        Ok(slot.status(&site))
    }

    fn bring_back(self: &Arc<Self>, slot: &Arc<Slot>, before: Registration) {
        let again = self
            .load(slot, &before)
            .and_then(|loaded| Ok((loaded.number, loaded.start()?)));
        match again {
            Ok((number, keeper)) => self.install(slot, before, keeper, number),
            Err(error) => {
                log::error!(
                    "Cannot restart the earlier policy of {}: {}",
                    slot.path.display(),
                    crate::error::chain(&error)
                );
                self.drop_slot(slot);
                self.persist();
            }
        }
    }

    /// Takes a mount's policy away.
    pub(crate) fn remove(&self, mount: &Path) -> Result<MountStatus> {
        let site = self.find(mount)?;
        let slot = self.registered(&site.path)?;
        let _changing = slot.changing.lock().unwrap_or_else(PoisonError::into_inner);
        slot.vacate();
        self.drop_slot(&slot);
        self.persist();
        Ok(site.native())
    }

    /// Changes settings of a running policy.
    pub(crate) fn configure(&self, mount: &Path, settings: &Settings) -> Result<MountStatus> {
        let site = self.find(mount)?;
        let slot = self.registered(&site.path)?;
        let _changing = slot.changing.lock().unwrap_or_else(PoisonError::into_inner);
        slot.handle()?;
        slot.keeper()?.configure(settings)?;
        if let Some(registration) = &mut slot.state().registration {
            registration.settings.extend(settings.clone());
        }
        self.persist();
        Ok(slot.status(&site))
    }

    /// The status of all mounts or of one.
    pub(crate) fn status(&self, mount: Option<&Path>) -> Result<Status> {
        let mut sites = match mount {
            Some(mount) => vec![self.find(mount)?],
            None => mountinfo::all_rfs()?.into_iter().map(Site::from).collect(),
        };
        if mount.is_none() {
            let slots: Vec<_> = self.slots().values().cloned().collect();
            let others = slots.iter().filter_map(|slot| slot.state().site.clone());
            sites
                .extend(others.filter(|site| !matches!(site.source, BackendSource::Module { .. })));
            sites.sort_by(|a, b| a.path.cmp(&b.path));
        }
        let mounts = sites.iter().map(|site| {
            let slot = self.slots().get(&site.path).cloned();
            slot.map_or_else(|| site.native(), |slot| slot.status(site))
        });
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            mounts: mounts.collect(),
            services: None,
            loads: if mount.is_none() {
                self.loads.all()
            } else {
                Vec::new()
            },
            kept: Vec::new(),
        })
    }

    /// The worker of the mount or directory that this directory is in, if its policy runs.
    pub(crate) fn handle_of(&self, directory: &Path) -> Option<Arc<WorkerHandle>> {
        let slots = self.slots();
        let mut around = directory.ancestors().filter_map(|path| slots.get(path));
        around.find_map(|slot| slot.handle().ok())
    }

    /// A mount of rfs, or a directory that has a policy. The latter is found by its path alone.
    fn find(&self, path: &Path) -> Result<Site> {
        if let Some(found) = self.find_exactly(path)? {
            return Ok(found);
        }
        let real = look::at(path).ok().map(|looked| looked.real);
        let found = real.map(|real| self.find_exactly(&real)).transpose()?;
        found.flatten().ok_or_else(|| site::no_mount(path).into())
    }

    fn find_exactly(&self, real: &Path) -> Result<Option<Site>> {
        if let Some(found) = mountinfo::rfs_exactly_at(real)? {
            return Ok(Some(found.into()));
        }
        let slot = self.slots().get(real).cloned();
        Ok(slot.and_then(|slot| slot.state().site.clone()))
    }

    /// The counters of running workers, or of one mount's.
    pub(crate) fn stats(&self, mount: Option<&Path>) -> Result<Vec<MountStats>> {
        if let Some(mount) = mount {
            let slot = self.registered(&self.find(mount)?.path)?;
            return Ok(vec![slot.stats()?]);
        }
        let slots: Vec<_> = self.slots().values().cloned().collect();
        let running = slots.iter().filter_map(|slot| {
            let policy = slot.keeper().ok()?.status().name;
            Some((slot.path.clone(), policy, slot.handle().ok()?))
        });
        let running: Vec<_> = running.collect();
        // All are asked before any answer is awaited: workers that hang take the time of one.
        let asked: Vec<_> = running
            .iter()
            .map(|(.., handle)| handle.ask_stats())
            .collect();
        let answered = running.iter().zip(asked).filter_map(|(worker, asked)| {
            let (path, policy, _) = worker.clone();
            let stats = asked?.answer()?;
            Some(MountStats {
                path,
                policy,
                stats,
            })
        });
        Ok(answered.collect())
    }

    /// A load is over.
    pub(super) fn reported(&self, load: &LoadTotals) {
        self.loads.add(load);
    }

    /// What readers of a mount do, as its policy sees it.
    pub(crate) fn events(&self, mount: &Path) -> Result<Receiver<EventLine>> {
        let handle = self.registered(&self.find(mount)?.path)?.handle()?;
        let (to, from) = sync_channel(4096);
        handle.events(to);
        Ok(from)
    }

    /// Ends all workers in good order. Registrations stay saved.
    pub(crate) fn end(&self) {
        let slots: Vec<_> = self.slots().values().cloned().collect();
        let keepers = slots.iter().filter_map(|slot| slot.state().keeper.clone());
        let keepers: Vec<_> = keepers.collect();
        for keeper in &keepers {
            keeper.stop();
        }
        for keeper in keepers {
            keeper.join();
        }
    }

    fn slot(&self, path: &Path) -> Arc<Slot> {
        let mut slots = self.slots();
        let slot = slots.entry(path.to_owned()).or_insert_with(|| {
            Arc::new(Slot {
                path: path.to_owned(),
                changing: Mutex::default(),
                state: Mutex::default(),
                leaving: AtomicBool::new(false),
            })
        });
        Arc::clone(slot)
    }

    fn registered(&self, path: &Path) -> Result<Arc<Slot>> {
        let slot = self.slots().get(path).cloned();
        // A slot whose first registration is still under way does not count.
        slot.filter(|slot| slot.state().registration.is_some())
            .ok_or_else(|| no_policy(path).into())
    }

    fn persist(&self) {
        let _one_at_a_time = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let slots: Vec<_> = self.slots().values().cloned().collect();
        let mut registrations = self.before().clone();
        registrations.extend(
            slots
                .iter()
                .filter_map(|slot| Some((slot.path.clone(), slot.state().registration.clone()?))),
        );
        if let Err(error) = state::write(&self.config.state, &registrations) {
            log::error!(
                "{}; a restarted daemon will not know the policies",
                crate::error::chain(&error)
            );
        }
    }

    fn load(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        registration: &Registration,
    ) -> Result<LoadedPolicy> {
        let job = Job::new(
            slot.path.clone(),
            registration.source.clone(),
            registration.library.clone(),
            registration.settings.clone(),
            registration.cgroup.clone(),
            &self.topology,
            &self.config,
        );
        let number = self.keepers.fetch_add(1, Relaxed);
        let owner: Arc<dyn Owner> = Arc::new(SlotOwner {
            registry: Arc::downgrade(self),
            slot: Arc::downgrade(slot),
            number,
            path: slot.path.clone(),
            library: registration.library.clone(),
        });
        let worker = keeper::load(&job, &owner)?;
        Ok(LoadedPolicy {
            worker,
            job,
            owner,
            number,
        })
    }

    /// Gives the slot to a running policy.
    fn install(&self, slot: &Arc<Slot>, registration: Registration, keeper: Keeper, number: u64) {
        {
            let mut state = slot.state();
            state.registration = Some(registration);
            state.keeper = Some(Arc::new(keeper));
            state.number = number;
        }
        // It may have been unmounted meanwhile, and the slot with it.
        self.slots().insert(slot.path.clone(), Arc::clone(slot));
    }

    /// Forgets the mount of this keeper. The slot may have another keeper by now, and its path another slot.
    fn forget(&self, slot: &Arc<Slot>, keeper: u64) {
        {
            let mut state = slot.state();
            if state.number != keeper {
                return;
            }
            state.registration = None;
        }
        log::info!("{} has been unmounted", slot.path.display());
        self.drop_slot(slot);
        self.persist();
    }
}

/// A policy whose library has been loaded for a slot, and that waits to be started.
struct LoadedPolicy {
    worker: LoadedWorker,
    job: Job,
    owner: Arc<dyn Owner>,
    number: u64,
}

impl LoadedPolicy {
    fn start(self) -> Result<Keeper> {
        Keeper::start(self.worker, self.job, self.owner)
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this holds for the place of its policy.
    fn is_at(&self, so: fn(&Site) -> bool) -> bool {
        // Cloned to release the lock: looking may take long.
        let site = self.state().site.clone();
        site.as_ref().is_some_and(so)
    }

    /// The keeper of its policy. A mount that is gone has none, even while the last worker still ends.
    fn keeper(&self) -> Result<Arc<Keeper>> {
        let keeper = self.state().keeper.clone();
        keeper
            .filter(|keeper| keeper.phase() != Phase::Unmounted)
            .ok_or_else(|| no_policy(&self.path).into())
    }

    /// The worker, if it runs.
    fn handle(&self) -> Result<Arc<WorkerHandle>> {
        let handle = self.keeper()?.handle();
        handle.ok_or_else(|| {
            Refusal {
                kind: RefusalKind::Failed,
                message: format!("The policy of {} does not run", self.path.display()),
                remedy: Some("'ppcctl status' says why".into()),
            }
            .into()
        })
    }

    /// The counters of its worker.
    fn stats(&self) -> Result<MountStats> {
        let policy = self.keeper()?.status().name;
        let Some(stats) = self.handle()?.stats() else {
            // The worker ended before it answered: with its mount, or by itself.
            self.keeper()?;
            return Err(handle::ended_meanwhile().into());
        };
        Ok(MountStats {
            path: self.path.clone(),
            policy,
            stats,
        })
    }

    /// Ends the policy, waits, and returns what was registered.
    fn vacate(&self) -> Option<Registration> {
        let (keeper, registration) = {
            let mut state = self.state();
            (state.keeper.take(), state.registration.take())
        };
        if let Some(keeper) = keeper {
            keeper.stop();
            keeper.join();
        }
        registration
    }

    fn status(&self, site: &Site) -> MountStatus {
        let state = self.state();
        let (Some(registration), Some(keeper)) = (&state.registration, &state.keeper) else {
            return site.native();
        };
        let status = keeper.status();
        let phase = match status.phase {
            Phase::Unmounted => return site.native(),
            Phase::Failed => MountState::Failed,
            Phase::Running if status.handle.is_some() => MountState::Running,
            _ => MountState::Waiting,
        };
        MountStatus {
            state: phase,
            reason: (phase != MountState::Running)
                .then(|| status.crashes.reason())
                .flatten(),
            policy: Some(PolicyStatus {
                library: registration.library.clone(),
                settings: registration.settings.clone(),
                worker: status.handle.as_ref().map(|handle| handle.pid),
                crashes: status.crashes.count(),
                last_fault: status.crashes.last(),
                log: status.log.into_iter().collect(),
                name: status.name,
                version: status.version,
                backend: status.backend,
                features: status.features,
                cgroup: status.cgroup,
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

/// Runs a closure in a thread that is not joined.
pub(super) fn in_thread(name: &'static str, run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(512 << 10)
        .spawn(run);
    if let Err(error) = thread {
        log::error!("Starting a thread: {error}");
    }
}

pub(super) fn tell(path: &Path, done: std::result::Result<(), &Error>) {
    match done {
        Ok(()) => log::info!("{} has its policy", path.display()),
        Err(error) => log::error!("{}: {}", path.display(), crate::error::chain(error)),
    }
}
