//! Errors of a request, and of one file.

use std::io;

use thiserror::Error;

/// Why a model's reads cannot be predicted.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PredictError {
    /// There is nothing to read.
    #[error("The model's folder has no files that a framework reads")]
    Empty,
    /// This number of workers is not supported.
    #[error("{0} workers cannot share a model; use 1 to {most}", most = super::MOST_WORKERS)]
    Workers(u32),
}

/// Why a file's header is unusable. The file is then read from end to end.
#[derive(Debug, Error)]
pub(super) enum Damage {
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("ends within its header")]
    Short,
    #[error("has a header of {0} bytes, more than allowed")]
    Long(u64),
    #[error("has a header that does not parse: {0}")]
    Json(#[from] serde_json::Error),
    #[error("has {0} at an impossible offset")]
    Place(String),
    #[error("has {0} with a size that contradicts its shape")]
    Shape(String),
    #[error("has the overlapping tensors {0} and {1}")]
    Overlap(String, String),
    #[error("is not a GGUF file of a known version")]
    Version,
    #[error("has an inconsistent header: {0}")]
    Sense(&'static str),
    #[error("comes after the limit of headers for one model")]
    Budget,
}
