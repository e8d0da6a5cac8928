//! The signals that end a long command: it stops at the next good place, and tells what it has done.

use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::exit::Exit;
use crate::failure::{Failure, Result};

/// SIGINT and SIGTERM, which are blocked and read from a descriptor.
#[derive(Debug)]
pub(super) struct Interrupts(SignalFd);

impl Interrupts {
    /// Blocks the signals in this thread and those that it starts later.
    pub(super) fn take() -> Result<Self> {
        let set = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        set.thread_block()
            .and_then(|()| SignalFd::with_flags(&set, flags))
            .map(Self)
            .map_err(|error| failed(error, "Taking over signals"))
    }

    /// Sleeps for this time, or until a signal comes; returns with which status to end, if one came.
    pub(super) fn sleep(&self, time: Duration) -> Result<Option<Exit>> {
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        match poll(
            &mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)],
            timeout,
        ) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(failed(error, "Waiting for signals")),
        }
        let info = self.0.read_signal();
        let info = info.map_err(|error| failed(error, "Waiting for signals"))?;
        Ok(info.map(|info| {
            if info.ssi_signo == Signal::SIGINT as u32 {
                Exit::Interrupted
            } else {
                Exit::Terminated
            }
        }))
    }
}

fn failed(error: Errno, doing: &'static str) -> Failure {
    Failure::System {
        doing,
        source: error.into(),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::raise;

    use super::*;

    #[test]
    fn signal_ends_the_sleep_and_sets_the_exit_status() {
        let interrupts = Interrupts::take().expect("signals");
        let no_time = Duration::ZERO;
        assert_eq!(interrupts.sleep(no_time).expect("none"), None);
        for (signal, exit) in [
            (Signal::SIGINT, Exit::Interrupted),
            (Signal::SIGTERM, Exit::Terminated),
        ] {
            raise(signal).expect("ourselves");
            let slept = interrupts.sleep(Duration::from_mins(1));
            assert_eq!(slept.expect("a signal"), Some(exit));
        }
    }
}
