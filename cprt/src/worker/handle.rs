//! A worker, as its keeper holds it: the process and the conversation with it.
//!
//! [`load`] starts the process and
//! has it load the library, [`LoadedWorker::go`] has it start the policy. Then there are two ends of it: the
//! [`WorkerProcess`], for the one thread that listens, and the [`WorkerHandle`], for everybody else.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::control::protocol::{EventLine, Settings};
use crate::control::stats::Stats;
use crate::error::{Refusal, RefusalKind};
use crate::worker::messages::{
    EXIT_PANICKED, EXIT_SOCKET_CLOSED, Inbox, Job, Note, Order, Outbox, ends,
};
use crate::worker::output;
use crate::{Error, Result};

/// How long a worker may take from being told to end until it has.
const TO_END: Duration = Duration::from_secs(5);
/// How long a worker may take to answer what takes no policy.
const TO_ANSWER: Duration = Duration::from_secs(5);
/// How long a library may take to be loaded, and a policy to start: its deadline ends it earlier.
const TO_START: Duration = Duration::from_secs(50);

/// A library that has been loaded and waits.
pub(crate) struct LoadedWorker {
    pub(crate) name: String,
    pub(crate) version: String,
    child: Child,
    inbox: Inbox,
    outbox: Outbox,
    stream: UnixStream,
}

/// A policy that runs.
pub(crate) struct RunningWorker {
    pub(crate) backend: String,
    pub(crate) features: Vec<String>,
    pub(crate) limits: Vec<String>,
    pub(crate) handle: Arc<WorkerHandle>,
    pub(crate) process: WorkerProcess,
}

/// What anybody may use to talk to a worker.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    pub(crate) pid: u32,
    outbox: Outbox,
    number: AtomicU64,
    open: Mutex<Pending>,
}

/// Who waits for what.
#[derive(Debug, Default)]
struct Pending {
    stats: Vec<(u64, Sender<Stats>)>,
    configured: Vec<(u64, Sender<Option<Refusal>>)>,
    events: Vec<SyncSender<EventLine>>,
    /// It has gone; nobody will be answered.
    gone: bool,
}

/// What is heard of a worker, by the one thread that listens.
pub(crate) struct WorkerProcess {
    child: Child,
    inbox: Inbox,
}

/// What a listener has to know.
pub(crate) enum WorkerNews {
    Log {
        level: u32,
        message: String,
    },
    Reader {
        process: u32,
        join: bool,
        cgroup: Option<std::path::PathBuf>,
    },
    Unmounted,
}

/// How a worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkerEnd {
    /// As it was told to.
    Told,
    /// Somehow else.
    Fault(String),
}

/// Starts a worker and has it load the library.
pub(crate) fn load(job: &Job, log: output::LineSink) -> Result<LoadedWorker> {
    let system = |doing| move |source| Error::System { doing, source };
    let (ours, theirs) = UnixStream::pair().map_err(system("Making a socket"))?;
    let (output, their_output) = std::io::pipe().map_err(system("Making a pipe"))?;
    let child = Command::new("/proc/self/exe")
        .arg("worker")
        .arg(&job.mount)
        .env_clear()
        .env("MALLOC_ARENA_MAX", "2")
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(their_output.try_clone().map_err(system("Sharing a pipe"))?)
        .stderr(their_output)
        // A key pressed in a terminal is for the command that is run there, not for its worker.
        .process_group(0)
        .spawn()
        .map_err(system("Starting a worker"))?;
    output::listen(output, log)?;
    let stream = ours.try_clone().map_err(system("Sharing a socket"))?;
    let (inbox, outbox) = ends(ours)?;
    let mut loaded = LoadedWorker {
        name: String::new(),
        version: String::new(),
        child,
        inbox,
        outbox,
        stream,
    };
    loaded.outbox.say(&Order::Start(Box::new(job.clone())));
    match loaded.first_word(|_, _| {}) {
        Ok(Note::Loaded { name, version }) => {
            (loaded.name, loaded.version) = (name, version);
            Ok(loaded)
        }
        Ok(_) => Err(Error::Protocol("The worker talks out of turn".into())),
        Err(refusal) => {
            loaded.put_down();
            Err(refusal.into())
        }
    }
}

impl LoadedWorker {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Itself, if its process is still there.
    pub(crate) fn if_alive(mut self) -> Option<Self> {
        let is_alive = matches!(self.child.try_wait(), Ok(None));
        is_alive.then_some(self)
    }

