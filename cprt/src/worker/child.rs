//! The process of a worker: never waited for without bound, and never left behind as a zombie.
//!
//! A killed process ends when the kernel lets it, and that may never be: one of its threads may wait for a
//! file system whose server does not answer. Then a thread of ours waits for what is left of it.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use crate::worker::messages::{EXIT_PANICKED, EXIT_SOCKET_CLOSED};

/// How long a killed process may take to end.
const TO_DIE: Duration = Duration::from_millis(500);

/// A worker's process. When this is dropped, the process is killed if it is still there.
#[derive(Debug)]
pub(crate) struct WorkerChild {
    /// `None` once a thread reaps it.
    child: Option<Child>,
    id: u32,
}

/// How a worker's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildEnd {
    Ended(ExitStatus),
    /// It was killed, and the kernel holds on to it.
    Held,
}

impl WorkerChild {
    pub(crate) fn new(child: Child) -> Self {
        Self {
            id: child.id(),
            child: Some(child),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Waits for it to end by itself; `None` if it does not.
    pub(crate) fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        wait(self.child.as_mut()?, patience)
    }

    /// Waits for it to end by itself, and then kills it.
    pub(crate) fn end(mut self, patience: Duration) -> ChildEnd {
        let ended = self.wait(patience).or_else(|| {
            self.kill();
            self.wait(TO_DIE)
        });
        // If it has not ended, `drop` leaves it to a thread.
        ended.map_or(ChildEnd::Held, ChildEnd::Ended)
    }

    fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            // It can only fail if the process has ended.
            let _ = child.kill();
        }
    }

    /// As [`Self::end`], but the caller does not wait.
    pub(crate) fn end_alone(mut self, patience: Duration) {
        reap(self.child.take(), patience);
    }
}

impl Drop for WorkerChild {
    fn drop(&mut self) {
        self.kill();
        if self.wait(Duration::ZERO).is_none() {
            reap(self.child.take(), Duration::ZERO);
        }
    }
}

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

/// Starts a thread that waits for the end of a process and reaps it.
fn reap(child: Option<Child>, patience: Duration) {
    let Some(mut child) = child else { return };
    // If no thread can be started, init reaps it when this process has ended.
    let _ = std::thread::Builder::new()
        .name("reaper".into())
        .stack_size(64 << 10)
        .spawn(move || {
            if wait(&mut child, patience).is_none() {
                // It can only fail if the process has ended.
                let _ = child.kill();
                let _ = child.wait();
            }
        });
}

impl ChildEnd {
    /// Whether a signal from outside ended it: a policy's faults end its worker in other ways.
    pub(crate) fn is_from_outside(self) -> bool {
        const FROM_OUTSIDE: [i32; 5] = [
            libc::SIGKILL,
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGQUIT,
        ];
        match self {
            Self::Ended(status) => status.signal().is_some_and(|it| FROM_OUTSIDE.contains(&it)),
            Self::Held => false,
        }
    }

    /// How it ended, as text.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Ended(status) => describe(status),
            Self::Held => {
                "it was killed, but has not ended yet: it waits for a file system that does not answer, or the \
                 machine is too busy"
                    .to_owned()
            }
        }
    }
}

/// How a worker's process ended, as text.
fn describe(status: ExitStatus) -> String {
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
    use std::process::Command;

    use super::*;

    fn sleeper() -> WorkerChild {
        let child = Command::new("sleep").arg("60").spawn();
        WorkerChild::new(child.expect("coreutils"))
    }

    /// Whether there is a process with this number, even if only a zombie.
    fn is_there(process: u32) -> bool {
        std::path::Path::new("/proc")
            .join(process.to_string())
            .exists()
    }

    #[test]
    fn ends_have_words() {
        assert_eq!(describe(ExitStatus::from_raw(11)), "killed by SIGSEGV");
        assert_eq!(describe(ExitStatus::from_raw(3 << 8)), "it called exit(3)");
    }

    #[test]
    fn child_that_does_not_end_is_killed() {
        let child = sleeper();
        let process = child.id();
        let ChildEnd::Ended(status) = child.end(Duration::from_millis(10)) else {
            panic!("nothing holds it");
        };
        assert_eq!(describe(status), "killed by SIGKILL");
        assert!(!is_there(process));
    }

    #[test]
    fn dropped_child_leaves_no_zombie() {
        let child = sleeper();
        let process = child.id();
        drop(child);
        let until = Instant::now() + Duration::from_secs(10);
        while is_there(process) {
            assert!(Instant::now() < until, "{process} is left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
