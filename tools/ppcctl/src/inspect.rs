//! What a library reports about itself.
//!
//! Loading a library runs its code, and the library may be broken: it may crash, call `exit`, print,
//! or never return. So a second ppcctl process loads it, and writes what it found as one line in the
//! control socket's framing; this process waits for the line, for a limited time, and then kills the other.

mod library;

use std::io::{self, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cprt::control::wire::read_reply;
use cprt::daemon::trust::{self, Untrusted};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::failure::{Failure, Result};
use crate::screen::{Table, count};

pub(crate) use library::load;

/// How long to wait for a library to load. Some libraries start a GPU's runtime when they are loaded.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a library did instead of being loaded.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum Misbehaviour {
    #[error("The library crashes when it is loaded: signal {0}{name}", name = signal_name(*.0))]
    Crash(i32),
    #[error("The library ends the process that loads it, with exit status {0}")]
    Exit(i32),
    #[error("The library is still not loaded after {0} s")]
    Hang(u64),
}

/// What a policy reports about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Policy {
    name: String,
    version: String,
    description: String,
    abi_version: u32,
    struct_size: u32,
    needs: Vec<String>,
    callbacks: Vec<String>,
}

/// What an inspection found out about a library.
#[derive(Debug, Serialize)]
pub(crate) struct Inspection {
    library: PathBuf,
    trusted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    untrusted: Option<String>,
    #[serde(flatten)]
    policy: Policy,
}

/// Inspects a library, loading it in a separate process.
pub(crate) fn inspect(library: &Path) -> Result<Inspection> {
    let untrusted = match trust::check(library, 0) {
        Ok(_) => None,
        Err(none @ (Untrusted::Missing { .. } | Untrusted::NoFile(_))) => {
            return Err(cprt::Error::from(none).into());
        }
        Err(untrusted) => Some(untrusted.to_string()),
    };
    Ok(Inspection {
        library: library.to_owned(),
        trusted: untrusted.is_none(),
        untrusted,
        policy: ask(library)?,
    })
}

fn ask(library: &Path) -> Result<Policy> {
    let system = |doing| move |source| Failure::System { doing, source };
    // The same program, even if its path has been replaced since.
    let mut child = Command::new("/proc/self/exe")
        .arg0("ppcctl")
        .arg("load")
        .arg(library)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(system("Starting the process that loads the library"))?;
    let end = Instant::now() + PATIENCE;
    let (tell, told) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            // If the answer comes too late, the receiver is gone.
            let _ = tell.send(read_reply::<Policy>(&mut BufReader::new(stdout)));
        });
    }
    let answer = told.recv_timeout(PATIENCE);
    // Without an answer, the exit status tells what happened. With one, the process may still hang in a destructor.
    let ended = match &answer {
        Ok(Ok(Some(_)) | Err(cprt::Error::Refused(_))) => None,
        _ => wait(&mut child, end).map_err(system("Waiting for the process"))?,
    };
    // It may have ended already, which is just as good.
    let _ = child.kill();
    child.wait().map_err(system("Waiting for the process"))?;
    match (answer, ended) {
        (Ok(Ok(Some(policy))), _) => Ok(policy),
        (Ok(Err(error @ cprt::Error::Refused(_))), _) => Err(error.into()),
        (_, ended) => Err(Failure::Misbehaviour {
            library: library.to_owned(),
            source: misbehaviour(ended),
        }),
    }
}

/// The exit status of the process, if it ends by itself in time.
fn wait(child: &mut Child, end: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || Instant::now() >= end {
            return Ok(ended);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn misbehaviour(ended: Option<ExitStatus>) -> Misbehaviour {
    match ended {
        None => Misbehaviour::Hang(PATIENCE.as_secs()),
        Some(status) => match status.signal() {
            Some(signal) => Misbehaviour::Crash(signal),
            None => Misbehaviour::Exit(status.code().unwrap_or(-1)),
        },
    }
}

fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or(String::new(), |signal| format!(" ({signal})"))
}

/// The inspection as text.
pub(crate) fn show(inspection: &Inspection) -> String {
    let policy = &inspection.policy;
    let or_none = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
    let trusted = match &inspection.untrusted {
        None => "yes".to_owned(),
        Some(why) => format!("no: {why}"),
    };
    let mut table = Table::default();
    table.row(["library", &inspection.library.display().to_string()]);
    table.row(["name", &policy.name]);
    table.row(["version", &or_none(&policy.version)]);
    table.row(["description", &or_none(&policy.description)]);
    table.row(["abi_version", &policy.abi_version.to_string()]);
    table.row(["struct_size", &count(policy.struct_size.into())]);
    table.row(["needs", &or_none(&policy.needs.join(", "))]);
    table.row(["callbacks", &or_none(&policy.callbacks.join(", "))]);
    table.row(["trusted", &trusted]);
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_crash_exit_or_hang_is_described() {
        for (status, expected) in [
            (
                Some(11),
                "The library crashes when it is loaded: signal 11 (SIGSEGV)",
            ),
            (
                Some(3 << 8),
                "The library ends the process that loads it, with exit status 3",
            ),
            (Some(64), "The library crashes when it is loaded: signal 64"),
            (None, "The library is still not loaded after 10 s"),
        ] {
            let ended = status.map(ExitStatus::from_raw);
            assert_eq!(misbehaviour(ended).to_string(), expected);
        }
    }

    #[test]
    fn a_policy_is_a_table() {
        let policy = Policy {
            name: "shift".into(),
            version: "1".into(),
            description: String::new(),
            abi_version: 1,
            struct_size: 80,
            needs: vec!["touch".into(), "progress".into()],
            callbacks: vec!["prefetch".into()],
        };
        let inspection = Inspection {
            library: "/p.so".into(),
            trusted: false,
            untrusted: Some("/ belongs to user 7".into()),
            policy,
        };
        assert_eq!(
            show(&inspection),
            "\
library      /p.so
name         shift
version      1
description  -
abi_version  1
struct_size  80
needs        touch, progress
callbacks    prefetch
trusted      no: / belongs to user 7
"
        );
    }
}
