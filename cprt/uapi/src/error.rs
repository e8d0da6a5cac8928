//! What can go wrong with a device, and what it means.
//!
//! The text of an [`Error`] is a phrase that says what was tried and what to do about it; the
//! system's error is its source and is not repeated. [`Error::kind`] is for control flow.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::event::DecodeError;

/// The result of talking to a device.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a device or a command on it failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The device could not be opened.
    #[error("Opening {}: {remedy}", path.display())]
    Open {
        /// Of the device.
        path: PathBuf,
        /// What to do about it.
        remedy: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The kernel refused a command.
    #[error("{command}: {meaning}")]
    Command {
        /// The command's name in `rfs.h`.
        command: &'static str,
        /// What the errno means with this command.
        meaning: &'static str,
        /// For control flow.
        kind: ErrorKind,
        /// What the system says.
        source: io::Error,
    },
    /// Events could not be read or waited for.
    #[error("{doing}")]
    Events {
        /// What was tried.
        doing: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// What was read is not a batch of events.
    #[error("Decoding events")]
    Decode(#[from] DecodeError),
}

/// The sorts of failure that callers treat differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such device, or the file system behind it is gone.
    NoDevice,
    /// The user is neither root nor in the group.
    Permission,
    /// Another reader has the device.
    Busy,
    /// Module and program speak different major versions.
    Version,
    /// The file id is gone: open the path again and ask for the new one.
    Stale,
    /// The file no longer has a name.
    NoName,
    /// The file, or the descriptor, is not of an rfs mount.
    NotRfs,
    /// The module, the kernel or the lower file system cannot do this.
    Unsupported,
    /// The kernel refuses the arguments.
    Invalid,
    /// The process to charge does not exist.
    NoProcess,
    /// The stream of events is damaged.
    Decode,
    /// Any other error, such as an I/O error of the lower device.
    Io,
}

impl Error {
    /// Which sort of failure this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Open { source, .. } => open_failure(source).0,
            Self::Command { kind, .. } => *kind,
            Self::Events { .. } => ErrorKind::Io,
            Self::Decode(_) => ErrorKind::Decode,
        }
    }

    pub(crate) fn open(path: &Path, source: io::Error) -> Self {
        Self::Open {
            path: path.to_owned(),
            remedy: open_failure(&source).1,
            source,
        }
    }

    pub(crate) fn command(command: &'static str, source: io::Error) -> Self {
        let (kind, meaning) = command_failure(command, &source);
        Self::Command {
            command,
            meaning,
            kind,
            source,
        }
    }
}

fn open_failure(error: &io::Error) -> (ErrorKind, &'static str) {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => (
            ErrorKind::NoDevice,
            "is rfs mounted? Try 'modprobe rfs' and 'mount -t rfs LOWER MNT'; dev= in the options \
             of the mount names its device",
        ),
        Some(libc::EACCES | libc::EPERM) => (
            ErrorKind::Permission,
            "this requires CAP_SYS_ADMIN or membership in the group that owns the device",
        ),
        Some(libc::EBUSY) => (
            ErrorKind::Busy,
            "another process reads it, and only one may at a time; stop that process, or try again if it is \
             ending",
        ),
        _ => (ErrorKind::Io, "the device cannot be opened"),
    }
}

