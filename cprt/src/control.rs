//! The vocabulary of the runtime: the terms and messages of `ppcctl`, `cprtd` and configuration files.
//!
//! Nothing here depends on a backend, a worker or the daemon.

pub mod client;
pub mod config;
pub mod guard;
pub mod keep;
pub mod kind;
pub mod loads;
pub mod metrics;
pub mod protocol;
mod quantity;
pub mod start_name;
pub mod stats;
pub mod wildcard;
pub mod wire;
