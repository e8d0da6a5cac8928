//! Being told to end: what runs is ended, and everything is taken down as always.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::sys::signal::{SigSet, Signal};

use crate::error::{Result, system};

static TAKEN: AtomicBool = AtomicBool::new(false);
static CAME: AtomicBool = AtomicBool::new(false);
const THOSE: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// From now on signals only have [`came`] be true.
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
                    // Somebody means it. The simulated SSD takes down what is on top of it.
                    std::process::exit(130);
                }
                eprintln!("ending; once more, and it is done at once");
            }
        });
    waiting.map_err(system("Starting a thread"))?;
    Ok(())
}

/// Whether somebody wants us to end.
pub(crate) fn came() -> bool {
    CAME.load(Relaxed)
}

/// In a process of ours that becomes somebody else's program: they do again what they always do.
pub(crate) fn give_back() {
    // It cannot fail for signals that there are.
    let _ = SigSet::from_iter(THOSE).thread_unblock();
}
