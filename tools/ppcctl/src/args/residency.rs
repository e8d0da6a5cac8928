//! The command lines of what puts files into the page cache, takes them out, and checks them there. The comments here
//! are the help, too.

#![allow(
    clippy::doc_markdown,
    reason = "these comments are shown as they are, so no backticks"
)]

use std::path::PathBuf;

use clap::{Args, ValueHint};
use cprt::control::config::Bytes;

/// Load the files of a model into the page cache before the service that reads them starts
///
/// warm needs no daemon and no privileges, so an init container can run it. It runs as many loads at once as suit the
/// device, and none while memory use exceeds the threshold (80 % of the tightest limit: of the container, or of the
/// machine), so no program loses memory to them. The kernel chooses which cached files give way, and prefers those that
/// are not in use. Loads that wait for memory for 10 s are abandoned. Links to files are followed. If the service has a
/// template, warm loads only what the service reads, in that order; otherwise it loads all files, in the order in which
/// frameworks read them.
///
/// The exit status is 0 if all of it is cached at the end, 12 if there is not enough memory, and 1 if files cannot be
/// read. SIGINT and SIGTERM stop it; what has been loaded stays cached.
#[derive(Args, Debug)]
pub(crate) struct Warm {
    /// The service whose template says what is read, and in which order
    #[arg(long, value_name = "ID")]
    pub(crate) service_id: Option<String>,
    /// The directory that holds the templates [default: MAIO's own default]
    #[arg(long, value_name = "DIR", requires = "service_id", value_hint = ValueHint::DirPath)]
    pub(crate) store: Option<PathBuf>,
    /// Load at most this much, in order: bytes, or a number with K, M, G or T
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit: Option<Bytes>,
    /// Load into the memory of this NUMA node, after dropping the files' pages from other nodes
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
/// Pages stay if processes map them or have locked them into memory, or if they are not yet written to disk. drop says
/// how many stay, and which processes map them. The exit status is 0 if nothing is cached afterwards, and 12 if some
/// pages stay.
#[derive(Args, Debug)]
pub(crate) struct Release {
    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The files, or directories with them
    #[arg(value_name = "DIR|FILE", required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
}

/// Compare cached pages with the device, and files with known hashes
///
/// verify reads the device past the page cache (O_DIRECT), so cached pages stay as they are. It finds memory that has
/// been damaged, a disk that was written beneath its file system, and pages that another program has tampered with.
/// It reads files whose SHA-256 is known as a whole: those in a list, and the blobs in a Hugging Face cache, whose
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
