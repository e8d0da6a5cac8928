//! A mount of rfs: its device reports the events and carries out the verbs.
//!
//! The worker is the device's only reader, so its own accesses through the mount make no events. Nothing
//! of the mount is kept open, or a policy would keep it from being unmounted: so the kernel may forget a
//! file that no process has open and number it again. A file that a policy has opened keeps its id for
//! the policy nevertheless (`names.rs`).

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use ppc::{Entry, Event, Features, FileId, FileInfo, Kind, Kinds};
use rfs_uapi::{Batch, Device, ErrorKind, EventFlags, LoadRequest, Mask};

use self::names::Names;
use super::{Backend, Evicted, Fault, Flow, How, Loaded, Span};
use crate::machine::files::{self, Tree};
use crate::{Error, Result, sys};

mod names;

/// How long a worker that is being replaced may take to close the device.
const BUSY: Duration = Duration::from_secs(5);

/// The shortest distance of PROGRESS events that the module accepts.
const MIN_PROGRESS: u64 = 64 << 10;

/// A mount of rfs.
#[derive(Debug)]
pub(crate) struct Module {
    device: Device,
    interrupt: EventFd,
    batch: Mutex<Batch>,
    root: PathBuf,
    names: Mutex<Names>,
    features: Features,
    kinds: rfs_uapi::Kinds,
    charges: bool,
    page: u64,
}

