//! Why there is no template, in a sentence for the user who asked for it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a template cannot be made, read or kept.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// Its magic number is missing.
    #[error("This is not a template")]
    NotATemplate,
    /// It ends early.
    #[error("The template is truncated; remove it, the next load records a new one")]
    Truncated,
    /// The checksum does not match.
    #[error("The template is damaged; remove it, the next load records a new one")]
    Damaged,
    /// Written by a later version.
    #[error("The template has version {0} of the format; install a newer MAIO to read it")]
    Future(u32),
    /// Larger than templates are kept or read.
    #[error("The template of {0} bytes is too large")]
    TooLarge(u64),
    /// The checksum is right, but the contents are invalid.
    #[error("The template is inconsistent: {0}")]
    Inconsistent(&'static str),
    /// A model's template was asked for, and this is a start's.
    #[error("This is the template of a start, not of a model; give one of them another service ID")]
    OfAStart,
    /// The other way round, or a start's template from before they were marked.
    #[error(
        "The template is not marked as that of a start: it is a model's, or an older MAIO recorded it; in that case \
         the next 'ppcctl run -- COMMAND' marks it"
    )]
    OfAModel,
    /// A name that is not valid for files everywhere.
    #[error(
        "{0:?} is not the name of a service or node: use 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-', not beginning \
         with '.'"
    )]
    Name(String),
    /// The path is not a regular file.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// Another user may have written it.
    #[error("{} is not trusted, because {why}: remove it, or let only its reader own and write it",
        path.display())]
    Untrusted {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// The store is not writable. Loads continue without it.
    #[error("{} cannot be written to: {source}", path.display())]
    ReadOnly {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Any other error of the kernel.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl TemplateError {
    /// For `map_err`, of a failed read.
    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> Self {
        |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }

    /// For `map_err`, of a failed write.
    pub(super) fn writing(path: &Path) -> impl Fn(io::Error) -> Self {
        |source| {
            let path = path.to_owned();
            match source.raw_os_error() {
                Some(libc::EROFS | libc::EACCES | libc::EPERM) => Self::ReadOnly { path, source },
                _ => Self::Io { path, source },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_errors_differ_from_other_write_errors() {
        let path = Path::new("/t");
        let error = |errno| TemplateError::writing(path)(io::Error::from_raw_os_error(errno));
        for errno in [libc::EROFS, libc::EACCES, libc::EPERM] {
            assert!(
                matches!(error(errno), TemplateError::ReadOnly { .. }),
                "{errno}"
            );
        }
        for errno in [libc::ENOSPC, libc::EIO, libc::ENOTDIR, libc::ESTALE] {
            assert!(matches!(error(errno), TemplateError::Io { .. }), "{errno}");
        }
    }
}
