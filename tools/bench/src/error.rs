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
    #[error("{what} cannot be had here: {why}; {remedy}")]
    Unavailable {
        what: &'static str,
        why: String,
        remedy: &'static str,
    },
    #[error("{0}")]
    Said(String),
    #[error("Ended by a signal")]
    Interrupted,
    #[error(transparent)]
    Runtime(#[from] cprt::Error),
    #[error(transparent)]
    NoSuchPolicy(#[from] cprt::daemon::policies::Missing),
    #[error(transparent)]
    Template(#[from] maio::template::TemplateError),
    #[error("What another process of ours says makes no sense")]
    Json(#[from] serde_json::Error),
}

/// For `map_err`: what was being done.
pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::System {
        doing,
        source: error.into(),
    }
}

/// For `map_err`: what was being done, to which file.
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
