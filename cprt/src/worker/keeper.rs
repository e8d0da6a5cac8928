//! Keeps a policy running: listens to its worker, and starts another when it ends without being told to.
//!
//! The daemon keeps a policy for each mount, a session one for its command; only their [`Owner`]
//! differs. A thread of the keeper listens to the worker. After a failure it starts the next
//! worker, a little later each time; after three failures in a minute the policy stays down, and the
//! status says why.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::control::loads::LoadTotals;
use crate::control::protocol::Settings;
use crate::daemon::trust::Trusted;
use crate::error::{Refusal, RefusalKind, chain};
use crate::machine::memory;
use crate::worker::crashes::{AfterCrash, Crashes};
use crate::worker::guest;
use crate::worker::handle::{
    self, LoadedWorker, RunningWorker, WorkerEnd, WorkerHandle, WorkerNews, WorkerProcess,
};
use crate::worker::messages::Job;
use crate::worker::stop::Stop;
use crate::{Error, Result};

/// The pause before the next worker starts, after one was killed from outside.
const PAUSE: Duration = Duration::from_millis(500);
/// Lines of a policy's log that the status shows.
const LINES: usize = 10;

/// Receives what a keeper reports.
pub(crate) trait Owner: Send + Sync {
    /// The policy or its worker logs: a level as in `ppc.h`, and a text.
    fn log(&self, policy: &str, level: u32, message: &str);
    /// The worker prints a line, which policies should not do.
    fn printed(&self, line: &str);
    /// The policy failed and is started again; or never, for the reason `never`.
    fn failed(&self, policy: &str, fault: &str, never: Option<&str>);
    /// The policy reports a load that is over.
    fn reported(&self, _: &LoadTotals) {}
    /// The library as it is now, if it may be run.
    fn library(&self, path: &Path) -> Result<Trusted> {
        Ok(Trusted::open(path, nix::unistd::geteuid().as_raw())?)
    }
    /// The mount is gone, and the worker with it. No lock of the keeper's is held.
    fn unmounted(&self) {}
    /// Whether the keeper waits until its worker is completely gone.
    fn waits_to_the_last(&self) -> bool {
        true
    }
}

/// The state of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its worker runs.
    #[default]
    Running,
    /// It failed and is started again.
    Restarting,
    /// It failed too often.
    Failed,
    /// Its mount has been unmounted.
    Unmounted,
    /// It has been told to end.
    Stopped,
}

/// What the keeper knows of a policy and its worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeeperStatus {
    pub(crate) phase: Phase,
    /// Workers that have run.
    pub(crate) starts: u64,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) backend: String,
    pub(crate) features: Vec<String>,
    pub(crate) limits: Vec<String>,
    /// The memory cgroup that pays.
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) handle: Option<Arc<WorkerHandle>>,
    pub(crate) crashes: Crashes,
    pub(crate) log: VecDeque<String>,
}

