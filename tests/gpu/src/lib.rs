//! Loads that go on to a GPU: from files, through pinned buffers, as inference services do it.
//!
//! Nothing here needs CUDA to be built, or to say that it is not there: the driver's library is looked
//! for at run time. The tests are in `tests/gpu.rs`, the same with torch in `gpu_torch.py`.

mod gpu;
mod place;

pub use gpu::{Gpu, why_not};
pub use place::{nodes_of, on_node, pages_by_node};
