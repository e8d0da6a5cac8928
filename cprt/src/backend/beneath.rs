//! A FUSE mount whose files the kernel reads from below: the lower directory is observed.
//!
//! Files read through the mount are in the page cache of the lower files, so events come from there and
//! verbs go there. FUSE itself reports that the mount is gone, and opens that go around the page cache: below, these
//! look like any other, and the reader may not have its descriptor yet.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ppc::{Entry, Event, Features, FileId, FileInfo, Kind, Kinds};

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
const TIMES: &str = "reads update access times of the lower file system";

/// A mount, and its lower directory observed.
#[derive(Debug)]
pub(crate) struct Beneath {
    passthrough: Arc<Passthrough>,
    observe: Arc<Observe>,
    ended: Arc<AtomicBool>,
    /// Opens that go around the page cache, as events of lower files.
    direct: Arc<Mutex<Vec<Event>>>,
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
            direct: Arc::default(),
            _root: root,
        };
        beneath
            .follow_the_mount()
            .map_err(system("Starting a thread"))?;
        Ok(beneath)
    }

    /// Starts a thread that wakes the caller of `events` for direct opens, and when the mount is gone.
    fn follow_the_mount(&self) -> std::io::Result<()> {
        let (passthrough, observe) = (Arc::clone(&self.passthrough), Arc::clone(&self.observe));
        let (ended, direct) = (Arc::clone(&self.ended), Arc::clone(&self.direct));
        // FUSE reports no readers until the policy wants opens.
        passthrough.want(Kinds::default());
        std::thread::Builder::new()
            .name("mount".into())
            .stack_size(128 << 10)
            .spawn(move || {
                let mut opened = Vec::new();
                while passthrough.events(&mut opened) != Flow::Ended {
                    let below = |event| lowered(&passthrough, &observe, event);
                    let mut new: Vec<_> = opened.iter().filter_map(below).collect();
                    opened.clear();
                    if !new.is_empty() {
                        lock(&direct).append(&mut new);
                        observe.interrupt();
                    }
                }
                ended.store(true, Relaxed);
                observe.interrupt();
            })
            .map(drop)
    }
}

/// A direct open of a file of the mount, as one of the file below.
fn lowered(passthrough: &Passthrough, observe: &Observe, event: &Event) -> Option<Event> {
    if event.kind != Kind::Open || !event.direct {
        return None;
    }
    let file = observe.number(passthrough.identity(event.file)?)?;
    Some(Event {
        file,
        ..event.clone()
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn rests_until_open(&self, rests: bool) {
        self.observe.rests_until_open(rests);
    }

    fn want(&self, kinds: Kinds, progress_bytes: u64) -> Result<(), Fault> {
        let opens = kinds.contains(Kind::Open).then_some(Kind::Open);
        self.passthrough.want(opens.into_iter().collect());
        self.observe.want(kinds, progress_bytes)
    }

    fn events(&self, into: &mut Vec<Event>) -> Result<Flow, Fault> {
        if self.ended.load(Relaxed) {
            return Ok(Flow::Ended);
        }
        let flow = self.observe.events(into)?;
        into.append(&mut lock(&self.direct));
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

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::backend::fuse::mirror::MirrorOptions;
    use crate::backend::fuse::mirror::tests::{Ground, can_mount, plain};
    use crate::backend::fuse::{Mounted, mount};
    use crate::sys::testing::skip;

    #[test]
    fn test_opens_with_o_direct_are_marked_direct() {
        if !can_mount() {
            return;
        }
        let ground = Ground::new();
        ground.file("a", 1 << 20);
        let options = MirrorOptions {
            passthrough: true,
            ..plain()
        };
        let mounted = mount(&ground.lower, &ground.at, &options).expect("to mount");
        let Mounted::Passthrough(passthrough) = mounted else {
            return skip("this kernel has no passthrough");
        };
        let beneath = Beneath::new(passthrough).expect("to observe");
        beneath.want(Kind::Open.into(), 0).expect("events");
        let file = beneath.open(Path::new("a")).expect("its id");
        let read = |flags: &str| {
            let from = format!("if={}", ground.at.join("a").display());
            let mut dd = Command::new("dd");
            dd.args([&from, "of=/dev/null", "bs=64K", "status=none"]);
            let mut child = dd.args(flags.split_whitespace()).spawn().expect("dd");
            assert!(child.wait().expect("its end").success());
            child.id()
        };
        let (cached, direct) = (read(""), read("iflag=direct"));
        let mut events = Vec::new();
        let is_direct = |event: &&Event| event.direct;
        let since = Instant::now();
        while !events.iter().any(|event: &Event| event.direct) {
            assert!(since.elapsed() < Duration::from_secs(20), "{events:?}");
            beneath.interrupt();
            beneath.events(&mut events).expect("events");
        }
        let of: Vec<_> = events.iter().filter(is_direct).collect();
        assert_eq!(of.len(), 1, "{events:?}");
        assert_eq!(
            (of[0].kind, of[0].file, of[0].process),
            (Kind::Open, file, direct)
        );
        assert!(events.iter().any(|event| event.process == cached));
        beneath.end();
    }
}
