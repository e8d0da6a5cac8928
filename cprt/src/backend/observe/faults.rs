//! Page faults of processes that read through mappings, by their addresses.
//!
//! A fault that the page cache answers with a huge page passes no tracepoint of the page cache, but that of all
//! page faults, which knows only the address. A program there reports the faults of listed processes between two
//! addresses: those of their mappings of our files. As C:
//!
//! ```text
//! struct range *range = ranges[tgid];
//! if (!range || address < range->start || address >= range->end) return;
//! struct record r = { .address = address, .who = ..., .time = ktime_get_ns() };
//! if (ringbuf_output(ring, &r, NO_WAKEUP)) (*lost)++;
//! ```
//!
//! It runs only while a process is listed, and wakes no thread: looks at mappings (`look.rs`) take the records along.
//! Faults in system calls, as of a `write` from a mapping, do not pass there; the looks find what they have mapped.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::asm::Register::{Context, R0, R1, R2, R3, R4, Stack, Who};
use super::asm::{HelperCall, Is, Label, Program};
use super::bpf::{numbering, programs_are_preempted};
use super::record::{Field, word};
use super::who::{self, Numbering};
use crate::sys::bpf::{self, Map, Numbers, ProgramFor, Records};
use crate::sys::btf::Btf;

/// The type of the tracepoint's arguments.
const POINT: &str = "btf_trace_page_fault_user";
/// The address, the first argument.
const ADDRESS: Field = Field { offset: 0, size: 8 };
/// Bytes for records: some 30,000 of them.
const ROOM: u32 = 1 << 20;
/// Upper bound on listed processes.
const MOST: u32 = 4096;
/// How long after the last process has been listed the program continues: the next file is mapped soon, and each change
/// at a tracepoint interrupts all CPUs.
const LINGERS: Duration = Duration::from_secs(2);
/// Where the key and the record are on the stack.
const KEY: i16 = -72;
const RECORD: i16 = -24;
const BYTES: i32 = 24;
/// A flag of the kernel's ring buffer.
const NO_WAKEUP: i32 = 1;

/// A page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageFault {
    pub(super) address: u64,
    pub(super) process: u32,
    pub(super) thread: u32,
    pub(super) time_ns: u64,
}

impl PageFault {
    fn of(record: &[u8]) -> Option<Self> {
        let who = word(record, 8)?;
        Some(Self {
            address: word(record, 0)?,
            process: u32::try_from(who >> 32).ok()?,
            thread: u32::try_from(who & u64::from(u32::MAX)).ok()?,
            time_ns: word(record, 16)?,
        })
    }
}

/// The program, and what it shares with us.
#[derive(Debug)]
pub(super) struct PageFaults {
    program: OwnedFd,
    /// It runs while this exists.
    link: Option<OwnedFd>,
    ranges: Map,
    listed: HashMap<u32, Range<u64>>,
    records: Records,
    lost: Numbers,
    told: u64,
    ends: Option<Instant>,
}

impl PageFaults {
    /// Fails where the kernel has no such tracepoint, or may preempt a program there and lose records.
    pub(super) fn open() -> io::Result<Self> {
        if programs_are_preempted() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        bpf::allow_memory();
        let btf = Btf::kernel()?;
        let id = btf.typedef(POINT).ok_or(io::ErrorKind::Unsupported)?;
        if btf.parameters(id) != Some(vec![None, None, Some("pt_regs"), None]) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (ranges, records) = (Map::hash(8, 16, MOST)?, Records::new(ROOM)?);
        let lost = Numbers::new(1)?;
        let maps = Maps {
            ranges: ranges.as_fd().as_raw_fd(),
            ring: records.as_fd().as_raw_fd(),
            lost: lost.as_fd().as_raw_fd(),
        };
        let program = bpf::load(&program(maps, numbering()?), ProgramFor::Raw(id))?;
        Ok(Self {
            program,
            link: None,
            ranges,
            listed: HashMap::new(),
            records,
            lost,
            told: 0,
            ends: None,
        })
    }

    /// Sets the processes to report from now on, and between which addresses.
    pub(super) fn list(&mut self, wanted: HashMap<u32, Range<u64>>, now: Instant) {
        for (process, range) in &wanted {
            if self.listed.get(process) == Some(range) {
                continue;
            }
            let mut value = [0; 16];
            value[..8].copy_from_slice(&range.start.to_ne_bytes());
            value[8..].copy_from_slice(&range.end.to_ne_bytes());
            // If there is no room, looks at its mappings have to do.
            let _ = self.ranges.set(&key(*process), &value);
        }
        for process in self.listed.keys().filter(|it| !wanted.contains_key(it)) {
            // It may not have had room.
            let _ = self.ranges.remove(&key(*process));
        }
        self.listed = wanted;
        if !self.listed.is_empty() {
            self.ends = None;
            if self.link.is_none() {
                self.link = bpf::attach(self.program.as_fd()).ok();
            }
        } else if self.link.is_some() && now >= *self.ends.get_or_insert(now + LINGERS) {
            (self.link, self.ends) = (None, None);
        }
    }

    /// When to call [`Self::list`] again.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.ends
    }

    /// Takes all page faults, in the order of time; returns how many were lost for lack of room.
    pub(super) fn take(&mut self, into: &mut Vec<PageFault>) -> u64 {
        let from = into.len();
        self.records.take(|bytes| into.extend(PageFault::of(bytes)));
        into[from..].sort_by_key(|fault| fault.time_ns);
        let all = self.lost.at(0).load(SeqCst);
        all - std::mem::replace(&mut self.told, all).min(all)
    }
}

