//! Tracepoints by programs in the kernel: one for each, and one ring for all of them.
//!
//! The programs are put together here (`asm.rs`), from where the kernel says that things are in its
//! records: there is nothing to compile, and no knowledge of one kernel's types.
//!
//! Only the first record wakes us (`attention.rs`).

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::asm::{self, Maps};
use super::attention::Attention;
use super::record::{AT_ONCE, Key, Layout, Point, Raw};
use super::source::RecordSource;
use crate::sys;
use crate::sys::bpf::{self, Map, Numbers, Records};
use crate::sys::perf::{Event, Wakes, Whose};

/// Bytes for records: some 65,000 of them.
const ROOM: u32 = 4 << 20;
/// More files than this are too many for a table in the kernel.
const MAX_FILES: u32 = 1 << 20;
/// So long after the last record we are woken again.
const QUIET: Duration = Duration::from_millis(100);

/// The programs and what they share with us.
#[derive(Debug)]
pub(super) struct Bpf {
    layouts: Vec<Layout>,
    /// Each is one that a program runs at, as long as it is there. They stay disabled, so that the
    /// kernel makes no records of its own.
    events: Mutex<Vec<(Point, Event)>>,
    files: Map,
    known: Mutex<HashSet<Key>>,
    records: Records,
    lost: Numbers,
    runs: Map,
    control: Numbers,
    state: Mutex<BpfState>,
}

/// What it knows between two times.
#[derive(Debug, Default)]
struct BpfState {
    attention: Attention,
    merge: u64,
    /// How many records had been lost when it was asked last.
    lost: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bpf {
    pub(super) fn open(layouts: &[Layout]) -> io::Result<Self> {
        bpf::allow_memory();
        let points = u32::try_from(Point::ALL.len()).unwrap_or(0);
        let bpf = Self {
            layouts: layouts.to_vec(),
            events: Mutex::default(),
            files: Map::hash(asm::KEY, 8, MAX_FILES)?,
            known: Mutex::default(),
            records: Records::new(ROOM)?,
            lost: Numbers::new(1)?,
            runs: Map::array_per_cpu(asm::RUN, points)?,
            control: Numbers::new(asm::CONTROL)?,
            state: Mutex::default(),
        };
        // Whether it may is to be known now.
        bpf.enable(&Point::ALL, 0)?;
        bpf.enable(&[], 0)?;
        Ok(bpf)
    }

    /// Runs a program at a tracepoint. It is a new one each time: a process that is about to be
    /// started may still have the event of the old one open, and the kernel runs no program twice at
    /// one tracepoint.
    fn listen(&self, layout: &Layout) -> io::Result<Event> {
        let maps = Maps {
            files: self.files.as_fd().as_raw_fd(),
            ring: self.records.as_fd().as_raw_fd(),
            lost: self.lost.as_fd().as_raw_fd(),
            runs: self.runs.as_fd().as_raw_fd(),
            control: self.control.as_fd().as_raw_fd(),
        };
        let at_once = i32::try_from(AT_ONCE / sys::page_size()).unwrap_or(1);
        let code = asm::program(layout, maps, std::process::id(), at_once);
        let program = bpf::load(&code)?;
        // Any CPU will do.
        let cpu = u32::try_from(nix::sched::sched_getcpu()?).unwrap_or(0);
        let event = Event::open(layout.id.into(), Whose::Cpu(cpu), Wakes::Each)?;
        event.run(program.as_fd())?;
        Ok(event)
    }

    fn tell(&self, state: &BpfState) {
        let control = asm::control(state.attention.wakes(), state.merge);
        for (place, number) in control.into_iter().enumerate() {
            self.control.at(place).store(number, SeqCst);
        }
    }
}

impl RecordSource for Bpf {
    fn name(&self) -> &'static str {
        "bpf"
    }

    fn enable(&self, points: &[Point], merge: u64) -> io::Result<()> {
        {
            let mut state = lock(&self.state);
            state.merge = merge;
            self.tell(&state);
        }
        let mut events = lock(&self.events);
        events.retain(|(point, _)| points.contains(point));
        for layout in &self.layouts {
            let on = events.iter().any(|&(point, _)| point == layout.point);
            if !on && points.contains(&layout.point) {
                events.push((layout.point, self.listen(layout)?));
            }
        }
        Ok(())
    }

    fn files(&self, keys: &[Key]) -> io::Result<()> {
        let wanted: HashSet<Key> = keys.iter().copied().collect();
        let mut known = lock(&self.known);
        for &key in known.difference(&wanted) {
            self.files.remove(&asm::key(key))?;
        }
        for &key in wanted.difference(&known) {
            self.files.set(&asm::key(key), &1_u64.to_ne_bytes())?;
        }
        *known = wanted;
        Ok(())
    }

    fn ready(&self) -> Option<BorrowedFd<'_>> {
        // It is readable with any record, whether or not that wakes us.
        let wakes = lock(&self.state).attention.wakes();
        wakes.then(|| self.records.as_fd())
    }

    fn due(&self) -> Option<Instant> {
        lock(&self.state).attention.due(Instant::now())
    }

    fn take(&self, into: &mut Vec<Raw>) -> u64 {
        let from = into.len();
        self.records.take(|bytes| into.extend(asm::decode(bytes)));
        into[from..].sort_by_key(|raw| raw.time_ns);
        let mut state = lock(&self.state);
        let before = state.attention;
        state.attention = before.next(into.len() > from, Instant::now(), QUIET);
        if before.wakes() != state.attention.wakes() {
            self.tell(&state);
        }
        let all = self.lost.at(0).load(SeqCst);
        all - std::mem::replace(&mut state.lost, all).min(all)
    }
}
