//! What can go wrong: with the request, and with one file.

use std::io;

use thiserror::Error;

/// Why nothing can be said about a model.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PredictError {
    /// Nothing to read.
    #[error("The model's folder has no files that could be read")]
    Empty,
    /// No groups could be made for them.
    #[error("{0} workers are none or too many; 1 to {most} can share a model", most = super::MOST_WORKERS)]
    Workers(u32),
}

/// Why a file's header is of no use. The file is read from end to end then.
#[derive(Debug, Error)]
pub(super) enum Damage {
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("ends within its header")]
    Short,
    #[error("has a header of {0} bytes, more than there may be")]
    Long(u64),
    #[error("has a header that does not parse: {0}")]
    Json(#[from] serde_json::Error),
    #[error("says that {0} lies where it cannot")]
    Place(String),
    #[error("says that {0} is of another size than its shape")]
    Shape(String),
    #[error("has the tensors {0} and {1} in one place")]
    Overlap(String, String),
    #[error("is no GGUF of a version that is known")]
    Version,
    #[error("has a header that makes no sense: {0}")]
    Sense(&'static str),
    #[error("comes after more headers than are read for one model")]
    Budget,
}
