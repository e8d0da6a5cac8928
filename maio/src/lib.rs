//! Model-accelerated I/O: the policy that loads models.
//!
//! An ordinary policy of `ppc.h`. It knows what the workers of an inference service read when they load
//! a model, from a template that was recorded on an earlier load or from the headers of the model's
//! files, and has it loaded ahead of them, near the accelerators they work on; what all of them have
//! read is dropped when its place is needed.
//!
//! [`template`] and [`synth`] say what is going to be read, `course` puts it in order, `window` decides
//! what to load and drop as readers go on, `record` remembers what they did, `claims` are what services of
//! one node ask each other to keep. All of these are pure; the policy itself is what connects them to a
//! host. [`service`], [`synth`] and [`template`] are for tools,
//! too.

mod claims;
mod course;
mod crew;
mod extent;
mod files;
mod keeping;
mod leases;
mod load;
mod policy;
mod process;
mod record;
pub mod service;
mod settings;
pub mod synth;
pub mod template;
mod window;

pub use extent::{Extent, PAGE};
pub use policy::Maio;

ppc::export_policy!(Maio);
