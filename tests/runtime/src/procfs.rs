//! What /proc reports about processes.

use std::fs;

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::outcome::{For as _, Outcome, Stop};

/// Whether a process exists and is not a zombie.
pub(crate) fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(_, state)| state != 'Z' && state != 'X')
}

/// Parent and state.
fn stat(pid: u32) -> Option<(u32, char)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = text.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?.chars().next()?;
    Some((words.next()?.parse().ok()?, state))
}

fn all() -> Outcome<Vec<u32>> {
    let entries = fs::read_dir("/proc")?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.parse().ok()).collect())
}

/// Its children, zombies left out.
pub(crate) fn children(pid: u32) -> Outcome<Vec<u32>> {
    let mut found = all()?;
    found.retain(|&one| stat(one).is_some_and(|(parent, state)| parent == pid && state != 'Z'));
    Ok(found)
}

/// Its children and all their descendants, zombies left out.
pub(crate) fn descendants(pid: u32) -> Outcome<Vec<u32>> {
    let mut found = children(pid)?;
    let mut next = 0;
    while next < found.len() {
        found.extend(children(found[next])?);
        next += 1;
    }
    Ok(found)
}

/// Reaps children that have ended.
pub(crate) fn reap() {
    while waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG))
        .is_ok_and(|status| status.pid().is_some())
    {}
}

/// What its descriptors refer to, sorted.
pub(crate) fn fd_names(pid: u32) -> Outcome<Vec<String>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    let mut names: Vec<String> = targets.map(|path| path.display().to_string()).collect();
    names.sort();
    Ok(names)
}

/// A numeric field of a file like /proc/PID/status.
fn status(path: &str, field: &str) -> Outcome<u64> {
    let text = fs::read_to_string(path).of(path)?;
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| Stop::fail(format_args!("{path} has no {field}")))
}

/// A field of /proc/PID/io: `rchar` counts the bytes that it has read from anywhere, `read_bytes` those
/// that a disk had to deliver for it.
pub(crate) fn io(pid: u32, field: &str) -> Outcome<u64> {
    status(&format!("/proc/{pid}/io"), field)
}

/// Its resident memory in KiB.
pub(crate) fn rss_kib(pid: u32) -> Outcome<u64> {
    status(&format!("/proc/{pid}/status"), "VmRSS")
}

/// Its memory that is swapped out, in KiB.
pub(crate) fn swapped_kib(pid: u32) -> Outcome<u64> {
    status(&format!("/proc/{pid}/status"), "VmSwap")
}

/// Context switches of its threads, voluntary and not: a thread that sleeps all the time has none.
pub(crate) fn switches(pid: u32) -> Outcome<u64> {
    let folder = format!("/proc/{pid}/task");
    let mut sum = 0;
    for thread in fs::read_dir(&folder).of(&folder)?.flatten() {
        let path = thread.path().join("status").display().to_string();
        sum += status(&path, "voluntary_ctxt_switches")?;
        sum += status(&path, "nonvoluntary_ctxt_switches")?;
    }
    Ok(sum)
}

/// How long its first thread was ready to run but had to wait for a processor, in ms. The debug kernel does not count
/// it, and no test depends on times there.
pub(crate) fn queued_ms(pid: u32) -> Outcome<f64> {
    let path = format!("/proc/{pid}/schedstat");
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0.0),
        text => text.of(&path)?,
    };
    let nanoseconds = text.split_whitespace().nth(1).unwrap_or_default();
    Ok(nanoseconds.parse::<f64>().of(&path)? / 1e6)
}

/// CPU time of all its threads, in ms; the clock ticks every 10 ms.
pub(crate) fn cpu_ms(pid: u32) -> Outcome<u64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).of(&path)?;
    let words: Vec<&str> = text
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default();
    let ticks = |index: usize| words.get(index)?.parse::<u64>().ok();
    ticks(11)
        .zip(ticks(12))
        .map(|(user, system)| 10 * (user + system))
        .ok_or_else(|| Stop::fail(format_args!("{path}: {text}")))
}
