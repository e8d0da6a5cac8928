//! The command line. The comments here are the help, the man pages and the completions.

#![allow(
    clippy::doc_markdown,
    reason = "these comments are shown as they are, so no backticks"
)]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::pattern::Pattern;
use crate::setting::Setting;

mod start;

pub(crate) use start::{Record, Replay, StartCommand, WhichStart};

/// What scripts may depend on; `exit.rs` is the same in code.
const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  failed
  2  the command line makes no sense
  3  there is no cprtd, no such mount, or no policy on it
  4  the policy was refused: not trusted, no policy, or not content with its settings
 10  doctor has found something that costs speed
 11  doctor has found something that does not work

Data goes to standard output, everything else to standard error.";

/// Gives mounts of rfs their cache policies, and shows what these do
///
/// A policy is a shared library that hears what misses the page cache of a mount and says what to
/// read ahead and what to drop. cprtd runs it; ppcctl talks to cprtd through its control socket.
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
    /// Print JSON, one value a line, for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The control socket of cprtd; unless given, what its configuration says
    #[arg(long, global = true, value_name = "PATH", env = "PPC_SOCKET", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,
    /// The configuration of cprtd, read for its socket; /etc/cprt.toml unless given
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Give a mount a policy, instead of the one it has
    RegPolicy(RegPolicy),
    /// Take a mount's policy away; the kernel decides again
    RmPolicy {
        /// Where rfs is mounted
        #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
        mount: PathBuf,
    },
    /// Change settings of the running policy, one after another
    Set {
        /// Where rfs is mounted
        #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
        mount: PathBuf,
        /// What to change
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<Setting>,
    },
    /// Show mounts, their policies and how these do, and the services whose starts are known
    Status {
        /// Only this mount, with all there is to say
        #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
        mount: Option<PathBuf>,
    },
    /// Show what the workers of policies have counted
    Stats {
        /// Only this mount
        #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
        mount: Option<PathBuf>,
        /// Go on, every so many seconds, with what each counter gains in one
        #[arg(
            long,
            value_name = "SECONDS",
            num_args = 0..=1,
            default_missing_value = "1",
            value_parser = clap::value_parser!(u32).range(1..=86_400)
        )]
        watch: Option<u32>,
    },
    /// Print what readers do, as the policy hears it, until interrupted
    Events(Events),
    /// Run a command with a policy for the directory that it reads from, without daemon or mount
    Run(Run),
    /// Tell what stands between a directory and fast loads, and what to do about it
    ///
    /// Which backend would be used and why not a better one, what is wrong with the files, the file
    /// system and its device, whether memory is enough, where accelerators are, what the kernel has
    /// and what you may do. Nothing is changed. The exit status is 10 if there are warnings and 11 if
    /// there are problems.
    Doctor {
        /// Where the files of a model are
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
    /// It is made of all that decides on what is read, in any order: the model, how many workers share
    /// each layer, the framework and its version. The same parameters have the same ID for ever.
    ServiceId {
        /// Such as model=llama-70b tp=4 vllm=0.11
        #[arg(value_name = "KEY=VALUE", required = true)]
        pairs: Vec<Setting>,
    },
    /// Look at MAIO's templates of what services read; those of starts are for 'ppcctl start'
    Template {
        /// Where they are kept; unless given, where MAIO keeps them if it is not told
        #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
        store: Option<PathBuf>,
        #[command(subcommand)]
        command: TemplateCommand,
    },
    /// Look at what is known of starts, and use it: of what 'ppcctl run -- COMMAND' has recorded
    Start {
        /// Where templates are kept; unless given, where MAIO keeps them if it is not told
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
    /// Of this node; unless given, this one's, or that of any other
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// List all of them, those that are damaged as well
    Ls,
    /// Show what the workers of a service read; of a start, the same as 'ppcctl start show'
    Show {
        #[command(flatten)]
        named: Named,
        /// Every range, not only how much of each file
        #[arg(long)]
        ranges: bool,
    },
    /// Say whether a template is sound, and still right for the files of a directory
    Verify {
        #[command(flatten)]
        named: Named,
        /// Where the model is
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        directory: Option<PathBuf>,
    },
    /// Remove what is known of a service; its next load is recorded
    Rm {
        /// The service's ID
        #[arg(value_name = "ID")]
        service: String,
        /// Of this node only
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// Tell how two services, or two nodes of one, differ in what they read
    Diff {
        /// The one: an ID, or ID/NODE
        #[arg(value_name = "ID[/NODE]")]
        one: String,
        /// The other
        #[arg(value_name = "ID[/NODE]")]
        other: String,
    },
    /// Make a template of a model from its headers, without anybody having loaded it
    Synth {
        /// Where the model is
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        directory: PathBuf,
        /// The service's ID to keep it under; unless given, it is only shown
        #[arg(long, value_name = "ID")]
        service_id: Option<String>,
        /// How many workers share each layer
        #[arg(long, value_name = "N", default_value_t = 1)]
        tp: u32,
        /// The framework's order of reading; unless given, by what the files are
        #[arg(long, value_name = "ORDER")]
        order: Option<Order>,
    },
}

/// In which order a framework reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// vLLM's: tensors of a file by name
    Vllm,
    /// transformers': as they lie in the file
    Transformers,
    /// From end to end
    File,
}

/// Which service it is for, in one of two ways.
#[derive(Args, Debug)]
pub(crate) struct Service {
    /// The service's ID, as service-id prints it: handed to the policy as its setting service-id
    #[arg(long, value_name = "ID", conflicts_with = "service")]
    pub(crate) service_id: Option<String>,
    /// The service by its parameters: handed to the policy as its setting service
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub(crate) service: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct RegPolicy {
    /// Where rfs is mounted, or with --backend any directory
    #[arg(value_name = "MNT", value_hint = ValueHint::DirPath)]
    pub(crate) mount: PathBuf,
    /// The policy: a path if it has a slash, otherwise a name below /usr/lib/ppc
    ///
    /// A name, with or without ".so", is looked up in the directories of PPC_POLICY_PATH, separated
    /// by colons, in ../lib/ppc from where ppcctl is, and in /usr/lib/ppc. A file of the current
    /// directory is ./NAME.
    #[arg(value_name = "LIBRARY", value_hint = ValueHint::FilePath)]
    pub(crate) library: PathBuf,
    /// Handed to the policy; its README tells which there are
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<Setting>,
    #[command(flatten)]
    pub(crate) service: Service,
    /// The memory cgroup that pays for what is loaded; unless given, that of the first reader
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) cgroup: Option<PathBuf>,
    /// Do without the module: observe takes the directory as it is, fuse mounts a mirror over it
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<cprt::control::kind::BackendKind>,
}

/// Run a command with a policy for what it reads, without daemon or mount
///
/// That is all that the command and its children read from their start on, of whatever file: it is recorded, and loaded
/// ahead of them the next time. The model in DIR has a policy of its own, which knows models before it has seen one
/// loaded: it is loaded as soon as the start is there, before the command opens it. Unless DIR is given, the model is
/// the directory of one that an argument names, or its copy in the cache of Hugging Face.
///
/// The command is run as it would be without this: standard input and output, signals and exit status
/// are its own, and DIR keeps its path. The best backend that this machine allows is taken; where
/// there is none, a line says why and the command runs all the same. Files beside DIR that links in it
/// lead to, as in caches of downloads, are taken along. Progress is shown on a terminal, and a line at
/// the end says what was done.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status: that of the command, 128 and the signal's number if a signal ended it; 125 if ppcctl
itself failed, 126 if the command cannot be run, 127 if there is no such command.")]
pub(crate) struct Run {
    /// The policy, as for reg-policy
    #[arg(long, value_name = "LIBRARY", default_value = "maio", value_hint = ValueHint::FilePath)]
    pub(crate) policy: PathBuf,
    #[command(flatten)]
    pub(crate) service: Service,
    /// Handed to the policy; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<Setting>,
    /// Take this backend or none
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = Backend::parse)]
    pub(crate) backend: Backend,
    /// The memory cgroup that pays for what is loaded; unless given, that of the command
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) cgroup: Option<PathBuf>,
    /// Say nothing, but if something is wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The directory that the model is in
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
    /// What to run, after a "--"
    #[arg(value_name = "COMMAND", last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// What to put behind a directory: auto, module, observe or fuse.
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
    /// Only these kinds
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub(crate) kind: Vec<EventKind>,
    /// Only those of this process
    #[arg(long, value_name = "PID")]
    pub(crate) process: Option<u32>,
    /// Only those of files whose path in the mount matches
    ///
    /// "*" stands for anything, slashes included, and the pattern for the whole path; without a "*"
    /// it may be any part of the path.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) file: Option<Pattern>,
    /// End after so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

