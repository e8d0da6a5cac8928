//! Signals while a command runs: they are its own.
//!
//! A key pressed in the terminal reaches the command directly, as it is in the same group of
//! processes; what somebody sends to our process alone is passed on.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::failure::{Failure, Result};

/// Those that one process sends another to tell it something. Stopping and going on are the
/// terminal's business.
const PASSED_ON: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Something has become of a child.
    Child,
    /// Somebody has sent us this.
    PassOn(Signal),
    /// It is time, or it was for the command as well.
    Nothing,
}

/// The signals, which do nothing by themselves any more.
#[derive(Debug)]
pub(super) struct Signals(SignalFd);

impl Signals {
    /// From now on they wait to be heard, in this thread and those it starts.
    pub(super) fn take() -> Result<Self> {
        let mut set = SigSet::from_iter(PASSED_ON);
        set.add(Signal::SIGCHLD);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        set.thread_block()
            .and_then(|()| SignalFd::with_flags(&set, flags))
            .map(Self)
            .map_err(|error| Failure::System {
                doing: "Taking over signals",
                source: error.into(),
            })
    }

    /// Sleeps until there is something, or for so long.
    pub(super) fn hear(&self, patience: Option<Duration>) -> Result<Heard> {
        let timeout = patience.map_or(PollTimeout::NONE, |patience| {
            PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let Some(info) = self.0.read_signal().map_err(|error| failed(error.into()))? else {
            return Ok(Heard::Nothing);
        };
        let number = i32::try_from(info.ssi_signo).unwrap_or_default();
        Ok(match Signal::try_from(number) {
            Ok(Signal::SIGCHLD) => Heard::Child,
            // The kernel's own, positive, went to the whole group.
            Ok(signal) if info.ssi_code <= 0 => Heard::PassOn(signal),
            _ => Heard::Nothing,
        })
    }
}

fn failed(source: io::Error) -> Failure {
    Failure::System {
        doing: "Waiting for signals",
        source,
    }
}

/// What a process of ours has of it, it has not any more.
pub(super) fn give_back() {
    let mut set = SigSet::from_iter(PASSED_ON);
    set.add(Signal::SIGCHLD);
    // It cannot fail for signals that there are.
    let _ = set.thread_unblock();
}

/// If it has ended meanwhile, nobody has to hear it.
pub(super) fn send(process: u32, signal: Signal) {
    if let Ok(process) = i32::try_from(process) {
        let _ = kill(Pid::from_raw(process), signal);
    }
}

/// Ends by this signal, without leaving a core of ours. Comes back if that is not to be.
pub(super) fn end_by(signal: i32) {
    let Ok(signal) = Signal::try_from(signal) else {
        return;
    };
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE) {
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
    }
    let _ = raise(signal);
    // It has been waiting since, if it was one of those that we have taken.
    let _ = SigSet::from_iter([signal]).thread_unblock();
}
