//! Termination by signals: the current run is ended, and everything is taken down as usual.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::sys::signal::{SigSet, Signal};

use crate::error::{Result, system};

static TAKEN: AtomicBool = AtomicBool::new(false);
static CAME: AtomicBool = AtomicBool::new(false);
const THOSE: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// From now on, signals only make [`came`] return true.
pub(crate) fn take() -> Result<()> {
    if TAKEN.swap(true, Relaxed) {
        return Ok(());
    }
    let set = SigSet::from_iter(THOSE);
    set.thread_block().map_err(system("Taking over signals"))?;
    let waiting = std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            while set.wait().is_ok() {
                if CAME.swap(true, Relaxed) {
                    // The user insists. The simulated SSD takes down what is on top of it.
                    std::process::exit(130);
                }
                eprintln!("stopping; interrupt again to stop at once");
            }
        });
    waiting.map_err(system("Starting a thread"))?;
    Ok(())
}

/// Whether a signal asked us to end.
pub(crate) fn came() -> bool {
    CAME.load(Relaxed)
}

/// Unblocks the signals, in a child process that executes another program.
pub(crate) fn give_back() {
    // It cannot fail for valid signals.
    let _ = SigSet::from_iter(THOSE).thread_unblock();
}
