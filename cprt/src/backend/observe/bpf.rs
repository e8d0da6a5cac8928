//! Tracepoints observed by BPF programs: one program for each tracepoint, and one ring buffer for all of them.
//!
//! The programs are assembled here (`program.rs`), with the offsets that the kernel reports: there is
//! nothing to compile, and no knowledge of one kernel's types. Where the kernel has type information, they run
//! at the tracepoints themselves, which costs other processes less; otherwise through perf events.
//!
//! Only the first record wakes the worker (`attention.rs`).

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::attention::Attention;
use super::program::{self, Maps, Whom};
use super::reach::{Cast, Reaches};
use super::record::{AT_ONCE, Field, Key, Layout, Point, Raw, id_in};
use super::source::RecordSource;
use super::who::{self, Listed, Numbering, Own, Walk};
use crate::sys;
use crate::sys::bpf::{self, Map, Numbers, ProgramFor, Records};
use crate::sys::btf::Btf;
use crate::sys::perf::{Event, Wakes, Whose};

/// Bytes for records: some 58,000 of them.
const ROOM: u32 = 4 << 20;
/// Upper bound on files in a table in the kernel, which takes 16 bytes for each possible entry,
/// and time to clear them.
const MAX_FILES: u32 = 1 << 17;
/// Upper bound on processes that are followed.
const MAX_THREADS: u32 = 1 << 16;
/// The tracepoint of forks.
pub(super) const FORKS: &str = "sched/sched_process_fork";
/// How long after the last record the next one wakes the worker again.
const QUIET: Duration = Duration::from_millis(100);

/// A program at a tracepoint, attached while this exists.
#[derive(Debug)]
enum Listener {
    Raw {
        _link: OwnedFd,
    },
    /// It stays disabled, so that the kernel makes no records of its own.
    Perf {
        _event: Event,
    },
}

/// The programs and the maps that they share with us.
#[derive(Debug)]
pub(super) struct Bpf {
    layouts: Vec<Layout>,
    /// Programs that run at the tracepoints themselves; none where the kernel has no type information.
    raw: Vec<(Point, OwnedFd)>,
    listeners: Mutex<Vec<(Point, Listener)>>,
    /// The files or the processes that are reported.
    listed: Map,
    /// Processes by our numbers for them, where those are not the kernel's.
    by_ours: Option<Map>,
    /// Has the children of processes listed that are.
    follower: Option<Event>,
    known: Mutex<HashSet<Key>>,
    records: Records,
    lost: Numbers,
    runs: Map,
    control: Numbers,
    numbering: Numbering,
    state: Mutex<BpfState>,
}

/// What it keeps between two calls.
#[derive(Debug, Default)]
struct BpfState {
    attention: Attention,
    merge: u64,
    /// How many records had been lost at the last call.
    lost: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The PID namespace by whose numbers this process knows others.
pub(super) fn numbering() -> io::Result<Numbering> {
    /// The inode number of the first namespace, on every machine.
    const FIRST: u64 = 0xefff_fffc;

    let own = std::fs::metadata("/proc/self/ns/pid")?;
    let inode = own.ino();
    if inode == FIRST {
        return Ok(Numbering::First);
    }
    let device = Key::of_stat(own.dev(), inode).map_or(0, |key| u64::from(key.device));
    // Without it, processes in namespaces within ours are not reported.
    let walk = Btf::kernel().ok().and_then(|btf| Walk::of(&btf));
    Ok(Numbering::Of {
        device,
        inode,
        walk,
    })
}

/// Whether the kernel may preempt a program that runs at a tracepoint itself. Meanwhile it does not run that
/// program on that processor for other threads, and their records are lost: of 48 MiB that four processes read
/// on 7.2, some twenty records in each load. Programs that run through perf events are not preempted.
pub(super) fn programs_are_preempted() -> bool {
    sys::kernel_release().is_none_or(|release| release >= (7, 0))
}

impl Bpf {
    pub(super) fn open(layouts: &[Layout]) -> io::Result<Self> {
        let mut bpf = Self::new(layouts, MAX_FILES, ROOM)?;
        bpf.prefer_raw(layouts)?;
        Ok(bpf)
    }

