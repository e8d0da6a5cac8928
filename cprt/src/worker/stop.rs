//! Tells a keeper's thread, where it waits, that its worker is to end.
//!
//! The keeper waits for messages of its worker, and those may never come: a policy hangs, or the kernel holds up a
//! thread that reads from a server which does not answer. So the keeper waits for a message or a stop.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::{Error, Result};

/// How long a worker may take to end once it is asked to; then it is killed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(4);

/// The signal that a worker is to end.
#[derive(Debug)]
pub(crate) struct Stop {
    event: EventFd,
    since: OnceLock<Instant>,
}

/// Which event came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// There is something to read, if only the end.
    Readable,
    /// The worker was asked to end, and its time for that is over.
    Stop,
    /// Neither, until the time was over.
    Late,
}

impl Stop {
    pub(crate) fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = EventFd::from_flags(flags).map_err(|error| Error::System {
            doing: "Making an eventfd",
            source: error.into(),
        })?;
        Ok(Self {
            event,
            since: OnceLock::new(),
        })
    }

    /// Signals that the worker is to end.
    pub(crate) fn tell(&self) {
        let _ = self.since.set(Instant::now());
        // It only fails if the counter is full, and then the signal is there already.
        let _ = self.event.write(1);
    }

    /// The time that the worker has left to end, if it has been told to.
    pub(crate) fn left(&self, patience: Duration) -> Option<Duration> {
        let since = self.since.get()?;
        Some(patience.saturating_sub(since.elapsed()))
    }

    /// Waits until `from` is readable: at most `after` from a stop on, and at most until `until` in any case.
    pub(crate) fn or_readable(
        &self,
        from: BorrowedFd<'_>,
        after: Duration,
        until: Option<Instant>,
    ) -> First {
        loop {
            let left = self.left(after);
            let patience = until.map(|until| until.saturating_duration_since(Instant::now()));
            let wait = [left, patience].into_iter().flatten().min();
            let mut fds = [
                PollFd::new(from, PollFlags::POLLIN),
                PollFd::new(self.event.as_fd(), PollFlags::POLLIN),
            ];
            // After the signal, its descriptor stays readable and would only wake us.
            let heard = if left.is_some() { 1 } else { 2 };
            let polled = poll(&mut fds[..heard], timeout(wait));
            let readable = fds[0].revents().is_some_and(|it| !it.is_empty());
            match polled {
                Ok(_) if readable => return First::Readable,
                Ok(0) if left.is_some_and(|left| left <= wait.unwrap_or_default()) => {
                    return First::Stop;
                }
                Ok(0) => return First::Late,
                Ok(_) | Err(Errno::EINTR) => {}
                // If polling fails, reading shows why.
                Err(_) => return First::Readable,
            }
        }
    }
}

/// The time in whole milliseconds, rounded up.
fn timeout(wait: Option<Duration>) -> PollTimeout {
    wait.map_or(PollTimeout::NONE, |wait| {
        let millis = wait.as_nanos().div_ceil(1_000_000);
        let most = i32::MAX.unsigned_abs().into();
        PollTimeout::try_from(millis.min(most)).unwrap_or(PollTimeout::MAX)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn wait_reports_data_ahead_of_stop_or_timeout() {
        let stop = Stop::new().expect("an eventfd");
        let (mut there, here) = UnixStream::pair().expect("a socket");
        let wait = |until: Option<Duration>| {
            let until = until.map(|wait| Instant::now() + wait);
            stop.or_readable(here.as_fd(), SHORT, until)
        };
        assert_eq!(wait(Some(SHORT)), First::Late);
        there.write_all(b"x").expect("to write");
        assert_eq!(wait(None), First::Readable);
        assert_eq!(stop.left(SHORT), None);
        stop.tell();
        assert_eq!(wait(None), First::Readable, "what was said before counts");
        std::io::Read::read(&mut &here, &mut [0]).expect("to read");
        assert_eq!(wait(None), First::Stop);
        assert_eq!(stop.left(SHORT), Some(Duration::ZERO));
        drop(there);
        assert_eq!(wait(None), First::Readable, "the end is noticed");
    }

    #[test]
    fn a_stop_ends_a_wait_that_has_begun() {
        let stop = Stop::new().expect("an eventfd");
        let (_there, here) = UnixStream::pair().expect("a socket");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| stop.or_readable(here.as_fd(), SHORT, None));
            std::thread::sleep(SHORT);
            stop.tell();
            assert_eq!(waiting.join().expect("it waits"), First::Stop);
        });
    }
}
