//! Exit statuses, for scripts. The help text in `args.rs` documents them.

use std::process::ExitCode;

use cprt::Error;
use cprt::error::RefusalKind;

/// The exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    /// Also clap's own status for usage errors.
    Usage = 2,
    /// No daemon, no such mount, or no policy on the mount.
    Absent = 3,
    /// The policy was refused.
    Refused = 4,
    /// The worst finding of `doctor`. These start at 10, to leave room for more of the above.
    Warnings = 10,
    Problems = 11,
    /// Not all could be cached, or dropped.
    Partly = 12,
    /// `verify` found damage.
    Damaged = 13,
    /// What the page cache has could not be found out.
    Unchecked = 14,
    /// Ended by a signal: 128 and its number.
    Interrupted = 130,
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<&Error> for Exit {
    fn from(error: &Error) -> Self {
        match error {
            Error::NoDaemon { .. } => Self::Absent,
            Error::Policy(_) => Self::Refused,
            Error::Refused(refusal) => match refusal.kind {
                RefusalKind::NotFound => Self::Absent,
                RefusalKind::Untrusted | RefusalKind::Policy => Self::Refused,
                _ => Self::Failed,
            },
            _ => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use cprt::error::Refusal;

    use super::*;

    #[test]
    fn the_numbers_are_promised() {
        let numbers = [
            Exit::Done,
            Exit::Failed,
            Exit::Usage,
            Exit::Absent,
            Exit::Refused,
            Exit::Warnings,
            Exit::Problems,
            Exit::Partly,
            Exit::Damaged,
            Exit::Unchecked,
            Exit::Interrupted,
            Exit::Terminated,
        ];
        assert_eq!(
            numbers.map(|exit| exit as u8),
            [0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 130, 143]
        );
    }

    #[test]
    fn refusals_end_by_their_kind() {
        for (kind, exit) in [
            (RefusalKind::Invalid, Exit::Failed),
            (RefusalKind::NotFound, Exit::Absent),
            (RefusalKind::Untrusted, Exit::Refused),
            (RefusalKind::Policy, Exit::Refused),
            (RefusalKind::Failed, Exit::Failed),
        ] {
            let refusal = Refusal {
                kind,
                message: String::new(),
                remedy: None,
            };
            assert_eq!(Exit::from(&Error::from(refusal)), exit, "{kind:?}");
        }
    }

    #[test]
    fn a_missing_daemon_is_not_a_closed_door() {
        let socket = std::path::PathBuf::from("/s");
        let source = || io::Error::from(io::ErrorKind::Other);
        let missing = Error::NoDaemon {
            socket: socket.clone(),
            source: source(),
        };
        assert_eq!(Exit::from(&missing), Exit::Absent);
        let closed = Error::NoPermission {
            socket,
            group: String::new(),
            source: source(),
        };
        assert_eq!(Exit::from(&closed), Exit::Failed);
        assert_eq!(Exit::from(&Error::Silent { seconds: 1 }), Exit::Failed);
        let no_policy = Error::from(ppc::LoadError::NoSymbol);
        assert_eq!(Exit::from(&no_policy), Exit::Refused);
    }
}
