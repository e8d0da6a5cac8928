//! MAIO as a policy: a mount may hold many models, each of which has its loads and templates.
//!
//! ```text
//!                    ┌─ model ─ load ─┐
//! event ─ which of ──┼─ model         ├─▶ plan
//!       them it is   └─ model ─ load ─┘
//! ```

mod routes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use ppc::{
    Configure, Event, Evict, Features, FileId, Host, Kind, Kinds, Level, Plan, Policy, Prefetch,
    Result, Settings,
};

use crate::config::{Beginning, Config, Recording, beginning};
use crate::host::{HostLibrary, files_below};
use crate::models::{ModelKey, models_among, repository, snapshot};
use crate::peers::Members;
use crate::policy::{Model, Share};
use routes::{Route, Routes, reference};

/// Upper bound on open models, beyond those that are being loaded.
const MOST: usize = 32;
/// Upper bound on remembered ways of events.
const MOST_WAYS: usize = 1 << 14;
/// Upper bound on counted models of a mount.
const COUNTED: usize = 64;

/// The policy.
#[derive(Debug)]
pub struct Maio {
    config: Config,
    /// Which readers are those of other services; `None` where services do not publish anything.
    members: Option<Arc<Members>>,
    /// The mount's model, if it is known before anything is opened.
    prime: Option<usize>,
    /// The mount holds no other model.
    is_alone: bool,
    /// Models that no reader has opened yet.
    unknown: BTreeSet<ModelKey>,
    slots: Vec<Slot>,
    routes: Routes,
    /// The slot that the last event of a file and process went to: events are many, files few.
    ways: HashMap<(FileId, u32), usize>,
    heard: Option<(Kinds, u64)>,
    loading: usize,
}

/// A model, as long as a process may read it.
#[derive(Debug)]
struct Slot {
    key: ModelKey,
    model: Option<Model>,
    used_ns: u64,
}

impl Policy for Maio {
    const NAME: &'static CStr = c"maio";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr =
        c"Loads models: replays what each worker reads ahead of it, drops what has been read";

    fn init(host: &Host<'_>, settings: &mut Settings, plan: &mut Plan<'_>) -> Result<Self> {
        let config = Config::from_settings(settings)?;
        // Others are to know this process before it opens anything.
        let members = members(host, &config);
        let models = models_of(host);
        let (prime, is_alone) = prime(host, &models);
        let mut maio = Self {
            members,
            config,
            prime: None,
            is_alone,
            unknown: models.into_iter().take(COUNTED).collect(),
            slots: Vec::new(),
            routes: Routes::default(),
            ways: HashMap::new(),
            heard: None,
            loading: 0,
        };
        match prime {
            Some(key) => {
                let (config, alone) = (maio.config.clone(), maio.is_plain(&key));
                let members = maio.members.clone();
                let model = Model::open_first(host, config, key.clone(), alone, members, plan)?;
                maio.prime = Some(maio.add(key, Some(model)));
            }
            None => maio.explain(host, maio.config.beginning),
        }
        maio.settle(host)?;
        Ok(maio)
    }

    fn exit(self, host: &Host<'_>) -> Result<()> {
        let models = self.slots.into_iter().filter_map(|slot| slot.model);
        models
            .map(|model| model.exit(host))
            .fold(Ok(()), Result::and)
    }
}

impl Prefetch for Maio {
    fn prefetch(
        &mut self,
        host: &Host<'_>,
        event: Option<&Event>,
        plan: &mut Plan<'_>,
    ) -> Result<()> {
        let slot = match event {
            Some(event) if event.kind != Kind::Lost => match self.route(host, event, plan)? {
                Some(slot) => Some(slot),
                None => return Ok(()),
            },
            _ => None,
        };
        for at in 0..self.slots.len() {
            if slot.is_none_or(|slot| slot == at) {
                self.tell_others(at);
                if let Some(model) = &mut self.slots[at].model {
                    model.prefetch(host, event, plan)?;
                }
            }
        }
        if event.is_none() {
            self.retire(host)?;
        }
        self.settle(host)
    }
}

impl Configure for Maio {
    fn configure(&mut self, host: &Host<'_>, settings: &mut Settings) -> Result<()> {
        let Some(beginning) = beginning(settings)? else {
            return Ok(());
        };
        let prime = self.prime.and_then(|it| self.slots[it].model.as_mut());
        match prime {
            Some(model) => model.set_beginning(beginning),
            None => self.explain(host, beginning),
        }
        host.wake(Duration::ZERO)
    }
}

impl Evict for Maio {
    fn evict(&mut self, host: &Host<'_>, _: Option<&Event>, plan: &mut Plan<'_>) -> Result<()> {
        for at in 0..self.slots.len() {
            self.tell_others(at);
            if let Some(model) = &mut self.slots[at].model {
                model.evict(host, plan)?;
            }
        }
        Ok(())
    }
}

