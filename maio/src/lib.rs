//! Model-accelerated I/O: the policy that loads models.

pub mod course;
pub mod extent;
pub mod record;
pub mod service;
pub mod synth;
pub mod template;
pub mod window;

pub use extent::{Extent, PAGE};