/// The page faults, once it has turned out whether they can be had: loading the program takes a while.
#[derive(Debug, Default)]
pub(super) enum FaultSource {
    #[default]
    Unasked,
    Opening(JoinHandle<io::Result<PageFaults>>),
    Open(PageFaults),
    Unavailable,
}

impl FaultSource {
    /// Begins to find out.
    pub(super) fn ask(&mut self) {
        if matches!(self, Self::Unasked) {
            let thread = thread::Builder::new().name("faults".to_owned());
            *self = thread
                .spawn(PageFaults::open)
                .map_or(Self::Unavailable, Self::Opening);
        }
    }

    /// The page faults, if they can be had and that is known.
    pub(super) fn get(&mut self) -> Option<&mut PageFaults> {
        if let Self::Opening(thread) = self
            && thread.is_finished()
            && let Self::Opening(thread) = std::mem::replace(self, Self::Unavailable)
        {
            match thread.join() {
                Ok(Ok(faults)) => *self = Self::Open(faults),
                Ok(Err(error)) => log::debug!("Page faults are not reported: {error}"),
                Err(_) => log::warn!("Page faults are not reported: loading the program panicked"),
            }
        }
        match self {
            Self::Open(faults) => Some(faults),
            _ => None,
        }
    }
}

fn key(process: u32) -> [u8; 8] {
    u64::from(process).to_ne_bytes()
}

/// The maps that the program works with.
#[derive(Clone, Copy, Debug)]
struct Maps {
    ranges: i32,
    ring: i32,
    lost: i32,
}

fn program(maps: Maps, numbering: Numbering) -> Vec<u64> {
    let mut program = Program::default();
    program.copy(Context, R1);
    who::who(&mut program, numbering, Label::End);
    program.copy(R1, Who);
    // The process is in the upper half.
    program.shift_right(R1, 32);
    program.store(Stack, KEY, R1);
    program.map(R1, maps.ranges);
    program.address(R2, KEY);
    program.call(HelperCall::MapLookup);
    program.jump_if_number(R0, 0, Label::End);
    program.load_field(R1, Context, ADDRESS);
    program.load(R2, R0, 0);
    program.jump_if(R2, Is::Greater, R1, Label::End);
    program.load(R2, R0, 8);
    program.jump_if(R1, Is::NotLess, R2, Label::End);
    program.store(Stack, RECORD, R1);
    program.store(Stack, RECORD + 8, Who);
    program.call(HelperCall::KtimeGetNs);
    program.store(Stack, RECORD + 16, R0);
    program.map(R1, maps.ring);
    program.address(R2, RECORD);
    program.set(R3, BYTES);
    program.set(R4, NO_WAKEUP);
    program.call(HelperCall::RingbufOutput);
    program.jump_if_number(R0, 0, Label::End);
    program.value_of(R0, maps.lost);
    program.set(R1, 1);
    // An atomic addition of eight bytes.
    program.put(0xdb, R0, R1, 0, 0);
    program.finish()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::who::tests::{CONTAINED, jumps_to_the_end};
    use super::*;
    use crate::sys::testing::{Mapped, skip};

    #[test]
    fn jumps_lead_forward() {
        let maps = Maps {
            ranges: 3,
            ring: 4,
            lost: 5,
        };
        for numbering in [Numbering::First, CONTAINED] {
            assert!(jumps_to_the_end(&program(maps, numbering)) >= 4);
        }
    }

    #[test]
    fn faults_between_the_addresses_are_reported_and_no_others() {
        let mut faults = match PageFaults::open() {
            Ok(faults) => faults,
            Err(error) => return skip(&format!("page faults: {error}")),
        };
        let path = std::env::temp_dir().join(format!("cprt-faults-{}", std::process::id()));
        let (page, pages) = (crate::sys::page_size(), 64);
        let length = pages * page;
        std::fs::write(&path, vec![1; usize::try_from(length).expect("small")]).expect("a file");
        let file = File::open(&path).expect("it is there");
        let mapped = Mapped::new(&file).expect("a mapping");
        let own = std::process::id();
        let listed = 16 * page..32 * page;
        let (from, to) = (
            mapped.address() + listed.start,
            mapped.address() + listed.end,
        );
        let now = Instant::now();
        faults.list(HashMap::from([(own, from..to)]), now);
        let all = mapped.length();
        // Only the first touch of a mapping is certain to fault: that fault may map all of a large folio.
        let beside = Mapped::new(&file).expect("a mapping");
        beside.sum(0..all);
        mapped.sum(usize::try_from(listed.start).expect("small")..all);
        mapped.sum(0..all);
        let mut heard = Vec::new();
        assert_eq!(faults.take(&mut heard), 0);
        assert!(!heard.is_empty(), "something was mapped there");
        for fault in &heard {
            assert!((from..to).contains(&fault.address), "{fault:x?}");
            assert_eq!(fault.process, own);
        }
        assert!(heard.is_sorted_by_key(|fault| fault.time_ns));
        faults.list(HashMap::new(), now);
        assert_eq!(faults.due(), Some(now + LINGERS));
        faults.list(HashMap::new(), now + LINGERS);
        assert!(faults.link.is_none() && faults.due().is_none());
        let again = Mapped::new(&file).expect("a mapping");
        again.sum(0..all);
        heard.clear();
        faults.take(&mut heard);
        assert!(heard.is_empty(), "{heard:x?}");
        std::fs::remove_file(&path).expect("ours");
    }
}
