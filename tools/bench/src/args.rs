//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use cprt::control::config;
use cprt::control::kind::BackendKind;

pub(crate) mod cost;

use self::cost::Cost;
use crate::ssd::{self, Timing};

/// Measures what cache policies do for the loading of models, on a simulated SSD.
#[derive(Debug, Parser)]
#[command(name = "ppc-bench", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) errand: Option<Errand>,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
}

/// What is measured.
#[derive(Debug, Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a word of the command line"
)]
pub(crate) struct Wanted {
    /// A small model, few cases, one round: about two minutes
    #[arg(long, conflicts_with = "standard")]
    pub(crate) quick: bool,
    /// The cases that claims are made of, three rounds: about fifty minutes. This is the default
    #[arg(long)]
    pub(crate) standard: bool,
    /// The model that --quick takes, for any case
    #[arg(long)]
    pub(crate) small: bool,
    /// More readers: by read, shuffled, one and eight workers
    #[arg(long)]
    pub(crate) more: bool,
    /// What MAIO does for four workers that share a model, each bar of it: by headers, replayed, with little
    /// memory, with a template of others, out of order
    #[arg(long, conflicts_with_all = ["quick", "standard", "more"])]
    pub(crate) maio: bool,
    /// Readers of each order, with memory for all: MAIO's first load and a later one, and the kernel's with 4 MiB of
    /// readahead. They are among those of --standard
    #[arg(long, conflicts_with_all = ["quick", "standard", "more", "maio"])]
    pub(crate) orders: bool,
    /// A model of about so many MiB, for any case
    #[arg(long, value_name = "N", conflicts_with_all = ["quick", "small"], value_parser = clap::value_parser!(u64).range(128..=1 << 20))]
    pub(crate) mib: Option<u64>,
    /// How the workers of --maio read
    #[arg(long, value_enum, value_name = "HOW", default_value = "mmap")]
    pub(crate) by: By,
    /// How long a call of a policy may take before its worker is killed [default: 2 s]
    #[arg(long = "deadline", value_name = "TIME", value_parser = deadline)]
    pub(crate) worker: Option<config::WorkerConfig>,
    /// How far the kernel reads ahead, in KiB
    #[arg(long, value_name = "KIB", default_value_t = 128)]
    pub(crate) read_ahead: u64,
    /// What holds the model
    #[arg(long, value_enum, value_name = "WHAT", default_value = "ssd")]
    pub(crate) device: Device,
    /// Only cases with this in their names; may be given several times
    #[arg(long = "case", value_name = "TEXT")]
    pub(crate) cases: Vec<String>,
    /// How often each case is run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// How misses are heard of: module, observe or fuse
    #[arg(long, default_value = "observe")]
    pub(crate) backend: BackendKind,
    /// All times that are no CPU time are so many times as long: for emulated machines
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) slower: u64,
    /// What the results are called
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Where results are written
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub(crate) output: PathBuf,
    /// List the cases and end
    #[arg(long)]
    pub(crate) list: bool,
}

/// The usual worker, but for that.
fn deadline(text: &str) -> Result<config::WorkerConfig, String> {
    let settings = serde_json::json!({ "deadline": text });
    serde_json::from_value(settings).map_err(|error| error.to_string())
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// 1.5 ms a request, 350 MB/s
    Ssd,
    /// 0.1 ms, 1 GB/s
    Near,
    /// 4 ms, 1 GB/s, as a file server nearby
    Filer,
    /// 20 ms, 1 GB/s, as a file system behind a network
    Network,
    /// 5 ms, 350 MB/s, 16 requests at once
    Knee,
    /// 5 ms, 150 MB/s, and slower with more than 8 requests at once, as a turning disk
    Seeks,
}

impl Device {
    pub(crate) const fn timing(self) -> Timing {
        match self {
            Self::Ssd => ssd::TIMING,
            Self::Near => ssd::NEAR,
            Self::Filer => ssd::FILER,
            Self::Network => ssd::NETWORK,
            Self::Knee => ssd::KNEE,
            Self::Seeks => ssd::SEEKS,
        }
    }
}

/// How bytes come to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// By `read`
    Read,
    /// Through mappings that stay
    Mmap,
}

