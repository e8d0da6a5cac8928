//! Model-accelerated I/O: the policy that loads models.

pub mod course;
pub mod extent;
pub mod record;
pub mod template;
pub mod window;

pub use extent::{Extent, PAGE};
