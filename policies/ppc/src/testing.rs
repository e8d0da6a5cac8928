//! A host that only records, for testing a policy without a daemon.
//!
//! It runs the policy through the whole contract, C and back, and shows the test what the policy
//! logged and asked for. The crate's first page has an example.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::host::{Instance, Services, Table};
use crate::{
    Callbacks, Entry, Error, Features, FileId, FileInfo, Io, Kind, Kinds, Level, LoadError, Memory,
    Report, Result, Xpu,
};

#[derive(Debug, Default)]
struct State {
    features: Features,
    /// In the order of their ids, which begin with 1.
    files: Vec<Fake>,
    /// The targets of links.
    links: BTreeMap<PathBuf, PathBuf>,
    /// Its folders may be entered, but not read.
    unlisted: bool,
    memory: Memory,
    processes: BTreeMap<u32, Xpu>,
    now: u64,
    logs: Vec<(Level, String)>,
    wanted: Option<(Kinds, u64)>,
    wakes: Vec<Duration>,
    reports: Vec<Report>,
}

#[derive(Debug, Default)]
struct Fake {
    path: PathBuf,
    info: FileInfo,
    contents: Vec<u8>,
    cached: Vec<Range<u64>>,
    opened: usize,
}

/// A host of files that exist by name only. Clones are the same host.
#[derive(Clone, Debug)]
pub struct FakeHost(Arc<Mutex<State>>);

impl Default for FakeHost {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeHost {
    /// A host with all features, one node, 1 GiB of unused memory and no files.
    #[must_use]
    pub fn new() -> Self {
        const GIB: u64 = 1 << 30;
        Self(Arc::new(Mutex::new(State {
            features: Features(0x3f),
            memory: Memory {
                limit: GIB,
                used: 0,
                threshold: GIB / 5 * 4,
                available: GIB / 5 * 4,
                group: 0,
            },
            ..State::default()
        })))
    }

    /// Adds a file of this size in bytes.
    #[must_use]
    pub fn file(self, path: &str, size: u64) -> Self {
        self.add(path, size, &[])
    }

    /// Adds a file with these bytes.
    #[must_use]
    pub fn contents(self, path: &str, bytes: &[u8]) -> Self {
        self.add(path, bytes.len() as u64, bytes)
    }

    /// Adds a link at `path` to the file at `target`: events and [`Services::path`] name the target.
    #[must_use]
    pub fn link(self, path: &str, target: &str) -> Self {
        self.state().links.insert(path.into(), target.into());
        self
    }

    /// Has nothing listed, as in folders that may be entered but not read.
    #[must_use]
    pub fn unlisted(self) -> Self {
        self.state().unlisted = true;
        self
    }

    /// Restricts the host to these features.
    #[must_use]
    pub fn features(self, features: Features) -> Self {
        self.state().features = features;
        self
    }

    /// Sets the state of memory; may be called while a policy runs.
    pub fn set_memory(&self, memory: Memory) {
        self.state().memory = memory;
    }

    /// Sets the accelerator that a process works on.
    pub fn set_process(&self, process: u32, xpu: Xpu) {
        self.state().processes.insert(process, xpu);
    }

    /// Puts a range into the cache.
    ///
    /// # Panics
    ///
    /// There is no such file.
    pub fn set_cached(&self, file: FileId, range: Range<u64>) {
        self.with(file, |fake| fake.cached.push(range))
            .expect("a file of this host");
    }

    /// Lets time pass.
    ///
    /// # Panics
    ///
    /// The time exceeds 500 years.
    pub fn advance(&self, by: Duration) {
        self.state().now += u64::try_from(by.as_nanos()).expect("less than 500 years");
    }

    /// The id of a file.
    ///
    /// # Panics
    ///
    /// There is no such file.
    #[must_use]
    pub fn id(&self, path: &str) -> FileId {
        self.find(Path::new(path)).expect("a file of this host")
    }

    /// Starts a policy; also returns the I/Os that its `init` names.
    ///
    /// # Errors
    ///
    /// It is refused.
    pub fn start<P: Callbacks>(
        &self,
        settings: &[(&str, &str)],
    ) -> Result<(Instance, Vec<Io>), LoadError> {
        self.start_table(Table::of::<P>()?, settings)
    }

    /// The same with the table of a policy.
    ///
    /// # Errors
    ///
    /// It is refused.
    pub fn start_table(
        &self,
        table: Table,
        settings: &[(&str, &str)],
    ) -> Result<(Instance, Vec<Io>), LoadError> {
        Instance::start(table, Arc::new(self.clone()), settings)
    }

    /// What the policy has logged since the last call.
    #[must_use]
    pub fn logs(&self) -> Vec<(Level, String)> {
        std::mem::take(&mut self.state().logs)
    }

    /// The kinds of events it last wanted, and the bytes from one PROGRESS to the next.
    #[must_use]
    pub fn wanted(&self) -> (Kinds, u64) {
        self.state().wanted.unwrap_or((Kind::Miss.into(), 0))
    }

    /// The wake-ups it has asked for since the last call.
    #[must_use]
    pub fn wakes(&self) -> Vec<Duration> {
        std::mem::take(&mut self.state().wakes)
    }

    /// What it has reported of its loads since the last call.
    #[must_use]
    pub fn reports(&self) -> Vec<Report> {
        std::mem::take(&mut self.state().reports)
    }

    /// How many files it holds open, each counted as often as it is open.
    #[must_use]
    pub fn opened(&self) -> usize {
        self.state().files.iter().map(|fake| fake.opened).sum()
    }

