//! The device, as whoever started it holds it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::meter::Readings;
use super::service::FILE;
use super::service::Timing;
use super::simulate::{Instruction, Word};
use crate::error::{Failure, Result, system};

/// A device; it is gone when this is.
#[derive(Debug)]
pub(crate) struct Simulator {
    child: Child,
    orders: Option<ChildStdin>,
    words: BufReader<ChildStdout>,
    folder: PathBuf,
    /// Whether it runs before all others.
    pub(crate) runs_first: bool,
}

impl Simulator {
    /// Starts one of so many bytes in an empty folder; it answers at once.
    pub(crate) fn start(folder: &Path, size: u64) -> Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .args(["simulate", "--size", &size.to_string(), "--folder"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A key pressed in a terminal is for its holder, who ends it when it is needed no more.
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

    /// From now on it is as fast as that; `None`: as it can.
    pub(crate) fn be(&mut self, timing: Option<Timing>) -> Result<()> {
        self.order(Instruction::Be(timing))
    }

    /// Counts from now on.
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
        match read.map_err(system("Hearing the simulated SSD"))? {
            0 => Err(Failure::Said("The simulated SSD has ended".to_owned())),
            _ => Ok(serde_json::from_str(&line)?),
        }
    }
}

fn out_of_turn() -> Failure {
    Failure::Said("The simulated SSD talks out of turn".to_owned())
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // It ends when it hears that there will be no more.
        self.orders = None;
        let _ = self.child.wait();
    }
}
