//! The command lines of sets of files that stay in the page cache. The comments here are the help, too.

#![allow(
    clippy::doc_markdown,
    reason = "these comments are shown as they are, so no backticks"
)]

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use cprt::control::config::Bytes;

#[derive(Debug, Subcommand)]
pub(crate) enum KeepCommand {
    Add(KeepAdd),
    /// List the sets, the highest priority first
    Ls,
    /// Show one set in full
    Show {
        /// The name of the set
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Remove a set; its files stay cached until the kernel needs the memory
    ///
    /// The exit status is 0, or with --drop 12 if pages stay because processes map or have written them.
    Rm {
        /// Drop from the page cache what no other set keeps
        #[arg(long)]
        drop: bool,
        /// The name of the set
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// Add a set, or replace the set of that name, and wait until it is cached
///
/// cprtd loads what is missing in the background. The set outlasts this command and restarts of cprtd, until
/// 'ppcctl keep rm'. cprtd looks at directories again every minute, so that it keeps new files as well. Only root may
/// add sets, because cprtd opens the files as root; [keep.NAME] in /etc/cprt.toml does the same.
///
/// The exit status is 0 if all that is wanted is cached, 12 if there is not enough memory, and 1 if files cannot be
/// read. SIGINT and SIGTERM end the wait; the set stays.
#[derive(Args, Debug)]
pub(crate) struct KeepAdd {
    /// Keep at most this much, in order: bytes, or a number with K, M, G or T
    #[arg(long, value_name = "SIZE")]
    pub(crate) budget: Option<Bytes>,
    /// Sets of a lower priority give way first; among equals, the one whose name sorts last
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(-1000..=1000)
    )]
    pub(crate) priority: i32,
    /// Keep only what this service reads, in that order, according to its current template
    #[arg(long, value_name = "ID")]
    pub(crate) service_id: Option<String>,
    /// The directory that holds the templates [default: MAIO's own default]
    #[arg(long, value_name = "DIR", requires = "service_id", value_hint = ValueHint::DirPath)]
    pub(crate) store: Option<PathBuf>,
    /// Return at once
    #[arg(long)]
    pub(crate) detach: bool,
    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The name of the set, of letters, digits, ".", "_" and "-"
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The files, or directories with them
    #[arg(value_name = "DIR|FILE", required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};
    use super::*;

    fn parse(line: &str) -> Result<KeepCommand, String> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        match cli.command {
            Command::Keep { command } => Ok(command),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_set_has_a_name_and_files() {
        match parse("ppcctl keep add x /m /n --budget 20G --priority -3").expect("a set") {
            KeepCommand::Add(add) => {
                assert_eq!(add.budget.map(|it| it.0), Some(20 << 30));
                assert_eq!((add.priority, add.paths.len()), (-3, 2));
            }
            other => panic!("{other:?}"),
        }
        for line in [
            "ppcctl keep ls",
            "ppcctl keep rm x --drop",
            "ppcctl keep show x",
        ] {
            parse(line).expect(line);
        }
        for line in [
            "ppcctl keep",
            "ppcctl keep add x",
            "ppcctl keep add x /m --store /s",
            "ppcctl keep add x /m --priority 1001",
            "ppcctl keep rm",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
