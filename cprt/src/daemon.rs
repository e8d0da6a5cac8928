//! `cprtd`: which directory has which policy, and a worker for each.
//!
//! [`socket`] answers `ppcctl`, and `notify` tells the service manager that it does; `peer` decides which user may
//! ask for what; `registry` starts, restarts and replaces workers, and saves registrations in `state`; `wanted`
//! registers the policies of the configuration as mounts come; `services` knows whose starts are recorded and loaded
//! ahead, and `nri` tells it of containers before these run; `keep` keeps files in the page cache; `metrics` serves what
//! a collector reads; [`policies`] finds libraries by name and [`trust`] refuses those that users other than root can
//! change.

mod keep;
pub mod logging;
mod metrics;
mod notify;
mod nri;
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
