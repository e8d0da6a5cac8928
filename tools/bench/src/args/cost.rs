//! The command line of `ppc-bench cost`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use cprt::control::kind::BackendKind;

/// The measurements to make.
#[derive(Debug, Args)]
pub(crate) struct Cost {
    /// The backend that serves the directory
    #[arg(long, value_enum)]
    pub(crate) backend: Backend,
    /// The events that the policy wants; each choice is measured separately
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values = ["none", "rest", "replay", "record"]
    )]
    pub(crate) want: Vec<Want>,
    /// Number of rounds in which the sides take turns
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Size of the file, in MiB
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) mib: u64,
    /// The directory for the file, on a disk's file system
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub(crate) dir: PathBuf,
    /// Run only cases with this text in their names; may be given several times
    #[arg(long = "case", value_name = "TEXT")]
    pub(crate) cases: Vec<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// A backend that needs no module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// The kernel's tracepoints, with nothing mounted
    Observe,
    /// A FUSE mount whose worker answers each read
    Fuse,
    /// A FUSE mount passed through: the kernel reads the lower files, where reads are observed
    Passthrough,
}

impl Backend {
    pub(crate) const fn kind(self) -> BackendKind {
        match self {
            Self::Observe => BackendKind::Observe,
            Self::Fuse | Self::Passthrough => BackendKind::Fuse,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Fuse => "fuse",
            Self::Passthrough => "passthrough",
        }
    }
}

/// The events that a policy wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Want {
    /// Nothing: its distance from 1 is noise, and the cost of the mount itself
    None,
    /// MISS only
    Miss,
    /// What MAIO wants while nothing is being loaded: MISS and OPEN
    Rest,
    /// What MAIO wants while it replays a load: MISS, OPEN, CLOSE and PROGRESS
    Replay,
    /// What MAIO wants while it records a load: MISS, OPEN, CLOSE and TOUCH
    Record,
}

impl Want {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Miss => "miss",
            Self::Rest => "rest",
            Self::Replay => "replay",
            Self::Record => "record",
        }
    }

    /// The kinds of events, as the policy's setting.
    pub(crate) const fn kinds(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Miss => "miss",
            Self::Rest => "miss open",
            Self::Replay => "miss open close progress",
            Self::Record => "miss open close touch",
        }
    }

    /// Whether the worker gets events even if everything is cached.
    pub(crate) const fn hears_hits(self) -> bool {
        matches!(self, Self::Replay | Self::Record)
    }
}