    /// Reports what the children of a process and theirs read from now on, from any file; `forks` is the `format` of
    /// [`FORKS`].
    pub(super) fn of_children(layouts: &[Layout], forks: &str, parent: u32) -> io::Result<Self> {
        let child = Field::parse(forks, "child_pid").ok_or(io::ErrorKind::Unsupported)?;
        let id = id_in(forks).ok_or(io::ErrorKind::Unsupported)?;
        let mut bpf = Self::new(layouts, 1, ROOM)?;
        bpf.listed = Map::hash(8, 8, MAX_THREADS)?;
        if bpf.numbering != Numbering::First {
            bpf.by_ours = Some(Map::hash(8, 8, MAX_THREADS)?);
        }
        let parent = Own {
            process: parent,
            numbering: bpf.numbering,
        };
        let code = who::following(child, bpf.processes(), parent);
        bpf.follower = Some(at_event(id, bpf::load(&code, ProgramFor::Perf)?.as_fd())?);
        bpf.prefer_raw(layouts)?;
        Ok(bpf)
    }

    /// Follows one more process, and its children.
    pub(super) fn follow(&self, process: u32) -> io::Result<()> {
        let key = u64::from(process).to_ne_bytes();
        let table = self.by_ours.as_ref().unwrap_or(&self.listed);
        table.set(&key, &1_u64.to_ne_bytes())
    }

    /// The tables of processes.
    fn processes(&self) -> Listed {
        let fd = |map: &Map| map.as_fd().as_raw_fd();
        Listed {
            processes: fd(&self.listed),
            by_ours: self.by_ours.as_ref().map(fd),
        }
    }

    fn prefer_raw(&mut self, layouts: &[Layout]) -> io::Result<()> {
        // To fail now, if it may not.
        match self.load_raw(layouts) {
            Ok(raw) => self.raw = raw,
            Err(error) => {
                log::debug!("BPF programs run through perf events: {error}");
                self.load(&Reaches::from(&layouts[0]), ProgramFor::Perf)?;
            }
        }
        Ok(())
    }

    /// Whether the kernel accepts our programs: tries one for perf, as others would need its type information.
    pub(super) fn probe(layouts: &[Layout]) -> io::Result<()> {
        let bpf = Self::new(layouts, 1, 4096)?;
        bpf.load(&Reaches::from(&layouts[0]), ProgramFor::Perf)
            .map(drop)
    }

    /// The same through perf events, even if the kernel has type information.
    #[cfg(test)]
    pub(super) fn open_by_perf(layouts: &[Layout]) -> io::Result<Self> {
        let bpf = Self::new(layouts, MAX_FILES, ROOM)?;
        bpf.by_perf(&layouts[0])?;
        Ok(bpf)
    }

    fn new(layouts: &[Layout], files: u32, room: u32) -> io::Result<Self> {
        bpf::allow_memory();
        let points = u32::try_from(Point::ALL.len()).unwrap_or(0);
        Ok(Self {
            layouts: layouts.to_vec(),
            raw: Vec::new(),
            listeners: Mutex::default(),
            listed: Map::hash(program::KEY, 8, files)?,
            by_ours: None,
            follower: None,
            known: Mutex::default(),
            records: Records::new(room)?,
            lost: Numbers::new(1)?,
            runs: Map::array_per_cpu(program::RUN, points)?,
            control: Numbers::new(program::CONTROL)?,
            numbering: numbering()?,
            state: Mutex::default(),
        })
    }

    fn load_raw(&self, layouts: &[Layout]) -> io::Result<Vec<(Point, OwnedFd)>> {
        // Where perf events are not allowed, losing some records is better than having none.
        if programs_are_preempted() && Event::dummy(Whose::Cpu(0)).is_ok() {
            let why =
                "this kernel preempts BPF programs at its tracepoints, and skips events meanwhile";
            return Err(io::Error::other(why));
        }
        let btf = Btf::kernel()?;
        let cast = Cast::function(&btf);
        let load = |layout: &Layout| {
            let (reaches, id) =
                Reaches::raw(layout.point, &btf, cast).ok_or(io::ErrorKind::Unsupported)?;
            let raw = |reaches: &Reaches| self.load(reaches, ProgramFor::Raw(id));
            let program = raw(&reaches).or_else(|error| match reaches.without_cast() {
                Some(reaches) => raw(&reaches),
                None => Err(error),
            })?;
            Ok((layout.point, program))
        };
        // The kernel searches its types for each of them, which takes a few milliseconds each: in parallel.
        std::thread::scope(|scope| {
            let each = layouts.iter().map(|layout| scope.spawn(|| load(layout)));
            let each: Vec<_> = each.collect();
            let panicked = |_| Err(io::Error::other("loading a BPF program panicked"));
            each.into_iter()
                .map(|thread| thread.join().unwrap_or_else(panicked))
                .collect()
        })
    }