    /// Has it follow a process, if it waits for one; whether it does shows when it is to go.
    pub(crate) fn follow(&self, process: u32) {
        self.outbox.say(&Order::Follow { process });
    }

    /// Has it take the device and start the policy, with these settings besides those of its job.
    pub(crate) fn go(
        mut self,
        more: Settings,
        mut log: impl FnMut(u32, String),
    ) -> Result<RunningWorker> {
        self.outbox.say(&Order::Go(more));
        match self.first_word(&mut log) {
            Ok(Note::Ready {
                backend,
                features,
                limits,
            }) => {
                let handle = WorkerHandle {
                    pid: self.child.id(),
                    outbox: self.outbox,
                    number: AtomicU64::new(0),
                    open: Mutex::default(),
                };
                let process = WorkerProcess {
                    child: self.child,
                    inbox: self.inbox,
                };
                Ok(RunningWorker {
                    backend,
                    features,
                    limits,
                    handle: Arc::new(handle),
                    process,
                })
            }
            Ok(_) => Err(Error::Protocol("The worker talks out of turn".into())),
            Err(refusal) => {
                self.put_down();
                Err(refusal.into())
            }
        }
    }

    /// The first thing it says that is no log; if that is why it ends, the reason.
    fn first_word(&mut self, mut log: impl FnMut(u32, String)) -> Result<Note, Refusal> {
        let refusal = |message: String| Refusal {
            kind: RefusalKind::Policy,
            message,
            remedy: None,
        };
        // What cannot be set is not needed: nobody but a hanging library makes us wait.
        let _ = self.stream.set_read_timeout(Some(TO_START));
        let word = loop {
            match self.inbox.hear() {
                Ok(Some(Note::Log { level, message })) => log(level, message),
                Ok(Some(Note::Refused(refusal))) => break Err(refusal),
                Ok(Some(Note::Fault(fault))) => {
                    break Err(refusal(format!("The policy failed: {fault}")));
                }
                Ok(Some(note)) => break Ok(note),
                Ok(None) => {
                    let how = wait(&mut self.child, TO_END)
                        .map_or_else(|| "it closed the worker's socket".to_owned(), describe);
                    break Err(refusal(format!("The policy ended its worker: {how}")));
                }
                Err(_) => {
                    let seconds = TO_START.as_secs();
                    break Err(refusal(format!(
                        "The worker has said nothing for {seconds} s; the library hangs"
                    )));
                }
            }
        };
        let _ = self.stream.set_read_timeout(None);
        word
    }

    /// It is not needed, or no good.
    pub(crate) fn put_down(mut self) {
        self.outbox.hang_up();
        end(&mut self.child, TO_END);
    }
}

impl WorkerHandle {
    fn open(&self) -> MutexGuard<'_, Pending> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask<T>(
        &self,
        wait: Duration,
        add: impl FnOnce(&mut Pending, u64, Sender<T>),
        order: impl FnOnce(u64) -> Order,
    ) -> Option<T> {
        let id = self.number.fetch_add(1, Relaxed);
        let (sender, receiver) = channel();
        {
            let mut open = self.open();
            if open.gone {
                return None;
            }
            add(&mut open, id, sender);
        }
        self.outbox.say(&order(id));
        receiver.recv_timeout(wait).ok()
    }

    /// Its counters; `None` if it is gone, or going.
    pub(crate) fn stats(&self) -> Option<Stats> {
        self.ask(
            TO_ANSWER,
            |open, id, sender| open.stats.push((id, sender)),
            |id| Order::Stats { id },
        )
    }

    /// Changes settings.
    pub(crate) fn configure(&self, settings: &Settings) -> Result<(), Refusal> {
        let answer = self.ask(
            TO_START,
            |open, id, sender| open.configured.push((id, sender)),
            |id| Order::Configure {
                id,
                settings: settings.clone(),
            },
        );
        match answer {
            Some(None) => Ok(()),
            Some(Some(refusal)) => Err(refusal),
            None => Err(Refusal {
                kind: RefusalKind::Failed,
                message: "The policy's worker ended meanwhile".into(),
                remedy: Some("see 'ppcctl status'".into()),
            }),
        }
    }

    /// Has it tell events there, as many as are taken.
    pub(crate) fn events(&self, to: SyncSender<EventLine>) {
        {
            let mut open = self.open();
            if open.gone {
                return;
            }
            open.events.push(to);
        }
        self.outbox.say(&Order::Events(true));
    }

    /// Has it end in good order.
    pub(crate) fn exit(&self) {
        self.outbox.say(&Order::Exit);
    }

    fn event(&self, line: &EventLine) {
        let mut open = self.open();
        // Whoever does not keep up misses some; whoever has gone is forgotten.
        open.events.retain(|to| {
            !matches!(
                to.try_send(line.clone()),
                Err(std::sync::mpsc::TrySendError::Disconnected(_))
            )
        });
        if open.events.is_empty() {
            drop(open);
            self.outbox.say(&Order::Events(false));
        }
    }

    fn answer(&self, note: Note) {
        let mut open = self.open();
        match note {
            Note::Stats { id, stats } => {
                if let Some(at) = open.stats.iter().position(|(open, _)| *open == id) {
                    // Who asked may have stopped waiting.
                    let _ = open.stats.swap_remove(at).1.send(*stats);
                }
            }
            Note::Configured { id, refused } => {
                if let Some(at) = open.configured.iter().position(|(open, _)| *open == id) {
                    let _ = open.configured.swap_remove(at).1.send(refused);
                }
            }
            _ => {}
        }
    }

    fn gone(&self) {
        let gone = Pending {
            gone: true,
            ..Pending::default()
        };
        *self.open() = gone;
    }
}

