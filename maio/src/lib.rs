//! Model-accelerated I/O: the policy that loads models.

pub mod course;
pub mod extent;

pub use extent::{Extent, PAGE};
