//! What the machine is, read in one place: mounts, mappings, memory, nodes and accelerators.
//!
//! Nothing here knows what it is read for.

pub(crate) mod files;
pub mod look;
pub(crate) mod mappings;
pub mod memory;
pub mod model;
pub mod mountinfo;
pub mod probe;
pub(crate) mod ranges;
pub mod reach;
pub mod topology;
