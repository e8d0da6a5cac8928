//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use cprt::control::config;
use cprt::control::kind::BackendKind;

pub(crate) mod cost;

use self::cost::Cost;
use crate::ssd::{self, Timing};

/// Measure how cache policies speed up the loading of models, on a simulated SSD
#[derive(Debug, Parser)]
#[command(name = "ppc-bench", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) errand: Option<Errand>,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
}

/// The measurements to make.
#[derive(Debug, Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a word of the command line"
)]
pub(crate) struct Wanted {
    /// Run few cases with a small model, one round: about two minutes
    #[arg(long, conflicts_with = "standard")]
    pub(crate) quick: bool,
    /// Run the cases behind all claims, three rounds: about fifty minutes. This is the default
    #[arg(long)]
    pub(crate) standard: bool,
    /// Use the model of --quick for any case
    #[arg(long)]
    pub(crate) small: bool,
    /// Run more readers: by read, shuffled, one and eight workers
    #[arg(long)]
    pub(crate) more: bool,
    /// Run MAIO for four workers that share a model, with all its bars: by headers, replayed, with little
    /// memory, with the template of other readers, out of order
    #[arg(long, conflicts_with_all = ["quick", "standard", "more"])]
    pub(crate) maio: bool,
    /// Run readers of each order, with memory for everything: MAIO's first load and a later one, and the kernel with
    /// 4 MiB of readahead. --standard includes them
    #[arg(long, conflicts_with_all = ["quick", "standard", "more", "maio"])]
    pub(crate) orders: bool,
    /// Use a model of about this many MiB for any case
    #[arg(long, value_name = "N", conflicts_with_all = ["quick", "small"], value_parser = clap::value_parser!(u64).range(128..=1 << 20))]
    pub(crate) mib: Option<u64>,
    /// How the workers of --maio read
    #[arg(long, value_enum, value_name = "HOW", default_value = "mmap")]
    pub(crate) by: By,
    /// How long a call of a policy may take before its worker is killed [default: 2 s]
    #[arg(long = "deadline", value_name = "TIME", value_parser = deadline)]
    pub(crate) worker: Option<config::WorkerConfig>,
    /// The kernel's readahead, in KiB
    #[arg(long, value_name = "KIB", default_value_t = 128)]
    pub(crate) read_ahead: u64,
    /// The device that holds the model
    #[arg(long, value_enum, value_name = "WHAT", default_value = "ssd")]
    pub(crate) device: Device,
    /// Run only cases with this text in their names; may be given several times
    #[arg(long = "case", value_name = "TEXT")]
    pub(crate) cases: Vec<String>,
    /// Number of runs of each case
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// The backend that reports misses: module, observe or fuse
    #[arg(long, default_value = "observe")]
    pub(crate) backend: BackendKind,
    /// Multiply all times except CPU time by this: for emulated machines
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) slower: u64,
    /// The name of the results
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The directory for results
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub(crate) output: PathBuf,
    /// List the cases and exit
    #[arg(long)]
    pub(crate) list: bool,
}

/// The default settings of workers, but for the deadline.
fn deadline(text: &str) -> Result<config::WorkerConfig, String> {
    let settings = serde_json::json!({ "deadline": text });
    serde_json::from_value(settings).map_err(|error| error.to_string())
}

/// The simulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// 1.5 ms a request, 350 MB/s
    Ssd,
    /// 0.1 ms, 1 GB/s
    Near,
    /// 4 ms, 1 GB/s, like a nearby file server
    Filer,
    /// 20 ms, 1 GB/s, like a network file system
    Network,
    /// 5 ms, 350 MB/s, 16 requests at once
    Knee,
    /// 5 ms, 150 MB/s, and slower with more than 8 requests at once, like a rotating disk
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

    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// How a worker reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// By `read`
    Read,
    /// Through mappings that are kept
    Mmap,
}

/// The services that load at the same time.
#[derive(Debug, Args)]
pub(crate) struct Together {
    /// The device that holds the models
    #[arg(long, value_enum, value_name = "WHAT", default_value = "ssd")]
    pub(crate) device: Device,
    /// How many services load at the same time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = at_once)]
    pub(crate) services: usize,
    /// Size of each model, in MiB
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u64).range(64..=1 << 16))]
    pub(crate) mib: u64,
    /// How the services read
    #[arg(long, value_enum, value_name = "HOW", default_value = "read")]
    pub(crate) by: By,
    /// Number of rounds in which the ways to load take turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// A short command, by itself and behind `ppcctl run`.
#[derive(Debug, Args)]
pub(crate) struct Wrapped {
    /// Number of rounds in which the ways to run it take turns
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// The directory for the model, which is removed at the end
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub(crate) output: PathBuf,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

fn at_once(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(services @ 2..=16) => Ok(services),
        _ => Err("from 2 to 16 services".to_owned()),
    }
}

/// The options of a tour.
#[derive(Debug, Args)]
pub(crate) struct Tour {
    /// A model on a disk of this machine; without it, one is generated on a simulated SSD
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,
    /// Generate the model on the disk where results are written, even if an SSD can be simulated
    #[arg(long, conflicts_with = "model")]
    pub(crate) real: bool,
    /// A shell command that loads the model and exits: "{}" and $MODEL stand for the directory
    ///
    /// Without it, every file is mapped and every byte of it read.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) command: Option<String>,
    /// Number of times each load is measured
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// The directory for results
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub(crate) output: PathBuf,
}

/// The options of a lent device.
#[derive(Debug, Args)]
pub(crate) struct Lend {
    /// The folder whose files to put on it
    pub(crate) folder: PathBuf,
    /// The device to simulate; the order 'be DEVICE' changes it
    #[arg(long, value_enum, value_name = "WHAT", default_value = "ssd")]
    pub(crate) device: Device,
    /// Keep links, owners, modes and empty folders, and allow writing: for a root directory of programs
    #[arg(long)]
    pub(crate) archive: bool,
}

/// The subcommands, and the hidden ones with which this program starts itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Errand {
    /// Load a model without and with MAIO and show the difference, as 'make run' does
    Run(Tour),
    /// Measure what a backend without the module costs a reader, against the bare directory
    Cost(Cost),
    /// Measure services that load at the same time from one device, against one after the other
    Together(Together),
    /// Measure what 'ppcctl run' adds to a short command whose files are all cached
    Wrapped(Wrapped),
    /// Compare the simulated SSD with its model
    Selfcheck,
    /// Write the page of existing results
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
