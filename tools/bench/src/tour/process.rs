//! Watches a process until it ends, and samples disk and page cache meanwhile.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, killpg};
use nix::sys::time::TimeValLike as _;
use nix::unistd::Pid;

use super::disk::DiskCounters;
use crate::error::{Failure, Result, system};
use crate::{machine, signals};

const LOOK: Duration = Duration::from_millis(100);
/// How long a process may take to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(5);

/// A sample; its time is in seconds since the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessSample {
    pub(super) at: f64,
    /// Bytes read from the disk since the start, if that is counted.
    pub(super) read: u64,
    /// Bytes in the machine's page cache, from all processes.
    pub(super) cached: u64,
}

/// The outcome of a process.
#[derive(Clone, Debug)]
pub(super) struct ProcessEnd {
    pub(super) status: ExitStatus,
    pub(super) took: f64,
    pub(super) looks: Vec<ProcessSample>,
    /// Resources used by it and by all children that it has waited for.
    pub(super) used: Used,
}

/// Resources used by processes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Used {
    pub(super) cpu: f64,
    pub(super) major_faults: u64,
    pub(super) minor_faults: u64,
    pub(super) read: u64,
}

/// Runs a command to its end, or ends it if a signal asks us to end.
pub(super) fn watch(mut command: Command, disk: &DiskCounters) -> Result<ProcessEnd> {
    let before = used()?;
    let read_before = disk.read_so_far();
    let began = Instant::now();
    // A group of its own, which can be ended as a whole.
    let child = command
        .stdin(std::process::Stdio::null())
        .process_group(0)
        .spawn();
    let mut child = child.map_err(system("Starting the loader"))?;
    let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
    let (sender, ended) = channel();
    std::thread::spawn(move || sender.send((child.wait(), Instant::now())));
    let look = || ProcessSample {
        at: began.elapsed().as_secs_f64(),
        read: disk
            .read_so_far()
            .zip(read_before)
            .map_or(0, |(now, then)| now.saturating_sub(then)),
        cached: machine::cached(),
    };
    let mut looks = vec![look()];
    loop {
        match ended.recv_timeout(LOOK) {
            Ok((status, at)) => {
                looks.push(look());
                return Ok(ProcessEnd {
                    status: status.map_err(system("Waiting for the loader"))?,
                    took: at.duration_since(began).as_secs_f64(),
                    looks,
                    used: used()?.since(before),
                });
            }
            Err(RecvTimeoutError::Timeout) if signals::came() => {
                end(group, &ended);
                return Err(Failure::Interrupted);
            }
            Err(RecvTimeoutError::Timeout) => looks.push(look()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::Said(
                    "The thread that waits for the loader has ended".to_owned(),
                ));
            }
        }
    }
}

/// Ends all processes of a group, by SIGKILL if necessary.
fn end<T>(group: Pid, ended: &Receiver<T>) {
    let _ = killpg(group, Signal::SIGTERM);
    let _ = ended.recv_timeout(PATIENCE);
    // This does nothing if all have ended.
    let _ = killpg(group, Signal::SIGKILL);
    let _ = ended.recv_timeout(PATIENCE);
}

fn used() -> Result<Used> {
    // The kernel counts reads from disks in units of 512 bytes.
    const BLOCK: u64 = 512;
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(system("Counting page faults"))?;
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    let cpu = usage.user_time() + usage.system_time();
    Ok(Used {
        cpu: crate::units::float(count(cpu.num_microseconds())) / 1e6,
        major_faults: count(usage.major_page_faults()),
        minor_faults: count(usage.minor_page_faults()),
        read: count(usage.block_reads()) * BLOCK,
    })
}

impl Used {
    fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            read: self.read.saturating_sub(before.read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_seen_and_timed() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 0.25; exit 3"]);
        let ended = watch(command, &DiskCounters::default()).expect("a process");
        assert_eq!(ended.status.code(), Some(3));
        assert!(ended.took >= 0.25 && ended.looks.len() >= 3, "{ended:?}");
        assert!(ended.looks.is_sorted_by(|one, other| one.at <= other.at));
    }

    #[test]
    fn ending_a_group_leaves_no_process_running() {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "trap '' TERM; sleep 77 & wait; sleep 77"])
            .process_group(0);
        let mut child = command.spawn().expect("a process");
        let group = Pid::from_raw(i32::try_from(child.id()).expect("small"));
        let (sender, ended) = channel();
        std::thread::spawn(move || sender.send(child.wait()));
        // Otherwise the test would wait for all of PATIENCE, as the shell ignores SIGTERM.
        killpg(group, Signal::SIGKILL).expect("it is there");
        end(group, &ended);
        let began = Instant::now();
        while runs(group) {
            assert!(began.elapsed() < PATIENCE, "a process is left");
            std::thread::sleep(LOOK);
        }
    }

    /// Whether any process of a group is alive, and not a zombie.
    fn runs(group: Pid) -> bool {
        let processes = std::fs::read_dir("/proc").expect("to list").flatten();
        let mut stats =
            processes.filter_map(|it| std::fs::read_to_string(it.path().join("stat")).ok());
        stats.any(|stat| {
            let mut words = stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .split_whitespace();
            words.next() != Some("Z") && words.nth(1) == Some(&group.to_string())
        })
    }
}
