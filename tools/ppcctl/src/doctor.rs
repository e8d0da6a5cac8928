//! What stands between a directory and fast loads: `diagnosis` finds it out, `text` puts it into words.
//!
//! Drivers' libraries are asked where accelerators are, and those of a broken one may crash or never
//! come back, which is when people ask. So a second ppcctl asks them, and is not waited for too long.

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

/// Some GPUs take seconds each until they are awake.
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
    // Whatever has become of the path since: the same program.
    let mut child = Command::new("/proc/self/exe")
        .arg0("ppcctl")
        .arg("topology")
        // They would hide accelerators, or number them anew.
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("CUDA_DEVICE_ORDER")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // It has no words of ours; that it does not work is a finding.
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut out = child.stdout.take()?;
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let read = out.read_to_string(&mut text);
        // Nobody listens any more if it came too late.
        let _ = tell.send(read.map(|_| text));
    });
    let answer = told.recv_timeout(PATIENCE);
    // It may have ended by itself, or hang in a destructor.
    let _ = child.kill();
    if answer.is_ok() {
        let _ = child.wait();
    }
    answer.ok()?.ok()?.parse().ok()
}
