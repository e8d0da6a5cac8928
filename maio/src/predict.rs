//! A template without a recording: the model's own headers show what a framework will read.
//!
//! [`predict_reads`] chooses the files that are the model, reads their headers, and returns for each worker
//! which pages it reads in which order. It is a guess, and a careful one: data not known to be
//! shared goes to all workers. Where it is wrong, unneeded pages are read, or a reader misses as it
//! would without us; a recording then replaces it. Nothing in a model's files is trusted; a damaged file
//! is taken in plain order, and a note says so.

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

/// More workers than one service has on a machine, and few enough to write down what each reads.
pub const MOST_WORKERS: u32 = 256;

/// Where a model's files are read.
pub trait Library {
    /// All files with their sizes, by their paths from the model's folder.
    fn files(&self) -> Vec<(String, u64)>;

    /// Reads at an offset, and returns how much; less than asked for at the end of the file, and
    /// elsewhere if it likes.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    fn read(&self, path: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

/// The order in which a framework reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Shards with the numbers in their names counted, tensors by name.
    Vllm,
    /// Shards by name, tensors as they lie in the file.
    Transformers,
    /// Shards with the numbers in their names counted, and as they lie in the file.
    File,
}

/// What weights are stored as.
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
    /// Workers that share each layer (tensor parallelism), 1 if none do.
    pub tp: u32,
    /// Whether each of them has experts of its own, whole ones (expert parallelism).
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

/// What will be read, as far as headers tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// What the weights are.
    pub format: Format,
    /// The order of reading. What has no tensors that could be told apart is read as it lies.
    pub order: Order,
    /// The files that are read and their sizes; extents name them by their places in here.
    pub files: Vec<(String, u64)>,
    /// What each worker reads, in order. No page is in a group twice.
    pub groups: Vec<Vec<Extent>>,
    /// Sentences about what was left out or not understood.
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

/// Says what will be read of a model.
///
/// # Errors
///
/// There are no files, or no or too many workers.
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
