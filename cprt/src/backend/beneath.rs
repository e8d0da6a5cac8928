//! A FUSE mount whose files the kernel reads from below: the lower directory is observed.
//!
//! Files read through the mount are in the page cache of the lower files, so events come from there and
//! verbs go there; FUSE itself reports only that the mount is gone.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ppc::{Entry, Event, Features, FileId, FileInfo, Kinds};

use super::fuse::Passthrough;
use super::{Backend, Evicted, Fault, Flow, How, Loaded, Observe, Span};
use crate::{Error, Result};

/// A limit besides those of `observe`.
const LIMIT: &str = "if the worker is killed, open files stay readable, and no file can be opened until the directory \
     is mounted again";

/// What it cannot do besides the limits of `observe`, a sentence each.
pub(crate) fn limits() -> impl Iterator<Item = &'static str> {
    [super::fuse::NOT_OF_FUSE, TIMES, LIMIT].into_iter()
}

/// The kernel opens files that it passes through once more, as readers do.
const TIMES: &str = "reads update access times below";

/// A mount, and its lower directory observed.
#[derive(Debug)]
pub(crate) struct Beneath {
    passthrough: Arc<Passthrough>,
    observe: Arc<Observe>,
    ended: Arc<AtomicBool>,
    /// Its path in `/proc/self/fd` leads to the lower directory, even below the mount.
    _root: OwnedFd,
}

impl Beneath {
    pub(crate) fn new(passthrough: Passthrough) -> Result<Self> {
        let system = |doing| move |source| Error::System { doing, source };
        let root = passthrough
            .root()
            .map_err(system("Opening the directory below the mount"))?;
        let path = format!("/proc/self/fd/{}", root.as_raw_fd());
        let device = passthrough.mirror().device();
        let beneath = Self {
            passthrough: Arc::new(passthrough),
            observe: Arc::new(Observe::open(Path::new(&path))?.mirrored(device)),
            ended: Arc::default(),
            _root: root,
        };
        beneath
            .follow_the_mount()
            .map_err(system("Starting a thread"))?;
        Ok(beneath)
    }

    /// Starts a thread that wakes the caller of `events` when the mount is gone.
    fn follow_the_mount(&self) -> std::io::Result<()> {
        let (passthrough, observe) = (Arc::clone(&self.passthrough), Arc::clone(&self.observe));
        let ended = Arc::clone(&self.ended);
        // FUSE is to report no events of readers.
        passthrough.want(Kinds::default());
        std::thread::Builder::new()
            .name("mount".into())
            .stack_size(128 << 10)
            .spawn(move || {
                let mut nothing = Vec::new();
                while passthrough.events(&mut nothing) != Flow::Ended {
                    nothing.clear();
                }
                ended.store(true, Relaxed);
                observe.interrupt();
            })
            .map(drop)
    }
}

impl Backend for Beneath {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn features(&self) -> Features {
        self.observe.features()
    }

    fn limits(&self) -> Vec<String> {
        let observed = self.observe.limits().into_iter();
        let limits = limits().map(str::to_owned);
        observed.chain(limits).collect()
    }

    fn want(&self, kinds: Kinds, progress_bytes: u64) -> Result<(), Fault> {
        self.observe.want(kinds, progress_bytes)
    }

    fn events(&self, into: &mut Vec<Event>) -> Result<Flow, Fault> {
        if self.ended.load(Relaxed) {
            return Ok(Flow::Ended);
        }
        let flow = self.observe.events(into)?;
        Ok(if self.ended.load(Relaxed) {
            Flow::Ended
        } else {
            flow
        })
    }

    fn interrupt(&self) {
        self.observe.interrupt();
    }

    fn open(&self, path: &Path) -> Result<FileId, Fault> {
        self.observe.open(path)
    }

    fn close(&self, file: FileId) -> Result<(), Fault> {
        self.observe.close(file)
    }

    fn info(&self, file: FileId) -> Result<FileInfo, Fault> {
        self.observe.info(file)
    }

    fn path(&self, file: FileId) -> Result<PathBuf, Fault> {
        self.observe.path(file)
    }

    fn list(&self, path: &Path, recursive: bool) -> Result<Vec<Entry>, Fault> {
        self.observe.list(path, recursive)
    }

    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        self.observe.read(file, offset, buf)
    }

    fn load(&self, span: Span, how: How) -> Result<Loaded, Fault> {
        self.observe.load(span, how)
    }

    fn stop(&self, cookie: u64) {
        self.observe.stop(cookie);
    }

    fn evict(&self, span: Span, unmapped: bool) -> Result<Evicted, Fault> {
        self.observe.evict(span, unmapped)
    }

    fn resident(&self, span: Span) -> Result<u64, Fault> {
        self.observe.resident(span)
    }

    fn end(&self) {
        self.passthrough.mirror().unmount();
    }

    fn lets_go_late(&self) -> bool {
        self.observe.lets_go_late()
    }
}
