//! Watches a policy's calls: one that takes too long, or too much memory, ends the worker.
//!
//! Code that does not want to stop can be stopped only by ending its process. Until then it must not
//! take processor time from readers: a call that is not short continues at the lowest priority (nice 19).
//! So it may wait long for a processor on a busy machine; that does not count against its deadline.
//! The watchdog's own thread sleeps while no call runs, so that an idle worker never wakes.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{Pid, gettid};

use crate::sys;

/// How often a running call is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// How many times its limit a call may take, including all waits for a processor.
const PATIENCE: u32 = 10;

/// The watch.
#[derive(Debug)]
pub(crate) struct Watchdog {
    state: Mutex<WatchdogState>,
    changed: Condvar,
    deadline: Duration,
    memory: u64,
}

#[derive(Debug, Default)]
struct WatchdogState {
    call: Option<RunningCall>,
    thread: Option<Pid>,
    /// The number of the call that runs, or ran last.
    number: u64,
    /// The watchdog's thread waits for a call, without a timeout.
    idle: bool,
    ended: bool,
}

#[derive(Clone, Copy, Debug)]
struct RunningCall {
    name: &'static str,
    since: Instant,
    limit: Duration,
    thread: Pid,
    /// Set once the call has run for long enough to be made nice.
    slow: Option<Slow>,
}

/// The state of the thread before it was made nice.
#[derive(Clone, Copy, Debug)]
struct Slow {
    /// How long it had waited for a processor.
    waited: Duration,
    /// Its nice value; `None` if unknown.
    nice: Option<i32>,
}

impl Watchdog {
    pub(crate) fn new(deadline: Duration, memory: u64) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            deadline,
            memory,
        }
    }

    fn lock(&self) -> MutexGuard<'_, WatchdogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call under watch, with a limit of `times` deadlines. `since` is now: reading the clock has a
    /// cost, and the caller has just done so. One thread makes all calls.
    pub(crate) fn call<T>(
        &self,
        name: &'static str,
        times: u32,
        since: Instant,
        call: impl FnOnce() -> T,
    ) -> T {
        let limit = self.deadline.saturating_mul(times);
        {
            let mut state = self.lock();
            state.number += 1;
            let thread = *state.thread.get_or_insert_with(gettid);
            state.call = Some(RunningCall {
                name,
                since,
                limit,
                thread,
                slow: None,
            });
            if state.idle {
                self.changed.notify_one();
            }
        }
        let result = call();
        let call = self.lock().call.take();
        if let Some(call) = call
            && let Some(nice) = call.slow.and_then(|slow| slow.nice)
        {
            // Without the right to raise its priority, it stays nice.
            let _ = sys::nice(call.thread, nice);
        }
        result
    }

    /// Ends the watch; there are no more calls.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    /// Watches until the end, or until there is a fault, which it returns.
    pub(crate) fn watch(&self) -> Option<String> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            let Some(call) = state.call else {
                state.idle = true;
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle = false;
                continue;
            };
            let number = state.number;
            Self::slow_down(&mut state);
            drop(state);
            if let Some(fault) = self.look(call) {
                let state = self.lock();
                // The call may have returned just now; then only memory that it still takes counts.
                if state.number == number && state.call.is_some() || self.is_fat() {
                    return Some(fault);
                }
                drop(state);
            }
            state = self
                .changed
                .wait_timeout(self.lock(), LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Makes the thread nice once its call is no longer short.
    fn slow_down(state: &mut WatchdogState) {
        let Some(call) = state.call.as_mut().filter(|call| call.slow.is_none()) else {
            return;
        };
        if call.since.elapsed() >= LOOK {
            let nice = nice_of(call.thread);
            call.slow = Some(Slow {
                waited: waited(call.thread),
                nice,
            });
            // Only a courtesy, so not unless it can be undone.
            if nice.is_some() {
                let _ = sys::nice(call.thread, 19);
            }
        }
    }

    fn look(&self, call: RunningCall) -> Option<String> {
        let before = call.slow.map(|slow| slow.waited).unwrap_or_default();
        let waited = || waited(call.thread).saturating_sub(before);
        let taken = call.since.elapsed();
        let hangs = || taken.saturating_sub(waited()) > call.limit || taken > call.limit * PATIENCE;
        if taken > call.limit && hangs() {
            let limit = call.limit.as_millis();
            return Some(format!(
                "its {} hangs: it took longer than {limit} ms",
                call.name
            ));
        }
        self.too_much(&format!("during its {}", call.name))
    }

    fn is_fat(&self) -> bool {
        rss() > self.memory
    }

    /// The fault, if the worker takes more memory than it may.
    pub(crate) fn too_much(&self, when: &str) -> Option<String> {
        let rss = rss();
        (rss > self.memory).then(|| {
            format!(
                "it uses too much memory: the worker has {} {when}, worker.memory is {}",
                crate::control::config::Bytes(rss),
                crate::control::config::Bytes(self.memory)
            )
        })
    }
}

