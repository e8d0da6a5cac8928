//! What the worker does for its policy: the services of `ppc.h`, over a backend.
//!
//! The policy's thread calls them; `log`, `now` and `wake` any thread.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use ppc::host::Services;
use ppc::{Entry, Error, Event, Features, FileId, FileInfo, Kind, Kinds, Memory, Result, Xpu};

use crate::backend::{Backend, Evicted, Fault, Span};
use crate::control::stats::Counters;
use crate::machine::memory::Watch;
use crate::machine::topology::{Processes, Topology};
use crate::worker::brought_in::Ours;
use crate::worker::loader::Room;
use crate::worker::messages::{Note, Outbox};
use crate::worker::queue::{Queue, Task};

/// No line of a policy's log is longer.
const LINE: usize = 4096;
/// Nor are there more in a second; what is beyond is counted.
const LINES: u32 = 200;

/// What everything in a worker shares.
pub(crate) struct Host {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) watch: Watch,
    pub(crate) topology: Topology,
    pub(crate) queue: Arc<Queue<Task>>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) deadline: Duration,
    ours: Ours,
    xpus: Mutex<HashMap<u32, (Option<Xpu>, Instant)>>,
    said: Mutex<Said>,
    over: AtomicBool,
    /// Files of which something may be in the page cache because of us, and when that was counted.
    touched_last: AtomicU64,
    files: Mutex<(HashSet<FileId>, Option<Instant>)>,
}

/// How much a policy has logged of late.
struct Said {
    since: Instant,
    lines: u32,
    dropped: u64,
    /// The reason, if the policy says no next.
    last: String,
}

/// More files are not counted again: the estimate stays what it is.
const MAX_FILES: usize = 1 << 14;
/// How often they are.
const COUNT_AGAIN: Duration = Duration::from_secs(5);

/// A process whose accelerator is not known is asked about again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(5);

impl Host {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        watch: Watch,
        topology: Topology,
        queue: Arc<Queue<Task>>,
        outbox: Arc<Outbox>,
        counters: Arc<Counters>,
        deadline: Duration,
    ) -> Self {
        Self {
            backend,
            watch,
            topology,
            queue,
            outbox,
            counters,
            deadline,
            ours: Ours::default(),
            xpus: Mutex::default(),
            said: Mutex::new(Said {
                since: Instant::now(),
                lines: 0,
                dropped: 0,
                last: String::new(),
            }),
            over: AtomicBool::new(false),
            touched_last: AtomicU64::new(0),
            files: Mutex::default(),
        }
    }

    /// How memory is now, and whether that is over the threshold.
    pub(crate) fn sample(&self) -> (Memory, bool) {
        let state = self.watch.sample(self.ours.bytes());
        self.counters.memory_limit.set(state.limit);
        self.counters.memory_used.set(state.used);
        if !self.over.swap(state.over, Relaxed) && state.over {
            self.counters.memory_over.add(1);
            // The policy's thread has to know that there is an interval now.
            self.queue.poke();
        }
        (Memory::from(&state), state.over)
    }

    /// Whether memory was over the threshold when somebody looked last.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// What a reader brought in by itself counts as ours: it is ours to evict.
    pub(crate) fn reader_did(&self, event: &Event) {
        if event.kind == Kind::Miss {
            let span = Span {
                file: event.file,
                offset: event.offset,
                length: event.length,
            };
            self.ours.came(span, event.length);
            self.touched(event.file);
        }
    }

    /// Something of this file is or will be in the page cache because of us.
    pub(crate) fn touched(&self, file: FileId) {
        if self.touched_last.swap(file.0, Relaxed) == file.0 {
            return;
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.0.len() < MAX_FILES {
            files.0.insert(file);
        }
    }

    /// What the policy has said last.
    pub(crate) fn last_words(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.last.clone()
    }

    #[cfg(test)]
    pub(crate) fn ours(&self) -> u64 {
        self.ours.bytes()
    }

    fn ask_process_xpu(&self, process: u32) -> Option<Xpu> {
        if self.topology.xpus().is_empty() {
            return None;
        }
        let mut known = self.xpus.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&process) {
            Some((Some(xpu), _)) => return Some(*xpu),
            Some((None, asked)) if asked.elapsed() < ASK_AGAIN => return None,
            _ => {}
        }
        // Numbers of processes come back; so many do not live at once.
        if known.len() > 4096 {
            known.clear();
        }
        let xpu = self
            .topology
            .process_xpu(process, &Processes::default())
            .map(Xpu);
        known.insert(process, (xpu, Instant::now()));
        xpu
    }

    /// The node for an accelerator, or else for the one that the process works on.
    pub(crate) fn node(&self, xpu: Option<Xpu>, process: Option<u32>) -> Option<u16> {
        let xpu = xpu.or_else(|| self.ask_process_xpu(process?))?;
        self.topology.node_of(xpu.0)
    }
}