impl Maio {
    /// The model that an event is about; an event that begins a load also opens its model.
    fn route(
        &mut self,
        host: &Host<'_>,
        event: &Event,
        plan: &mut Plan<'_>,
    ) -> Result<Option<usize>> {
        let way = (event.file, event.process);
        let known = self.ways.get(&way).filter(|_| event.kind != Kind::Open);
        if let Some(&slot) = known.filter(|&&slot| self.slots[slot].model.is_some()) {
            self.slots[slot].used_ns = event.time_ns;
            return Ok(Some(slot));
        }
        let slot = self.find(host, event, plan)?;
        if event.kind == Kind::Open || self.ways.len() >= MOST_WAYS {
            // It may show that a process loads another revision.
            self.ways.clear();
        }
        self.ways.extend(slot.map(|slot| (way, slot)));
        Ok(slot)
    }

    fn find(
        &mut self,
        host: &Host<'_>,
        event: &Event,
        plan: &mut Plan<'_>,
    ) -> Result<Option<usize>> {
        let key = match self.routes.of(host, event.file) {
            Route::Nothing => None,
            Route::Model(key) => Some(key),
            Route::Shared(shared) => {
                let loading = self.loading_revision(&shared.repository);
                let opens = event.kind == Kind::Open;
                let narrowed =
                    self.routes
                        .narrow(host, &shared, event.process, opens, loading.as_deref());
                if let Some(key) = narrowed.as_ref().filter(|_| opens) {
                    self.abandon_others(host, &shared.repository, key, plan)?;
                }
                narrowed
            }
        };
        let Some(key) = key.or_else(|| self.whole_mount()) else {
            return Ok(None);
        };
        let known = self.slots.iter().position(|slot| slot.key == key);
        let is_open = known.is_some_and(|slot| self.slots[slot].model.is_some());
        if !is_open && !matches!(event.kind, Kind::Open | Kind::Miss) {
            return Ok(None);
        }
        let slot = known.unwrap_or_else(|| self.add(key, None));
        self.slots[slot].used_ns = event.time_ns;
        if self.slots[slot].model.is_none() {
            let (config, key) = (self.config.clone(), self.slots[slot].key.clone());
            let config = Config {
                // Only the prime model is loaded before anything is opened.
                beginning: Beginning::Open,
                ..config
            };
            let alone = self.is_plain(&key);
            let model = Model::open(host, config, key, alone, self.members.clone())?;
            self.slots[slot].model = Some(model);
        }
        Ok(Some(slot))
    }

    fn add(&mut self, key: ModelKey, model: Option<Model>) -> usize {
        self.unknown.remove(&key);
        self.slots.push(Slot {
            key,
            model,
            used_ns: 0,
        });
        self.slots.len() - 1
    }

    /// Files of no model belong to the mount's own model.
    fn whole_mount(&self) -> Option<ModelKey> {
        let prime = &self.slots[self.prime?].key;
        prime.root.is_empty().then(|| prime.clone())
    }

    /// Whether templates of a model are called after the service and nothing else.
    fn is_plain(&self, key: &ModelKey) -> bool {
        key.family.is_none() && (self.is_alone || key.root.is_empty())
    }

    /// The revision of a repository that is being loaded.
    fn loading_revision(&self, repository: &str) -> Option<String> {
        let is_loading = |slot: &&Slot| slot.model.as_ref().is_some_and(Model::is_loading);
        let loading = self.slots.iter().filter(is_loading);
        let revision = |slot: &Slot| {
            let revision = crate::models::revision(repository, &slot.key.root)?;
            Some((slot.used_ns, revision.to_owned()))
        };
        loading.filter_map(revision).max().map(|(_, it)| it)
    }

    /// A reader has opened a file that distinguishes revisions: a load of another revision was a wrong guess.
    fn abandon_others(
        &mut self,
        host: &Host<'_>,
        repository: &str,
        key: &ModelKey,
        plan: &mut Plan<'_>,
    ) -> Result<()> {
        for slot in &mut self.slots {
            let is_other = slot.key.root != key.root
                && crate::models::revision(repository, &slot.key.root).is_some();
            if let Some(model) = slot.model.as_mut().filter(|_| is_other)
                && model.abandon(host, plan)?
            {
                let (this, other) = (&key.root, &slot.key.root);
                let line = format_args!("It is {this} that is loaded, not {other}");
                host.log(Level::Info, line);
            }
        }
        Ok(())
    }

    /// Passes the other loads' shares to a model.
    fn tell_others(&mut self, at: usize) {
        if self.slots.len() < 2 {
            return;
        }
        let others = self.slots.iter().enumerate().filter(|&(it, _)| it != at);
        let others = others.filter_map(|(_, slot)| slot.model.as_ref()?.loads());
        let others: Vec<Share> = others.collect();
        if let Some(model) = &mut self.slots[at].model {
            model.set_others(others);
        }
    }

