//! A template without a recording: the model's own headers show what a framework will read.
//!
//! [`predict_reads`] chooses the files that are the model, reads their headers, and returns the pages that each
//! worker reads, in order. It guesses carefully: data that is not known to be shared among workers goes to
//! all of them. Where it is wrong, unneeded pages are loaded, or a reader misses as it would without MAIO;
//! a recording then replaces the guess. Nothing in a model's files is trusted; a damaged file is taken in
//! plain order, and a note says so.

mod build;
mod directory;
mod error;
mod files;
mod gguf;
mod heads;
mod index;
mod names;
mod natural;
mod pages;
mod read;
mod safetensors;
mod small;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tp;
mod units;

use std::collections::BTreeSet;
use std::io;

pub use directory::Directory;
pub use error::PredictError;
pub(crate) use files::{family, format_of, index_of, kind};

pub(crate) use small::is_small;
pub(crate) use units::Units;

use crate::Extent;
use build::PredictionBuilder;

/// Upper bound on workers: more than one service has on a machine, few enough to list what each reads.
pub const MOST_WORKERS: u32 = 256;

/// Access to a model's files.
pub trait Library {
    /// All files: their paths below the model's folder, and their sizes.
    fn files(&self) -> Vec<(String, u64)>;

    /// Reads at an offset and returns the number of bytes, which may be less than asked for even before
    /// the end of the file.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    fn read(&self, path: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

/// The order in which a framework reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Shards in the natural order of their names, 2 before 10; tensors by name.
    Vllm,
    /// Shards by name, tensors in file order.
    Transformers,
    /// Shards in the natural order of their names, tensors in file order.
    File,
}

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Tensors behind a JSON header.
    Safetensors,
    /// What llama.cpp reads.
    Gguf,
    /// Anything else, read from end to end.
    Plain,
}

/// How the model will be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deployment {
    /// Number of workers that share each layer (tensor parallelism), 1 if layers are not shared.
    pub tp: u32,
    /// Whether each worker has whole experts of its own (expert parallelism).
    pub experts: bool,
    /// The framework's order, if it is known.
    pub order: Option<Order>,
}

impl Default for Deployment {
    fn default() -> Self {
        Self {
            tp: 1,
            experts: false,
            order: None,
        }
    }
}

/// What will be read, according to the headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// How the weights are stored.
    pub format: Format,
    /// The order of reading. A file without known tensors is read from start to end.
    pub order: Order,
    /// The files that are read and their sizes; extents name them by their indices in this list.
    pub files: Vec<(String, u64)>,
    /// What each worker reads, in order. No page occurs in a group twice.
    pub groups: Vec<Vec<Extent>>,
    /// Notes for users on what was left out or not understood.
    pub notes: Vec<String>,
}

/// A file of safetensors with these tensors.
#[cfg(test)]
pub(crate) fn shard_of(tensors: &[(&str, &[u64])]) -> Vec<u8> {
    testing::shard(tensors).bytes()
}

/// The files that an index names; `None` if it cannot be read.
pub(crate) fn indexed(library: &dyn Library, path: &str, size: u64) -> Option<BTreeSet<String>> {
    index::files(library, path, size).ok()
}

/// Predicts what will be read of a model.
///
/// # Errors
///
/// There are no files, no workers, or too many workers.
pub fn predict_reads(
    library: &dyn Library,
    wanted: &Deployment,
) -> Result<Prediction, PredictError> {
    if !(1..=MOST_WORKERS).contains(&wanted.tp) {
        return Err(PredictError::Workers(wanted.tp));
    }
    let mut model = files::of(library);
    if model.small.is_empty() && model.weights.is_empty() {
        return Err(PredictError::Empty);
    }
    let order = match model.format {
        Format::Safetensors => wanted.order.unwrap_or(Order::Vllm),
        Format::Gguf | Format::Plain => Order::File,
    };
    if order == Order::Transformers {
        model.weights.sort();
    }
    let mut builder = PredictionBuilder::new(library, *wanted, order, model.notes);
    for (path, size) in model.small {
        builder.whole(path, size);
    }
    for (path, size) in model.weights {
        match model.format {
            Format::Safetensors => builder.safetensors(path, size),
            Format::Gguf => builder.gguf(path, size),
            Format::Plain => builder.whole(path, size),
        }
    }
    Ok(builder.finish(model.format))
}
