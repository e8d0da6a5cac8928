//! The reader: a process that reads the file and reports how long that took.

use std::fs::File;
use std::io::{BufRead as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::{Deserialize, Serialize};

use super::case::{CostAccess, CostCase};
use crate::error::{Failure, Result, file, system};
use crate::helper::{Heard, Helper};
use crate::sys::{self, Mapped};
use crate::units::{MIB, index};

/// How long a run may take.
const PATIENCE: Duration = Duration::from_mins(10);

/// The reader's task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CostTask {
    pub(super) path: PathBuf,
    pub(super) access: CostAccess,
    pub(super) passes: u64,
}

/// The times of a run, in us.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(super) time: u64,
    pub(super) cpu: u64,
    /// Number of bytes read.
    pub(super) bytes: u64,
}

/// A reader that waits for the signal to begin.
pub(super) struct Reader(Helper);

impl Reader {
    pub(super) fn start(path: &Path, case: &CostCase) -> Result<Self> {
        let task = CostTask {
            path: path.to_owned(),
            access: case.access,
            passes: case.passes,
        };
        Helper::start("read", &task).map(Self)
    }

    /// Makes it read the file, as often as its task says.
    pub(super) fn run(mut self) -> Result<Taken> {
        self.0.go()?;
        let Heard::Line(line) = self.0.hear(PATIENCE)? else {
            return Err(Failure::Said("The reader does not end".to_owned()));
        };
        let taken = serde_json::from_str(&line)?;
        self.0.end()?;
        Ok(taken)
    }
}

/// Runs as the reader: a line on standard input makes it begin.
pub(crate) fn read(task: &CostTask) -> Result<()> {
    sys::end_with_parent();
    let piece = match task.access {
        CostAccess::Read { piece } => piece,
        CostAccess::Copy => MIB,
    };
    // Written, so that its pages are allocated before the clock starts.
    let mut buffer = vec![1_u8; index(piece)];
    println!("ready");
    let mut line = String::new();
    let heard = std::io::stdin().lock().read_line(&mut line);
    if heard.map_err(system("Waiting"))? == 0 {
        return Ok(());
    }
    let (began, before) = (Instant::now(), cpu()?);
    let passes = (0..task.passes).map(|_| match task.access {
        CostAccess::Read { .. } => read_all(&task.path, &mut buffer),
        CostAccess::Copy => copy_all(&task.path, &mut buffer),
    });
    let bytes = passes.sum::<std::io::Result<u64>>();
    let bytes = bytes.map_err(file("Reading", &task.path))?;
    let taken = Taken {
        time: micros(began.elapsed().as_micros()),
        cpu: cpu()?.saturating_sub(before),
        bytes,
    };
    println!("{}", serde_json::to_string(&taken)?);
    Ok(())
}

fn read_all(path: &Path, buffer: &mut [u8]) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    let mut all = 0;
    loop {
        match file.read(buffer)? {
            0 => return Ok(all),
            more => all += more as u64,
        }
    }
}

fn copy_all(path: &Path, buffer: &mut [u8]) -> std::io::Result<u64> {
    let map = Mapped::new(&File::open(path)?)?;
    for part in map.bytes().chunks(buffer.len()) {
        buffer[..part.len()].copy_from_slice(part);
        std::hint::black_box(&mut *buffer);
    }
    Ok(map.bytes().len() as u64)
}

/// CPU time of this process in us.
fn cpu() -> Result<u64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(system("Counting CPU time"))?;
    let both = usage.user_time() + usage.system_time();
    Ok(u64::try_from(both.num_microseconds()).unwrap_or(0))
}

fn micros(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_see_every_byte() {
        let path = std::env::temp_dir().join(format!("ppc-bench-{}-cost", std::process::id()));
        std::fs::write(&path, vec![7; 100_000]).expect("a file");
        let mut buffer = vec![0; 4096];
        let (read, copied) = (read_all(&path, &mut buffer), copy_all(&path, &mut buffer));
        let _ = std::fs::remove_file(&path);
        assert_eq!(read.expect("to read"), 100_000);
        assert_eq!(copied.expect("to copy"), 100_000);
    }
}
