//! Readers: processes that load a model as an inference service does, slowed down in proportion to the device.
//!
//! ```text
//! driver: reads config.json ─ framework starts (sleeps) ─ says "go" ─ waits, and stays until the end
//! worker: waits for "go" ─ for each tensor: overhead (sleeps), pieces: touch, check, copy (sleeps)
//! ```
//!
//! Copies to a device and the work of a framework are sleeps, so that processes that would each have a core
//! need only the CPU time of their page faults. [`plan`] says what a worker touches; it is pure.

mod drive;
mod plan;
mod profile;
mod source;
mod work;

pub(crate) use drive::{Ended, Loaded, drive};
pub(crate) use plan::steps;
pub(crate) use profile::{Access, Mode, Order, Profile, Task};
pub(crate) use work::{Worked, work};