    fn add(self, path: &str, size: u64, contents: &[u8]) -> Self {
        let mut state = self.state();
        let inode = state.files.len() as u64 + 100;
        state.files.push(Fake {
            path: path.into(),
            info: FileInfo {
                size,
                device: 1,
                inode,
                mtime_ns: 1,
            },
            contents: contents.to_vec(),
            ..Fake::default()
        });
        drop(state);
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that failed elsewhere is no reason to hide its message.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, path: &Path) -> Result<FileId> {
        let state = self.state();
        let path = state.links.get(path).map_or(path, PathBuf::as_path);
        let found = state.files.iter().position(|fake| fake.path == path);
        found
            .map(|at| FileId(at as u64 + 1))
            .ok_or(Error::Errno(libc::ENOENT))
    }

    fn with<T>(&self, file: FileId, look: impl FnOnce(&mut Fake) -> T) -> Result<T> {
        let at = usize::try_from(file.0)
            .ok()
            .and_then(|id| id.checked_sub(1));
        let mut state = self.state();
        let fake = at.and_then(|at| state.files.get_mut(at));
        fake.map(look).ok_or(Error::Errno(libc::ESTALE))
    }
}

impl Services for FakeHost {
    fn features(&self) -> Features {
        self.state().features
    }

    fn deadline(&self) -> Option<Duration> {
        None
    }

    fn log(&self, level: u32, message: &str) {
        let level = match level {
            1 => Level::Error,
            2 => Level::Warn,
            3 => Level::Info,
            _ => Level::Debug,
        };
        self.state().logs.push((level, message.to_owned()));
    }

    fn open(&self, path: &Path) -> Result<FileId> {
        let file = self.find(path)?;
        self.with(file, |fake| fake.opened += 1).map(|()| file)
    }

    fn close(&self, file: FileId) -> Result<()> {
        let left = self.with(file, |fake| {
            fake.opened.checked_sub(1).map(|left| fake.opened = left)
        });
        left?.ok_or(Error::Errno(libc::EBADF))
    }

    fn info(&self, file: FileId) -> Result<FileInfo> {
        self.with(file, |fake| fake.info)
    }

    fn path(&self, file: FileId) -> Result<PathBuf> {
        self.with(file, |fake| fake.path.clone())
    }

    fn list(&self, path: &Path, recursive: bool) -> Result<Vec<Entry>> {
        let state = self.state();
        if state.unlisted {
            return Err(Error::Errno(libc::EACCES));
        }
        let mut entries = BTreeMap::new();
        let sized = |target: &Path| state.files.iter().find(|fake| fake.path == target);
        let links = state.links.iter().filter_map(|(path, target)| {
            let size = sized(target)?.info.size;
            Some((path.as_path(), size))
        });
        let files = state.files.iter();
        let files = files.map(|fake| (fake.path.as_path(), fake.info.size));
        for (file, size) in files.chain(links) {
            let Ok(below) = file.strip_prefix(path) else {
                continue;
            };
            let depth = below.components().count();
            for (up, ancestor) in file.ancestors().take(depth).enumerate() {
                if recursive || up + 1 == depth {
                    let size = (up == 0).then_some(size);
                    entries.insert(ancestor.to_owned(), size);
                }
            }
        }
        if entries.is_empty() && !path.as_os_str().is_empty() {
            return Err(Error::Errno(libc::ENOENT));
        }
        Ok(entries
            .into_iter()
            .map(|(path, size)| Entry { path, size })
            .collect())
    }

    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.with(file, |fake| {
            let from = usize::try_from(offset)
                .unwrap_or(usize::MAX)
                .min(fake.contents.len());
            let bytes = buf.len().min(fake.contents.len() - from);
            buf[..bytes].copy_from_slice(&fake.contents[from..from + bytes]);
            bytes
        })
    }

    fn resident(&self, file: FileId, offset: u64, length: u64) -> Result<u64> {
        let end = offset.saturating_add(length);
        let overlap =
            |range: &Range<u64>| range.end.min(end).saturating_sub(range.start.max(offset));
        self.with(file, |fake| fake.cached.iter().map(overlap).sum())
    }

    fn memory(&self) -> Result<Memory> {
        Ok(self.state().memory)
    }

    fn process_xpu(&self, process: u32) -> Result<Xpu> {
        let xpu = self.state().processes.get(&process).copied();
        xpu.ok_or(Error::Errno(libc::ENOENT))
    }

    fn now(&self) -> u64 {
        self.state().now
    }

    fn want(&self, kinds: Kinds, progress_bytes: u64) -> Result<()> {
        let mut state = self.state();
        let needed = [
            (Kind::Open, Features::OPEN),
            (Kind::Close, Features::OPEN),
            (Kind::Touch, Features::TOUCH),
            (Kind::Progress, Features::PROGRESS),
        ];
        let lacks = |&(kind, feature)| kinds.contains(kind) && !state.features.contain(feature);
        if kinds.at_once().bits() >> 6 != 0 || needed.iter().any(lacks) {
            return Err(Error::Errno(libc::EOPNOTSUPP));
        }
        state.wanted = Some((kinds, progress_bytes));
        Ok(())
    }

    fn wake(&self, after: Duration) -> Result<()> {
        self.state().wakes.push(after);
        Ok(())
    }

    fn report(&self, report: &Report) -> Result<()> {
        self.state().reports.push(report.clone());
        Ok(())
    }
}
