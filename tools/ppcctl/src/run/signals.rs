//! Signals while a command runs: they are meant for the command.
//!
//! A signal from the terminal reaches the command directly, as it is in the same process group; a
//! signal that another process sends to ppcctl alone is passed on.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::failure::{Failure, Result};

/// The signals that one process sends another as a message. Stopping and continuing are left to the
/// terminal.
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
    /// A child changed its state.
    Child,
    /// Another process has sent ppcctl this signal.
    PassOn(Signal),
    /// The timeout has passed, or the command received the signal as well.
    Nothing,
}

/// The signals, which are blocked and read from a descriptor.
#[derive(Debug)]
pub(super) struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals in this thread and those that it starts later.
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

    /// Sleeps until there is a signal, for at most `patience`.
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
            // A positive code means that the kernel sent it, and it went to the whole group.
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

/// Unblocks the signals, in a child process that inherited the mask.
pub(super) fn give_back() {
    let mut set = SigSet::from_iter(PASSED_ON);
    set.add(Signal::SIGCHLD);
    // It cannot fail for valid signals.
    let _ = set.thread_unblock();
}

/// Sends a signal. A process that has already ended is not a failure.
pub(super) fn send(process: u32, signal: Signal) {
    if let Ok(process) = i32::try_from(process) {
        let _ = kill(Pid::from_raw(process), signal);
    }
}

/// Ends this process by the signal, without a core dump. Returns if the signal does not end it.
pub(super) fn end_by(signal: i32) {
    let Ok(signal) = Signal::try_from(signal) else {
        return;
    };
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE) {
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
    }
    let _ = raise(signal);
    // If it is one of the blocked signals, it is pending until now.
    let _ = SigSet::from_iter([signal]).thread_unblock();
}
