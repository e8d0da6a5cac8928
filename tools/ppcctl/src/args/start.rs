//! The command line of `ppcctl start`. The comments here are the help, too.

#![allow(
    clippy::doc_markdown,
    reason = "these comments are shown as they are, so no backticks"
)]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::{Backend, Run, Service};
use crate::setting::Setting;

#[derive(Debug, Subcommand)]
pub(crate) enum StartCommand {
    /// List the known starts
    Ls,
    /// Show what will be loaded for the next start, in order
    ///
    /// show prints when each kind of file is read, and the largest files in the order of their first read. For each of
    /// these it prints how much is read, in how many ranges, after what share of all bytes, and which of the last
    /// starts read it (1 is the newest).
    Show {
        #[command(flatten)]
        which: WhichStart,
        /// Show every range of every file
        #[arg(long)]
        all: bool,
    },
    /// Check whether the files of a start are still the ones that were read
    ///
    /// A file that is gone or has changed is no longer loaded ahead; the next start records it as it is then. The exit
    /// status is 1 if any file that is expected no longer matches.
    Verify {
        #[command(flatten)]
        which: WhichStart,
    },
    /// Remove the records of starts; the next starts are recorded again
    Rm {
        /// The names of the starts, as ls shows them
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Only the template of this node
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// Load now what a start is expected to read, without running anything
    ///
    /// It exits when everything is loaded. What could not be loaded is reported, and the exit status is then 1; files
    /// that are gone are reported as well, but do not count as failures. It needs root, on a machine that can record
    /// starts.
    Replay(Replay),
    /// Run a command and record its start, replacing the previous record
    ///
    /// It works like run without a directory, but nothing is loaded ahead of the command. If the start cannot be
    /// recorded, the command is not run. The exit status is that of run.
    Record(Record),
}

/// A start, given by its name or by its command.
#[derive(Args, Debug)]
pub(crate) struct WhichStart {
    /// The name of the start, as ls shows it
    #[arg(
        value_name = "NAME",
        required_unless_present = "command",
        conflicts_with = "command"
    )]
    pub(crate) name: Option<String>,
    /// The template of this node [default: this machine's, otherwise any other's]
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// The command that starts, after a "--"
    #[arg(value_name = "COMMAND", last = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Replay {
    #[command(flatten)]
    pub(crate) which: WhichStart,
    /// MAIO's library, as for reg-policy
    #[arg(long, value_name = "LIBRARY", default_value = "maio", value_hint = ValueHint::FilePath)]
    pub(crate) policy: PathBuf,
    /// The memory cgroup charged for what is loaded [default: that of ppcctl]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) cgroup: Option<PathBuf>,
    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Record {
    /// MAIO's library, as for reg-policy
    #[arg(long, value_name = "LIBRARY", default_value = "maio", value_hint = ValueHint::FilePath)]
    pub(crate) policy: PathBuf,
    #[command(flatten)]
    pub(crate) service: Service,
    /// A setting for the policy; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<Setting>,
    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The command to run, after a "--"
    #[arg(value_name = "COMMAND", last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

impl Record {
    /// The equivalent run, with additional settings for the policy.
    pub(crate) fn into_run(self, more: impl IntoIterator<Item = Setting>) -> Run {
        let mut settings = self.settings;
        settings.extend(more);
        Run {
            policy: self.policy,
            service: self.service,
            settings,
            // Naming a backend makes it mandatory: without one, running the command would achieve nothing.
            backend: Backend(Some(cprt::control::kind::BackendKind::Observe)),
            cgroup: None,
            quiet: self.quiet,
            directory: None,
            command: self.command,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};
    use super::*;

    fn parse(line: &str) -> Result<StartCommand, String> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        match cli.command {
            Command::Start { command, .. } => Ok(command),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_start_is_named_or_its_command_is() {
        for line in [
            "ppcctl start show a",
            "ppcctl start --store /s verify a --node n",
            "ppcctl start verify -- python3 serve.py --all",
            "ppcctl start replay --quiet -- true",
            "ppcctl start rm a b",
            "ppcctl start record -- true",
        ] {
            parse(line).expect(line);
        }
        for line in [
            "ppcctl start show",
            "ppcctl start replay a -- true",
            "ppcctl start rm",
            "ppcctl start record",
            "ppcctl start record a",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        match parse("ppcctl start show --all -- ls --all").expect("a command") {
            StartCommand::Show { which, all } => {
                assert!(all && which.name.is_none());
                assert_eq!(which.command, ["ls", "--all"]);
            }
            other => panic!("{other:?}"),
        }
    }
}
