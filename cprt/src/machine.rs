//! All that is known of the machine, in one place: mounts, mappings, memory, nodes and accelerators.
//!
//! Nothing here depends on how it is used.

pub(crate) mod files;
pub(crate) mod image_name;
pub mod look;
pub(crate) mod mappings;
pub mod memory;
pub mod model;
pub mod mountinfo;
pub mod probe;
pub(crate) mod ranges;
pub mod reach;
pub mod topology;
pub(crate) mod view;
