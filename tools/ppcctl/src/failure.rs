//! Why a command failed: a sentence for people, an [`Exit`] for scripts.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;

use cprt::error::RefusalKind;
use thiserror::Error;

use crate::exit::Exit;
use crate::inspect::Misbehaviour;
use crate::screen::plain;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Runtime(#[from] cprt::Error),
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    NoSuchPolicy(#[from] cprt::daemon::policies::Missing),
    #[error("{}: {source}", library.display())]
    Misbehaviour {
        library: PathBuf,
        source: Misbehaviour,
    },
    #[error(transparent)]
    Service(maio::service::ServiceError),
    #[error(transparent)]
    Prediction(#[from] maio::predict::PredictError),
    #[error(transparent)]
    Template(#[from] maio::template::TemplateError),
    #[error("There is no template of {0}; 'ppcctl template ls' lists all templates")]
    NoTemplate(String),
    #[error("No start {0} is known; 'ppcctl start ls' lists the known starts")]
    NoStart(String),
    #[error(
        "{}:{line}: neither 'HASH  NAME' nor 'SHA256 (NAME) = HASH'; 'sha256sum' makes such a list",
        path.display()
    )]
    NoHash { path: PathBuf, line: usize },
    #[error("cprtd ended the stream after {seen} of {wanted} events; is it still mounted?")]
    Ended { seen: u64, wanted: u64 },
    #[error("{}", path.display())]
    At { path: PathBuf, source: io::Error },
    #[error("{}", program.display())]
    Command { program: PathBuf, source: io::Error },
    #[error("Writing to standard output")]
    Output(#[source] io::Error),
    #[error("Writing {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{doing}")]
    System {
        doing: &'static str,
        source: io::Error,
    },
}

impl Failure {
    /// Whether the reader of our output has closed the pipe, which is not a failure.
    pub(crate) fn is_enough(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether the only problem is that no backend works.
    pub(crate) fn is_of_backends(error: &cprt::Error) -> bool {
        matches!(error, cprt::Error::Refused(refusal) if refusal.kind == RefusalKind::Failed)
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Runtime(error) => error.into(),
            Self::Usage(_) | Self::Service(_) => Exit::Usage,
            Self::NoSuchPolicy(_) | Self::Misbehaviour { .. } => Exit::Refused,
            Self::Prediction(_)
            | Self::Template(_)
            | Self::NoTemplate(_)
            | Self::NoStart(_)
            | Self::NoHash { .. }
            | Self::Ended { .. }
            | Self::At { .. }
            | Self::Command { .. }
            | Self::Output(_)
            | Self::Write { .. }
            | Self::System { .. } => Exit::Failed,
        }
    }

    /// The error message, followed by its causes.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let phrase = error.to_string();
            // Some messages include their cause already.
            if !text.ends_with(&phrase) {
                text = format!("{text}: {phrase}");
            }
            cause = error.source();
        }
        let lines: Vec<_> = text.lines().map(plain).collect();
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_reported_once() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let failure = Failure::Write {
            path: "/x".into(),
            source: denied(),
        };
        assert_eq!(failure.chain(), "Writing /x: permission denied");
        let failure = Failure::from(cprt::Error::NoPermission {
            socket: "/s".into(),
            group: "ppc".into(),
            source: denied(),
        });
        let chain = failure.chain();
        assert!(
            chain.ends_with("and a new login: permission denied"),
            "{chain}"
        );
        assert_eq!(failure.exit(), Exit::Failed);
    }

    #[test]
    fn control_characters_in_messages_are_escaped() {
        let failure = Failure::Usage("a\x1b[2Jb\nc".into());
        assert_eq!(failure.chain(), "a\\u{1b}[2Jb\nc");
    }

    #[test]
    fn only_the_output_can_be_enough() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(Failure::Output(broken()).is_enough());
        let socket = cprt::Error::System {
            doing: "Writing",
            source: broken(),
        };
        assert!(!Failure::from(socket).is_enough());
    }
}
