//! Finds the process of a thread: FUSE names the thread, policies want the process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long the process of a thread is remembered: the kernel reuses numbers, though not so soon.
const BELIEVED: Duration = Duration::from_secs(2);

/// Upper bound on threads remembered.
const MAX: usize = 4096;

/// Threads that have made requests recently.
#[derive(Debug, Default)]
pub(super) struct ThreadOwners {
    known: HashMap<u32, (u32, Instant)>,
}

impl ThreadOwners {
    /// The process of a thread. A thread that is gone and was never seen may have been the only one of
    /// its process, so its own number is returned.
    pub(super) fn of(&mut self, thread: u32) -> u32 {
        self.of_at(thread, Instant::now(), |thread| {
            std::fs::read_to_string(format!("/proc/{thread}/status")).ok()
        })
    }

    fn of_at(
        &mut self,
        thread: u32,
        now: Instant,
        status: impl FnOnce(u32) -> Option<String>,
    ) -> u32 {
        // A thread in a PID namespace above, which has no number here.
        if thread == 0 {
            return 0;
        }
        let before = self.known.get(&thread).copied();
        if let Some((process, when)) = before
            && now.saturating_duration_since(when) < BELIEVED
        {
            return process;
        }
        let read = status(thread).as_deref().and_then(process);
        let Some(process) = read else {
            return before.map_or(thread, |(process, _)| process);
        };
        if self.known.len() >= MAX {
            self.known.clear();
        }
        self.known.insert(thread, (process, now));
        process
    }
}

/// The process in the text of `/proc/TID/status`.
fn process(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tpython3\nUmask:\t0022\nTgid:\t17\nNgid:\t0\nPid:\t23\n";

    #[test]
    fn the_process_is_in_the_status() {
        assert_eq!(process(STATUS), Some(17));
        assert_eq!(process("Name:\tTgid\nTgid:\tx\n"), None);
        assert_eq!(process(""), None);
    }

    #[test]
    fn thread_owner_is_cached_then_looked_up_again() {
        let mut processes = ThreadOwners::default();
        let start = Instant::now();
        let read = |_| Some(STATUS.to_owned());
        let never = |_| -> Option<String> { panic!("not to be asked") };
        assert_eq!(processes.of_at(23, start, read), 17);
        assert_eq!(
            processes.of_at(23, start + Duration::from_secs(1), never),
            17
        );
        let later = start + Duration::from_secs(3);
        let other = |_| Some("Tgid:\t18\n".to_owned());
        assert_eq!(processes.of_at(23, later, other), 18);
    }

    #[test]
    fn a_thread_that_is_gone_is_what_it_was() {
        let mut processes = ThreadOwners::default();
        let start = Instant::now();
        assert_eq!(processes.of_at(23, start, |_| Some(STATUS.to_owned())), 17);
        let later = start + Duration::from_mins(1);
        assert_eq!(processes.of_at(23, later, |_| None), 17);
        assert_eq!(processes.of_at(99, later, |_| None), 99);
        assert_eq!(processes.of_at(0, later, |_| None), 0);
    }

    #[test]
    fn our_own_threads_are_ours() {
        let mut processes = ThreadOwners::default();
        let thread = u32::try_from(nix::unistd::gettid().as_raw()).expect("a number");
        assert_eq!(processes.of(thread), std::process::id());
    }
}
