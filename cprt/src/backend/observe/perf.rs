//! Tracepoints by perf events: on each CPU one for each, and a ring for all of them.
//!
//! Only the first record wakes the worker (`attention.rs`).
//!
//! The kernel picks out few files by a filter; for more files, the filter has ranges of their numbers, which are
//! close to each other in a directory, and looking up records does the rest. The same goes for our own threads: the
//! kernel filters out those that load, by their name, so that their records take no room, and the rest of the process
//! is filtered out when records are read.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::attention::Attention;
use super::record::{self, Key, Layout, Point, Raw};
use super::source::RecordSource;
use crate::backend::loader_name;
use crate::machine::topology::CpuSet;
use crate::sys;
use crate::sys::perf::{Event, Ring, Wakes, Whose};

/// Bytes for the records of one CPU: some 5000 of them.
const ROOM: usize = 512 << 10;
/// How many bytes of records wake the worker in any case.
const FULL: u32 = 128 << 10;
/// How long after the last record the next one wakes the worker again. With many CPUs, switching takes a while.
const QUIET: Duration = Duration::from_secs(1);
/// Upper bound on files in a filter: the kernel evaluates it for each event, and it has to fit into a page.
const MAX_FILES: usize = 48;
/// Upper bound on ranges in a filter, which stand for more files than that.
const MAX_RANGES: usize = 16;

/// The events of all CPUs.
#[derive(Debug)]
pub(super) struct Perf {
    cpus: Vec<Cpu>,
    layouts: Vec<Layout>,
    ready: Epoll,
    asked: Mutex<Asked>,
    taken: Mutex<Taken>,
}

/// Records that have been taken out of the rings.
#[derive(Debug, Default)]
struct Taken {
    bytes: Vec<u8>,
    /// Not handed out yet.
    raws: Vec<Raw>,
}

#[derive(Debug)]
struct Cpu {
    number: u32,
    ring: Ring,
    /// The event that owns the ring, so that others may come and go.
    owner: Event,
}

/// What to report, and the events that do so.
#[derive(Debug, Default)]
struct Asked {
    points: Vec<Point>,
    filter: Filter,
    events: Vec<Event>,
    attention: Attention,
}

impl Perf {
    pub(super) fn open(layouts: &[Layout]) -> io::Result<Self> {
        allow_many();
        let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
        let online: CpuSet = online.parse().map_err(io::Error::other)?;
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut cpus = Vec::new();
        for number in online.iter().map(u32::from) {
            let owner = Event::dummy(Whose::Cpu(number))?;
            let ring = Ring::new(&owner, ROOM)?;
            ready.add(&owner, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            cpus.push(Cpu {
                number,
                ring,
                owner,
            });
        }
        let perf = Self {
            cpus,
            layouts: layouts.to_vec(),
            ready,
            asked: Mutex::default(),
            taken: Mutex::default(),
        };
        // To fail now, if it may not.
        perf.apply(&mut Asked {
            points: Point::ALL.to_vec(),
            ..Asked::default()
        })?;
        Ok(perf)
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether there were records.
    fn rest_or_not(&self, some: bool) {
        let mut asked = self.asked();
        let before = asked.attention;
        asked.attention = before.next(some, Instant::now(), QUIET);
        // On failure it continues as before, only less efficiently.
        if asked.attention.wakes() != before.wakes() && self.apply(&mut asked).is_err() {
            asked.attention = before;
        }
    }

    /// Creates new events, because an event keeps its filter for life. For a moment old and new ones report: twice is
    /// better than not at all.
    fn apply(&self, asked: &mut Asked) -> io::Result<()> {
        let text = asked.filter.to_string();
        let wakes = if asked.attention.wakes() {
            Wakes::Each
        } else {
            Wakes::Bytes(FULL)
        };
        let mut events = Vec::new();
        for cpu in &self.cpus {
            for layout in &self.layouts {
                if !asked.points.contains(&layout.point) {
                    continue;
                }
                let event = Event::open(layout.id.into(), Whose::Cpu(cpu.number), wakes)?;
                event.filter(&text)?;
                event.join(&cpu.owner)?;
                event.enable(true)?;
                events.push(event);
            }
        }
        // A child between fork and exec may have the old ones open, too.
        for event in std::mem::replace(&mut asked.events, events) {
            let _ = event.enable(false);
        }
        Ok(())
    }
}

/// Raises the limit of descriptors: one for each CPU and tracepoint is more than the usual limit.
fn allow_many() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // If it cannot be raised, opening events will fail.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

impl RecordSource for Perf {
    fn name(&self) -> &'static str {
        "perf"
    }

    fn enable(&self, points: &[Point], _: u64) -> io::Result<()> {
        let mut asked = self.asked();
        asked.points = points.to_vec();
        self.apply(&mut asked)
    }

    fn files(&self, keys: &[Key]) -> io::Result<()> {
        let mut asked = self.asked();
        let before = asked.filter.to_string();
        asked.filter.keys = keys.to_vec();
        if asked.filter.to_string() == before {
            return Ok(());
        }
        self.apply(&mut asked)
    }

    fn due(&self) -> Option<Instant> {
        self.asked().attention.due(Instant::now())
    }

    fn ready(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.0.as_fd())
    }

