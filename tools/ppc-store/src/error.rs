//! What can go wrong, in a sentence for the one who runs the program.

use std::io;
use std::path::{Path, PathBuf};

use maio::template::TemplateError;
use thiserror::Error;

/// Why a round, or the program, cannot continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The configuration is wrong.
    #[error("{}: {problem}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No storage is named.
    #[error(
        "no storage is configured: set 'url' in [fleet] of {}, such as \"s3://BUCKET/FOLDER\", or give --url",
        .0.display()
    )]
    NoUrl(PathBuf),
    /// The URL names no storage.
    #[error("{url:?}: {problem}")]
    Url {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The storage cannot be reached or refuses.
    #[error("the storage: {0}")]
    Remote(#[from] object_store::Error),
    /// The templates of this node cannot be read or kept.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The kernel's error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl StoreError {
    /// For `map_err`.
    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> Self {
        |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// What most functions here return.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;