impl WorkerProcess {
    /// Listens until it ends; then waits for the process, by force if need be. Where that takes long only because of
    /// the kernel, it is waited for only if `to_the_last`.
    pub(crate) fn attend(
        mut self,
        handle: &WorkerHandle,
        to_the_last: bool,
        mut heard: impl FnMut(WorkerNews),
    ) -> WorkerEnd {
        let mut fault = None;
        let (mut ended, mut late) = (false, false);
        // What is no note is as good as the end of it.
        while let Ok(Some(note)) = self.inbox.hear() {
            match note {
                Note::Log { level, message } => heard(WorkerNews::Log { level, message }),
                Note::Reader {
                    process,
                    join,
                    cgroup,
                } => heard(WorkerNews::Reader {
                    process,
                    join,
                    cgroup,
                }),
                Note::Event(line) => handle.event(&line),
                Note::Fault(why) => fault = Some(why),
                Note::Unmounted => heard(WorkerNews::Unmounted),
                Note::Ended { late: so } => {
                    (ended, late) = (true, so && !to_the_last);
                    if late {
                        break;
                    }
                }
                answer => handle.answer(answer),
            }
        }
        handle.gone();
        handle.outbox.hang_up();
        if late && fault.is_none() {
            reap(self.child);
            return WorkerEnd::Told;
        }
        let status = end(&mut self.child, TO_END);
        match (fault, ended) {
            (Some(fault), _) => WorkerEnd::Fault(fault),
            (None, true) => WorkerEnd::Told,
            (None, false) => {
                WorkerEnd::Fault(status.map_or_else(|| "it is gone".to_owned(), describe))
            }
        }
    }
}

/// Waits for a process to end; `None` if it does not.
fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let since = Instant::now();
    let mut nap = Duration::from_micros(200);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if since.elapsed() < patience => {
                std::thread::sleep(nap);
                nap = (nap * 2).min(Duration::from_millis(20));
            }
            _ => return None,
        }
    }
}

/// Waits for a process to end, and sees to it that it does.
fn end(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    wait(child, patience).or_else(|| {
        // It can only fail as it has ended.
        let _ = child.kill();
        child.wait().ok()
    })
}

/// Sees to the end of a worker's process that its keeper does not wait for.
fn reap(mut child: Child) {
    // If there is no thread to be had, init reaps the worker when this process has ended.
    let _ = std::thread::Builder::new()
        .name("reaper".into())
        .stack_size(64 << 10)
        .spawn(move || end(&mut child, TO_END));
}

/// How a worker's process ended, for people.
pub(crate) fn describe(status: ExitStatus) -> String {
    if let Some(signal) = status.signal() {
        let name = nix::sys::signal::Signal::try_from(signal)
            .map_or_else(|_| format!("signal {signal}"), |signal| signal.to_string());
        return format!("killed by {name}");
    }
    let code = status.code().unwrap_or(-1);
    if code == EXIT_SOCKET_CLOSED {
        return "it closed descriptors that it had not opened".to_owned();
    }
    if code == EXIT_PANICKED {
        return "the worker itself failed, which is a bug of cprtd; what it printed is in the log"
            .to_owned();
    }
    format!("it called exit({code})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_have_words() {
        assert_eq!(describe(ExitStatus::from_raw(11)), "killed by SIGSEGV");
        assert_eq!(describe(ExitStatus::from_raw(3 << 8)), "it called exit(3)");
    }
}