/// One line, of a length that can be read.
fn line(message: &str) -> String {
    let end = (0..=LINE.min(message.len()))
        .rev()
        .find(|&end| message.is_char_boundary(end));
    message[..end.unwrap_or(0)].replace(['\n', '\r'], " ")
}

impl Room for Host {
    fn room(&self) -> Option<u64> {
        let (memory, over) = self.sample();
        (!over).then_some(memory.available)
    }

    fn came(&self, span: Span, fresh: u64) {
        self.ours.came(span, fresh);
    }

    fn went(&self, span: Span, evicted: Evicted) {
        self.ours.went(span, evicted);
    }

    /// The kernel drops pages without a word; so now and then what is there is looked at.
    fn recount(&self) {
        let files = {
            let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            let lately = files.1.is_some_and(|then| then.elapsed() < COUNT_AGAIN);
            if lately || files.0.len() >= MAX_FILES {
                return;
            }
            files.1 = Some(Instant::now());
            files.0.clone()
        };
        let mut sum = 0;
        for file in files {
            let span = Span {
                file,
                offset: 0,
                length: i64::MAX.cast_unsigned(),
            };
            match self.backend.resident(span) {
                Ok(bytes) => sum += bytes,
                Err(Fault::Stale) => {
                    let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                    files.0.remove(&file);
                    self.touched_last.store(0, Relaxed);
                }
                // It cannot be told.
                Err(_) => return,
            }
        }
        let resident = |span| self.backend.resident(span).unwrap_or(0);
        self.ours.at_most(sum, resident);
    }
}

impl Services for Host {
    fn features(&self) -> Features {
        self.backend.features()
    }

    fn deadline(&self) -> Option<Duration> {
        Some(self.deadline)
    }

    fn log(&self, level: u32, message: &str) {
        let message = line(message);
        let dropped = {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            if said.since.elapsed() >= Duration::from_secs(1) {
                (said.since, said.lines) = (Instant::now(), 0);
            }
            if said.lines >= LINES {
                said.dropped += 1;
                return;
            }
            said.lines += 1;
            said.last.clone_from(&message);
            std::mem::take(&mut said.dropped)
        };
        if dropped > 0 {
            let message = format!("{dropped} lines of the policy are left out");
            self.outbox.say(&Note::Log { level: 2, message });
        }
        self.outbox.say(&Note::Log { level, message });
    }

    fn open(&self, path: &Path) -> Result<FileId> {
        Ok(self.backend.open(path)?)
    }

    fn close(&self, file: FileId) -> Result<()> {
        Ok(self.backend.close(file)?)
    }

    fn info(&self, file: FileId) -> Result<FileInfo> {
        Ok(self.backend.info(file)?)
    }

    fn path(&self, file: FileId) -> Result<PathBuf> {
        Ok(self.backend.path(file)?)
    }

    fn list(&self, path: &Path, recursive: bool) -> Result<Vec<Entry>> {
        Ok(self.backend.list(path, recursive)?)
    }

    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.backend.read(file, offset, buf)?)
    }

    fn resident(&self, file: FileId, offset: u64, length: u64) -> Result<u64> {
        let span = Span {
            file,
            offset,
            length,
        };
        Ok(self.backend.resident(span)?)
    }

    fn memory(&self) -> Result<Memory> {
        Ok(self.sample().0)
    }

    fn process_xpu(&self, process: u32) -> Result<Xpu> {
        self.ask_process_xpu(process)
            .ok_or(Error::Errno(libc::ENOENT))
    }

    fn now(&self) -> u64 {
        clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| {
            u64::try_from(Duration::from(now).as_nanos()).unwrap_or(u64::MAX)
        })
    }

    fn want(&self, kinds: Kinds, progress_bytes: u64) -> Result<()> {
        Ok(self.backend.want(kinds, progress_bytes)?)
    }

    fn wake(&self, after: Duration) -> Result<()> {
        self.queue.wake(after);
        Ok(())
    }
}
