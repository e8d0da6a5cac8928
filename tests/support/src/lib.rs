//! Helpers for the tests of several crates. A crate has this one under `[dev-dependencies]`; no program of
//! the product depends on it.

mod cold;
mod compile;
mod container;
mod folder;
mod gone;
mod held;
mod metrics;
mod skip;
mod taken;
mod view;
mod waiting;

pub use cold::drop_cached;
pub use compile::{compile, policies};
pub use container::Container;
pub use folder::Folder;
pub use gone::Gone;
pub use held::Held;
pub use metrics::{Sample, metrics};
pub use skip::{skip, skip_part};
pub use taken::{pages_taken_back, right, undisturbed};
pub use view::{TRUSTED, own_fuse_device, own_view};
pub use waiting::{LATEST, wait_for};
