//! The command lines of what puts files into the page cache, takes them out, and checks them there. The comments here
//! are the help, too.

#![allow(
    clippy::doc_markdown,
    reason = "these comments are shown as they are, so no backticks"
)]

use std::path::PathBuf;

use clap::{Args, ValueHint};
use cprt::control::config::Bytes;

/// Load the files of a model into the page cache, before the service comes that reads them
///
/// It needs no daemon and no privileges, so an init container can run it. As many loads are under way as suit the
/// device, and none while memory is over the threshold (80 % of the tightest limit: of the container, or of the
/// machine), so no program loses memory to them; which cached files give way is the kernel's choice, and it prefers
/// those that are not in use. Loads that wait for memory for 10 s are given up. Links to files are followed. If the
/// service has a template, only what it reads is loaded, in its order; otherwise all files are, in the order in which
/// frameworks read a model's.
///
/// The exit status is 0 if all of it is cached at the end, 12 if memory does not suffice, and 1 if files cannot be
/// read. SIGINT and SIGTERM stop it; what has been loaded stays cached.
#[derive(Args, Debug)]
pub(crate) struct Warm {
    /// The service whose template says what is read, and in which order
    #[arg(long, value_name = "ID")]
    pub(crate) service_id: Option<String>,
    /// The directory that holds the templates [default: MAIO's own default]
    #[arg(long, value_name = "DIR", requires = "service_id", value_hint = ValueHint::DirPath)]
    pub(crate) store: Option<PathBuf>,
    /// Load no more than this, the first in order: bytes, or a number with K, M, G or T
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit: Option<Bytes>,
    /// Load into the memory of this NUMA node, and drop before what of the files is cached on others
    #[arg(long, value_name = "NUMBER")]
    pub(crate) node: Option<u16>,
    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The files, or directories with them
    #[arg(value_name = "DIR|FILE", required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
}

/// Drop files from the page cache
///
/// Pages stay that processes map or have locked into memory, and those that are not on the disk yet; it says how many,
/// and which processes map them. The exit status is 0 if nothing is cached any more, and 12 if some pages stay.
#[derive(Args, Debug)]
pub(crate) struct Release {
    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The files, or directories with them
    #[arg(value_name = "DIR|FILE", required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
}

/// Compare what is cached of files with what the device has, and with known hashes
///
/// The device is read without the page cache (O_DIRECT), so what is cached stays as it is. This finds memory that has
/// been damaged, a disk that was written beneath its file system, and pages that another program has tampered with.
/// Files whose SHA-256 is known are read as a whole: those in a list, and the blobs in a cache of Hugging Face, whose
/// names are their hashes.
///
/// The exit status is 0 if nothing is wrong, 13 if there is damage, and 14 if some file could not be checked. For the
/// record of a start, see 'ppcctl start verify'; for a template, 'ppcctl template verify'.
#[derive(Args, Debug)]
pub(crate) struct Verify {
    /// A list of hashes, as sha256sum prints it; its names are relative to the list's own directory
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) hashes: Option<PathBuf>,
    /// Compare pages that are not cached as well: each is read into the page cache and dropped again
    #[arg(long)]
    pub(crate) all: bool,
    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The files, or directories with them
    #[arg(value_name = "DIR|FILE", required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};

    fn parse(line: &str) -> Result<Command, String> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        Ok(cli.command)
    }

    #[test]
    fn files_are_named_and_sizes_have_units() {
        match parse("ppcctl warm --limit 16G --service-id x /m /n/f").expect("two paths") {
            Command::Warm(warm) => {
                assert_eq!(warm.limit.map(|it| it.0), Some(16 << 30));
                assert_eq!(warm.paths.len(), 2);
            }
            other => panic!("{other:?}"),
        }
        for line in [
            "ppcctl drop -q /m",
            "ppcctl verify --hashes /m/SHA256SUMS --all /m",
        ] {
            parse(line).expect(line);
        }
        for line in [
            "ppcctl warm",
            "ppcctl drop",
            "ppcctl verify",
            "ppcctl warm --limit much /m",
            "ppcctl warm --store /s /m",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
