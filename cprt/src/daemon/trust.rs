//! Which libraries a daemon may run.
//!
//! Only root may be able to change what runs as root: the file itself, and every directory on the way to it, in
//! which another file could take its place. So the path is canonicalised first, each part is checked as it
//! is opened from the previous one, and the file that runs is the one that was opened. Each load checks again: a
//! library that was trusted when it was registered may have changed hands since.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::error::{Error, Refusal, RefusalKind};

/// Why a library is not run.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Untrusted {
    /// The library is missing, or cannot be reached.
    #[error("{}: {why}", path.display())]
    Missing {
        /// The missing path.
        path: PathBuf,
        /// The system's error.
        why: String,
    },
    /// It is a directory, a device or the like.
    #[error("{} is not a file", .0.display())]
    NoFile(PathBuf),
    /// A user other than root owns it or a directory on the way.
    #[error(
        "{} belongs to user {owner}, who could change what runs as root; try \
         'chown root {}', or install the policy below /usr/lib/ppc",
        path.display(), path.display()
    )]
    Owner {
        /// The part of the path.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Users other than the owner may write it or a directory on the way.
    #[error(
        "users other than the owner can write to {} (mode {mode:03o}) and could change what runs as root; {}install \
         the policy below /usr/lib/ppc",
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

/// How to keep other users out, unless it is a directory for all users, as /tmp is.
fn close(path: &Path, mode: u32) -> String {
    if mode & 0o1000 == 0 {
        format!("try 'chmod go-w {}', or ", path.display())
    } else {
        String::new()
    }
}

/// A library that was found trustworthy, and is open: the file that was checked is the one that is loaded, wherever its
/// path leads by then.
#[derive(Debug)]
pub struct Trusted {
    path: PathBuf,
    file: File,
}

impl Trusted {
    /// Opens a library, if only root, or the daemon's own user `me`, can change it or what is found at its path.
    ///
    /// # Errors
    ///
    /// Another user can; the text says what to change.
    pub fn open(library: &Path, me: u32) -> Result<Self, Untrusted> {
        let (path, found) = walk(library, me)?;
        // Opened through the descriptor: the path may lead elsewhere by now.
        let file = File::open(magic(found.as_fd())).map_err(|error| missing(&path, &error))?;
        Ok(Self { path, file })
    }

    /// A library that a keeper has found trustworthy and handed to a worker.
    pub(crate) const fn handed(path: PathBuf, file: File) -> Self {
        Self { path, file }
    }

    /// Its path without links, for messages and for the next load.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// A path to the open file, valid while `self` lives.
    pub(crate) fn magic(&self) -> PathBuf {
        magic(self.file.as_fd())
    }

    /// Another handle of the same open file.
    pub(crate) fn again(&self) -> io::Result<Self> {
        Ok(Self {
            path: self.path.clone(),
            file: self.file.try_clone()?,
        })
    }
}

/// The library's path without links, if only root, or the user `me` that we run as, can change the
/// file there.
///
/// # Errors
///
/// Another user can; the text says what to change.
pub fn check(library: &Path, me: u32) -> Result<PathBuf, Untrusted> {
    walk(library, me).map(|(path, _)| path)
}

fn missing(path: &Path, error: &io::Error) -> Untrusted {
    Untrusted::Missing {
        path: path.to_owned(),
        why: error.to_string(),
    }
}

fn magic(fd: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Walks from the root to the library, opening each part relative to the directory just checked.
fn walk(library: &Path, me: u32) -> Result<(PathBuf, OwnedFd), Untrusted> {
    let real = library
        .canonicalize()
        .map_err(|error| missing(library, &error))?;
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut at = PathBuf::from("/");
    let mut found =
        nix::fcntl::open("/", flags, Mode::empty()).map_err(|error| missing(&at, &error.into()))?;
    for part in real.components().skip(1) {
        step_is_safe(&at, &found, me)?;
        at.push(part);
        found = nix::fcntl::openat(&found, part.as_os_str(), flags, Mode::empty())
            .map_err(|error| missing(&at, &error.into()))?;
    }
    let metadata = step_is_safe(&at, &found, me)?;
    if metadata.is_file() {
        Ok((real, found))
    } else {
        Err(Untrusted::NoFile(real))
    }
}

fn step_is_safe(path: &Path, fd: &OwnedFd, me: u32) -> Result<Metadata, Untrusted> {
    let metadata = fd.try_clone().map(File::from).and_then(|it| it.metadata());
    let metadata = metadata.map_err(|error| missing(path, &error))?;
    part_is_safe(path, &metadata, me)?;
    Ok(metadata)
}

fn part_is_safe(path: &Path, metadata: &Metadata, me: u32) -> Result<(), Untrusted> {
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != me {
        let path = path.to_owned();
        return Err(Untrusted::Owner { path, owner });
    }
    // Not even where the sticky bit keeps other users from replacing it: they could have made it.
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
    fn trusted_handle_refers_to_the_file_that_was_checked() {
        let Ok(trusted) = Trusted::open(Path::new("/bin/sh"), 0) else {
            return test_support::skip("this machine's programs are not root's alone");
        };
        assert!(trusted.path().is_absolute());
        let of = |path: &Path| {
            let metadata = path.metadata().expect("it is there");
            (metadata.dev(), metadata.ino())
        };
        assert_eq!(of(&trusted.magic()), of(Path::new("/bin/sh")));
        assert_ne!(trusted.magic(), trusted.path());
        let again = trusted.again().expect("a descriptor");
        assert_eq!(of(&again.magic()), of(Path::new("/bin/sh")));
        let directory = Trusted::open(Path::new("/usr"), 0).expect_err("no file");
        assert_eq!(directory, Untrusted::NoFile("/usr".into()));
    }

    #[test]
    fn a_directory_for_all_users_need_not_be_closed() {
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
