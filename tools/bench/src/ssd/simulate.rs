//! The process that simulates the device.

use std::io::{self, BufRead as _, Write as _};
use std::path::Path;

use fuser::{Config, MountOption, Session, SessionACL};
use nix::mount::{MntFlags, umount2};
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

use super::meter::Readings;
use super::server::Server;
use super::service::Timing;
use super::timer::Device;
use crate::error::{Failure, Result, system};
use crate::{leftovers, sys};

/// The orders to the device, one line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Instruction {
    /// Have this speed; `None` for full speed.
    Be(Option<Timing>),
    /// Restart the counters.
    Reset,
    /// Report the counters.
    Read,
}

/// The device's answers, one line for each order, and one at the beginning.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// Whether it runs before all other processes.
    Ready(bool),
    Done,
    Read(Readings),
    Failed(String),
}

/// Runs as the device, of `size` bytes, in a folder, until standard input ends.
pub(crate) fn simulate(folder: &Path, size: u64) -> Result<()> {
    // Before any thread starts, as threads inherit it.
    let first = sys::run_first();
    let begun = Device::new(size)
        .map_err(system("Taking memory"))
        .and_then(|device| {
            let server = Server {
                device: device.clone(),
                size,
            };
            let session = Session::new(server, folder, &config()).and_then(Session::spawn);
            Ok((device, session.map_err(system("Mounting FUSE"))?))
        });
    let (device, session) = match begun {
        Ok(begun) => begun,
        Err(failure) => return say(&Word::Failed(cprt::error::chain(&failure))),
    };
    say(&Word::Ready(first))?;
    for line in io::stdin().lock().lines() {
        let line = line.map_err(system("Reading orders"))?;
        let word = match serde_json::from_str(&line)? {
            Instruction::Be(timing) => {
                device.set(timing);
                Word::Done
            }
            Instruction::Reset => {
                device.reset();
                Word::Done
            }
            Instruction::Read => Word::Read(device.read_meter(cpu_ms())),
        };
        say(&word)?;
    }
    // Cleans up what is on top of it, in case its holder was killed; at full speed, to lose no time.
    device.set(None);
    if let Some(place) = folder.parent() {
        leftovers::clear(place, Some(folder));
    }
    let ended = session.umount_and_join();
    device.end();
    if ended.is_err() {
        // A process still has it open, and will get errors.
        let _ = umount2(folder, MntFlags::MNT_DETACH);
    }
    let _ = std::fs::remove_dir(folder);
    ended.map_err(system("Unmounting FUSE"))
}

fn config() -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("ppc-bench".to_owned()),
        MountOption::NoDev,
        MountOption::NoExec,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(1);
    config
}

fn say(word: &Word) -> Result<()> {
    let mut text = serde_json::to_vec(word)?;
    text.push(b'\n');
    let mut output = io::stdout().lock();
    let said = output.write_all(&text).and_then(|()| output.flush());
    said.map_err(|source| Failure::System {
        doing: "Answering an order",
        source,
    })
}

fn cpu_ms() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| {
        let both = usage.user_time() + usage.system_time();
        u64::try_from(nix::sys::time::TimeValLike::num_milliseconds(&both)).unwrap_or(0)
    })
}