    fn take(&self, into: &mut Vec<Raw>) -> u64 {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let Taken { bytes, raws } = &mut *taken;
        let mut lost = 0;
        // A reader may move from a CPU whose ring we have emptied to one that we have not: records from now on
        // wait for the next call, so that they do not come before earlier ones.
        let now = sys::monotonic_ns();
        for cpu in &self.cpus {
            bytes.clear();
            cpu.ring.take(bytes);
            lost += record::decode(bytes, &self.layouts, raws);
        }
        self.rest_or_not(!raws.is_empty() || lost > 0);
        raws.sort_by_key(|raw| raw.time_ns);
        let until = raws.partition_point(|raw| raw.time_ns <= now);
        let own = std::process::id();
        // A process outside our PID namespace has no number here.
        let ours = |raw: &Raw| raw.process != own && raw.process != 0;
        into.extend(raws.drain(..until).filter(ours));
        lost
    }
}

/// The kernel's filter for what it is to report.
#[derive(Debug, Default)]
struct Filter {
    keys: Vec<Key>,
}

impl Filter {
    /// All files, as ranges of numbers on a device: one range for each file, or else ranges that include as few
    /// other files as possible.
    fn ranges(&self) -> Vec<(Key, Key)> {
        let mut keys = self.keys.clone();
        keys.sort_unstable();
        keys.dedup();
        let gap = |pair: &[Key]| match pair {
            [a, b] if a.device == b.device => b.inode - a.inode,
            _ => u64::MAX,
        };
        let mut gaps: Vec<_> = keys.windows(2).map(gap).collect();
        gaps.sort_unstable_by(|a, b| b.cmp(a));
        // A gap wider than this begins another range.
        let wide = match gaps.get(MAX_RANGES - 1) {
            Some(&gap) if keys.len() > MAX_FILES => gap.min(u64::MAX - 1),
            _ => 0,
        };
        let ranges = keys.chunk_by(|&a, &b| gap(&[a, b]) <= wide);
        ranges
            .filter_map(|range| Some((*range.first()?, *range.last()?)))
            .collect()
    }
}

impl std::fmt::Display for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges = self.ranges();
        if ranges.is_empty() {
            // No device has this number.
            f.write_str("s_dev == 4294967295")?;
        }
        let devices = ranges.chunk_by(|(a, _), (b, _)| a.device == b.device);
        for (at, ranges) in devices.enumerate() {
            let or = if at == 0 { "(" } else { " || " };
            write!(f, "{or}s_dev == {} && (", ranges[0].0.device)?;
            for (at, (first, last)) in ranges.iter().enumerate() {
                f.write_str(if at == 0 { "" } else { " || " })?;
                match (first.inode, last.inode) {
                    (one, other) if one == other => write!(f, "i_ino == {one}")?,
                    (from, to) => write!(f, "(i_ino >= {from} && i_ino <= {to})")?,
                }
            }
            f.write_str(")")?;
        }
        f.write_str(if ranges.is_empty() { "" } else { ")" })?;
        write!(f, " && COMM != \"{}\"", loader_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_name_few_files_and_where_many_lie() {
        let key = |device, inode| Key { device, inode };
        let mut filter = Filter::default();
        let but_us = format!(" && COMM != \"{}\"", loader_name());
        assert_eq!(filter.to_string(), format!("s_dev == 4294967295{but_us}"));
        filter.keys = vec![key(2, 7), key(1, 5), key(2, 6)];
        assert_eq!(
            filter.to_string(),
            format!(
                "(s_dev == 1 && (i_ino == 5) || s_dev == 2 && (i_ino == 6 || i_ino == 7)){but_us}"
            )
        );
        filter.keys = (0..100).map(|inode| key(3, inode)).collect();
        filter.keys.extend([key(4, 1), key(3, 500)]);
        assert_eq!(
            filter.to_string(),
            format!(
                "(s_dev == 3 && ((i_ino >= 0 && i_ino <= 99) || i_ino == 500) \
                 || s_dev == 4 && (i_ino == 1)){but_us}"
            )
        );
        filter.keys = (0..1000).map(|inode| key(3, inode * inode)).collect();
        let ranges = filter.ranges();
        assert!(ranges.len() <= MAX_RANGES);
        let within = |key: &Key| ranges.iter().any(|(from, to)| from <= key && key <= to);
        assert!(filter.keys.iter().all(within));
        let many = Filter {
            keys: (0..1000).map(|n| key(4, u64::MAX - n * n)).collect(),
        };
        assert!(many.to_string().len() < 4096);
        let longest = Filter {
            keys: (0..48).map(|n| key(u32::MAX - n, u64::MAX)).collect(),
        };
        assert!(longest.to_string().len() < 4096);
    }
}
