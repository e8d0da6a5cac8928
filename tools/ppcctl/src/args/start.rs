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
    /// List the starts that are known
    Ls,
    /// Show what the next start will be given, in order
    ///
    /// What kinds of files come when, and the largest files in the order in which they are needed first: how much of
    /// each, in how many ranges, after which part of all bytes, and which of the last starts read it (1 is the newest).
    Show {
        #[command(flatten)]
        which: WhichStart,
        /// Every range of every file
        #[arg(long)]
        all: bool,
    },
    /// Say whether the files of a start are still the ones that were read
    ///
    /// A file that is gone or has changed costs no more than what is expected of it: the next start is recorded as it
    /// is then. The exit status is 1 if anything that is expected is not right any more.
    Verify {
        #[command(flatten)]
        which: WhichStart,
    },
    /// Remove what is known of starts; the next ones are recorded
    Rm {
        /// Their names, as ls shows them
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Of this node only
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// Load what a start is expected to read now, without running anything
    ///
    /// It ends when all is loaded. What could not be is told, and the exit status is 1 then; files that are gone are
    /// told as well, and are no failure. As root, where a start can be recorded.
    Replay(Replay),
    /// Run a command and record its start, in place of what was known of it
    ///
    /// As run without a directory, but nothing is loaded ahead of the command. If the start cannot be recorded, the
    /// command is not run. The exit status is that of run.
    Record(Record),
}

/// A start, by its name or by the command.
#[derive(Args, Debug)]
pub(crate) struct WhichStart {
    /// Its name, as ls shows it
    #[arg(
        value_name = "NAME",
        required_unless_present = "command",
        conflicts_with = "command"
    )]
    pub(crate) name: Option<String>,
    /// Of this node; unless given, this one's, or that of any other
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// The command whose start it is, after a "--"
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
    /// The memory cgroup that pays for what is loaded; unless given, that of ppcctl
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) cgroup: Option<PathBuf>,
    /// Say nothing, but if something is wrong
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
    /// Handed to the policy; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<Setting>,
    /// Say nothing, but if something is wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// What to run, after a "--"
    #[arg(value_name = "COMMAND", last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

impl Record {
    /// The same as a run, with what else the policy is told.
    pub(crate) fn into_run(self, more: impl IntoIterator<Item = Setting>) -> Run {
        let mut settings = self.settings;
        settings.extend(more);
        Run {
            policy: self.policy,
            service: self.service,
            settings,
            // It is asked for: without it, the command would run for nothing.
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
