//! Finds which accelerator a process works on, in its own thread.
//!
//! Most answers are in `/proc` and come at once. Where the driver has to be asked, its library starts first, which
//! takes seconds where no program keeps the driver awake, and forever where it hangs. The policy that asks is in a
//! call with a deadline, and missing that would end it: so until then the answer is that nothing is known.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ppc::Xpu;

/// How long after an unknown answer a process is asked about again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// How long a call waits for the answer.
const PATIENCE: Duration = Duration::from_millis(20);
/// Upper bound on answers kept: more processes than will live at once, as their numbers are reused.
const MOST: usize = 4096;

/// Finds the accelerator of a process.
type Ask = dyn Fn(u32) -> Option<Xpu> + Send + Sync;

/// The answers so far.
pub(crate) struct Xpus {
    shared: Arc<XpusShared>,
}

struct XpusShared {
    ask: Box<Ask>,
    state: Mutex<XpusState>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct XpusState {
    known: HashMap<u32, (Option<Xpu>, Instant)>,
    /// The process that the thread is asking about.
    asking: Option<u32>,
}

impl Xpus {
    pub(crate) fn new(ask: impl Fn(u32) -> Option<Xpu> + Send + Sync + 'static) -> Self {
        Self {
            shared: Arc::new(XpusShared {
                ask: Box::new(ask),
                state: Mutex::default(),
                answered: Condvar::new(),
            }),
        }
    }

    /// The accelerator of a process, if it is known by now.
    pub(crate) fn of(&self, process: u32) -> Option<Xpu> {
        let mut state = self.shared.lock();
        let before = match state.known.get(&process) {
            Some((Some(xpu), _)) => return Some(*xpu),
            Some((None, asked)) if asked.elapsed() < ASK_AGAIN => return None,
            before => before.map(|(_, asked)| *asked),
        };
        if state.asking.is_none() {
            state.asking = Some(process);
            drop(state);
            self.ask(process);
            state = self.shared.lock();
        }
        let waits = |state: &mut XpusState| {
            state.asking == Some(process)
                && state.known.get(&process).map(|(_, asked)| *asked) == before
        };
        let waited = self
            .shared
            .answered
            .wait_timeout_while(state, PATIENCE, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.known.get(&process)?.0
    }

    fn ask(&self, process: u32) {
        let shared = Arc::clone(&self.shared);
        let asked = std::thread::Builder::new()
            .name("xpus".into())
            .stack_size(512 << 10)
            .spawn(move || {
                let xpu = (shared.ask)(process);
                shared.answer(process, xpu);
            });
        if let Err(error) = asked {
            log::warn!("Asking which accelerator process {process} works on: {error}");
            self.shared.answer(process, None);
        }
    }
}

impl XpusShared {
    fn lock(&self) -> MutexGuard<'_, XpusState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, process: u32, xpu: Option<Xpu>) {
        let mut state = self.lock();
        if state.known.len() > MOST {
            state.known.clear();
        }
        state.known.insert(process, (xpu, Instant::now()));
        state.asking = None;
        self.answered.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn quick_accelerator_lookup_is_answered() {
        let xpus = Xpus::new(|process| (process == 7).then_some(Xpu(3)));
        let until = Instant::now() + Duration::from_secs(20);
        while xpus.of(7) != Some(Xpu(3)) {
            assert!(Instant::now() < until, "it is never known");
        }
        assert_eq!(xpus.of(8), None);
    }

    #[test]
    fn a_driver_that_takes_long_holds_up_no_call() {
        let (to, from) = channel();
        let from = Mutex::new(from);
        let xpus = Xpus::new(move |_| {
            let _ = from.lock().expect("one asks").recv();
            Some(Xpu(1))
        });
        let since = Instant::now();
        for process in [7, 8, 7] {
            assert_eq!(xpus.of(process), None);
        }
        // No more than three waits, on a machine with much else to do.
        assert!(since.elapsed() < Duration::from_secs(5));
        to.send(()).expect("it waits");
        let until = Instant::now() + Duration::from_secs(20);
        while xpus.of(7) != Some(Xpu(1)) {
            assert!(Instant::now() < until, "the answer is lost");
        }
    }
}
