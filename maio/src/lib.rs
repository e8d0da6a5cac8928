//! Model-accelerated I/O: the policy that loads models.
//!
//! An ordinary policy of `ppc.h`. It knows what the workers of an inference service read when they load
//! a model, from a template that was recorded on an earlier load or from the headers of the model's
//! files, and loads it ahead of them, near the accelerators they work on; pages that all of them have
//! read are dropped when their memory is needed.
//!
//! [`template`] and [`predict`] say what is going to be read, `order` cuts it into pieces in reading order,
//! `window` decides what to load and drop as readers advance, `record` records their reads, `workers`
//! maps processes to workers, `proof` compares a template with what was read, `peers` are the other
//! services of the node, and `load` combines all of these for one load; `start` does the same for a whole
//! start, whatever files that reads. All but `peers` are pure; `policy` connects them to its `host`, and `save`
//! to the store of templates. [`service`], [`predict`] and [`template`] are for tools, too.

mod bypass;
mod catalog;
mod complete;
mod config;
mod extent;
mod host;
mod library;
mod load;
mod models;
mod order;
mod peers;
mod policy;
pub mod predict;
mod proof;
mod ranges;
mod record;
mod save;
pub mod service;
mod start;
pub mod template;
mod window;
mod workers;

pub use catalog::Maio;
pub use extent::{Extent, PAGE};
pub use library::Library;

pub use start::{NextStart, Start, next_start};

ppc::export_policy!(Library);
