//! A worker from the keeper's side: the process, and the messages exchanged with it.
//!
//! [`load`] starts the process and has it load the library, [`LoadedWorker::go`] has it start the policy. Then the
//! keeper has two ends: the [`WorkerProcess`], for the one thread that listens, and the [`WorkerHandle`], for all
//! other threads.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::control::loads::LoadTotals;
use crate::control::protocol::{EventLine, Settings};
use crate::control::stats::Stats;
use crate::daemon::trust::Trusted;
use crate::error::{Refusal, RefusalKind};
use crate::worker::child::{ChildEnd, WorkerChild};
use crate::worker::messages::{Inbox, Job, Note, Order, Outbox, ends};
use crate::worker::others;
use crate::worker::output;
use crate::worker::stop::{self, First, Stop};
use crate::{Error, Result};

/// How long a worker's process may take to end after its last message.
const TO_END: Duration = Duration::from_secs(5);
/// The same for a worker that was asked to end: only unmounting is left.
const TO_LEAVE: Duration = Duration::from_secs(1);
/// How often to look at a worker that is in a reader's cgroup.
const GUEST_LOOK: Duration = Duration::from_millis(500);
/// How long a worker may take to answer without asking the policy.
const TO_ANSWER: Duration = Duration::from_secs(5);
/// How long loading a library and starting a policy may take; the policy's deadline is normally shorter.
const TO_START: Duration = Duration::from_secs(50);

/// A worker that has loaded its library and waits for the order to go.
pub(crate) struct LoadedWorker {
    pub(crate) name: String,
    pub(crate) version: String,
    child: WorkerChild,
    inbox: Inbox,
    outbox: Outbox,
    stream: UnixStream,
    stop: Arc<Stop>,
}

/// A worker whose policy runs.
pub(crate) struct RunningWorker {
    pub(crate) backend: String,
    pub(crate) features: Vec<String>,
    pub(crate) limits: Vec<String>,
    pub(crate) handle: Arc<WorkerHandle>,
    pub(crate) process: WorkerProcess,
}

/// The end with which any thread may talk to a worker.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    pub(crate) pid: u32,
    outbox: Outbox,
    stop: Arc<Stop>,
    number: AtomicU64,
    open: Mutex<Pending>,
}

/// Callers that wait for an answer.
#[derive(Debug, Default)]
struct Pending {
    stats: Vec<(u64, Sender<Stats>)>,
    configured: Vec<(u64, Sender<Option<Refusal>>)>,
    events: Vec<SyncSender<EventLine>>,
    /// The worker has gone and answers no one.
    gone: bool,
}

/// An answer that a worker has been asked for.
pub(crate) struct Asked<'a, T> {
    of: &'a WorkerHandle,
    id: u64,
    receiver: Receiver<T>,
    until: Instant,
}

impl<T> Asked<'_, T> {
    /// Waits for the answer; `None` if the worker does not give it in time.
    pub(crate) fn answer(self) -> Option<T> {
        let left = self.until.saturating_duration_since(Instant::now());
        self.receiver.recv_timeout(left).ok()
    }
}

impl<T> Drop for Asked<'_, T> {
    fn drop(&mut self) {
        self.of.open().forget(self.id);
    }
}

/// The end for the one thread that listens to a worker.
pub(crate) struct WorkerProcess {
    child: WorkerChild,
    inbox: Inbox,
}

/// What a worker reports to its listener.
pub(crate) enum WorkerNews {
    Log {
        level: u32,
        message: String,
    },
    Reader {
        process: u32,
        cgroup: Option<PathBuf>,
    },
    /// It is about to enter that cgroup, or is back from it.
    Guest(Option<PathBuf>),
    /// It is still in a reader's cgroup after a while.
    IsGuest,
    Unmounted,
    /// The policy reports a load that is over.
    Reported(Box<LoadTotals>),
    /// What it has done in total, when it ends.
    Counted(Box<Stats>),
}

/// How a worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkerEnd {
    /// It ended when told to.
    Told,
    /// It failed.
    Fault(String),
    /// A signal from outside killed it.
    Killed(String),
}

