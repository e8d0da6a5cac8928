//! Finds out what keeps loads from a directory from being fast: `diagnosis` gathers findings, `text` formats them.
//!
//! The topology comes from drivers' libraries, and the library of a broken device may crash or never
//! return, which is just when people run `doctor`. So a second ppcctl process calls them, with a time limit.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cprt::machine::topology::Topology;

use self::diagnosis::diagnose;
use self::finding::Severity;
use crate::exit::Exit;
use crate::failure::Result;
use crate::screen::{print, print_json};
use crate::setting;

mod diagnosis;
mod examine;
mod facts;
mod finding;
mod probe;
#[cfg(test)]
mod tests;
mod text;

/// How long to wait for the topology. Some GPUs take seconds each to wake up.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn run(json: bool, directory: &Path) -> Result<Exit> {
    let diagnosis = diagnose(&setting::full(directory)?, topology)?;
    if json {
        print_json(&diagnosis)?;
    } else {
        print(&text::diagnosis(&diagnosis))?;
    }
    Ok(match diagnosis.severity {
        Severity::Ok | Severity::Note => Exit::Done,
        Severity::Warning => Exit::Warnings,
        Severity::Problem => Exit::Problems,
    })
}

fn topology() -> Option<Topology> {
    // The same program, even if its path has been replaced since.
    let mut child = Command::new("/proc/self/exe")
        .arg0("ppcctl")
        .arg("topology")
        // They would hide accelerators, or number them again.
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("CUDA_DEVICE_ORDER")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Its messages are not for our user; that it fails is a finding.
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut out = child.stdout.take()?;
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let read = out.read_to_string(&mut text);
        // If the answer comes too late, the receiver is gone.
        let _ = tell.send(read.map(|_| text));
    });
    let answer = told.recv_timeout(PATIENCE);
    // It may have ended already, or hang in a destructor.
    let _ = child.kill();
    if answer.is_ok() {
        let _ = child.wait();
    }
    answer.ok()?.ok()?.parse().ok()
}
