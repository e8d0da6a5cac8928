//! The machine, and its load by other processes.

use std::fs;

use crate::result::Machine;
use crate::units::float;

/// CPU time of all processors since the machine started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ticks {
    busy: u64,
    all: u64,
}

/// Length of a tick, in seconds.
const TICK: f64 = 0.01;

pub(crate) fn ticks() -> Ticks {
    parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse(stat: &str) -> Ticks {
    let line = stat.lines().next().unwrap_or_default();
    let numbers: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map_while(|it| it.parse().ok())
        .collect();
    // User, nice, system, idle, waiting, two kinds of interrupts, stolen; guests are in the first.
    let all = numbers.iter().take(8).sum();
    let idle: u64 = numbers.iter().skip(3).take(2).sum();
    Ticks {
        busy: all - idle,
        all,
    }
}

/// The share of CPU time between two moments that others used, given that `ours` seconds of it were ours.
pub(crate) fn others(before: Ticks, after: Ticks, ours: f64) -> f64 {
    let busy = float(after.busy.saturating_sub(before.busy)) * TICK;
    let all = float(after.all.saturating_sub(before.all)) * TICK;
    if all > 0.0 {
        ((busy - ours) / all).max(0.0)
    } else {
        0.0
    }
}

/// Bytes that processes can allocate without causing a shortage.
pub(crate) fn available() -> u64 {
    memory("MemAvailable:")
}

/// Bytes in the page cache.
pub(crate) fn cached() -> u64 {
    memory("Cached:")
}

fn memory(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mut lines = text.lines();
    let rest = lines.find_map(|line| line.strip_prefix(name));
    let kib = rest.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

pub(crate) fn machine() -> Machine {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Machine {
        kernel: kernel.trim().to_owned(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        memory: memory("MemTotal:"),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_share_of_others_excludes_our_own_time() {
        let before = parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n");
        let after = parse("cpu  200 0 100 850 50 0 0 0 7 7\n");
        assert_eq!((before.busy, before.all), (150, 1000));
        let part = others(before, after, 0.5);
        assert!((part - 0.5).abs() < 1e-9, "{part}");
        assert!(others(before, after, 9.0).abs() < 1e-9);
        assert!(others(before, before, 0.0).abs() < 1e-9);
        assert_eq!(parse(""), Ticks::default());
    }
}
