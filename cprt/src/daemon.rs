//! `cprtd`: which directory has which policy, and a worker for each.
//!
//! [`socket`] answers `ppcctl`, and `notify` tells the service manager that it does; `peer` says who may ask for
//! what; `registry` starts, restarts and replaces workers, and writes down in `state` what is registered; `wanted`
//! registers what the configuration names, as mounts come; `services` knows whose starts are recorded and loaded
//! ahead; [`policies`] finds libraries by name and [`trust`] refuses those that others than root can change.

pub mod logging;
mod notify;
mod peer;
pub mod policies;
mod registry;
mod services;
mod site;
pub mod socket;
mod state;
pub mod trust;
mod wanted;

pub use socket::run;
