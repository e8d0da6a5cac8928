//! A simulated SSD: a process that serves one file through FUSE at the speed of a device.
//!
//! ```text
//! loop device ─ FUSE file ─ server (one thread) ─ service (when is it done?) ─ timer (one thread) ─ reply
//!                                │                                               │
//!                              image (anonymous memory)                        meter
//! ```
//!
//! [`service`] is the model, and pure. The process, [`simulate()`], is controlled by lines of JSON;
//! [`Simulator`] is its handle. It is a separate process, as a process that waits for a device that it
//! serves itself can never be killed; and when its holder has ended it cleans up what is on top of it.

mod meter;
mod server;
mod service;
mod simulate;
mod simulator;
mod timer;

pub(crate) use meter::{BIN, Lateness, Readings};
pub(crate) use service::{FILER, KNEE, NEAR, NETWORK, SEEKS, TIMING, Timing};
pub(crate) use simulate::simulate;
pub(crate) use simulator::Simulator;
