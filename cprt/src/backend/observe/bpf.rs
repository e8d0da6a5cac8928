//! Tracepoints by programs in the kernel: one for each, and one ring for all of them.
//!
//! The programs are put together here (`asm.rs`), from where the kernel says that things are in its
//! records: there is nothing to compile, and no knowledge of one kernel's types.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use super::asm::{self, Maps};
use super::record::{Key, Layout, Point, Raw};
use super::source::Source;
use crate::sys::bpf::{self, Map, Records};
use crate::sys::perf::{Event, Wakes, Whose};

/// Bytes for records: some 65,000 of them.
const ROOM: u32 = 4 << 20;
/// More files than this are too many for a table in the kernel.
const MAX_FILES: u32 = 1 << 20;

/// The programs and what they share with us.
#[derive(Debug)]
pub(super) struct Bpf {
    programs: Vec<(Layout, OwnedFd)>,
    /// Each is one that a program runs at, as long as it is there. They stay disabled, so that the
    /// kernel makes no records of its own.
    events: Mutex<Vec<(Point, Event)>>,
    files: Map,
    known: Mutex<HashSet<Key>>,
    records: Records,
    lost: Map,
    /// How many had been lost when it was asked last.
    told: Mutex<u64>,
}

impl Bpf {
    pub(super) fn open(layouts: &[Layout]) -> io::Result<Self> {
        bpf::allow_memory();
        let files = Map::hash(asm::KEY, 8, MAX_FILES)?;
        let lost = Map::array(8, 1)?;
        let records = Records::new(ROOM)?;
        let maps = Maps {
            files: files.as_fd().as_raw_fd(),
            ring: records.as_fd().as_raw_fd(),
            lost: lost.as_fd().as_raw_fd(),
        };
        let mut programs = Vec::new();
        for layout in layouts {
            let code = asm::program(layout, maps, std::process::id());
            programs.push((*layout, bpf::load(&code)?));
        }
        let bpf = Self {
            programs,
            events: Mutex::default(),
            files,
            known: Mutex::default(),
            records,
            lost,
            told: Mutex::default(),
        };
        // Whether it may is to be known now.
        bpf.enable(&Point::ALL)?;
        bpf.enable(&[])?;
        Ok(bpf)
    }
}

impl Source for Bpf {
    fn name(&self) -> &'static str {
        "bpf"
    }

    fn enable(&self, points: &[Point]) -> io::Result<()> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.retain(|(point, _)| points.contains(point));
        for (layout, program) in &self.programs {
            let on = events.iter().any(|&(point, _)| point == layout.point);
            if on || !points.contains(&layout.point) {
                continue;
            }
            // Any CPU will do.
            let cpu = u32::try_from(nix::sched::sched_getcpu()?).unwrap_or(0);
            let event = Event::open(layout.id.into(), Whose::Cpu(cpu), Wakes::Each)?;
            event.run(program.as_fd())?;
            events.push((layout.point, event));
        }
        Ok(())
    }

    fn files(&self, keys: &[Key]) -> io::Result<()> {
        let wanted: HashSet<Key> = keys.iter().copied().collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for &key in known.difference(&wanted) {
            self.files.remove(&asm::key(key))?;
        }
        for &key in wanted.difference(&known) {
            self.files.set(&asm::key(key), &1_u64.to_ne_bytes())?;
        }
        *known = wanted;
        Ok(())
    }

    fn ready(&self) -> BorrowedFd<'_> {
        self.records.as_fd()
    }

    fn take(&self, into: &mut Vec<Raw>) -> u64 {
        let from = into.len();
        self.records.take(|bytes| into.extend(asm::decode(bytes)));
        into[from..].sort_by_key(|raw| raw.time_ns);
        let mut value = [0; 8];
        if self.lost.get(&0_u32.to_ne_bytes(), &mut value).is_err() {
            return 0;
        }
        let all = u64::from_ne_bytes(value);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        all - std::mem::replace(&mut *told, all).min(all)
    }
}
