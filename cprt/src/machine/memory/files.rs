//! The files of the watch, kept open.
//!
//! A limit that cannot be read does not count: if a followed cgroup is removed, its ancestors and the host
//! remain. It is tried again every second, because a service that is restarted gets a cgroup of the
//! same name, and logged once.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cgroup::is_cgroup;
use super::decide::{Gauge, Limit, Pressure, Reading};
use super::guards;
use super::parse::{self, Meminfo, Version};
use super::working_set::{WorkingSet, WorkingSetLimit};
use crate::sys::page_size;

/// How long a file that failed, or has no limit, is left alone.
const RETRY: Duration = Duration::from_secs(1);

/// Reads a whole file as it is now. The kernel generates the contents again for each read at offset 0.
fn read<'b>(file: &File, buffer: &'b mut Vec<u8>) -> io::Result<&'b str> {
    loop {
        let length = file.read_at(buffer, 0)?;
        if length < buffer.len() {
            return std::str::from_utf8(&buffer[..length]).map_err(|_| garbage());
        }
        // Pieces would be from different moments.
        buffer.resize(buffer.len().max(4096) * 2, 0);
    }
}

fn garbage() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not in the kernel's format")
}

/// When to look again, and whether a failure has been logged.
#[derive(Debug, Default)]
struct Backoff {
    until: Option<Instant>,
    told: bool,
}

impl Backoff {
    fn lasts(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    fn begin(&mut self, now: Instant) {
        self.until = Some(now + RETRY);
    }

    fn after(&mut self, now: Instant, path: &Path, error: &io::Error) {
        self.begin(now);
        if !std::mem::replace(&mut self.told, true) {
            log::warn!(
                "Reading the memory in use of {}: {error}; this limit is ignored until it can be read",
                path.display()
            );
        }
    }
}

/// Smaller free blocks are of no use to a GPU that shares the memory: it maps in units of 2 MiB.
const BLOCK: u64 = 2 << 20;

/// `/proc/meminfo`, and `/proc/buddyinfo` where a GPU shares the memory
#[derive(Debug)]
pub(super) struct Host {
    path: PathBuf,
    file: Option<File>,
    rest: Backoff,
    pub(super) limit: Limit,
    /// As kubelet counts it.
    pub(super) working_set: WorkingSetLimit,
    /// Where a GPU shares the memory: what is free, and what of it is in large blocks.
    pub(super) free: Limit,
    pub(super) blocks: Limit,
    block_path: PathBuf,
    block_file: Option<File>,
    block_rest: Backoff,
}

impl Host {
    pub(super) fn new(proc: &Path) -> Self {
        Self {
            path: proc.join("meminfo"),
            file: None,
            rest: Backoff::default(),
            limit: Limit::default(),
            working_set: WorkingSetLimit::default(),
            free: Limit::default(),
            blocks: Limit::default(),
            block_path: proc.join("buddyinfo"),
            block_file: None,
            block_rest: Backoff::default(),
        }
    }

    pub(super) fn update(&mut self, now: Instant, unified: bool, buffer: &mut Vec<u8>) {
        if self.rest.lasts(now) {
            return;
        }
        (self.free.reading, self.blocks.reading) = (None, None);
        match self.try_read(buffer) {
            Ok(info) => {
                self.limit.reading = Some(Reading::of_host(info));
                self.working_set.reading = Some(WorkingSet::of_host(info));
                if unified {
                    self.free.reading = Some(Reading::of_free(info, info.free));
                    self.update_blocks(now, info, buffer);
                }
            }
            Err(error) => {
                self.file = None;
                (self.limit.reading, self.working_set.reading) = (None, None);
                self.rest.after(now, &self.path, &error);
            }
        }
    }

    fn try_read(&mut self, buffer: &mut Vec<u8>) -> io::Result<Meminfo> {
        let file = opened(&mut self.file, || File::open(&self.path))?;
        parse::meminfo(read(file, buffer)?).ok_or_else(garbage)
    }

    /// Without the file, what is free counts alone.
    fn update_blocks(&mut self, now: Instant, info: Meminfo, buffer: &mut Vec<u8>) {
        if self.block_rest.lasts(now) {
            return;
        }
        match self.try_read_blocks(buffer) {
            Ok(large) => self.blocks.reading = Some(Reading::of_free(info, large)),
            Err(error) => {
                self.block_file = None;
                self.block_rest.after(now, &self.block_path, &error);
            }
        }
    }

    fn try_read_blocks(&mut self, buffer: &mut Vec<u8>) -> io::Result<u64> {
        let file = opened(&mut self.block_file, || File::open(&self.block_path))?;
        let text = read(file, buffer)?;
        parse::large_blocks(text, BLOCK, page_size()).ok_or_else(garbage)
    }
}

fn opened<T>(slot: &mut Option<T>, open: impl FnOnce() -> io::Result<T>) -> io::Result<&T> {
    match slot {
        Some(open) => Ok(open),
        None => Ok(slot.insert(open()?)),
    }
}

/// A cgroup.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) dir: Arc<Path>,
    files: Option<Files>,
    rest: Backoff,
    pub(super) limit: Limit,
    /// As kubelet counts it, in a pod and in the cgroup of all pods.
    pub(super) working_set: WorkingSetLimit,
    is_pod: bool,
    /// Kubelet's thresholds are of this one as well.
    pub(super) is_kubepods: bool,
}