/// A worker's last message.
enum LastWord {
    /// It has carried out all orders.
    Ended { late: bool },
    /// Why it ends.
    Fault(String),
    /// No message; `overdue` if its time to end is over.
    None { overdue: bool },
}

/// Starts a worker and has it load the library, which is that of `job`, unless it is stopped meanwhile.
pub(crate) fn load(
    job: &Job,
    library: &Trusted,
    log: output::LineSink,
    stop: Arc<Stop>,
) -> Result<LoadedWorker> {
    let system = |doing| move |source| Error::System { doing, source };
    let (ours, theirs) = UnixStream::pair().map_err(system("Making a socket"))?;
    let (output, their_output) = std::io::pipe().map_err(system("Making a pipe"))?;
    let library = library.file().try_clone();
    let child = Command::new(others::PROGRAM)
        .arg(others::WORD)
        .arg(&job.mount)
        .env_clear()
        .env("MALLOC_ARENA_MAX", "2")
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        // The worker takes the library from here, and then sends its output to its errors.
        .stdout(library.map_err(system("Sharing a library"))?)
        .stderr(their_output)
        // A key pressed in a terminal is for the command that is run there, not for its worker.
        .process_group(0)
        .spawn()
        .map_err(system("Starting a worker"))?;
    let child = WorkerChild::new(child);
    output::listen(output, log)?;
    // A worker that has stopped listening must not hold up its keeper.
    ours.set_write_timeout(Some(TO_ANSWER))
        .map_err(system("Setting up a socket"))?;
    let stream = ours.try_clone().map_err(system("Sharing a socket"))?;
    let (inbox, outbox) = ends(ours)?;
    let mut loaded = LoadedWorker {
        name: String::new(),
        version: String::new(),
        child,
        inbox,
        outbox,
        stream,
        stop,
    };
    loaded.outbox.say(&Order::Start(Box::new(job.clone())));
    match loaded.first_word(|_, _| {}) {
        Ok(Note::Loaded { name, version }) => {
            (loaded.name, loaded.version) = (name, version);
            Ok(loaded)
        }
        Ok(_) => Err(Error::Protocol(
            "unexpected message during the start of a worker".into(),
        )),
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

    /// Orders the worker to end.
    pub(crate) fn stop(&self) -> &Arc<Stop> {
        &self.stop
    }

    /// Itself, if its process is still there.
    pub(crate) fn if_alive(mut self) -> Option<Self> {
        self.child.is_alive().then_some(self)
    }

    /// Has it follow a process, if it waits for one; [`Self::go`] reports a failure to do so.
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
                    stop: self.stop,
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
            Ok(_) => Err(Error::Protocol(
                "unexpected message during the start of a worker".into(),
            )),
            Err(refusal) => {
                self.put_down();
                Err(refusal.into())
            }
        }
    }

    /// Its first message that is not a log line; an error if that says why it ends.
    fn first_word(&mut self, mut log: impl FnMut(u32, String)) -> Result<Note, Refusal> {
        let refusal = |message: String| Refusal {
            kind: RefusalKind::Policy,
            message,
            remedy: None,
        };
        // If it cannot be set, we can do without: only a hanging library makes us wait.
        let _ = self.stream.set_read_timeout(Some(TO_START));
        let until = Instant::now() + TO_START;
        let word = loop {
            if self.inbox.wait(&self.stop, Duration::ZERO, Some(until)) == First::Stop {
                break Err(refusal(
                    "It was asked to stop before it had started".to_owned(),
                ));
            }
            match self.inbox.hear() {
                Ok(Some(Note::Log { level, message })) => log(level, message),
                Ok(Some(Note::Refused(refusal))) => break Err(refusal),
                Ok(Some(Note::Fault(fault))) => {
                    break Err(refusal(format!("The policy failed: {fault}")));
                }
                Ok(Some(note)) => break Ok(note),
                Ok(None) => {
                    let how = self.child.wait(TO_END).map_or_else(
                        || "it closed the worker's socket".to_owned(),
                        |status| ChildEnd::Ended(status).describe(),
                    );
                    break Err(refusal(format!("The policy ended its worker: {how}")));
                }
                Err(_) => {
                    let seconds = TO_START.as_secs();
                    break Err(refusal(format!(
                        "The worker has been silent for {seconds} s; the library hangs"
                    )));
                }
            }
        };
        let _ = self.stream.set_read_timeout(None);
        word
    }

    /// Ends the worker, which is not needed or has failed.
    pub(crate) fn put_down(self) {
        self.outbox.hang_up();
        self.child.end(TO_LEAVE);
    }
}