impl Module {
    /// Opens the device of the mount at `root`.
    pub(crate) fn open(root: &Path, number: u32) -> Result<Self> {
        let device = patiently(number)?;
        let hello = device.hello()?;
        let system = |doing| move |source| Error::System { doing, source };
        let interrupt = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(io::Error::from)
            .map_err(system("Making an eventfd"))?;
        let charges = hello.features.contains(rfs_uapi::Features::CHARGE);
        Ok(Self {
            device,
            interrupt,
            batch: Mutex::new(Batch::new()),
            root: root.to_owned(),
            names: Mutex::default(),
            features: features(hello.features, hello.kinds),
            kinds: hello.kinds,
            charges,
            page: sys::page_size(),
        })
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel's number for the file at a path of the mount.
    fn number(&self, path: &Path) -> Result<u64, Fault> {
        let file = Tree::open(&self.root)?.file(path)?;
        Ok(rfs_uapi::FileInfo::of(&file).map_err(fault)?.file.as_raw())
    }

    /// Runs a command on a file; if the kernel has forgotten a file that the policy has opened, once more
    /// with its new number.
    fn with<T>(
        &self,
        file: FileId,
        command: impl Fn(rfs_uapi::FileId) -> rfs_uapi::Result<T>,
    ) -> Result<T, Fault> {
        let now = self.names().now(file.0);
        match command(rfs_uapi::FileId::from_raw(now)).map_err(fault) {
            Err(Fault::Stale) => {}
            done => return done,
        }
        let path = self.names().path(file.0).ok_or(Fault::Stale)?;
        let again = self.number(&path)?;
        self.names().renumber(file.0, again);
        command(rfs_uapi::FileId::from_raw(again)).map_err(fault)
    }

    /// The id by which the policy knows the file of an event.
    fn known(&self, number: u64) -> u64 {
        let mut names = self.names();
        if !names.asks(number) {
            return names.known(number);
        }
        drop(names);
        // Once for each file, and only if the policy has opened some.
        let path = self.device.path(rfs_uapi::FileId::from_raw(number));
        let mut names = self.names();
        if let Ok(path) = path {
            names.seen(number, &relative(&path));
        }
        names.known(number)
    }
}

fn relative(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

/// Opens the device, and waits for an earlier worker that is still ending.
fn patiently(number: u32) -> Result<Device> {
    let since = Instant::now();
    loop {
        match Device::open_number(number) {
            Err(error) if error.kind() == ErrorKind::Busy && since.elapsed() < BUSY => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return Ok(done?),
        }
    }
}

fn features(module: rfs_uapi::Features, kinds: rfs_uapi::Kinds) -> Features {
    use rfs_uapi::{Features as Rfs, Kinds as Events};

    let table = [
        (kinds.contains(Events::OPEN | Events::CLOSE), Features::OPEN),
        (kinds.contains(Events::TOUCH), Features::TOUCH),
        (kinds.contains(Events::PROGRESS), Features::PROGRESS),
        (module.contains(Rfs::EVICT_MAPPED), Features::EVICT_MAPPED),
        (module.contains(Rfs::CHARGE), Features::CHARGE),
    ];
    table
        .into_iter()
        .filter_map(|(has, feature)| has.then_some(feature))
        .fold(Features::AFFINITY, Features::union)
}

fn event(event: &rfs_uapi::Event) -> Option<Event> {
    Some(Event {
        kind: match event.kind {
            rfs_uapi::Kind::Lost => Kind::Lost,
            rfs_uapi::Kind::Open => Kind::Open,
            rfs_uapi::Kind::Close => Kind::Close,
            rfs_uapi::Kind::Miss => Kind::Miss,
            rfs_uapi::Kind::Touch => Kind::Touch,
            rfs_uapi::Kind::Progress => Kind::Progress,
            _ => return None,
        },
        file: FileId(event.file.as_raw()),
        offset: event.offset,
        length: event.length,
        time_ns: event.time_ns,
        count: event.count,
        process: event.tgid,
        thread: event.tid,
        cpu: event.cpu,
        mmap: event.flags.contains(EventFlags::MMAP),
        direct: event.flags.contains(EventFlags::DIRECT),
    })
}

fn fault(error: rfs_uapi::Error) -> Fault {
    match error.kind() {
        ErrorKind::Stale => Fault::Stale,
        ErrorKind::NoDevice => Fault::Ended,
        ErrorKind::NoProcess => Fault::NoProcess,
        _ => match error {
            rfs_uapi::Error::Command { source, .. }
                if source.raw_os_error() == Some(libc::EISDIR) =>
            {
                Fault::NoFile
            }
            rfs_uapi::Error::Command { source, .. }
            | rfs_uapi::Error::Open { source, .. }
            | rfs_uapi::Error::Events { source, .. } => Fault::Io(source),
            other => Fault::Io(io::Error::other(other)),
        },
    }
}

impl Backend for Module {
    fn name(&self) -> &'static str {
        "module"
    }

    fn features(&self) -> Features {
        self.features
    }

    fn want(&self, kinds: Kinds, progress_bytes: u64) -> Result<(), Fault> {
        let progress = kinds.contains(Kind::Progress);
        let bits = rfs_uapi::Kinds::from_bits_retain(kinds.bits());
        if !self.kinds.contains(bits) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP).into());
        }
        let mask = Mask::kinds(bits - rfs_uapi::Kinds::PROGRESS);
        let mask = if progress {
            mask.progress(progress_bytes.max(MIN_PROGRESS))
        } else {
            mask
        };
        self.device.set_mask(mask).map_err(fault)
    }

    fn events(&self, into: &mut Vec<Event>) -> Result<Flow, Fault> {
        let mut fds = [
            PollFd::new(self.device.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.interrupt.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => return Ok(Flow::On),
            Err(error) => return Err(Fault::Io(error.into())),
        }
        if fds[1].any().unwrap_or(true) {
            // Clears the interrupt; it does not matter whether it was set.
            let _ = self.interrupt.read();
        }
        let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(events) = self.device.read_batch(&mut batch).map_err(fault)? else {
            return Ok(Flow::Ended);
        };
        for record in events {
            let record = record.map_err(|error| Fault::Io(io::Error::other(error)))?;
            into.extend(event(&record).map(|mut event| {
                event.file.0 = self.known(event.file.0);
                event
            }));
        }
        Ok(Flow::On)
    }

    fn interrupt(&self) {
        // It can only fail if it is set already.
        let _ = self.interrupt.write(1);
    }

    fn open(&self, path: &Path) -> Result<FileId, Fault> {
        let number = self.number(path)?;
        Ok(FileId(self.names().open(number, path)))
    }

    fn close(&self, file: FileId) -> Result<(), Fault> {
        if self.names().close(file.0) {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EBADF).into())
        }
    }

    fn info(&self, file: FileId) -> Result<FileInfo, Fault> {
        let lower = self.with(file, |file| self.device.lower_fd(file, false))?;
        files::info(&File::from(lower))
    }

    fn path(&self, file: FileId) -> Result<PathBuf, Fault> {
        let path = self.with(file, |file| match self.device.path(file) {
            Err(error) if error.kind() == ErrorKind::NoName => Ok(None),
            done => done.map(Some),
        })?;
        let gone = || io::Error::from_raw_os_error(libc::ENOENT).into();
        path.map(|path| relative(&path)).ok_or_else(gone)
    }

    fn list(&self, path: &Path, recursive: bool) -> Result<Vec<Entry>, Fault> {
        Tree::open(&self.root)?.list(path, recursive)
    }

    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        let lower = self.with(file, |file| self.device.lower_fd(file, false))?;
        Ok(File::from(lower).read_at(buf, offset)?)
    }

    fn load(&self, span: Span, how: How) -> Result<Loaded, Fault> {
        let charge = how.charge.filter(|_| self.charges);
        let charge = charge.and_then(|pid| i32::try_from(pid).ok());
        let loaded = self.with(span.file, |file| {
            let mut request = LoadRequest::new(file, span.range())
                .wait()
                .cookie(how.cookie);
            if how.large {
                request = request.large();
            }
            if let Some(pid) = charge {
                request = request.charge(pid);
            }
            self.device.load(request)
        })?;
        Ok(Loaded {
            done: loaded.done,
            fresh: loaded.pages * self.page,
            stopped: loaded.stopped,
        })
    }

    fn stop(&self, cookie: u64) {
        // Only a mount that is gone refuses, and there nothing is in flight.
        let _ = self.device.stop(cookie);
    }

    fn evict(&self, span: Span, unmapped: bool) -> Result<Evicted, Fault> {
        let evicted = self.with(span.file, |file| {
            if unmapped {
                self.device.evict_unmapped(file, span.range())
            } else {
                self.device.evict(file, span.range())
            }
        })?;
        Ok(Evicted {
            dropped: evicted.evicted * self.page,
            kept: evicted.kept * self.page,
        })
    }

    fn resident(&self, span: Span) -> Result<u64, Fault> {
        let residency = self.with(span.file, |file| self.device.resident(file, span.range()))?;
        Ok(residency.cached * self.page)
    }
}
