//! What the worker does for its policy: the services of `ppc.h`, over a backend.
//!
//! The policy's thread calls them; any thread may call `log`, `now` and `wake`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ppc::host::Services;
use ppc::{Entry, Error, Features, FileId, FileInfo, Kinds, Memory, Report, Result, Xpu};

use crate::backend::{Backend, Span};
use crate::control::loads::LoadTotals;
use crate::control::stats::Counters;
use crate::machine::topology::{Processes, Topology};
use crate::sys;
use crate::worker::budget::Budget;
use crate::worker::messages::{Note, Outbox};
use crate::worker::queue::{Queue, Task};
use crate::worker::xpus::Xpus;

/// Upper bound on bytes of a line that a policy logs.
const LINE: usize = 4096;
/// Upper bound on lines that it logs in a second; further ones are counted.
const LINES: u32 = 200;

/// The services of one policy, and what they need.
pub(crate) struct PolicyServices {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) topology: Arc<Topology>,
    pub(crate) queue: Arc<Queue<Task>>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) deadline: Duration,
    xpus: Xpus,
    said: Mutex<Said>,
}

/// How much a policy has logged of late.
struct Said {
    since: Instant,
    lines: u32,
    dropped: u64,
    /// The last line: the reason, if the policy refuses next.
    last: String,
}

impl PolicyServices {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        budget: Arc<Budget>,
        topology: Topology,
        queue: Arc<Queue<Task>>,
        outbox: Arc<Outbox>,
        counters: Arc<Counters>,
        deadline: Duration,
    ) -> Self {
        let topology = Arc::new(topology);
        let of_thread = Arc::clone(&topology);
        Self {
            xpus: Xpus::new(move |process| {
                let found = of_thread.process_xpu(process, &Processes::default());
                found.map(Xpu)
            }),
            backend,
            budget,
            topology,
            queue,
            outbox,
            counters,
            deadline,
            said: Mutex::new(Said {
                since: Instant::now(),
                lines: 0,
                dropped: 0,
                last: String::new(),
            }),
        }
    }

    /// The last line that the policy has logged.
    pub(crate) fn last_words(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.last.clone()
    }

    fn ask_process_xpu(&self, process: u32) -> Option<Xpu> {
        if self.topology.xpus().is_empty() {
            return None;
        }
        self.xpus.of(process)
    }

    /// The node nearest to an accelerator, or else to the one that the process works on.
    pub(crate) fn node(&self, xpu: Option<Xpu>, process: Option<u32>) -> Option<u16> {
        let xpu = xpu.or_else(|| self.ask_process_xpu(process?))?;
        self.topology.node_of(xpu.0)
    }
}

/// The message as one line of bounded length.
fn line(message: &str) -> String {
    let end = (0..=LINE.min(message.len()))
        .rev()
        .find(|&end| message.is_char_boundary(end));
    message[..end.unwrap_or(0)].replace(['\n', '\r'], " ")
}

impl Services for PolicyServices {
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
            let message = format!("skipped {dropped} lines of the policy");
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
        Ok(self.budget.sample().0)
    }

    fn process_xpu(&self, process: u32) -> Result<Xpu> {
        self.ask_process_xpu(process)
            .ok_or(Error::Errno(libc::ENOENT))
    }

    fn now(&self) -> u64 {
        sys::monotonic_ns()
    }

    fn want(&self, kinds: Kinds, progress_bytes: u64) -> Result<()> {
        self.backend.rests_until_open(kinds.from_open());
        Ok(self.backend.want(kinds.at_once(), progress_bytes)?)
    }

    fn wake(&self, after: Duration) -> Result<()> {
        self.queue.wake(after);
        Ok(())
    }

    fn report(&self, report: &Report) -> Result<()> {
        let load = LoadTotals {
            service: line(&report.service),
            ..LoadTotals::from(report)
        };
        self.outbox.say(&Note::Reported(Box::new(load)));
        Ok(())
    }
}
