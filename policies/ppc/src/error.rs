//! Errors on both sides of the contract.

use std::io;

use thiserror::Error;

/// The result of a callback or of a service of the host.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a callback or a service of the host failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A service of the host failed.
    #[error("{service}: {}", io::Error::from_raw_os_error(*errno))]
    Host {
        /// The service's name in `ppc.h`.
        service: &'static str,
        /// Its errno, positive.
        errno: i32,
    },
    /// A setting's value is invalid.
    #[error("Setting {key}={value}: {problem}")]
    Setting {
        /// The setting.
        key: String,
        /// Its value, as given.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The policy has no such settings.
    #[error("Unknown setting: {0}")]
    UnknownSettings(String),
    /// A path or message that C cannot represent.
    #[error("{0:?} contains a NUL byte")]
    Nul(String),
    /// An errno of the policy's own, positive.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Errno(i32),
}

impl Error {
    /// The positive errno; its negation crosses the contract.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Host { errno, .. } | Self::Errno(errno) => *errno,
            Self::Setting { .. } | Self::UnknownSettings(_) | Self::Nul(_) => libc::EINVAL,
        }
    }
}

/// Why a host refuses a policy, in a sentence for the user who registered it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic linker refuses it.
    #[error("The library cannot be opened: {0}")]
    Open(String),
    /// It is a library, but not a policy.
    #[error("It exports no ppc_policy, so it is not a policy; see ppc.h")]
    NoSymbol,
    /// Built with a newer `ppc.h`.
    #[error(
        "The policy needs version {policy} of ppc.h, and this host supports versions up to {host}; install a newer \
         host, or build the policy with this host's header"
    )]
    Newer {
        /// The policy's version.
        policy: u32,
        /// This host's version.
        host: u32,
    },
    /// Its version or size is one that no header ever had.
    #[error(
        "ppc_policy is damaged (version {version}, {size} bytes); is it registered by \
         PPC_POLICY()?"
    )]
    Damaged {
        /// The version it claims.
        version: u32,
        /// The size it claims.
        size: u32,
    },
    /// The name is missing or not valid.
    #[error("The policy's name must consist of a-z, 0-9 and -, at most 64 bytes")]
    Name,
    /// It needs features that this version does not have.
    #[error("The policy needs features that version {0} of ppc.h does not have")]
    UnknownNeeds(u32),
    /// The mount lacks features that the policy needs.
    #[error("The policy needs features that this mount does not have: {0:#x}")]
    Needs(u64),
    /// Settings for a policy that reads none.
    #[error("The policy takes no settings")]
    NoSettings,
    /// A key or value that C cannot represent.
    #[error("A setting contains a NUL byte")]
    Nul,
    /// Its `init` failed; the reason is its last log line.
    #[error("The policy refused: {}", io::Error::from_raw_os_error(*.0))]
    Init(i32),
}
