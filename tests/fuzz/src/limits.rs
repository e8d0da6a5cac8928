//! What one input may cost: beyond it, the kernel ends the process.

use std::fs;
use std::io;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

/// Upper bound on processor time; the wall clock would also count other processes. The slowest known inputs
/// need half of it.
pub const TIME: Duration = Duration::from_secs(2);
/// The signal that ends the process when [`TIME`] has passed.
pub const OUT_OF_TIME: Signal = Signal::SIGXCPU;
/// Upper bound on memory, on top of what the process had when the limits were set.
const MEMORY: u64 = 512 << 20;

/// The limits of this process.
#[derive(Debug)]
pub struct Limits {
    timer: Timer,
}

impl Limits {
    /// Limits memory from here on. The clock starts with [`Limits::restart`].
    ///
    /// # Errors
    ///
    /// The kernel refuses a timer or a limit, or there is no `/proc`.
    pub fn set() -> io::Result<Self> {
        let pages = fs::read_to_string("/proc/self/statm")?;
        let pages = pages.split_whitespace().next().unwrap_or_default();
        let pages: u64 = pages.parse().map_err(io::Error::other)?;
        // A page has 4 KiB or more; where it has more, the limit is higher.
        let memory = pages * 4096 + MEMORY;
        setrlimit(Resource::RLIMIT_AS, memory, memory)?;
        // The runner keeps the input; a core file would not help.
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        let signal = SigevNotify::SigevSignal {
            signal: OUT_OF_TIME,
            si_value: 0,
        };
        let timer = Timer::new(ClockId::CLOCK_PROCESS_CPUTIME_ID, SigEvent::new(signal))?;
        Ok(Self { timer })
    }

    /// Gives the next input the whole of [`TIME`].
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn restart(&mut self) -> io::Result<()> {
        let after = Expiration::OneShot(TIME.into());
        Ok(self.timer.set(after, TimerSetTimeFlags::empty())?)
    }
}
