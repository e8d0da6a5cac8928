//! Loads that continue to a GPU: from files, through pinned buffers, as inference services do it.
//!
//! CUDA is needed neither to build this nor to report that it is missing: the driver's library is looked up
//! at run time. The tests are in `tests/gpu.rs`, and those with torch in `gpu_torch.py`.

mod gpu;
mod place;

pub use gpu::{Gpu, why_not};
pub use place::{nodes_of, on_node, pages_by_node};
