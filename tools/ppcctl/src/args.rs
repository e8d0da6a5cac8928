//! The command line. The comments here are the help, the man pages and the completions.

#![allow(
    clippy::doc_markdown,
    reason = "these comments are shown as they are, so no backticks"
)]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use cprt::control::config::Config;

use crate::failure::Result;
use crate::pattern::Pattern;
use crate::setting::Setting;

mod keep;
mod residency;
mod start;

pub(crate) use keep::{KeepAdd, KeepCommand};
pub(crate) use residency::{Release, Verify, Warm};
pub(crate) use start::{Record, Replay, StartCommand, WhichStart};

/// What scripts may depend on; `exit.rs` is the same in code.
const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  failed
  2  invalid command line
  3  cprtd is not running, there is no such mount, or the mount has no policy
  4  the policy was refused: the library is not trusted or not a policy, or it rejected its settings
 10  doctor found something that costs speed
 11  doctor found something that does not work
 12  warm, keep or drop did only a part: not enough memory, or pages are in use
 13  verify found damage: the page cache differs from the device, or a hash is wrong
 14  verify or drop could not find out what is cached
130  interrupted by SIGINT
143  interrupted by SIGTERM

Data goes to standard output, everything else to standard error.";

/// Run cache policies, which load what programs are about to read, and show what they do
///
/// A policy is a shared library that is notified of page-cache misses and decides what to read ahead
/// and what to drop; maio, the usual one, loads models. 'ppcctl run' runs a policy for one command.
/// The daemon cprtd runs those of mounts and services; ppcctl talks to it through its control socket.
#[derive(Debug, Parser)]
#[command(
    name = "ppcctl",
    version,
    after_help = EXIT_STATUS,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Args, Debug)]
pub(crate) struct Common {
    /// Print JSON for programs, one value per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The control socket of cprtd [default: from its configuration]
    #[arg(long, global = true, value_name = "PATH", env = "PPC_SOCKET", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,
    /// The configuration of cprtd, which names its socket and limits loads [default: /etc/cprt.toml]
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
}

