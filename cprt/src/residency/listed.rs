//! A list of files as a backend without events: what a loader needs to load them.

use std::fs::File;
use std::path::{Path, PathBuf};

use ppc::{Entry, Event, Features, FileId, FileInfo, Kinds};

use super::CacheFile;
use super::release::cached;
use crate::backend::pagecache::Engine;
use crate::backend::{Backend, Evicted, Fault, Flow, How, Loaded, Span};
use crate::machine::files;
use crate::machine::ranges::Ranges;
use crate::sys::page_size;

/// The files, whose ids are their places in the list, counted from 1.
#[derive(Debug)]
pub(super) struct Listed {
    engine: Engine,
    files: Vec<CacheFile>,
}

impl Listed {
    pub(super) const fn new(engine: Engine, files: Vec<CacheFile>) -> Self {
        Self { engine, files }
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) const fn id(place: usize) -> FileId {
        FileId(place as u64 + 1)
    }

    fn file(&self, id: FileId) -> Result<&CacheFile, Fault> {
        let place = id.0.checked_sub(1).and_then(|it| usize::try_from(it).ok());
        place
            .and_then(|place| self.files.get(place))
            .ok_or(Fault::Stale)
    }

    /// The cached parts of a range.
    pub(super) fn cached(&self, span: Span) -> Result<Ranges, Fault> {
        let file = self.open(span.file)?;
        let end = span.range().end.min(file.metadata()?.len());
        Ok(cached(&file, &(span.offset.min(end)..end), page_size())?)
    }

    /// Opened for each load, because the kernel keeps the state of readahead in the open file.
    fn open(&self, id: FileId) -> Result<File, Fault> {
        Ok(self.file(id)?.open()?)
    }
}

impl Backend for Listed {
    fn name(&self) -> &'static str {
        "files"
    }

    fn features(&self) -> Features {
        Features::default()
    }

    fn want(&self, _: Kinds, _: u64) -> Result<(), Fault> {
        Ok(())
    }

    /// No file of a list reports anything.
    fn events(&self, _: &mut Vec<Event>) -> Result<Flow, Fault> {
        Ok(Flow::Ended)
    }

    fn interrupt(&self) {}

    fn open(&self, path: &Path) -> Result<FileId, Fault> {
        let place = self.files.iter().position(|file| file.path == path);
        place.map(Self::id).ok_or(Fault::Stale)
    }

    fn close(&self, _: FileId) -> Result<(), Fault> {
        Ok(())
    }

    fn info(&self, file: FileId) -> Result<FileInfo, Fault> {
        files::info(&self.open(file)?)
    }

    fn path(&self, file: FileId) -> Result<PathBuf, Fault> {
        Ok(self.file(file)?.path.clone())
    }

    fn list(&self, _: &Path, _: bool) -> Result<Vec<Entry>, Fault> {
        let entries = self.files.iter().map(|file| Entry {
            path: file.path.clone(),
            size: Some(file.size),
        });
        Ok(entries.collect())
    }

    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize, Fault> {
        let file = self.open(file)?;
        Ok(std::os::unix::fs::FileExt::read_at(&file, buf, offset)?)
    }

    fn load(&self, span: Span, how: How) -> Result<Loaded, Fault> {
        self.engine.load(&self.open(span.file)?, &span.range(), how)
    }

    fn stop(&self, cookie: u64) {
        self.engine.stop(cookie);
    }

    fn evict(&self, span: Span, unmapped: bool) -> Result<Evicted, Fault> {
        self.engine
            .evict(&self.open(span.file)?, &span.range(), unmapped)
    }

    fn resident(&self, span: Span) -> Result<u64, Fault> {
        self.engine.resident(&self.open(span.file)?, &span.range())
    }
}