    fn load(&self, reaches: &Reaches, for_what: ProgramFor) -> io::Result<OwnedFd> {
        let maps = Maps {
            whom: match self.follower {
                Some(_) => Whom::Processes(self.processes()),
                None => Whom::Files(self.listed.as_fd().as_raw_fd()),
            },
            ring: self.records.as_fd().as_raw_fd(),
            lost: self.lost.as_fd().as_raw_fd(),
            runs: self.runs.as_fd().as_raw_fd(),
            control: self.control.as_fd().as_raw_fd(),
        };
        let own = Own {
            process: std::process::id(),
            numbering: self.numbering,
        };
        let at_once = i32::try_from(AT_ONCE / sys::page_size()).unwrap_or(1);
        let code = program::program(reaches, maps, own, at_once);
        bpf::load(&code, for_what)
    }

    /// Runs a program at a tracepoint.
    fn listen(&self, layout: &Layout) -> io::Result<Listener> {
        let raw = self.raw.iter().find(|(point, _)| *point == layout.point);
        raw.map_or_else(
            || {
                Ok(Listener::Perf {
                    _event: self.by_perf(layout)?,
                })
            },
            |(_, program)| {
                Ok(Listener::Raw {
                    _link: bpf::attach(program.as_fd())?,
                })
            },
        )
    }

    /// Loads a new program each time: a child between fork and exec may still have the event of the old one
    /// open, and the kernel runs no program twice at one tracepoint.
    fn by_perf(&self, layout: &Layout) -> io::Result<Event> {
        let program = self.load(&layout.into(), ProgramFor::Perf)?;
        at_event(layout.id, program.as_fd())
    }

    fn tell(&self, state: &BpfState) {
        let control = program::control(state.attention.wakes(), state.merge);
        self.set(0, &control);
    }

    fn set(&self, from: usize, numbers: &[u64]) {
        for (place, &number) in numbers.iter().enumerate() {
            self.control.at(from + place).store(number, SeqCst);
        }
    }
}

/// Attaches a program to a tracepoint through a perf event.
fn at_event(id: u16, program: BorrowedFd<'_>) -> io::Result<Event> {
    // Any CPU will do.
    let cpu = u32::try_from(nix::sched::sched_getcpu()?).unwrap_or(0);
    let event = Event::open(id.into(), Whose::Cpu(cpu), Wakes::Each)?;
    event.run(program)?;
    Ok(event)
}

impl RecordSource for Bpf {
    fn name(&self) -> &'static str {
        if self.raw.is_empty() {
            "bpf by perf"
        } else {
            "bpf"
        }
    }

    fn enable(&self, points: &[Point], merge: u64) -> io::Result<()> {
        {
            let mut state = lock(&self.state);
            state.merge = merge;
            self.tell(&state);
        }
        let mut listeners = lock(&self.listeners);
        listeners.retain(|(point, _)| points.contains(point));
        for layout in &self.layouts {
            let on = listeners.iter().any(|&(point, _)| point == layout.point);
            if !on && points.contains(&layout.point) {
                listeners.push((layout.point, self.listen(layout)?));
            }
        }
        Ok(())
    }

    fn files(&self, keys: &[Key]) -> io::Result<()> {
        let wanted: HashSet<Key> = keys.iter().copied().collect();
        if self.follower.is_some() {
            return Ok(());
        }
        let mut known = lock(&self.known);
        self.set(program::BITS_AT, &program::bits(keys));
        for &key in known.difference(&wanted) {
            self.listed.remove(&program::key(key))?;
        }
        for &key in wanted.difference(&known) {
            self.listed.set(&program::key(key), &1_u64.to_ne_bytes())?;
        }
        *known = wanted;
        Ok(())
    }

    fn ready(&self) -> Option<BorrowedFd<'_>> {
        // It is readable with any record, whether or not the record wakes us.
        let wakes = lock(&self.state).attention.wakes();
        wakes.then(|| self.records.as_fd())
    }

    fn due(&self) -> Option<Instant> {
        lock(&self.state).attention.due(Instant::now())
    }

    fn take(&self, into: &mut Vec<Raw>) -> u64 {
        let from = into.len();
        self.records
            .take(|bytes| into.extend(program::decode(bytes)));
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