fn command_failure(command: &str, error: &io::Error) -> (ErrorKind, &'static str) {
    match (command, error.raw_os_error()) {
        ("FILE", Some(libc::ENOTTY)) => (ErrorKind::NotRfs, "not a file of an rfs mount"),
        ("PATH", Some(libc::ENOENT)) => (ErrorKind::NoName, "the file no longer has a name"),
        (_, Some(libc::ESTALE)) => (
            ErrorKind::Stale,
            "the file ID has expired; open the path again and ask for its new ID",
        ),
        (_, Some(libc::EPROTONOSUPPORT)) => (
            ErrorKind::Version,
            "the module speaks another major version; use a module and a program of one release",
        ),
        (_, Some(libc::ENOTTY)) => (
            ErrorKind::Unsupported,
            "unknown command; either this is not an rfs device, or the module is older than the program",
        ),
        (_, Some(libc::E2BIG)) => (
            ErrorKind::Unsupported,
            "the module is older than the program and lacks a field",
        ),
        (_, Some(libc::EOPNOTSUPP)) => (
            ErrorKind::Unsupported,
            "this kernel or the lower file system cannot do it",
        ),
        (_, Some(libc::EINVAL)) => (ErrorKind::Invalid, "the kernel refuses the arguments"),
        (_, Some(libc::EISDIR)) => (ErrorKind::Invalid, "only a regular file has pages"),
        (_, Some(libc::ESRCH)) => (ErrorKind::NoProcess, "the process to charge does not exist"),
        (_, Some(libc::EPERM | libc::EACCES)) => {
            (ErrorKind::Permission, "the caller may not do this")
        }
        (_, Some(libc::ENODEV | libc::ENXIO)) => {
            (ErrorKind::NoDevice, "the file system has been unmounted")
        }
        _ => (ErrorKind::Io, "the kernel could not do it"),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn opening(errno: i32) -> Error {
        Error::open(Path::new("/dev/rfs7"), io::Error::from_raw_os_error(errno))
    }

    /// These texts answer the most common support question, so their words matter.
    #[test]
    fn opening_names_the_path_and_the_remedy() {
        let cases = [
            (
                libc::ENOENT,
                ErrorKind::NoDevice,
                "Opening /dev/rfs7: is rfs mounted? Try 'modprobe rfs' and 'mount -t rfs LOWER \
                 MNT'; dev= in the options of the mount names its device",
            ),
            (
                libc::EACCES,
                ErrorKind::Permission,
                "Opening /dev/rfs7: this requires CAP_SYS_ADMIN or membership in the group that \
                 owns the device",
            ),
            (
                libc::EBUSY,
                ErrorKind::Busy,
                "Opening /dev/rfs7: another process reads it, and only one may at a time; stop that \
                 process, or try again if it is ending",
            ),
            (
                libc::EMFILE,
                ErrorKind::Io,
                "Opening /dev/rfs7: the device cannot be opened",
            ),
        ];
        for (errno, kind, text) in cases {
            assert_eq!(opening(errno).kind(), kind);
            assert_eq!(opening(errno).to_string(), text);
        }
        assert_eq!(
            opening(libc::EPERM).to_string(),
            opening(libc::EACCES).to_string()
        );
    }

    #[test]
    fn system_error_is_the_source_and_not_repeated() {
        let source = opening(libc::EBUSY)
            .source()
            .map(ToString::to_string)
            .expect("a source");
        assert!(source.contains("busy"), "{source}");
        assert!(!opening(libc::EBUSY).to_string().contains(&source));
    }

    #[test]
    fn an_errno_means_what_its_command_makes_of_it() {
        let cases = [
            ("FILE", libc::ENOTTY, ErrorKind::NotRfs),
            ("LOAD", libc::ENOTTY, ErrorKind::Unsupported),
            ("PATH", libc::ENOENT, ErrorKind::NoName),
            ("EVICT", libc::ESTALE, ErrorKind::Stale),
            ("HELLO", libc::EPROTONOSUPPORT, ErrorKind::Version),
            ("LOAD", libc::ESRCH, ErrorKind::NoProcess),
            ("LOAD", libc::EIO, ErrorKind::Io),
            ("MASK", libc::EINVAL, ErrorKind::Invalid),
            ("LOAD", libc::E2BIG, ErrorKind::Unsupported),
            ("STATS", libc::ENODEV, ErrorKind::NoDevice),
        ];
        for (command, errno, kind) in cases {
            let error = Error::command(command, io::Error::from_raw_os_error(errno));
            assert_eq!(error.kind(), kind, "{command} {errno}");
            assert!(error.to_string().starts_with(command), "{error}");
        }
    }
}