/// What a tour shows.
#[derive(Debug, Args)]
pub(crate) struct Tour {
    /// A model on a disk of this machine; without it, one is made up, on a simulated SSD
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,
    /// A made-up model on the disk where results are written, though a simulated SSD may be had
    #[arg(long, conflicts_with = "model")]
    pub(crate) real: bool,
    /// What loads the model and ends, for a shell: "{}" and $MODEL are the directory
    ///
    /// Without it, every file is mapped and every byte of it looked at.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) command: Option<String>,
    /// How often each load is measured
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Where results are written
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub(crate) output: PathBuf,
}

/// What is lent.
#[derive(Debug, Args)]
pub(crate) struct Lend {
    /// What is on it
    pub(crate) folder: PathBuf,
    /// What it is like; the order 'be DEVICE' makes it another
    #[arg(long, value_enum, value_name = "WHAT", default_value = "ssd")]
    pub(crate) device: Device,
    /// Links, owners, modes and empty folders as they are, and to be written to: a root directory of programs
    #[arg(long)]
    pub(crate) archive: bool,
}

/// What this program starts itself for.
#[derive(Debug, Subcommand)]
pub(crate) enum Errand {
    /// Load a model without and with MAIO and show the difference: what 'make run' does
    Run(Tour),
    /// Measure what a backend without the module costs a reader, against the bare directory
    Cost(Cost),
    /// Compare the simulated SSD with its model, and end
    Selfcheck,
    /// Write the page of results that are there
    Report {
        /// A file of results, target/bench/NAME.json
        results: PathBuf,
    },
    /// Lend the simulated SSD, with a folder's files on it, until standard input ends
    Lend(Lend),
    #[command(hide = true)]
    Simulate {
        #[arg(long)]
        size: u64,
        #[arg(long)]
        folder: PathBuf,
    },
    #[command(hide = true)]
    Drive {
        #[arg(long)]
        task: String,
    },
    #[command(hide = true)]
    Work {
        #[arg(long)]
        rank: u32,
        #[arg(long)]
        task: String,
    },
    #[command(hide = true)]
    Prefetch {
        #[arg(long)]
        task: String,
    },
    #[command(hide = true)]
    Load {
        #[arg(long)]
        model: PathBuf,
        #[arg(long)]
        command: Option<String>,
    },
    #[command(hide = true)]
    Read {
        #[arg(long)]
        task: String,
    },
    #[command(hide = true)]
    Worker { mount: PathBuf },
    #[command(hide = true)]
    Topology,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
        let cli = Cli::try_parse_from(["ppc-bench", "--quick", "--case", "maio", "--rounds", "2"]);
        let cli = cli.expect("it is sound");
        assert!(cli.wanted.quick && cli.errand.is_none());
        assert_eq!(cli.wanted.rounds, Some(2));
        let cli =
            Cli::try_parse_from(["ppc-bench", "run", "--model", "/m", "--command", "cat {}/*"]);
        assert!(matches!(
            cli.expect("it is sound").errand,
            Some(Errand::Run(_))
        ));
        let words = ["cost", "--backend", "passthrough", "--want", "miss,none"];
        let cli = Cli::try_parse_from(["ppc-bench"].iter().chain(&words));
        assert!(matches!(
            cli.expect("it is sound").errand,
            Some(Errand::Cost(_))
        ));
        let cli = Cli::try_parse_from(["ppc-bench", "lend", "/m", "--device", "filer"]);
        let Some(Errand::Lend(lend)) = cli.expect("it is sound").errand else {
            panic!("something else is asked for");
        };
        assert_eq!((lend.device, lend.archive), (Device::Filer, false));
        for wrong in [
            &["--rounds", "0"][..],
            &["lend", "/m", "--device", "tape"],
            &["run", "--real", "--model", "/m"],
            &["--quick", "--standard"],
            &["--backend", "rfs"],
            &["--slower", "0"],
            &["--maio", "--quick"],
            &["--mib", "256", "--small"],
            &["--by", "direct"],
            &["--deadline", "soon"],
            &["cost"],
            &["cost", "--backend", "module"],
            &["cost", "--backend", "observe", "--want", "all"],
        ] {
            let words = ["ppc-bench"].iter().chain(wrong);
            assert!(Cli::try_parse_from(words).is_err(), "{wrong:?}");
        }
    }
}
