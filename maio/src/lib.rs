//! Model-accelerated I/O: the policy that loads models.

pub mod extent;

pub use extent::{Extent, PAGE};
