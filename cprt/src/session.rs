//! A worker without a daemon: a policy for a directory, for as long as a command runs or something
//! is mounted.
//!
//! [`Session::start`] takes the best backend there is and goes on to the next one if that fails, as
//! only trying shows what a container forbids. Where something has to be mounted, that is in a view
//! of the file system that only this process and its children have ([`namespace`]); the directory keeps
//! its path there.
//!
//! A worker that fails is started again, as the daemon does it: the session has a keeper.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use self::namespace::User;
use crate::backend::select::{Candidate, Verdict};
use crate::control::config::{self, Config};
use crate::control::kind::BackendKind;
use crate::control::protocol::Settings;
use crate::control::stats::Stats;
use crate::daemon::trust::Trusted;
use crate::error::{Refusal, RefusalKind};
use crate::machine::mountinfo::{self, MountChanges, RfsMount};
use crate::machine::topology::{Topology, TopologyChild};
use crate::worker::keeper::{self, Keeper, Owner, Phase};
use crate::worker::messages::{BackendSource, Job};
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
    keeper: Arc<Keeper>,
}

/// Hears the keeper of a session.
struct SessionOwner {
    log: Log,
    /// As it was looked at: in a user namespace of our own, nothing is root's to see any more.
    library: Trusted,
}

fn sharing(source: std::io::Error) -> Error {
    Error::System {
        doing: "Sharing a library",
        source,
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("kind", &self.kind)
            .field("policy", &self.policy)
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
    pub fn start(
        options: &Options,
        candidates: impl IntoIterator<Item = Candidate>,
        log: &Log,
    ) -> Result<Self> {
        let library = Trusted::open(&options.library, nix::unistd::geteuid().as_raw())?;
        let mut topology = SessionTopology::Child(TopologyChild::start());
        let mut passed_over = Vec::new();
        for Candidate { kind, verdict } in candidates {
            if let Verdict::Unusable { why, .. } = verdict {
                passed_over.push((kind, why));
                continue;
            }
            let tried = prepare(kind, &options.directory, options.config.fuse).and_then(|ground| {
                let topology = topology.text();
                let job = job(options, ground.mount, ground.source, &library, &topology);
                let session = Self::with(kind, &job, &library, ground.user, log);
                if session.is_err() && ground.mounted {
                    // Only this process and its children see the mount.
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
                Err(error) => passed_over.push((kind, crate::error::chain(&error))),
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
        let library = Trusted::open(&options.library, nix::unistd::geteuid().as_raw())?;
        let topology = Topology::by_child().to_string();
        let source = BackendSource::Fuse {
            lower: lower.to_owned(),
            options: options.config.fuse,
            others: nix::unistd::geteuid().is_root(),
        };
        let at = options.directory.clone();
        let job = job(options, at, source, &library, &topology);
        Self::with(BackendKind::Fuse, &job, &library, None, log)
    }

    /// Starts a policy for all that the children of this process read from now on, whatever file it is.
    ///
    /// # Errors
    ///
    /// This machine does not tell, or the policy is refused.
    pub fn of_children(options: &Options, log: &Log) -> Result<Self> {
        let library = Trusted::open(&options.library, nix::unistd::geteuid().as_raw())?;
        let topology = TopologyChild::start().finish().to_string();
        let source = BackendSource::Start {
            parent: Some(std::process::id()),
        };
        let at = options.directory.clone();
        let job = job(options, at, source, &library, &topology);
        Self::with(BackendKind::Observe, &job, &library, None, log)
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
        Self::start(options, [candidate], log)
    }

    fn with(
        kind: BackendKind,
        job: &Job,
        library: &Trusted,
        user: Option<User>,
        log: &Log,
    ) -> Result<Self> {
        let owner: Arc<dyn Owner> = Arc::new(SessionOwner {
            log: Arc::clone(log),
            library: library.again().map_err(sharing)?,
        });
        let loaded = keeper::load(job, &owner)?;
        let keeper = Keeper::start(loaded, job.clone(), owner)?;
        let status = keeper.status();
        Ok(Self {
            kind,
            policy: (status.name, status.version),
            limits: status.limits,
            passed_over: Vec::new(),
            user,
            keeper: Arc::new(keeper),
        })
    }

    /// Who a command has to become ([`namespace::become_user`]) to be run as who we are.
    #[must_use]
    pub const fn user(&self) -> Option<User> {
        self.user
    }

    /// What the worker has counted; `None` if none runs.
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        self.keeper.handle()?.stats()
    }

    /// Changes settings of the policy that runs.
    ///
    /// # Errors
    ///
    /// It refuses, or none runs.
    pub fn configure(&self, settings: &Settings) -> Result<()> {
        Ok(self.keeper.configure(settings)?)
    }

    /// Sleeps until the policy has ended for good; why, if it was not told to.
    #[must_use]
    pub fn wait(self) -> Option<String> {
        self.keeper.join();
        let status = self.keeper.status();
        (status.phase == Phase::Failed)
            .then(|| status.crashes.reason())
            .flatten()
    }

    /// Sleeps until what is mounted there now is unmounted, and has the policy end then. Why it had
    /// ended before, if it had.
    #[must_use]
    pub fn until_unmounted(self, at: &Path) -> Option<String> {
        let (keeper, at) = (Arc::clone(&self.keeper), at.to_owned());
        let mut mounted = MountWatch::now(&keeper, &at);
        let watch = move || {
            let Ok(mut changes) = MountChanges::watch() else {
                return;
            };
            while mounted.is_there(&keeper, &at) && changes.wait().is_ok() {}
            keeper.stop();
        };
        let watching = std::thread::Builder::new()
            .name("mounts".into())
            .spawn(watch);
        if let Err(error) = watching {
            log::warn!("The policy will not hear when it is unmounted: {error}");
        }
        self.wait()
    }

    /// Has the policy end, and gives back what was mounted. Why it had ended before, if it had.
    #[must_use]
    pub fn end(self) -> Option<String> {
        self.keeper.stop();
        self.wait()
    }
}

/// What is mounted at a path, by which of the workers that served it.
struct MountWatch {
    number: Option<u64>,
    starts: u64,
}

impl MountWatch {
    fn now(keeper: &Keeper, at: &Path) -> Self {
        Self {
            number: mountinfo::id_at(at),
            starts: keeper.status().starts,
        }
    }

    /// Whether it is still there, or again: a worker that is started after a failure mounts anew.
    fn is_there(&mut self, keeper: &Keeper, at: &Path) -> bool {
        if mountinfo::id_at(at) == self.number {
            return true;
        }
        if keeper.settled().starts == self.starts {
            return false;
        }
        *self = Self::now(keeper, at);
        self.number.is_some()
    }
}

/// The machine's topology: a child looks while backends are tried.
enum SessionTopology {
    Child(TopologyChild),
    Known(String),
}

impl SessionTopology {
    fn text(&mut self) -> String {
        let unknown = Self::Known(String::new());
        let text = match std::mem::replace(self, unknown) {
            Self::Child(child) => child.finish().to_string(),
            Self::Known(text) => text,
        };
        *self = Self::Known(text.clone());
        text
    }
}

fn job(
    options: &Options,
    mount: PathBuf,
    source: BackendSource,
    library: &Trusted,
    topology: &str,
) -> Job {
    Job::new(
        mount,
        source,
        library.path().to_owned(),
        options.settings.clone(),
        options.cgroup.clone(),
        topology,
        &options.config,
    )
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
    source: BackendSource,
    /// Who a command is to become, if that takes anything.
    user: Option<User>,
    /// Something was mounted for it.
    mounted: bool,
}

fn prepare(kind: BackendKind, directory: &Path, fuse: config::FuseConfig) -> Result<Ground> {
    let mut ground = Ground {
        mount: directory.to_owned(),
        source: BackendSource::Observe,
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
            ground.source = BackendSource::Fuse {
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
            ground.source = BackendSource::Module {
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

impl Owner for SessionOwner {
    fn log(&self, _: &str, level: u32, message: &str) {
        (self.log)(level, message);
    }

    fn printed(&self, line: &str) {
        (self.log)(3, line);
    }

    fn library(&self, _: &Path) -> Result<Trusted> {
        self.library.again().map_err(sharing)
    }

    /// A command that has ended is not to be held up.
    fn waits_to_the_last(&self) -> bool {
        false
    }

    fn failed(&self, _: &str, fault: &str, never: Option<&str>) {
        match never {
            None => (self.log)(2, &format!("it failed: {fault}; it is started again")),
            // Why is what the session ends with.
            Some(_) => (self.log)(3, &format!("it failed: {fault}")),
        }
    }
}