#[derive(Debug)]
struct Files {
    version: Version,
    /// The lowest one counts.
    limits: Vec<File>,
    usage: File,
    stat: File,
}

impl Level {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.into(),
            files: None,
            rest: Backoff::default(),
            limit: Limit::default(),
            working_set: WorkingSetLimit::default(),
            is_pod: guards::is_in_kubepods(dir),
            is_kubepods: guards::is_kubepods(dir),
        }
    }

    /// Tries failed files again at once, because the cgroup is wanted again.
    pub(super) fn renew(&mut self) {
        self.rest.until = None;
    }

    pub(super) fn update(&mut self, now: Instant, buffer: &mut Vec<u8>) {
        if self.rest.lasts(now) {
            return;
        }
        match self.try_read(buffer) {
            Ok(readings) => {
                self.limit.reading = readings.map(|(reading, _)| reading);
                self.working_set.reading = readings.map(|(_, set)| set).filter(|_| self.is_pod);
                if readings.is_none() {
                    // Most cgroups have no limit; a new one may be noticed a little later.
                    self.rest.begin(now);
                }
            }
            Err(error) => {
                self.files = None;
                (self.limit.reading, self.working_set.reading) = (None, None);
                if error.kind() == io::ErrorKind::NotFound && is_cgroup(&self.dir) {
                    // The root of v2, or memory is not controlled here: no limit, no news.
                    self.rest.begin(now);
                } else {
                    self.rest.after(now, &self.dir, &error);
                }
            }
        }
    }

    fn try_read(&mut self, buffer: &mut Vec<u8>) -> io::Result<Option<(Reading, WorkingSet)>> {
        let files = opened(&mut self.files, || Files::open(&self.dir))?;
        let mut limit = None;
        for file in &files.limits {
            let this = parse::limit(read(file, buffer)?).ok_or_else(garbage)?;
            limit = [limit, this].into_iter().flatten().min();
        }
        // The rest is the expensive part: the kernel adds up the counters of all CPUs.
        let limit = match (limit, files.version) {
            (Some(limit), _) => limit,
            // It may have an ancestor with a limit that is not visible here; the statistics show it.
            (None, Version::V1) => u64::MAX,
            (None, Version::V2) => return Ok(None),
        };
        let stat = parse::stat(read(&files.stat, buffer)?, files.version).ok_or_else(garbage)?;
        let usage = parse::number(read(&files.usage, buffer)?).ok_or_else(garbage)?;
        let reading = Reading::of_cgroup(limit, usage, stat);
        let set = WorkingSet::of_cgroup(reading.limit, usage, stat);
        Ok((reading.limit < u64::MAX).then_some((reading, set)))
    }
}

impl Files {
    fn open(dir: &Path) -> io::Result<Self> {
        let open = |name: &str| File::open(dir.join(name));
        match open("memory.max") {
            Ok(max) => Ok(Self {
                version: Version::V2,
                limits: vec![max, open("memory.high")?],
                usage: open("memory.current")?,
                stat: open("memory.stat")?,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self {
                version: Version::V1,
                limits: vec![open("memory.limit_in_bytes")?],
                usage: open("memory.usage_in_bytes")?,
                stat: open("memory.stat")?,
            }),
            Err(error) => Err(error),
        }
    }
}

/// The pressure of the followed cgroup, or of the host where that has none.
#[derive(Debug)]
pub(super) struct PressureFile {
    candidates: Vec<PathBuf>,
    file: Option<File>,
    rest: Backoff,
    gauge: Gauge,
}

impl PressureFile {
    pub(super) fn new(proc: &Path) -> Self {
        Self {
            candidates: vec![proc.join("pressure/memory")],
            file: None,
            rest: Backoff::default(),
            gauge: Gauge::default(),
        }
    }

    /// Prefers the pressure of this cgroup of v2 from now on.
    pub(super) fn follow(&mut self, dir: Option<&Path>) {
        let host = self.candidates.last().cloned();
        let candidates: Vec<_> = dir
            .map(|dir| dir.join("memory.pressure"))
            .into_iter()
            .chain(host)
            .collect();
        if candidates != self.candidates {
            (self.file, self.rest.until) = (None, None);
        }
        self.candidates = candidates;
    }

    pub(super) fn update(&mut self, now: Instant, buffer: &mut Vec<u8>) {
        if self.file.is_some() && !self.gauge.due(now) {
            return;
        }
        if let Some(file) = &self.file {
            if let Some(psi) = read(file, buffer).ok().and_then(parse::psi) {
                self.gauge.update(now, psi);
                return;
            }
            (self.file, self.rest.until) = (None, None);
        }
        // Old kernels, and those booted with psi=0, have no such file; that is common and not logged.
        if self.rest.lasts(now) {
            return;
        }
        self.rest.begin(now);
        for path in &self.candidates {
            let Ok(file) = File::open(path) else { continue };
            if let Some(psi) = read(&file, buffer).ok().and_then(parse::psi) {
                self.gauge.restart();
                self.gauge.update(now, psi);
                self.file = Some(file);
                return;
            }
        }
    }

    pub(super) fn judge(&mut self, percent: u8) -> Option<Pressure> {
        self.file.is_some().then(|| self.gauge.judge(percent))
    }
}
