//! Why something was not measured.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("{doing}")]
    System {
        doing: &'static str,
        source: io::Error,
    },
    #[error("{doing} {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{what} is not available: {why}; {remedy}")]
    Unavailable {
        what: &'static str,
        why: String,
        remedy: &'static str,
    },
    #[error("{0}")]
    Said(String),
    #[error("Interrupted by a signal")]
    Interrupted,
    #[error(transparent)]
    Runtime(#[from] cprt::Error),
    #[error(transparent)]
    NoSuchPolicy(#[from] cprt::daemon::policies::Missing),
    #[error(transparent)]
    Template(#[from] maio::template::TemplateError),
    #[error("A helper process sent invalid data")]
    Json(#[from] serde_json::Error),
}

/// For `map_err`: names the action that failed.
pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::System {
        doing,
        source: error.into(),
    }
}

/// For `map_err`: names the action that failed, and its file.
pub(crate) fn file<E: Into<io::Error>>(
    doing: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> Failure {
    move |error| Failure::File {
        doing,
        path: path.to_owned(),
        source: error.into(),
    }
}
