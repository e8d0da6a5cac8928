//! The cache policy runtime.
//!
//! `ppc.h` says what a policy is; this crate hosts policies. Its modules, in the order in which a miss
//! passes through them:
//!
//! ```text
//! backend ─▶ worker: events ─▶ queue ─▶ policy_thread (ppc.h) ─▶ plan ─┬─▶ loader ──┬─▶ backend
//!                                                                      └─▶ evictor ─┘
//! ```
//!
//! [`backend`] reports what readers miss, and loads and drops ranges of the page cache. [`worker`] is the
//! process that hosts one policy. [`daemon`] (`cprtd`) and [`session`] (one command) start workers;
//! [`residency`] uses the parts of one for files that a user names. [`control`] has the messages that all
//! of these and `ppcctl` exchange, [`machine`] describes the machine, and `sys` makes the system calls.
//!
//! # Unsafe code
//!
//! It is confined to the private module `sys`, with a small file for each facility of the kernel, and
//! to the code below [`machine::topology`] that loads the drivers' libraries.

pub mod backend;
pub mod control;
pub mod daemon;
pub mod error;
pub mod machine;
pub mod residency;
pub mod session;
#[allow(
    unsafe_code,
    reason = "system calls that no safe crate makes, and the loading of policies"
)]
mod sys;
pub mod worker;

pub use error::{Error, Result};
