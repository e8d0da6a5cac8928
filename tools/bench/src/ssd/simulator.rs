//! The handle of the device, held by the process that started it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::meter::Readings;
use super::service::FILE;
use super::service::Timing;
use super::simulate::{Instruction, Word};
use crate::error::{Failure, Result, system};

/// A device, which is ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Simulator {
    child: Child,
    orders: Option<ChildStdin>,
    words: BufReader<ChildStdout>,
    folder: PathBuf,
    /// Whether it runs before all other processes.
    pub(crate) runs_first: bool,
}

impl Simulator {
    /// Starts a device of `size` bytes in an empty folder, at full speed.
    pub(crate) fn start(folder: &Path, size: u64) -> Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .args(["simulate", "--size", &size.to_string(), "--folder"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Signals from the terminal are for its holder, which ends it when it is no longer needed.
            .process_group(0)
            .spawn()
            .map_err(system("Starting the simulated SSD"))?;
        let (Some(orders), Some(words)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::Said("A process has no pipes".to_owned()));
        };
        let mut simulator = Self {
            child,
            orders: Some(orders),
            words: BufReader::new(words),
            folder: folder.to_owned(),
            runs_first: false,
        };
        match simulator.hear()? {
            Word::Ready(first) => simulator.runs_first = first,
            Word::Failed(why) => {
                return Err(Failure::Unavailable {
                    what: "FUSE",
                    why,
                    remedy: "run as root, and with /dev/fuse ('modprobe fuse'; in a container, \
                             '--device /dev/fuse --cap-add SYS_ADMIN')",
                });
            }
            _ => return Err(out_of_turn()),
        }
        Ok(simulator)
    }

    /// The file that is the device.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Sets the speed from now on; `None` for full speed.
    pub(crate) fn be(&mut self, timing: Option<Timing>) -> Result<()> {
        self.order(Instruction::Be(timing))
    }

    /// Restarts the counters.
    pub(crate) fn reset(&mut self) -> Result<()> {
        self.order(Instruction::Reset)
    }

    pub(crate) fn read(&mut self) -> Result<Readings> {
        self.tell(Instruction::Read)?;
        match self.hear()? {
            Word::Read(readings) => Ok(readings),
            _ => Err(out_of_turn()),
        }
    }

    fn order(&mut self, order: Instruction) -> Result<()> {
        self.tell(order)?;
        match self.hear()? {
            Word::Done => Ok(()),
            _ => Err(out_of_turn()),
        }
    }

    fn tell(&mut self, order: Instruction) -> Result<()> {
        let mut text = serde_json::to_vec(&order)?;
        text.push(b'\n');
        let pipe = self.orders.as_mut().ok_or_else(out_of_turn)?;
        pipe.write_all(&text)
            .map_err(system("Giving the simulated SSD an order"))
    }

    fn hear(&mut self) -> Result<Word> {
        let mut line = String::new();
        let read = self.words.read_line(&mut line);
        match read.map_err(system("Reading from the simulated SSD"))? {
            0 => Err(Failure::Said("The simulated SSD has ended".to_owned())),
            _ => Ok(serde_json::from_str(&line)?),
        }
    }
}

fn out_of_turn() -> Failure {
    Failure::Said("The simulated SSD sent an unexpected answer".to_owned())
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // It ends at the end of its standard input.
        self.orders = None;
        let _ = self.child.wait();
    }
}
