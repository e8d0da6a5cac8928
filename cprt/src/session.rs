//! A worker without a daemon: a policy for a directory, for as long as a command runs or something
//! is mounted.
//!
//! [`Session::start`] tries the best backend first and goes on to the next one if that fails, as
//! only trying shows what a container forbids. A backend that has to mount something does so in a view
//! of the file system that only this process and its children have ([`namespace`]); the directory keeps
//! its path there.
//!
//! A worker that fails is started again, as by the daemon: the session has a keeper.

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

/// The task of a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory, absolute and without links.
    pub directory: PathBuf,
    /// The policy.
    pub library: PathBuf,
    /// Handed to it.
    pub settings: Settings,
    /// The memory cgroup that the worker lives in; without it, ours.
    pub cgroup: Option<PathBuf>,
    /// The daemon's configuration; a session ignores the keys about sockets and mounts.
    pub config: Config,
}

/// Receives the lines that policies and workers log: a level as in `ppc.h`, and a text.
pub type Log = Arc<dyn Fn(u32, &str) + Send + Sync>;

/// A running policy.
pub struct Session {
    /// Its backend.
    pub kind: BackendKind,
    /// The policy's name for itself, and its version.
    pub policy: (String, String),
    /// What the backend cannot do, a sentence each.
    pub limits: Vec<String>,
    /// Better backends, and why they were not taken.
    pub passed_over: Vec<(BackendKind, String)>,
    user: Option<User>,
    keeper: Arc<Keeper>,
}

/// Receives what the keeper of a session reports.
struct SessionOwner {
    log: Log,
    /// Checked once, before we enter a user namespace of our own: in there, no file appears to be root's.
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
    /// Starts a policy for a directory that commands are to use, with the first candidate that works.
    ///
    /// # Errors
    ///
    /// No candidate works, or the policy is refused.
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

    /// Mirrors `lower` at the directory, visible to all processes, until the mirror is unmounted.
    ///
    /// # Errors
    ///
    /// The mirror cannot be mounted, or the policy is refused.
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

    /// Starts a policy for all files that the children of this process read from now on.
    ///
    /// # Errors
    ///
    /// This machine cannot report their reads, or the policy is refused.
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
    /// The backend does not work, or the policy is refused.
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

    /// The user that a command has to become ([`namespace::become_user`]) to run as the caller's user.
    #[must_use]
    pub const fn user(&self) -> Option<User> {
        self.user
    }

    /// The worker's counters; `None` if no worker runs.
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        self.keeper.handle()?.stats()
    }

    /// Changes settings of the running policy.
    ///
    /// # Errors
    ///
    /// The policy refuses, or none runs.
    pub fn configure(&self, settings: &Settings) -> Result<()> {
        Ok(self.keeper.configure(settings)?)
    }

    /// Sleeps until the policy has ended for good. Returns why, if it was not told to end.
    #[must_use]
    pub fn wait(self) -> Option<String> {
        self.keeper.join();
        let status = self.keeper.status();
        (status.phase == Phase::Failed)
            .then(|| status.crashes.reason())
            .flatten()
    }

    /// Sleeps until the current mount at the path is unmounted, then ends the policy. Returns why the
    /// policy ended before that, if it did.
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
            log::warn!("Cannot watch for the unmount of the directory: {error}");
        }
        self.wait()
    }

    /// Ends the policy and unmounts what was mounted for it. Returns why it had ended before, if it had.
    #[must_use]
    pub fn end(self) -> Option<String> {
        self.keeper.stop();
        self.wait()
    }
}

/// The mount at a path, and which start of the worker it belongs to.
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

    /// Whether the path is still mounted, or mounted again: a worker that restarts after a failure mounts again.
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

/// The machine's topology: a child detects it while backends are tried.
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

/// Whether the policy is at fault, so that another backend would not help.
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
    /// What the policy is registered for: the directory, or the mount that it is in.
    mount: PathBuf,
    source: BackendSource,
    /// The user that a command has to become, if it has to.
    user: Option<User>,
    /// We mounted something for it.
    mounted: bool,
}

fn prepare(kind: BackendKind, directory: &Path, fuse: config::FuseConfig) -> Result<Ground> {
    let mut ground = Ground {
        mount: directory.to_owned(),
        source: BackendSource::Observe {
            before_readers: true,
        },
        user: None,
        mounted: false,
    };
    match kind {
        BackendKind::Observe => {}
        BackendKind::Fuse => {
            // Without namespaces, fusermount3 mounts it, visible to all processes.
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
        let problem = "The new mount is not listed; is /proc that of another namespace?";
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

    /// A command that has ended must not wait for the worker.
    fn waits_to_the_last(&self) -> bool {
        false
    }

    fn failed(&self, _: &str, fault: &str, never: Option<&str>) {
        match never {
            None => (self.log)(2, &format!("it failed: {fault}; starting it again")),
            // The session reports the reason as it ends.
            Some(_) => (self.log)(3, &format!("it failed: {fault}")),
        }
    }
}
