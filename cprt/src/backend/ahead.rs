//! The files of a container that has no process yet: nothing is read of them, so there are no events; loads go to the
//! layers and volumes where the container will find them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use ppc::{Entry, Event, Features, FileId, FileInfo, Kinds};

use super::pagecache::Engine;
use super::{Backend, Evicted, Fault, Flow, How, Loaded, Span};
use crate::machine::files::{info, of_storage};
use crate::machine::view::{Place, View};
use crate::{Error, Result};

/// The size of a file that was named and not seen yet: the load finds out its length.
const UNKNOWN: u64 = i64::MAX as u64;

/// The files by their paths in the container.
#[derive(Debug)]
pub(crate) struct Ahead {
    view: View,
    engine: Engine,
    interrupt: EventFd,
    names: Mutex<Names>,
}

/// Files that the policy has named. Numbers count up from 1, and stay.
#[derive(Debug, Default)]
struct Names {
    all: Vec<PathBuf>,
    by_path: HashMap<PathBuf, FileId>,
}

impl Ahead {
    /// The places are below this root directory. An error if none of their directories is there.
    pub(crate) fn open(root: &Path, places: &[Place]) -> Result<Self> {
        let system = |doing| move |source| Error::System { doing, source };
        let view = View::open(root, places);
        if view.is_empty() {
            let source = io::ErrorKind::NotFound.into();
            return Err(system("Opening the layers of a container")(source));
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let interrupt = EventFd::from_flags(flags).map_err(io::Error::from);
        Ok(Self {
            view,
            engine: Engine::new().map_err(system("Opening /dev/null"))?,
            interrupt: interrupt.map_err(system("Making an eventfd"))?,
            names: Mutex::default(),
        })
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, file: FileId) -> Result<File, Fault> {
        of_storage(self.view.file(&self.path(file)?)?)
    }
}

impl Backend for Ahead {
    fn name(&self) -> &'static str {
        "ahead"
    }

    fn features(&self) -> Features {
        Features::AFFINITY
    }

    fn limits(&self) -> Vec<String> {
        vec!["there is no reader yet, so nothing is reported".to_owned()]
    }

    fn want(&self, _: Kinds, _: u64) -> Result<(), Fault> {
        Ok(())
    }

    fn events(&self, _: &mut Vec<Event>) -> Result<Flow, Fault> {
        let mut fds = [PollFd::new(self.interrupt.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        // Clears the interrupt; it does not matter whether it was set.
        let _ = self.interrupt.read();
        Ok(Flow::On)
    }

    fn interrupt(&self) {
        // It can only fail as it is set already.
        let _ = self.interrupt.write(1);
    }

    fn open(&self, path: &Path) -> Result<FileId, Fault> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let mut names = self.names();
        if let Some(&file) = names.by_path.get(path) {
            return Ok(file);
        }
        names.all.push(path.to_owned());
        let file = FileId(names.all.len() as u64);
        names.by_path.insert(path.to_owned(), file);
        Ok(file)
    }

    fn close(&self, file: FileId) -> Result<(), Fault> {
        // It keeps its number: a start has thousands, and ends.
        self.path(file).map(drop)
    }

    fn info(&self, file: FileId) -> Result<FileInfo, Fault> {
        info(&self.file(file)?)
    }

    fn size(&self, file: FileId) -> Result<u64, Fault> {
        // It may be cold: the load finds out.
        self.path(file).map(|_| UNKNOWN)
    }

    fn path(&self, file: FileId) -> Result<PathBuf, Fault> {
        let at = usize::try_from(file.0)
            .ok()
            .and_then(|it| it.checked_sub(1));
        let names = self.names();
        let path = at.and_then(|at| names.all.get(at));
        path.cloned().ok_or(Fault::Stale)
    }

    fn list(&self, _: &Path, _: bool) -> Result<Vec<Entry>, Fault> {
        // A replay lists nothing.
        Ok(Vec::new())
    }

    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        Ok(self.file(file)?.read_at(buf, offset)?)
    }

    fn load(&self, span: Span, how: How) -> Result<Loaded, Fault> {
        self.engine.load(&self.file(span.file)?, &span.range(), how)
    }

    fn stop(&self, cookie: u64) {
        self.engine.stop(cookie);
    }

    fn evict(&self, span: Span, unmapped: bool) -> Result<Evicted, Fault> {
        self.engine
            .evict(&self.file(span.file)?, &span.range(), unmapped)
    }

    fn resident(&self, span: Span) -> Result<u64, Fault> {
        self.engine.resident(&self.file(span.file)?, &span.range())
    }
}

#[cfg(test)]
mod tests {
    use test_support::{Folder, drop_cached};

    use super::*;

    #[test]
    fn a_file_is_loaded_where_the_container_will_find_it() {
        // A temporary folder may be in memory.
        let here = std::env::current_exe().expect("a path");
        let folder = Folder::within(here.parent().expect("a folder"), "ahead");
        let file = folder.write("layer/usr/lib/a.so", vec![7; 1 << 20]);
        drop_cached(&file).expect("to drop it");
        let layers = vec![folder.path().join("layer")];
        let at = "/".into();
        let root = Path::new("/");
        let ahead = Ahead::open(root, &[Place { at, layers }]).expect("a layer");
        let id = ahead.open(Path::new("usr/lib/a.so")).expect("a number");
        assert_eq!(ahead.open(Path::new("/usr/lib/a.so")).ok(), Some(id));
        let span = Span {
            file: id,
            offset: 0,
            length: 1 << 20,
        };
        let loaded = ahead.load(span, How::default()).expect("a load");
        assert_eq!(loaded.done, 1 << 20);
        assert_eq!(ahead.info(id).expect("it is there").size, 1 << 20);
        let other = ahead.open(Path::new("usr/lib/b.so")).expect("a number");
        let gone = Span {
            file: other,
            ..span
        };
        assert!(matches!(
            ahead.load(gone, How::default()),
            Err(Fault::Stale)
        ));
        assert!(matches!(ahead.path(FileId(0)), Err(Fault::Stale)));
        ahead.interrupt();
        assert_eq!(ahead.events(&mut Vec::new()).ok(), Some(Flow::On));
        assert!(Ahead::open(root, &[]).is_err());
    }
}