/// How long a thread of ours has waited for a processor since it began; zero, if the kernel does not
/// report it.
fn waited(thread: Pid) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"));
    let delay = text.ok().and_then(|text| delay_in(&text));
    Duration::from_nanos(delay.unwrap_or(0))
}

/// The nice value of a thread of ours.
fn nice_of(thread: Pid) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    nice_in(&text)
}

/// The nineteenth word; the second one may contain anything, and ends with the last bracket.
fn nice_in(stat: &str) -> Option<i32> {
    let (_, words) = stat.rsplit_once(')')?;
    words.split_whitespace().nth(16)?.parse().ok()
}

/// The second number, in ns: the first is the time on a processor, the second the wait for one, the third a count.
fn delay_in(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// Bytes of memory that this process uses; 0 if unknown.
pub(crate) fn rss() -> u64 {
    let page = sys::page_size();
    std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok())
        .map_or(0, |pages| pages * page)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    fn watched(watchdog: &Arc<Watchdog>) -> thread::JoinHandle<Option<String>> {
        let watchdog = Arc::clone(watchdog);
        thread::spawn(move || watchdog.watch())
    }

    #[test]
    fn run_queue_delay_is_parsed_from_schedstat() {
        assert_eq!(delay_in("5000 700 3\n"), Some(700));
        assert_eq!(delay_in(""), None);
        assert!(waited(gettid()) < Duration::from_mins(5));
    }

    #[test]
    fn a_call_that_hangs_is_named() {
        let watchdog = Arc::new(Watchdog::new(Duration::from_millis(30), u64::MAX));
        let watch = watched(&watchdog);
        watchdog.call("prefetch", 1, Instant::now(), || {
            while !watch.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let fault = watch.join().expect("the watch").expect("a fault");
        assert_eq!(fault, "its prefetch hangs: it took longer than 30 ms");
    }

    #[test]
    fn thread_nice_value_is_restored_after_a_slow_call() {
        let own = nice_of(gettid()).expect("of this thread");
        // An ordinary user may only become nicer.
        let wanted = if nix::unistd::geteuid().is_root() {
            7
        } else {
            own.max(7)
        };
        sys::nice(gettid(), wanted).expect("to become nicer");
        let watchdog = Arc::new(Watchdog::new(Duration::from_mins(1), u64::MAX));
        let watch = watched(&watchdog);
        watchdog.call("init", 1, Instant::now(), || {
            let until = Instant::now() + Duration::from_secs(20);
            while wanted < 19 && nice_of(gettid()) != Some(19) {
                assert!(Instant::now() < until, "it stays as it is");
                thread::sleep(Duration::from_millis(1));
            }
        });
        let after = nice_of(gettid());
        if nix::unistd::geteuid().is_root() {
            assert_eq!(after, Some(wanted));
        }
        watchdog.end();
        assert_eq!(watch.join().expect("the watch"), None);
    }

    #[test]
    fn how_nice_a_thread_is_is_found_behind_its_name() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 20 -5 1 0";
        assert_eq!(nice_in(stat), Some(-5));
        assert_eq!(nice_in("7 (a"), None);
    }

    #[test]
    fn quick_calls_are_none_of_its_business() {
        let watchdog = Arc::new(Watchdog::new(Duration::from_mins(1), u64::MAX));
        let watch = watched(&watchdog);
        for _ in 0..1000 {
            watchdog.call("prefetch", 1, Instant::now(), || ());
        }
        watchdog.end();
        assert_eq!(watch.join().expect("the watch"), None);
    }

    #[test]
    fn too_much_memory_is_a_fault() {
        let watchdog = Arc::new(Watchdog::new(Duration::from_mins(1), 1));
        let watch = watched(&watchdog);
        watchdog.call("init", 1, Instant::now(), || {
            while !watch.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let fault = watch.join().expect("the watch").expect("a fault");
        assert!(
            fault.contains("during its init, worker.memory is 1 B"),
            "{fault}"
        );
    }
}
