//! A process of this program that waits for the signal to begin.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde::Serialize;

use crate::error::{Failure, Result, system};

/// A helper process, which is killed if this is dropped before it has ended.
#[derive(Debug)]
pub(crate) struct Helper {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// What happened during a wait.
#[derive(Debug)]
pub(crate) enum Heard {
    Line(String),
    Nothing,
}

impl Helper {
    /// Starts a helper, and waits until it is ready.
    pub(crate) fn start(errand: &str, task: &impl Serialize) -> Result<Self> {
        let text = serde_json::to_string(task)?;
        let mut child = Command::new("/proc/self/exe")
            .args([errand, "--task", &text])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(system("Starting a process"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = channel();
        let mut helper = Self {
            child,
            input,
            lines,
        };
        let output = output.ok_or_else(|| Failure::Said("A process has no pipes".to_owned()))?;
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        match helper.hear(Duration::from_secs(20))? {
            Heard::Line(line) if line == "ready" => Ok(helper),
            other => Err(Failure::Said(format!(
                "A process did not get ready: {other:?}"
            ))),
        }
    }

    pub(crate) fn go(&mut self) -> Result<()> {
        let pipe = self.input.as_mut();
        let pipe = pipe.ok_or_else(|| Failure::Said("A process has ended".to_owned()))?;
        pipe.write_all(b"go\n")
            .map_err(system("Making a process begin"))
    }

    pub(crate) fn hear(&mut self, patience: Duration) -> Result<Heard> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(Heard::Line(line)),
            Err(RecvTimeoutError::Timeout) => Ok(Heard::Nothing),
            Err(RecvTimeoutError::Disconnected) => {
                let how = self.child.wait().map_err(system("Waiting for a process"))?;
                Err(Failure::Said(format!("A process ended too early: {how}")))
            }
        }
    }

    /// Tells it to end, and waits until it has.
    pub(crate) fn end(mut self) -> Result<()> {
        self.input = None;
        self.child.wait().map_err(system("Waiting for a process"))?;
        Ok(())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Its workers end with it.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
