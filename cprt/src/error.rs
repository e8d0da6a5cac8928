//! What can go wrong in the runtime.

use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The result of most of the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the runtime did not do something. The text is a phrase; the cause is the source.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A file does not open or read.
    #[error("Reading {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("Writing {}", path.display())]
    Write {
        /// Which one.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The process that served the mount has ended.
    #[error(
        "Reading {}: the server of this mount has ended; try 'umount -l {}' as root, or 'fusermount3 -uz'",
        path.display(), path.display()
    )]
    DeadMount {
        /// Where it is mounted, or a path below.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The configuration is invalid.
    #[error("{}: {problem}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and where.
        problem: String,
    },
    /// No daemon listens at the control socket.
    #[error(
        "Connecting to {}: is cprtd running? Try 'systemctl start cprtd', or name its socket with \
         --socket",
        socket.display()
    )]
    NoDaemon {
        /// The socket that was tried.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The user may not open the control socket.
    #[error(
        "Connecting to {}: only root and the group {group} may; try 'usermod -aG {group} USER' as \
         root and a new login",
        socket.display()
    )]
    NoPermission {
        /// The socket that was tried.
        socket: PathBuf,
        /// The group whose members may open it.
        group: String,
        /// The system's error.
        source: io::Error,
    },
    /// The daemon is there, but does not answer.
    #[error("cprtd has not answered for {seconds} s; see 'systemctl status cprtd'")]
    Silent {
        /// How long the client waited.
        seconds: u64,
    },
    /// Another daemon uses the socket.
    #[error("Another cprtd listens at {}; name another socket in the configuration", .0.display())]
    Running(PathBuf),
    /// The other side of a socket does not speak this protocol.
    #[error("{0}")]
    Protocol(String),
    /// A system call failed.
    #[error("{doing}")]
    System {
        /// What the call was for.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The device of a mount.
    #[error(transparent)]
    Device(#[from] rfs_uapi::Error),
    /// The policy is refused.
    #[error(transparent)]
    Policy(#[from] ppc::LoadError),
    /// The request was refused, and why.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The path is not a memory cgroup, or the cgroup does not take a process.
    #[error("{}: {problem}", path.display())]
    Cgroup {
        /// Its directory, or what was given for it.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: &'static str,
        /// The system's error, if there is one.
        source: Option<io::Error>,
    },
    /// The machine's topology cannot be found out.
    #[error("Reading the machine's topology: {0}")]
    Topology(String),
}

/// Why the daemon, a worker or a session did not do what it was asked to; sent to the client as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub kind: RefusalKind,
    /// A sentence for people.
    pub message: String,
    /// What the user can change, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Kinds of [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RefusalKind {
    /// The request itself is invalid.
    Invalid,
    /// There is no rfs mounted there, or no policy registered.
    NotFound,
    /// Users other than root can change the library.
    Untrusted,
    /// The library is not a policy, does not fit this host or mount, or refuses its settings.
    Policy,
    /// The attempt failed.
    Failed,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.remedy
            .as_ref()
            .map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for Refusal {}

/// An error and its causes, in one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
