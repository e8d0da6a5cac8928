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
//! it. `ppcctl` is made of that and of [`config`], [`doctor`], [`protocol`] and [`trust`].
//!
//! # Unsafe code
//!
//! It is confined to the private modules `sys`, a small file for each thing that is asked of the
//! kernel (`cache`, `pagemap`, `perf`, `bpf`, `tracefs`), and `mirror::raw`, and to what loads the
//! drivers' libraries below [`topology`].

mod backend;
mod dispatch;
#[allow(dead_code, reason = "the backends that come next are made of it")]
mod engine;
mod evictor;
mod executor;
mod files;
mod guard;
mod hand;
mod host;
mod loader;
#[allow(dead_code, reason = "as the engine")]
mod mappings;
#[allow(dead_code, reason = "a part of it waits for the choice among backends")]
mod mirror;
mod mounts;
mod plan;
mod supervisor;
#[allow(
    dead_code,
    unsafe_code,
    reason = "system calls that no safe crate makes, some for backends that come next, and the \
              loading of policies"
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
pub mod protocol;
pub mod stats;
pub mod topology;
pub mod trust;
pub mod worker;

pub use error::{Error, Result};