impl Common {
    /// The configuration that limits what may be loaded on this machine. If the user names none, one that cannot be
    /// read is not a failure.
    pub(crate) fn limits(&self) -> Result<Config> {
        match &self.config {
            Some(path) => Ok(Config::read(path)?),
            None => Ok(Config::read_default().unwrap_or_default()),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Give a mount a policy, replacing the one it has
    RegPolicy(RegPolicy),
    /// Remove a mount's policy; the kernel decides again
    RmPolicy {
        /// Where rfs is mounted
        #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
        mount: PathBuf,
    },
    /// Change settings of the running policy, one at a time
    Set {
        /// Where rfs is mounted
        #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
        mount: PathBuf,
        /// What to change
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<Setting>,
    },
    /// Show mounts, the state of their policies, and the services whose starts are known
    Status {
        /// Only this mount, with all details
        #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
        mount: Option<PathBuf>,
    },
    /// Show the counters of the policies' workers
    Stats {
        /// Only this mount
        #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
        mount: Option<PathBuf>,
        /// Repeat at this interval, and add each counter's increase per second
        #[arg(
            long,
            value_name = "SECONDS",
            num_args = 0..=1,
            default_missing_value = "1",
            value_parser = clap::value_parser!(u32).range(1..=86_400)
        )]
        watch: Option<u32>,
    },
    /// Show loads, waiting readers and memory use in the terminal, and keep updating them
    ///
    /// "q" quits. Loads under way come first; LEFT is their remaining time at the current rate.
    Top {
        /// Seconds between updates
        #[arg(
            long,
            value_name = "SECONDS",
            default_value_t = 1,
            value_parser = clap::value_parser!(u32).range(1..=3_600)
        )]
        interval: u32,
    },
    /// Print status and counters as metrics, for Prometheus and other collectors
    ///
    /// cprtd serves the same text as GET /metrics. This is for collectors that read files, such as the textfile
    /// collector of Prometheus's node exporter: write the text into another file of the same folder and rename it, so
    /// that the collector never reads half of it.
    Metrics {
        /// In the format OpenMetrics 1.0, not the text format of Prometheus
        #[arg(long)]
        openmetrics: bool,
    },
    /// Print the events that the policy receives, until interrupted
    Events(Events),
    /// Run a command with a policy for the directory that it reads from, without daemon or mount
    Run(Run),
    Warm(Warm),
    /// Keep sets of files in the page cache, as long as memory allows
    ///
    /// cprtd loads the missing parts of a set in the background. It checks every few seconds what is cached, and
    /// reloads what was reclaimed while memory is ample. Once memory use exceeds the threshold (80 % of the machine's),
    /// the sets of the lowest priority give way first, before the kernel has to choose. What is reclaimed repeatedly is
    /// reloaded less and less often.
    Keep {
        #[command(subcommand)]
        command: KeepCommand,
    },
    Drop(Release),
    Verify(Verify),
    /// Find out what slows down loads from a directory, and how to fix it
    ///
    /// doctor shows which backend PPC would use and why no better one works. It looks for problems with the files, the
    /// file system and its device, and checks memory, accelerators, the kernel's features and your privileges. It
    /// changes nothing. The exit status is 10 if there are warnings and 11 if there are problems.
    Doctor {
        /// The directory with the files of a model
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
    /// Look at policies without registering them
    Policy {
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Print the ID of a service, by which MAIO finds its template
    ///
    /// Name everything that determines what is read, in any order: the model, how many workers share
    /// each layer, the framework and its version. The same parameters always give the same ID.
    ServiceId {
        /// Such as model=llama-70b tp=4 vllm=0.11
        #[arg(value_name = "KEY=VALUE", required = true)]
        pairs: Vec<Setting>,
    },
    /// Show and manage MAIO's templates of what services read; for those of starts, see 'ppcctl start'
    Template {
        /// The directory that holds them [default: MAIO's own default]
        #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
        store: Option<PathBuf>,
        #[command(subcommand)]
        command: TemplateCommand,
    },
    /// Show, replay and manage the starts that 'ppcctl run -- COMMAND' has recorded
    Start {
        /// The directory that holds the templates [default: MAIO's own default]
        #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
        store: Option<PathBuf>,
        #[command(subcommand)]
        command: StartCommand,
    },
}

/// A service's template.
#[derive(Args, Debug)]
pub(crate) struct Named {
    /// The service's ID
    #[arg(value_name = "ID")]
    pub(crate) service: String,
    /// The template of this node [default: this machine's, otherwise any other's]
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// List all templates, including damaged ones
    Ls,
    /// Show what the workers of a service read; for a start, the same as 'ppcctl start show'
    Show {
        #[command(flatten)]
        named: Named,
        /// Show every range, not only the bytes read of each file
        #[arg(long)]
        ranges: bool,
    },
    /// Check that a template is intact, and still matches the files of a directory
    Verify {
        #[command(flatten)]
        named: Named,
        /// The directory of the model
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        directory: Option<PathBuf>,
    },
    /// Remove the templates of a service; its next load records a new one
    Rm {
        /// The service's ID
        #[arg(value_name = "ID")]
        service: String,
        /// Only the template of this node
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// Show how the reads of two services, or of two nodes of one service, differ
    Diff {
        /// The first: an ID, or ID/NODE
        #[arg(value_name = "ID[/NODE]")]
        one: String,
        /// The second
        #[arg(value_name = "ID[/NODE]")]
        other: String,
    },
    /// Make a template from the headers of a model that has never been loaded
    Synth {
        /// The directory of the model
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        directory: PathBuf,
        /// The service's ID to save the template under; without it, the template is only shown
        #[arg(long, value_name = "ID")]
        service_id: Option<String>,
        /// How many workers share each layer
        #[arg(long, value_name = "N", default_value_t = 1)]
        tp: u32,
        /// The order in which the framework reads [default: derived from the files]
        #[arg(long, value_name = "ORDER")]
        order: Option<Order>,
    },
}

/// The order in which a framework reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// As vLLM: the tensors of a file by name
    Vllm,
    /// As transformers: the tensors in file order
    Transformers,
    /// Each file from beginning to end
    File,
}

/// The service, named in one of two ways.
#[derive(Args, Debug)]
pub(crate) struct Service {
    /// The service's ID, as service-id prints it; passed to the policy as its setting service-id
    #[arg(long, value_name = "ID", conflicts_with = "service")]
    pub(crate) service_id: Option<String>,
    /// The service's parameters; passed to the policy as its setting service
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub(crate) service: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct RegPolicy {
    /// Where rfs is mounted; with --backend, any directory
    #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
    pub(crate) mount: PathBuf,
    /// The policy: a path if it contains a slash, otherwise a name in /usr/lib/ppc
    ///
    /// A name, with or without ".so", is looked up in the directories of PPC_POLICY_PATH (separated
    /// by colons), in ../lib/ppc relative to ppcctl, and in /usr/lib/ppc. For a file in the current
    /// directory, use ./NAME.
    #[arg(value_name = "LIBRARY", value_hint = ValueHint::FilePath)]
    pub(crate) library: PathBuf,
    /// A setting for the policy; its README lists them
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<Setting>,
    #[command(flatten)]
    pub(crate) service: Service,
    /// The memory cgroup charged for what is loaded [default: that of the first reader]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) cgroup: Option<PathBuf>,
    /// Work without the module: observe uses the directory as it is, fuse mounts a mirror over it
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<cprt::control::kind::BackendKind>,
}

/// Run a command with a policy for what it reads, without daemon or mount
///
/// ppcctl records everything that the command and its children read from their start on, from any file, and loads it
/// ahead of them the next time. A second policy loads the model in DIR as soon as the start is in memory, before the
/// command opens it; it needs no record of an earlier load. Without DIR, the model is the model directory that an
/// argument names, or the named model's copy in the Hugging Face cache.
///
/// The command runs as it would without ppcctl: standard input and output, signals and exit status
/// are its own, and DIR keeps its path. ppcctl uses the best backend that this machine allows; if there
/// is none, it prints the reason and runs the command anyway. It includes files outside DIR that links in
/// DIR lead to, as in download caches. It shows progress on a terminal, and sums up at the end what it did.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status: that of the command, or 128 plus the signal's number if a signal ended it; 125 if \
ppcctl itself failed, 126 if the command cannot be run, 127 if there is no such command.")]
pub(crate) struct Run {
    /// The policy, as for reg-policy
    #[arg(long, value_name = "LIBRARY", default_value = "maio", value_hint = ValueHint::FilePath)]
    pub(crate) policy: PathBuf,
    #[command(flatten)]
    pub(crate) service: Service,
    /// A setting for the policy; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<Setting>,
    /// Use this backend or none
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = Backend::parse)]
    pub(crate) backend: Backend,
    /// The memory cgroup charged for what is loaded [default: that of the command]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) cgroup: Option<PathBuf>,
    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The directory of the model
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
    /// The command to run, after a "--"
    #[arg(value_name = "COMMAND", last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// The backend for a directory: auto, module, observe or fuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backend(pub(crate) Option<cprt::control::kind::BackendKind>);

impl Backend {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self(None)),
            other => other.parse().map(|kind| Self(Some(kind))),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Events {
    /// Where rfs is mounted
    #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
    pub(crate) mount: PathBuf,
    /// Only events of these kinds
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub(crate) kind: Vec<EventKind>,
    /// Only events of this process
    #[arg(long, value_name = "PID")]
    pub(crate) process: Option<u32>,
    /// Only events of files whose path in the mount matches
    ///
    /// "*" matches anything, slashes included. A pattern with a "*" has to match the whole path; one
    /// without may match any part of it.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) file: Option<Pattern>,
    /// Exit after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

/// The kinds of events; `EventLine` spells them in capitals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventKind {
    Lost,
    Open,
    Close,
    Miss,
    Touch,
    Progress,
}

impl EventKind {
    pub(crate) fn is(self, name: &str) -> bool {
        let own = match self {
            Self::Lost => "LOST",
            Self::Open => "OPEN",
            Self::Close => "CLOSE",
            Self::Miss => "MISS",
            Self::Touch => "TOUCH",
            Self::Progress => "PROGRESS",
        };
        own.eq_ignore_ascii_case(name)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Show what a library reports about itself, and whether cprtd would trust it
    ///
    /// ppcctl loads the library into a separate process, so its constructors run with your privileges. It calls none
    /// of its callbacks.
    Inspect {
        /// The policy, as for reg-policy
        #[arg(value_name = "LIBRARY", value_hint = ValueHint::FilePath)]
        library: PathBuf,
    },
}

/// Internal commands: a command line of its own keeps them out of the man pages and completions.
#[derive(Debug, Parser)]
#[command(name = "ppcctl", disable_help_subcommand = true)]
pub(crate) enum Errand {
    /// Write the man pages and completions into a directory
    Generate {
        /// Created if it does not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Run as the process that loads a library for `policy inspect`
    Load {
        /// Its absolute path
        #[arg(value_name = "LIBRARY")]
        library: PathBuf,
    },
    /// Run as the worker of a command
    Worker {
        /// Shown in process listings
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Print the machine's topology
    Topology,
    /// Execute a command, with the signal mask and the user that it would have without ppcctl
    Become {
        /// User and group
        #[arg(long, num_args = 2)]
        user: Option<Vec<u32>>,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

impl Errand {
    /// Whether the first argument names an internal command.
    pub(crate) fn is_meant(first: Option<&std::ffi::OsStr>) -> bool {
        let first = first.and_then(std::ffi::OsStr::to_str);
        matches!(
            first,
            Some("generate" | "load" | "worker" | "topology" | "become")
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Cli, String> {
        Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
        Errand::command().debug_assert();
    }

    #[test]
    fn errands_are_not_in_the_way_of_commands() {
        for command in Cli::command().get_subcommands() {
            let name = std::ffi::OsStr::new(command.get_name());
            assert!(!Errand::is_meant(Some(name)), "{name:?}");
        }
        for errand in Errand::command().get_subcommands() {
            let name = std::ffi::OsStr::new(errand.get_name());
            assert!(Errand::is_meant(Some(name)), "{name:?}");
        }
    }

    #[test]
    fn common_options_go_before_and_after() {
        for line in [
            "ppcctl --json --socket /s status",
            "ppcctl status --json --socket /s",
        ] {
            let cli = parse(line).expect("both are fine");
            assert!(cli.common.json);
            assert_eq!(cli.common.socket, Some("/s".into()));
        }
    }

    #[test]
    fn watch_may_have_a_time() {
        for (line, expected) in [
            ("ppcctl stats", None),
            ("ppcctl stats --watch", Some(1)),
            ("ppcctl stats /m --watch", Some(1)),
            ("ppcctl stats --watch 5 /m", Some(5)),
        ] {
            match parse(line).expect(line).command {
                Command::Stats { watch, .. } => assert_eq!(watch, expected, "{line}"),
                other => panic!("{other:?}"),
            }
        }
        assert!(parse("ppcctl stats --watch 0").is_err());
    }

    #[test]
    fn kinds_are_a_list() {
        match parse("ppcctl events /m --kind miss,open")
            .expect("two")
            .command
        {
            Command::Events(events) => assert_eq!(events.kind, [EventKind::Miss, EventKind::Open]),
            other => panic!("{other:?}"),
        }
        let error = parse("ppcctl events /m --kind mis").expect_err("a typo");
        assert!(error.contains("miss"), "{error}");
    }

    #[test]
    fn help_lists_exit_statuses_and_environment_variables() {
        let help = Cli::command().render_long_help().to_string();
        for part in ["Exit status:", "  4  the policy was refused", "PPC_SOCKET"] {
            assert!(help.contains(part), "{part}: {help}");
        }
    }
}
