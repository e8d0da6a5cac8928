//! Which libraries a daemon may run.
//!
//! What runs as root must be changeable by nobody but root: the file itself, and every directory on
//! the way to it, or somebody could put another in its place. So the path is made free of links
//! first, and every part of it is looked at.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, Refusal, RefusalKind};

/// Why a library is not run.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Untrusted {
    /// There is none, or it cannot be reached.
    #[error("{}: {why}", path.display())]
    Missing {
        /// What was looked for.
        path: PathBuf,
        /// The system's word.
        why: String,
    },
    /// It is a directory, a device or the like.
    #[error("{} is no file", .0.display())]
    NoFile(PathBuf),
    /// Somebody else than root owns it or a directory on the way.
    #[error(
        "{} belongs to user {owner}, who could change what runs as root; try \
         'chown root {}', or install the policy below /usr/lib/ppc",
        path.display(), path.display()
    )]
    Owner {
        /// The part of the path.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Others may write it or a directory on the way.
    #[error(
        "{} can be written by others than its owner (mode {mode:03o}), who could change what runs \
         as root; {}install the policy below /usr/lib/ppc",
        path.display(), close(path, *mode)
    )]
    Writable {
        /// The part of the path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
}

impl From<Untrusted> for Error {
    fn from(untrusted: Untrusted) -> Self {
        Self::Refused(Refusal {
            kind: RefusalKind::Untrusted,
            message: untrusted.to_string(),
            remedy: None,
        })
    }
}

/// How to keep others out, unless it is a directory for everybody, as /tmp is.
fn close(path: &Path, mode: u32) -> String {
    if mode & 0o1000 == 0 {
        format!("try 'chmod go-w {}', or ", path.display())
    } else {
        String::new()
    }
}

/// The library's path without links, if nobody but root, or the user `me` as whom we run, can
/// change what is found there.
///
/// # Errors
///
/// Somebody can; the text says what to change.
pub fn check(library: &Path, me: u32) -> Result<PathBuf, Untrusted> {
    let missing = |path: &Path, error: &std::io::Error| Untrusted::Missing {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let real = library
        .canonicalize()
        .map_err(|error| missing(library, &error))?;
    for part in real.ancestors() {
        let metadata = part
            .symlink_metadata()
            .map_err(|error| missing(part, &error))?;
        if part == real && !metadata.is_file() {
            return Err(Untrusted::NoFile(real));
        }
        part_is_safe(part, &metadata, me)?;
    }
    Ok(real)
}

fn part_is_safe(path: &Path, metadata: &Metadata, me: u32) -> Result<(), Untrusted> {
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != me {
        let path = path.to_owned();
        return Err(Untrusted::Owner { path, owner });
    }
    // Not even where the sticky bit keeps others from replacing it: they could have made it.
    if mode & 0o022 != 0 {
        let path = path.to_owned();
        return Err(Untrusted::Writable { path, mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_close_what_is_for_everybody() {
        let text = |path: &str, mode| {
            let path = path.into();
            Untrusted::Writable { path, mode }.to_string()
        };
        assert!(text("/opt/p", 0o775).contains("try 'chmod go-w /opt/p', or install the policy"));
        let shared = text("/tmp", 0o1777);
        assert!(
            shared.ends_with("as root; install the policy below /usr/lib/ppc"),
            "{shared}"
        );
    }
}