/// The kinds of events, as `EventLine` has them in capitals.
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
    /// Show what a library says of itself, and whether cprtd would trust it
    ///
    /// The library is loaded for that, in a process of its own, so what it does when it is loaded is
    /// done as you. None of its callbacks is called.
    Inspect {
        /// As for reg-policy
        #[arg(value_name = "LIBRARY", value_hint = ValueHint::FilePath)]
        library: PathBuf,
    },
}

/// What is not for people: a command line of its own, so that no page and no completion has it.
#[derive(Debug, Parser)]
#[command(name = "ppcctl", disable_help_subcommand = true)]
pub(crate) enum Errand {
    /// Write the man pages and completions into a directory
    Generate {
        /// Made if it is not there
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Be the process that loads a library for `policy inspect`
    Load {
        /// Its absolute path
        #[arg(value_name = "LIBRARY")]
        library: PathBuf,
    },
    /// Be the worker of a command
    Worker {
        /// Shown in lists of processes
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Print the machine's topology
    Topology,
    /// Become a command, with the signals and as the user that it would have without us
    Become {
        /// User and group
        #[arg(long, num_args = 2)]
        user: Option<Vec<u32>>,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

impl Errand {
    /// Whether the first argument asks for one.
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
    fn the_help_tells_the_exit_status_and_the_environment() {
        let help = Cli::command().render_long_help().to_string();
        for part in ["Exit status:", "  4  the policy was refused", "PPC_SOCKET"] {
            assert!(help.contains(part), "{part}: {help}");
        }
    }
}
