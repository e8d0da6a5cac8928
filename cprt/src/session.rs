//! A worker without a daemon: a policy for a directory, for as long as a command runs or something
//! is mounted.
//!
//! [`Session::start`] takes the best backend there is and goes on to the next one if that fails, as
//! only trying shows what a container forbids. Where something has to be mounted, that is in a view
//! of the file system that only this process and its children have ([`crate::session::namespace`]); the directory
//! keeps its path there.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use self::namespace::User;
use crate::backend::select::{Candidate, Verdict};
use crate::control::config::{self, Config};
use crate::control::kind::BackendKind;
use crate::control::protocol::Settings;
use crate::control::stats::Stats;
use crate::daemon::trust;
use crate::error::{Refusal, RefusalKind};
use crate::machine::memory;
use crate::machine::mountinfo::{self, Changes, RfsMount};
use crate::machine::topology::Topology;
use crate::worker::handle::{self, End, Hand, Heard};
use crate::worker::messages::{Job, Source};
use crate::{Error, Result};

pub mod namespace;

/// What somebody wants.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory, absolute and without links.
    pub directory: PathBuf,
    /// The policy.
    pub library: PathBuf,
    /// Handed to it.
    pub settings: Settings,
    /// The worker lives in this memory cgroup; without it, in ours.
    pub cgroup: Option<PathBuf>,
    /// Of a daemon; what is about sockets and mounts means nothing here.
    pub config: Config,
}

/// Where the lines go that policies and workers log: a level as in `ppc.h`, and a text.
pub type Log = Arc<dyn Fn(u32, &str) + Send + Sync>;

/// A policy that runs.
pub struct Session {
    /// Which backend it has.
    pub kind: BackendKind,
    /// What the policy calls itself, and its version.
    pub policy: (String, String),
    /// What the backend cannot do, a sentence each.
    pub limits: Vec<String>,
    /// Backends that were better, and why they were not taken.
    pub passed_over: Vec<(BackendKind, String)>,
    user: Option<User>,
    hand: Arc<Hand>,
    end: Arc<Mutex<Option<End>>>,
    ear: JoinHandle<()>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("kind", &self.kind)
            .field("policy", &self.policy)
            .field("worker", &self.hand.pid)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Starts a policy for a directory that commands are to use, with the first of the candidates
    /// that works.
    ///
    /// # Errors
    ///
    /// None does, or the policy is refused.
    pub fn start(options: &Options, candidates: &[Candidate], log: &Log) -> Result<Self> {
        let library = trust::check(&options.library, nix::unistd::geteuid().as_raw())?;
        let topology = Topology::by_child().to_string();
        let mut passed_over = Vec::new();
        for Candidate { kind, verdict } in candidates {
            if let Verdict::Unusable { why, .. } = verdict {
                passed_over.push((*kind, why.clone()));
                continue;
            }
            let tried =
                prepare(*kind, &options.directory, options.config.fuse).and_then(|ground| {
                    let job = job(options, ground.mount, ground.source, &library, &topology);
                    let session = Self::with(*kind, &job, ground.user, log);
                    if session.is_err() && ground.mounted {
                        // It is in nobody's way but ours.
                        let _ = umount2(&options.directory, MntFlags::MNT_DETACH);
                    }
                    session
                });
            match tried {
                Ok(mut session) => {
                    session.passed_over = passed_over;
                    return Ok(session);
                }
                // Not the backend's fault.
                Err(error) if is_of_the_policy(&error) => return Err(error),
                Err(error) => passed_over.push((*kind, crate::error::chain(&error))),
            }
        }
        Err(none_is_left(&options.directory, &passed_over))
    }

    /// Mirrors `lower` at the directory, for everybody to see, until somebody unmounts it.
    ///
    /// # Errors
    ///
    /// It cannot be mounted, or the policy is refused.
    pub fn mirror(options: &Options, lower: &Path, log: &Log) -> Result<Self> {
        let library = trust::check(&options.library, nix::unistd::geteuid().as_raw())?;
        let topology = Topology::by_child().to_string();
        let source = Source::Fuse {
            lower: lower.to_owned(),
            options: options.config.fuse,
            others: nix::unistd::geteuid().is_root(),
        };
        let at = options.directory.clone();
        let job = job(options, at, source, &library, &topology);
        Self::with(BackendKind::Fuse, &job, None, log)
    }

    /// Starts a policy for a directory, or the mount of rfs that is there, with this backend.
    ///
    /// # Errors
    ///
    /// It does not work, or the policy is refused.
    pub fn on(options: &Options, kind: BackendKind, log: &Log) -> Result<Self> {
        let candidate = Candidate {
            kind,
            verdict: Verdict::Usable { limits: Vec::new() },
        };
        Self::start(options, &[candidate], log)
    }

    fn with(kind: BackendKind, job: &Job, user: Option<User>, log: &Log) -> Result<Self> {
        let of_output = Arc::clone(log);
        let loaded = handle::load(job, Box::new(move |line| of_output(3, &line)))?;
        if let Some(cgroup) = &job.cgroup
            && let Err(error) = memory::join(cgroup, loaded.pid())
        {
            loaded.put_down();
            return Err(error);
        }
        let policy = (loaded.name.clone(), loaded.version.clone());
        let running = loaded.go(|level, message| log(level, &message))?;
        let (hand, ear) = (running.hand, running.ear);
        let end = Arc::new(Mutex::new(None));
        let (of_ear, its_end, log) = (Arc::clone(&hand), Arc::clone(&end), Arc::clone(log));
        let ear = std::thread::Builder::new()
            .name("ear".into())
            .stack_size(256 << 10)
            .spawn(move || {
                let how = ear.listen(&of_ear, |heard| tell(heard, &of_ear, &log));
                *its_end.lock().unwrap_or_else(PoisonError::into_inner) = Some(how);
            })
            .map_err(|source| Error::System {
                doing: "Starting a thread",
                source,
            })?;
        Ok(Self {
            kind,
            policy,
            limits: running.limits,
            passed_over: Vec::new(),
            user,
            hand,
            end,
            ear,
        })
    }

