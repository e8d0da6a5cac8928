//! `ppcctl run` in front of a command that only waits: everything that the product runs.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::error::{Failure, Result, system};
use crate::place::Place;

/// How long it takes until a start is over that reads nothing more, and no reads are listened to any more.
const REST: Duration = Duration::from_secs(12);
/// How long it may take to exit.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
const READY: &str = "ready";

/// A waiting command, which is ended when this is dropped.
pub(super) struct WaitingCommand(Child);

impl WaitingCommand {
    /// Starts it for a folder, and waits until the command waits.
    pub(super) fn start(place: &Place, folder: &Path) -> Result<Self> {
        let us = std::env::current_exe().map_err(system("Looking for this program"))?;
        let store = place.folder("waiting")?;
        let mut command = Command::new(us.with_file_name("ppcctl"));
        command.args(["run", "--quiet", "--policy"]);
        command.arg(place.library("maio")?);
        command.args(["--set", &format!("store={}", store.display())]);
        command.args(["--set", "leases=none"]).arg(folder);
        command.args([
            "--",
            "/bin/sh",
            "-c",
            &format!("echo {READY}; exec sleep 600"),
        ]);
        Self::wait_for(command)
    }

    /// Waits until the start is over.
    pub(super) fn rest(&mut self) -> Result<()> {
        sleep(REST);
        let ended = self.0.try_wait().map_err(system("Looking for ppcctl"))?;
        match ended {
            None => Ok(()),
            Some(status) => Err(Failure::Said(format!("ppcctl ended too early: {status}"))),
        }
    }

    /// Starts a command, and waits until it reports that it waits.
    fn wait_for(mut command: Command) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut waiting = Self(child.map_err(system("Starting ppcctl"))?);
        let mut line = String::new();
        if let Some(output) = waiting.0.stdout.take() {
            let heard = BufReader::new(output).read_line(&mut line);
            heard.map_err(system("Reading from a command"))?;
        }
        if line.trim_end() == READY {
            return Ok(waiting);
        }
        Err(Failure::Said(format!(
            "A command that should wait said '{}'",
            line.trim_end()
        )))
    }
}

impl Drop for WaitingCommand {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(i32::MAX));
        // ppcctl passes the signal on to the command, and ends with it.
        let _ = kill(pid, Signal::SIGTERM);
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            sleep(LOOK);
        }
        let _ = killpg(pid, Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str) -> Result<WaitingCommand> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", text]);
        WaitingCommand::wait_for(command)
    }

    #[test]
    fn waiting_command_ends_on_drop_and_must_report_ready() {
        let waiting = shell("echo ready; exec sleep 77").expect("it waits");
        let stat = format!("/proc/{}/stat", waiting.0.id());
        assert!(Path::new(&stat).exists());
        let began = Instant::now();
        drop(waiting);
        assert!(!Path::new(&stat).exists() && began.elapsed() < PATIENCE);
        let refused = shell("exit 3").err().expect("it does not wait");
        assert!(refused.to_string().contains("said ''"), "{refused}");
    }
}