/// A policy that is kept running.
pub(crate) struct Keeper {
    kept: Arc<Kept>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why a worker has ended.
enum Fault {
    Own(String),
    /// It was in that cgroup of readers, and was killed like them.
    With(PathBuf, String),
}

struct Kept {
    owner: Arc<dyn Owner>,
    job: Mutex<Job>,
    /// Stops this worker and those after it.
    stop: Arc<Stop>,
    /// The readers' cgroup that the worker is in.
    guest: Mutex<Option<PathBuf>>,
    status: Mutex<KeeperStatus>,
    changed: Condvar,
}

/// Starts a worker and has it load the library.
pub(crate) fn load(job: &Job, owner: &Arc<dyn Owner>) -> Result<LoadedWorker> {
    load_unless(job, owner, Arc::new(Stop::new()?))
}

/// As [`load`], unless it is stopped meanwhile.
fn load_unless(job: &Job, owner: &Arc<dyn Owner>, stop: Arc<Stop>) -> Result<LoadedWorker> {
    let owner = Arc::clone(owner);
    let library = owner.library(&job.library)?;
    let log = Box::new(move |line: String| owner.printed(&line));
    handle::load(job, &library, log, stop)
}

impl Keeper {
    /// Starts a loaded policy, and keeps it running from then on.
    pub(crate) fn start(loaded: LoadedWorker, job: Job, owner: Arc<dyn Owner>) -> Result<Self> {
        let kept = Arc::new(Kept {
            owner,
            job: Mutex::new(job),
            stop: Arc::clone(loaded.stop()),
            guest: Mutex::default(),
            status: Mutex::default(),
            changed: Condvar::new(),
        });
        let (handle, process) = kept.go(loaded)?;
        let of_thread = Arc::clone(&kept);
        let thread = std::thread::Builder::new()
            .name("keeper".into())
            .stack_size(256 << 10)
            .spawn(move || of_thread.keep(handle, process))
            .map_err(|source| Error::System {
                doing: "Starting a thread",
                source,
            })?;
        Ok(Self {
            kept,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The current status.
    pub(crate) fn status(&self) -> KeeperStatus {
        self.kept.status().clone()
    }

    /// Whether it runs, and why not.
    pub(crate) fn phase(&self) -> Phase {
        self.kept.status().phase
    }

    /// The worker, if it runs.
    pub(crate) fn handle(&self) -> Option<Arc<WorkerHandle>> {
        self.kept.status().handle.clone()
    }

    /// Changes settings of the policy, also for later workers.
    pub(crate) fn configure(&self, settings: &Settings) -> Result<(), Refusal> {
        let handle = self.handle().ok_or_else(|| Refusal {
            kind: RefusalKind::Failed,
            message: "The policy does not run".into(),
            remedy: Some("'ppcctl status' says why".into()),
        })?;
        handle.configure(settings)?;
        let mut job = lock(&self.kept.job);
        job.settings.extend(settings.clone());
        Ok(())
    }

    /// Ends the policy in good order, but does not wait.
    pub(crate) fn stop(&self) {
        let mut status = self.kept.status();
        if matches!(status.phase, Phase::Running | Phase::Restarting) {
            status.phase = Phase::Stopped;
        }
        let handle = status.handle.clone();
        drop(status);
        self.kept.stop.tell();
        if let Some(handle) = handle {
            handle.exit();
        }
        self.kept.changed.notify_all();
    }

    /// Sleeps until the policy has ended for good.
    pub(crate) fn join(&self) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }

    /// The status after any restart under way has succeeded or failed.
    pub(crate) fn settled(&self) -> KeeperStatus {
        let restarting = |status: &mut KeeperStatus| status.phase == Phase::Restarting;
        let status = self.kept.changed.wait_while(self.kept.status(), restarting);
        status.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    fn status(&self) -> MutexGuard<'_, KeeperStatus> {
        lock(&self.status)
    }

    /// Starts a loaded policy.
    fn go(&self, loaded: LoadedWorker) -> Result<(Arc<WorkerHandle>, WorkerProcess)> {
        let cgroup = lock(&self.job).cgroup.clone();
        if let Some(cgroup) = &cgroup
            && let Err(error) = memory::join(cgroup, loaded.pid())
        {
            loaded.put_down();
            return Err(error);
        }
        {
            let mut status = self.status();
            status.name.clone_from(&loaded.name);
            status.version.clone_from(&loaded.version);
            status.cgroup = cgroup;
            status.log.clear();
        }
        let RunningWorker {
            backend,
            features,
            limits,
            handle,
            process,
        } = loaded.go(Settings::new(), |level, message| self.log(level, &message))?;
        let mut status = self.status();
        (status.backend, status.features, status.limits) = (backend, features, limits);
        status.starts += 1;
        if status.phase == Phase::Restarting {
            status.phase = Phase::Running;
        }
        if status.phase == Phase::Stopped {
            // It was asked to end while it started.
            handle.exit();
        }
        status.handle = Some(Arc::clone(&handle));
        self.changed.notify_all();
        Ok((handle, process))
    }

    /// Runs the keeper's thread.
    fn keep(&self, mut handle: Arc<WorkerHandle>, mut process: WorkerProcess) {
        loop {
            let waits = self.owner.waits_to_the_last();
            let end = process.attend(&handle, waits, |news| self.hear(news, &handle));
            let Some(fault) = self.fault(end) else {
                if self.status().phase == Phase::Unmounted {
                    self.owner.unmounted();
                }
                return;
            };
            match self.restart(fault) {
                Some(next) => (handle, process) = next,
                None => return,
            }
        }
    }

    /// Why the worker ended; `None` if it was asked to.
    fn fault(&self, end: WorkerEnd) -> Option<Fault> {
        let host = lock(&self.guest).take();
        let mut status = self.status();
        status.handle = None;
        match (status.phase, end) {
            (Phase::Stopped | Phase::Unmounted, _) => None,
            (_, WorkerEnd::Told) => Some(Fault::Own("it ended by itself".to_owned())),
            (_, WorkerEnd::Fault(fault)) => Some(Fault::Own(fault)),
            (_, WorkerEnd::Killed(how)) => Some(match host {
                Some(host) => Fault::With(host, how),
                None => Fault::Own(how),
            }),
        }
    }

    /// Starts another worker after a failure, unless there were too many, or no worker is wanted.
    fn restart(&self, mut fault: Fault) -> Option<(Arc<WorkerHandle>, WorkerProcess)> {
        loop {
            match &fault {
                Fault::Own(fault) => self.record_crash(fault)?,
                Fault::With(host, how) => self.pause_after(host, how)?,
            }
            let job = lock(&self.job).clone();
            let stop = Arc::clone(&self.stop);
            let next = load_unless(&job, &self.owner, stop).and_then(|loaded| self.go(loaded));
            match next {
                Ok(next) => return Some(next),
                Err(error) => fault = Fault::Own(chain(&error)),
            }
        }
    }

    /// Pauses after the worker was killed together with the processes whose memory paid for its loads. That is no
    /// failure of the policy, however often it happens.
    fn pause_after(&self, host: &Path, how: &str) -> Option<()> {
        {
            let mut status = self.status();
            if status.phase == Phase::Stopped {
                return None;
            }
            status.phase = Phase::Restarting;
        }
        self.changed.notify_all();
        let host = host.display();
        self.log(
            3,
            &format!("the worker was killed together with the processes of {host}, whose memory paid for its loads: \
                      {how}"),
        );
        self.sleep(PAUSE)
    }

    /// Sleeps; `None` if the policy has to end in the meantime.
    fn sleep(&self, pause: Duration) -> Option<()> {
        let is_wanted = |status: &mut KeeperStatus| status.phase != Phase::Stopped;
        let slept = self
            .changed
            .wait_timeout_while(self.status(), pause, is_wanted);
        let (status, _) = slept.unwrap_or_else(PoisonError::into_inner);
        (status.phase != Phase::Stopped).then_some(())
    }

    /// Records a failure, and waits until another worker may start. `None` if none is to.
    fn record_crash(&self, fault: &str) -> Option<()> {
        let (name, verdict) = {
            let mut status = self.status();
            if status.phase == Phase::Stopped {
                return None;
            }
            let verdict = status.crashes.add(Instant::now(), fault);
            status.phase = match &verdict {
                AfterCrash::Again(_) => Phase::Restarting,
                AfterCrash::Never(_) => Phase::Failed,
            };
            (status.name.clone(), verdict)
        };
        self.changed.notify_all();
        match verdict {
            AfterCrash::Never(reason) => {
                self.owner.failed(&name, fault, Some(&reason));
                None
            }
            AfterCrash::Again(pause) => {
                self.owner.failed(&name, fault, None);
                self.sleep(pause)
            }
        }
    }

    fn hear(&self, news: WorkerNews, handle: &WorkerHandle) {
        match news {
            WorkerNews::Log { level, message } => self.log(level, &message),
            WorkerNews::Reader { process, cgroup } => {
                log::debug!("the first reader is {process}");
                self.status().cgroup = cgroup;
            }
            WorkerNews::Guest(host) => *lock(&self.guest) = host,
            WorkerNews::IsGuest => self.thaw(handle.pid),
            WorkerNews::Reported(load) => self.owner.reported(&load),
            // Its counters end with it.
            WorkerNews::Counted(_) => {}
            WorkerNews::Unmounted => {
                {
                    let mut status = self.status();
                    if status.phase == Phase::Running {
                        status.phase = Phase::Unmounted;
                    }
                }
                handle.exit();
            }
        }
    }

    /// Moves a worker home if it is frozen with the readers it loads for, as in a paused container.
    fn thaw(&self, worker: u32) {
        let host = lock(&self.guest).clone();
        if host.is_none_or(|host| !guest::is_frozen(&host)) {
            return;
        }
        let Some(home) = memory::Roots::default().home_of(std::process::id()) else {
            return;
        };
        match memory::join(&home, worker) {
            Ok(()) => log::debug!("worker {worker} was frozen in a reader's cgroup"),
            Err(error) => self.log(2, &format!("The worker is frozen: {}", chain(&error))),
        }
    }

    /// Logs a line of the policy or its worker.
    fn log(&self, level: u32, message: &str) {
        let name = {
            let mut status = self.status();
            if level <= 2 {
                if status.log.len() == LINES {
                    status.log.pop_front();
                }
                status.log.push_back(message.to_owned());
            }
            status.name.clone()
        };
        self.owner.log(&name, level, message);
    }
}
