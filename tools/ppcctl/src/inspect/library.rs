//! The process that loads a library. The only module of ppcctl with unsafe code: one line.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use cprt::control::protocol::Reply;
use cprt::control::wire::write_line;
use cprt::error::{Refusal, RefusalKind};
use nix::unistd::dup2_stdout;
use ppc::host::Table;
use ppc::{Features, LoadError};

use super::Policy;
use crate::failure::{Failure, Result};

const FEATURES: [(Features, &str); 6] = [
    (Features::OPEN, "open"),
    (Features::TOUCH, "touch"),
    (Features::PROGRESS, "progress"),
    (Features::EVICT_MAPPED, "evict-mapped"),
    (Features::AFFINITY, "affinity"),
    (Features::CHARGE, "charge"),
];

/// Loads the library and writes what was found to standard output.
pub(crate) fn load(library: &Path) -> Result<()> {
    // The library may print, which must not be taken for the answer: from here on standard output
    // is a duplicate of standard error, and the answer goes to a descriptor that only we know.
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let mut answer = File::from(stdout.map_err(Failure::Output)?);
    dup2_stdout(io::stderr()).map_err(|errno| Failure::Output(errno.into()))?;

    let reply = match open(library) {
        Ok(table) => Reply::Ok(describe(&table)),
        Err(error) => Reply::Error(Refusal {
            kind: RefusalKind::Policy,
            message: format!("{}: {error}", library.display()),
            remedy: None,
        }),
    };
    Ok(write_line(&mut answer, &reply)?)
}

#[allow(
    unsafe_code,
    reason = "loading a library runs it; this process does nothing else"
)]
fn open(library: &Path) -> Result<Table, LoadError> {
    // SAFETY: this process was started to load it. Whatever the library does here, it does as the
    // user who asked, and the process that waits for us accepts no more than a line of checked JSON.
    unsafe { Table::open(library) }
}

fn describe(table: &Table) -> Policy {
    let raw = table.raw();
    let callbacks = [
        ("init", raw.init.is_some()),
        ("exit", raw.exit.is_some()),
        ("prefetch", raw.prefetch.is_some()),
        ("evict", raw.evict.is_some()),
        ("configure", raw.configure.is_some()),
    ];
    let callbacks = callbacks.into_iter().filter(|(_, there)| *there);
    let needs = FEATURES
        .into_iter()
        .filter(|(feature, _)| table.needs().contain(*feature));
    Policy {
        name: table.name().to_owned(),
        version: table.version().to_owned(),
        description: table.description().to_owned(),
        abi_version: raw.abi_version,
        struct_size: raw.struct_size,
        needs: needs.map(|(_, name)| name.to_owned()).collect(),
        callbacks: callbacks.map(|(name, _)| name.to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The features that the header defines, by the names of its macros.
    #[test]
    fn feature_names_match_the_header() {
        let header = include_str!("../../../../policies/ppc.h");
        let defined = header.lines().filter_map(|line| {
            let (name, rest) = line
                .strip_prefix("#define PPC_FEATURE_")?
                .split_once(|letter: char| letter.is_ascii_whitespace())?;
            let bit = rest.trim_start().strip_prefix("(1ull << ")?;
            let bit: u32 = bit.split_once(')')?.0.parse().ok()?;
            Some((1 << bit, name.to_ascii_lowercase().replace('_', "-")))
        });
        let named = FEATURES.map(|(feature, name)| (feature.0, name.to_owned()));
        assert_eq!(defined.collect::<Vec<(u64, String)>>(), named);
    }
}