/// The answer to an order that the worker ended too early to carry out.
pub(crate) fn ended_meanwhile() -> Refusal {
    Refusal {
        kind: RefusalKind::Failed,
        message: "The policy's worker has ended in the meantime".into(),
        remedy: Some("see 'ppcctl status'".into()),
    }
}

impl Pending {
    /// Forgets a caller that has stopped waiting.
    fn forget(&mut self, number: u64) {
        self.stats.retain(|(open, _)| *open != number);
        self.configured.retain(|(open, _)| *open != number);
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
    ) -> Option<Asked<'_, T>> {
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
        Some(Asked {
            of: self,
            id,
            receiver,
            until: Instant::now() + wait,
        })
    }

    /// The worker's counters; `None` if it is gone or about to go.
    pub(crate) fn stats(&self) -> Option<Stats> {
        self.ask_stats()?.answer()
    }

    /// Asks for the worker's counters.
    pub(crate) fn ask_stats(&self) -> Option<Asked<'_, Stats>> {
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
        match answer.and_then(Asked::answer) {
            Some(None) => Ok(()),
            Some(Some(refusal)) => Err(refusal),
            None => Err(ended_meanwhile()),
        }
    }

    /// Has the worker send events to this channel; those that do not fit are dropped.
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

    /// Ends the worker in an orderly way, or by force if that takes long.
    pub(crate) fn exit(&self) {
        self.stop.tell();
        self.outbox.say(&Order::Exit);
    }

    fn event(&self, line: &EventLine) {
        let mut open = self.open();
        // A receiver that does not keep up misses some; one that has gone is forgotten.
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
                    // The caller may have stopped waiting.
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
    /// Listens until the worker ends; then waits for its process, and kills it if need be. If only the kernel delays
    /// its end, waits for that only if `to_the_last`.
    pub(crate) fn attend(
        mut self,
        handle: &WorkerHandle,
        to_the_last: bool,
        mut heard: impl FnMut(WorkerNews),
    ) -> WorkerEnd {
        let word = self.last_word(handle, &mut heard);
        handle.gone();
        handle.outbox.hang_up();
        if let LastWord::Ended { late: true } = word
            && !to_the_last
        {
            self.child.end_alone(TO_END);
            return WorkerEnd::Told;
        }
        let overdue = matches!(word, LastWord::None { overdue: true });
        let patience = if overdue {
            Duration::ZERO
        } else {
            let left = handle.stop.left(stop::PATIENCE);
            left.map_or(TO_END, |left| left.max(TO_LEAVE))
        };
        let end = self.child.end(patience);
        if overdue || end == ChildEnd::Held {
            let message = format!("the worker does not exit when asked to: {}", end.describe());
            heard(WorkerNews::Log { level: 2, message });
        }
        match word {
            LastWord::Fault(fault) => WorkerEnd::Fault(fault),
            LastWord::Ended { .. } => WorkerEnd::Told,
            LastWord::None { .. } if end.is_from_outside() => WorkerEnd::Killed(end.describe()),
            LastWord::None { .. } => WorkerEnd::Fault(end.describe()),
        }
    }

    /// Listens until the last message. It does not wait for the socket to close after that, which may take as long as
    /// the kernel holds up one of the worker's threads.
    fn last_word(&mut self, handle: &WorkerHandle, heard: &mut impl FnMut(WorkerNews)) -> LastWord {
        let mut is_guest = false;
        loop {
            let until = is_guest.then(|| Instant::now() + GUEST_LOOK);
            match self.inbox.wait(&handle.stop, stop::PATIENCE, until) {
                First::Stop => return LastWord::None { overdue: true },
                First::Late => {
                    heard(WorkerNews::IsGuest);
                    continue;
                }
                First::Readable => {}
            }
            // Anything that is not a note counts as the end.
            let Ok(Some(note)) = self.inbox.hear() else {
                return LastWord::None { overdue: false };
            };
            match note {
                Note::Log { level, message } => heard(WorkerNews::Log { level, message }),
                Note::Reader { process, cgroup } => {
                    heard(WorkerNews::Reader { process, cgroup });
                }
                Note::Guest { host } => {
                    is_guest = host.is_some();
                    heard(WorkerNews::Guest(host));
                }
                Note::Event(line) => handle.event(&line),
                Note::Reported(load) => heard(WorkerNews::Reported(load)),
                Note::Fault(why) => return LastWord::Fault(why),
                Note::Unmounted => heard(WorkerNews::Unmounted),
                Note::Ended { late, stats } => {
                    heard(WorkerNews::Counted(stats));
                    return LastWord::Ended { late };
                }
                answer => handle.answer(answer),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that runs without sending messages.
    fn deaf() -> (UnixStream, WorkerHandle, WorkerProcess) {
        let (ours, theirs) = UnixStream::pair().expect("a socket");
        let (inbox, outbox) = ends(ours).expect("its ends");
        let child = Command::new("sleep").arg("60").spawn();
        let child = WorkerChild::new(child.expect("coreutils"));
        let handle = WorkerHandle {
            pid: child.id(),
            outbox,
            stop: Arc::new(Stop::new().expect("an eventfd")),
            number: AtomicU64::new(0),
            open: Mutex::default(),
        };
        (theirs, handle, WorkerProcess { child, inbox })
    }

    #[test]
    fn abandoned_request_is_forgotten() {
        let (_theirs, handle, _process) = deaf();
        for _ in 0..3 {
            let answer = handle.ask(
                Duration::from_millis(1),
                |open, id, sender| open.stats.push((id, sender)),
                |id| Order::Stats { id },
            );
            assert!(answer.expect("it is there").answer().is_none());
        }
        drop(handle.ask_stats().expect("it is there"));
        let refused = handle.ask(
            Duration::from_millis(1),
            |open, id, sender| open.configured.push((id, sender)),
            |id| Order::Configure {
                id,
                settings: Settings::new(),
            },
        );
        assert!(refused.expect("it is there").answer().is_none());
        let open = handle.open();
        assert_eq!((open.stats.len(), open.configured.len()), (0, 0));
    }

    #[test]
    fn worker_that_does_not_exit_is_killed_in_five_seconds() {
        let (_theirs, handle, process) = deaf();
        let since = Instant::now();
        handle.exit();
        let mut said = Vec::new();
        let end = process.attend(&handle, true, |news| {
            if let WorkerNews::Log { message, .. } = news {
                said.push(message);
            }
        });
        assert_eq!(end, WorkerEnd::Killed("killed by SIGKILL".to_owned()));
        assert!(
            since.elapsed() < Duration::from_secs(5),
            "{:?}",
            since.elapsed()
        );
        assert!(
            said.iter().any(|it| it.contains("does not exit")),
            "{said:?}"
        );
    }

    #[test]
    fn a_fault_is_heard_though_the_socket_stays_open() {
        let (theirs, handle, process) = deaf();
        let outbox = Outbox::new(theirs.try_clone().expect("a socket"));
        outbox.say(&Note::Fault("it hangs".into()));
        let since = Instant::now();
        let end = process.attend(&handle, true, |_| {});
        assert_eq!(end, WorkerEnd::Fault("it hangs".to_owned()));
        // The wait is as long as for a process that may still end by itself.
        assert!(since.elapsed() < TO_END * 2, "{:?}", since.elapsed());
    }

    #[test]
    fn its_last_counts_are_heard_unasked() {
        let (theirs, handle, process) = deaf();
        let stats = Box::new(Stats {
            loaded_bytes: 7,
            ..Stats::default()
        });
        Outbox::new(theirs).say(&Note::Ended { late: true, stats });
        let mut counted = Vec::new();
        let end = process.attend(&handle, false, |news| {
            if let WorkerNews::Counted(stats) = news {
                counted.push(stats.loaded_bytes);
            }
        });
        assert_eq!((end, counted), (WorkerEnd::Told, vec![7]));
    }
}
