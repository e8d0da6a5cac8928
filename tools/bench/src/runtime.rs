//! Runs a policy for the model's folder.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cprt::control::config::{self, Config};
use cprt::control::kind::BackendKind;
use cprt::control::protocol::Settings;
use cprt::control::stats::Stats;
use cprt::session::{Log, Options, Session};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::case::Policy;
use crate::error::{Failure, Result};
use crate::place::Place;

/// Number of lines kept of a policy's log, and their lowest level.
const MOST_NOTES: usize = 100;
const INFO: u32 = 3;
/// How long a policy that loads everything in advance may take.
const PATIENCE: Duration = Duration::from_mins(5);

/// The folder that a worker serves, and its backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground<'a> {
    pub(crate) kind: BackendKind,
    pub(crate) folder: &'a Path,
    /// The mount point for readers, for backends that need a mount.
    pub(crate) mirror: &'a Path,
    /// The memory cgroup of the worker, if it is not ours.
    pub(crate) cgroup: Option<&'a Path>,
}

/// The worker to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerWanted<'a> {
    pub(crate) policy: Policy,
    /// The place for a copy of its library.
    pub(crate) place: &'a Place,
    pub(crate) ground: Ground<'a>,
    /// The number of workers that share a layer.
    pub(crate) tp: u32,
    /// The directory of MAIO's templates.
    pub(crate) store: &'a Path,
    /// The settings of the policy's worker.
    pub(crate) worker: config::WorkerConfig,
}

/// A running policy, which is ended when this is dropped.
pub(crate) struct Runtime {
    session: Option<Session>,
    notes: Arc<Mutex<Vec<String>>>,
    /// The mount to remove.
    mirror: Option<PathBuf>,
}

/// The library of a policy, if it has one.
fn library(policy: Policy) -> Option<&'static str> {
    match policy {
        Policy::Native | Policy::Native4096 | Policy::Framework => None,
        Policy::Eager => Some("eager"),
        Policy::Precache => Some("precache"),
        Policy::MaioFirst | Policy::MaioReplay | Policy::MaioWrong | Policy::MaioStale => {
            Some("maio")
        }
    }
}

fn settings(wanted: &WorkerWanted<'_>) -> Settings {
    let mut settings = Settings::new();
    if wanted.policy.is_maio() {
        let pairs = [
            ("service", format!("model=bench,tp={}", wanted.tp)),
            ("store", wanted.store.display().to_string()),
            ("leases", "none".to_owned()),
        ];
        settings.extend(pairs.map(|(key, value)| (key.to_owned(), value)));
    }
    settings
}

/// Mounts rfs for the folder.
fn route(ground: Ground<'_>) -> Result<()> {
    let (from, to) = (Some(ground.folder), ground.mirror);
    mount(from, to, Some("rfs"), MsFlags::MS_RDONLY, None::<&str>).map_err(|error| {
        Failure::Unavailable {
            what: "A mount of rfs",
            why: error.to_string(),
            remedy: "build the module with 'make module' and load it with 'insmod'",
        }
    })
}

impl Runtime {
    /// Starts a policy's worker, if it needs one.
    pub(crate) fn start(wanted: &WorkerWanted<'_>) -> Result<Option<Self>> {
        let Some(name) = library(wanted.policy) else {
            return Ok(None);
        };
        let library = wanted.place.library(name)?;
        // The defaults, not this machine's configuration, so that results can be compared.
        let config = Config {
            worker: wanted.worker,
            ..Config::default()
        };
        Self::serve(wanted.ground, library, settings(wanted), config).map(Some)
    }

    /// Starts a worker with the policy of a library.
    pub(crate) fn serve(
        ground: Ground<'_>,
        library: PathBuf,
        settings: Settings,
        config: Config,
    ) -> Result<Self> {
        let notes: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&notes);
        let log: Log = Arc::new(move |level, text: &str| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if level <= INFO && kept.len() < MOST_NOTES {
                kept.push(text.to_owned());
            }
        });
        let mut options = Options {
            directory: ground.folder.to_owned(),
            library,
            settings,
            cgroup: ground.cgroup.map(Path::to_owned),
            config,
        };
        let mut runtime = Self {
            session: None,
            notes,
            mirror: None,
        };
        if ground.kind != BackendKind::Observe {
            ground.mirror.clone_into(&mut options.directory);
            runtime.mirror = Some(ground.mirror.to_owned());
        }
        runtime.session = Some(match ground.kind {
            BackendKind::Fuse => Session::mirror(&options, ground.folder, &log)?,
            BackendKind::Module => {
                route(ground)?;
                Session::on(&options, ground.kind, &log)?
            }
            BackendKind::Observe => Session::on(&options, ground.kind, &log)?,
        });
        Ok(runtime)
    }

    /// The mount point where readers find the model, if there is one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.mirror.as_deref()
    }

    pub(crate) fn stats(&self) -> Option<Stats> {
        self.session.as_ref()?.stats()
    }

    /// Waits until the policy loads nothing more.
    pub(crate) fn settle(&self) -> Result<()> {
        let began = Instant::now();
        let (mut last, mut calm) = (u64::MAX, 0);
        while began.elapsed() < PATIENCE {
            sleep(Duration::from_millis(50));
            let Some(stats) = self.stats() else {
                return Err(Failure::Said("The policy's worker has ended".to_owned()));
            };
            // Loads that wait for memory do not count: they may never get it.
            let moves = stats.load_bytes != last || stats.in_flight_bytes > 0;
            calm = if moves { 0 } else { calm + 1 };
            last = stats.load_bytes;
            if calm >= 6 {
                return Ok(());
            }
        }
        Err(Failure::Said("The policy does not stop loading".to_owned()))
    }

    /// Ends the policy; returns its log, and why it had ended early, if it had.
    pub(crate) fn end(mut self) -> Vec<String> {
        let fault = self.finish();
        let mut notes = self
            .notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        notes.extend(fault.map(|fault| format!("the policy failed: {fault}")));
        notes
    }

    fn finish(&mut self) -> Option<String> {
        if let Some(at) = self.mirror.take() {
            let _ = umount2(&at, MntFlags::MNT_DETACH);
        }
        self.session.take()?.end()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}