    /// Closes the models that have been unread for longest, if too many are open.
    fn retire(&mut self, host: &Host<'_>) -> Result<()> {
        let open = |slot: &Slot| slot.model.is_some();
        let excess = self.slots.iter().filter(|&it| open(it)).count();
        for _ in MOST..excess {
            let idle = self.slots.iter_mut().enumerate().filter(|(at, slot)| {
                let rests = slot.model.as_ref().is_some_and(|it| !it.is_loading());
                rests && Some(*at) != self.prime
            });
            let oldest = idle.map(|(_, slot)| slot).min_by_key(|slot| slot.used_ns);
            if let Some(model) = oldest.and_then(|slot| slot.model.take()) {
                model.exit(host)?;
            }
        }
        Ok(())
    }

    /// Asks the host for the events that all models want, and for a wake-up if an answer waits.
    fn settle(&mut self, host: &Host<'_>) -> Result<()> {
        let models = || self.slots.iter().filter_map(|slot| slot.model.as_ref());
        let all = models().map(Model::wanted);
        let (mut kinds, mut beacon) = (self.wanted_anyway(host), u64::MAX);
        let mut rests = true;
        for (wanted, bytes) in all {
            kinds = Kinds::from_bits(kinds.bits() | wanted.at_once().bits());
            rests &= wanted.from_open();
            beacon = beacon.min(bytes);
        }
        if rests {
            kinds = [kinds, Kinds::FROM_OPEN].into_iter().collect();
        }
        let beacon = if beacon == u64::MAX { 0 } else { beacon };
        if self.heard != Some((kinds, beacon)) {
            host.want(kinds, beacon)?;
            self.heard = Some((kinds, beacon));
        }
        let loading = models().filter(|model| model.is_loading()).count();
        let waits = models().any(Model::has_urgent);
        if loading == 0 && self.loading > 0 {
            // Numbers of files may come again.
            self.routes.forget();
            self.ways.clear();
        }
        self.loading = loading;
        if waits {
            // One of them may just have replaced the wake of another.
            host.wake(Duration::ZERO)?;
        }
        Ok(())
    }

    /// The kinds wanted without an open model: those that begin a load. Of models that no reader has opened it is
    /// not known whether their templates are right, so their first reads must not be missed.
    fn wanted_anyway(&self, host: &Host<'_>) -> Kinds {
        let has = |feature| host.features().contain(feature);
        let records = self.config.store.is_some()
            && self.config.recording != Recording::Never
            && self.prime.is_none()
            && !self.unknown.is_empty();
        let kinds = [
            Some(Kind::Miss),
            has(Features::OPEN).then_some(Kind::Open),
            (has(Features::TOUCH) && records).then_some(Kind::Touch),
        ];
        kinds.into_iter().flatten().collect()
    }

    fn explain(&self, host: &Host<'_>, beginning: Beginning) {
        if beginning != Beginning::Open {
            let many = self.unknown.len();
            let line = format_args!(
                "There are {many} models, and it is not known which one will be read: each is loaded when it is \
                 opened; to load one before that, mount its folder"
            );
            host.log(Level::Info, line);
        }
    }
}

/// Joins the other services of this node. It happens once, at the beginning, as another service has to know of this one
/// before the events of that one's readers arrive here.
fn members(host: &Host<'_>, config: &Config) -> Option<Arc<Members>> {
    let directory = config.leases.as_ref()?;
    match Members::join(directory, config.process) {
        Ok(members) => Some(Arc::new(members)),
        Err(error) => {
            let line =
                format_args!("Other services' readers are not told apart from this one's: {error}");
            host.log(Level::Debug, line);
            None
        }
    }
}

fn models_of(host: &Host<'_>) -> BTreeSet<ModelKey> {
    let library = HostLibrary {
        host,
        root: "",
        family: None,
    };
    models_among(&files_below(host, ""), &library)
}

/// The model that a mount is of, and whether it is the only one: that of the mount's own folder, that of the
/// only folder with one, or the revision of the only repository that its branch names.
fn prime(host: &Host<'_>, models: &BTreeSet<ModelKey>) -> (Option<ModelKey>, bool) {
    let roots: BTreeSet<&str> = models.iter().map(|key| key.root.as_str()).collect();
    let of = |root: &str| ModelKey {
        root: root.to_owned(),
        family: None,
    };
    match (roots.first(), roots.len()) {
        (None, _) => return (Some(ModelKey::default()), true),
        (Some(only), 1) => return (Some(of(only)), true),
        (Some(&""), _) => return (Some(ModelKey::default()), false),
        _ => {}
    }
    let library = HostLibrary {
        host,
        root: "",
        family: None,
    };
    let repositories: BTreeSet<Option<&str>> = roots
        .iter()
        .map(|root| repository(root, &library))
        .collect();
    let (Some(&Some(only)), 1) = (repositories.first(), repositories.len()) else {
        return (None, false);
    };
    let named = reference(host, only).map(|revision| snapshot(only, &revision));
    let named = named.filter(|root| roots.contains(root.as_str()));
    (named.map(|root| of(&root)), false)
}