    /// Who a command has to become ([`stage::become_user`]) to be run as who we are.
    #[must_use]
    pub const fn user(&self) -> Option<User> {
        self.user
    }

    /// What has been counted; `None` if the worker is gone.
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        self.hand.stats()
    }

    /// Sleeps until the worker is gone; why, if nobody told it to.
    #[must_use]
    pub fn wait(self) -> Option<String> {
        // One that panicked has said so.
        let _ = self.ear.join();
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        match end.as_ref() {
            Some(End::Fault(fault)) => Some(fault.clone()),
            _ => None,
        }
    }

    /// Sleeps until what is mounted there now is unmounted, and has the policy end then. Why it had
    /// ended before, if it had.
    #[must_use]
    pub fn until_unmounted(self, at: &Path) -> Option<String> {
        let (hand, at) = (Arc::clone(&self.hand), at.to_owned());
        let number = mountinfo::id_at(&at);
        let watch = move || {
            let Ok(mut changes) = Changes::watch() else {
                return;
            };
            while mountinfo::id_at(&at) == number && changes.wait().is_ok() {}
            hand.exit();
        };
        let watching = std::thread::Builder::new()
            .name("mounts".into())
            .spawn(watch);
        if let Err(error) = watching {
            log::warn!("Nobody hears of it when it is unmounted: {error}");
        }
        self.wait()
    }

    /// Has the policy end, and gives back what was mounted. Why it had ended before, if it had.
    #[must_use]
    pub fn end(self) -> Option<String> {
        self.hand.exit();
        self.wait()
    }
}

fn job(options: &Options, mount: PathBuf, source: Source, library: &Path, topology: &str) -> Job {
    Job {
        mount,
        source,
        library: library.to_owned(),
        settings: options.settings.clone(),
        cgroup: options.cgroup.clone(),
        topology: topology.to_owned(),
        memory: options.config.memory,
        loader: options.config.loader,
        worker: options.config.worker,
    }
}

/// Whether another backend would not help.
fn is_of_the_policy(error: &Error) -> bool {
    match error {
        Error::Refused(refusal) => refusal.kind != RefusalKind::Failed,
        Error::Policy(_) | Error::Cgroup { .. } => true,
        _ => false,
    }
}

fn none_is_left(directory: &Path, passed_over: &[(BackendKind, String)]) -> Error {
    let reasons: Vec<_> = passed_over
        .iter()
        .map(|(kind, why)| format!("{kind}: {why}"))
        .collect();
    Refusal {
        kind: RefusalKind::Failed,
        message: format!("No backend works here ({})", reasons.join("; ")),
        remedy: Some(format!(
            "'ppcctl doctor {}' says what to change",
            directory.display()
        )),
    }
    .into()
}

/// What has to be there before a worker takes the directory.
struct Ground {
    /// What policies are of: the directory, or the mount that it is in.
    mount: PathBuf,
    source: Source,
    /// Who a command is to become, if that takes anything.
    user: Option<User>,
    /// Something was mounted for it.
    mounted: bool,
}

fn prepare(kind: BackendKind, directory: &Path, fuse: config::Fuse) -> Result<Ground> {
    let mut ground = Ground {
        mount: directory.to_owned(),
        source: Source::Observe,
        user: None,
        mounted: false,
    };
    match kind {
        BackendKind::Observe => {}
        BackendKind::Fuse => {
            // Where there are no namespaces, the helper mounts it for all to see.
            match namespace::leave() {
                Ok(user) => ground.user = user,
                Err(_) if crate::backend::select::has_helper() => {}
                Err(error) => return Err(error),
            }
            ground.source = Source::Fuse {
                lower: directory.to_owned(),
                options: fuse,
                others: nix::unistd::geteuid().is_root() && ground.user.is_none(),
            };
        }
        BackendKind::Module => {
            let found = if let Some(found) = mountinfo::rfs_of(directory) {
                found
            } else {
                ground.mounted = true;
                mount_over(directory)?
            };
            ground.mount = found.path;
            ground.source = Source::Module {
                device: found.device,
            };
        }
    }
    Ok(ground)
}

/// Mounts rfs over the directory, for us alone.
fn mount_over(directory: &Path) -> Result<RfsMount> {
    namespace::leave()?;
    let nothing = None::<&str>;
    let flags = MsFlags::MS_RDONLY;
    mount(Some(directory), directory, Some("rfs"), flags, nothing)
        .map_err(std::io::Error::from)
        .map_err(|source| Error::System {
            doing: "Mounting rfs over the directory",
            source,
        })?;
    mountinfo::rfs_at(directory)?.ok_or_else(|| {
        let problem = "What has been mounted is not listed; is /proc that of another namespace?";
        Error::Protocol(problem.to_owned())
    })
}

fn tell(heard: Heard, hand: &Hand, log: &Log) {
    match heard {
        Heard::Log { level, message } => log(level, &message),
        Heard::Reader { join, cgroup, .. } => {
            if let Some(cgroup) = cgroup.filter(|_| join)
                && let Err(error) = memory::join(&cgroup, hand.pid)
            {
                let error = crate::error::chain(&error);
                log(3, &format!("the worker stays in its own cgroup: {error}"));
            }
        }
        // Somebody unmounted what was mounted for it.
        Heard::Unmounted => hand.exit(),
    }
}
