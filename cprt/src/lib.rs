//! The cache policy runtime.
//!
//! What policies are is told in `ppc.h`; this hosts them. The way of a miss through it:
//!
//! ```text
//! backend ─ worker (events) ─ dispatch ─ executor (policy) ─ plan ─┬─ loader ──┬─ backend
//!                                           │                      └─ evictor ─┘
//!                                           host, memory, topology
//! ```
//!
//! [`daemon`] is `cprtd`: a supervisor, and a [`worker`] process for each policy. [`client`] talks to
//! it. A [`session`] is a worker without a daemon, on the backend that [`choice`] finds. `ppcctl` is
//! made of these and of [`config`], [`doctor`], [`protocol`] and [`trust`].
//!
//! # Unsafe code
//!
//! It is confined to the private modules `sys`, a small file for each thing that is asked of the
//! kernel (`cache`, `pagemap`, `perf`, `bpf`, `tracefs`), and `mirror::raw`, and to what loads the
//! drivers' libraries below [`topology`].

mod backend;
mod dispatch;
mod engine;
mod evictor;
mod executor;
mod files;
mod guard;
mod hand;
mod host;
mod loader;
mod mappings;
mod mirror;
mod mounts;
mod ours;
mod plan;
mod ranges;
mod supervisor;
#[allow(
    unsafe_code,
    reason = "system calls that no safe crate makes, and the loading of policies"
)]
mod sys;
mod words;

pub mod choice;
pub mod client;
pub mod config;
pub mod daemon;
pub mod doctor;
pub mod error;
pub mod logging;
pub mod memory;
pub mod policies;
pub mod protocol;
pub mod session;
pub mod stage;
pub mod stats;
pub mod topology;
pub mod trust;
pub mod worker;

pub use error::{Error, Result};
