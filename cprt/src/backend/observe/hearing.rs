//! The thread that receives: takes records from the sources, finds their files, and makes events of them.

use std::io;
use std::time::Instant;

use ppc::{Event, FileId, Kind, Kinds};

use super::look::Looks;
use super::opens::Opened;
use super::readers::Readers;
use super::record::Raw;
use super::{Observe, SCAN_AGAIN};
use crate::backend::{Fault, Flow};
use crate::machine::files::Tree;
use crate::sys;

/// What the thread keeps between two calls.
#[derive(Debug)]
pub(super) struct Hearing {
    kinds: Kinds,
    readers: Readers,
    looks: Looks,
    /// Whether the kernel reports only pages that come in.
    partly: bool,
    page: u64,
    /// This process; of its own loads, only the large folios are noted.
    own: u32,
    raws: Vec<Raw>,
    opened: Vec<Opened>,
    /// When to scan the directory, if it has changed.
    scan_at: Option<Instant>,
    scanned: Instant,
}

impl Hearing {
    pub(super) fn new(partly: bool) -> Self {
        Self {
            kinds: Kinds::default(),
            readers: Readers::new(partly, maps_whole_folios()),
            looks: Looks::default(),
            partly,
            page: sys::page_size(),
            own: std::process::id(),
            raws: Vec::new(),
            opened: Vec::new(),
            scan_at: None,
            scanned: Instant::now(),
        }
    }

    pub(super) fn mirrored(&mut self, device: u64) {
        self.looks.mirrored(device);
    }

    /// Whether loads may bring in the largest folios.
    pub(super) fn allow_folios(&self) -> bool {
        self.readers.allow_folios()
    }

    pub(super) fn want(&mut self, kinds: Kinds, progress_bytes: u64) {
        self.kinds = kinds;
        self.readers.want(kinds, progress_bytes);
        if !self.readers.looks() {
            self.looks.end();
        }
    }

    /// When to run without being woken.
    pub(super) fn due(&self) -> Option<Instant> {
        match (self.scan_at, self.looks.due()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether a scan of the directory is due.
    #[cfg(test)]
    pub(super) fn scans(&self) -> bool {
        self.scan_at.is_some()
    }

    /// Takes all present records and turns them into events.
    pub(super) fn hear(&mut self, from: &Observe, into: &mut Vec<Event>) -> Result<Flow, Fault> {
        let changed = from.changes.take();
        if changed.unmounted {
            return Ok(Flow::Ended);
        }
        let now = Instant::now();
        if changed.files {
            self.scan_at
                .get_or_insert(now.max(self.scanned + SCAN_AGAIN));
        }
        if self.scan_at.is_some_and(|at| at <= now) && self.scan(from)? == Flow::Ended {
            return Ok(Flow::Ended);
        }
        self.hear_opens(from, into)?;
        let lost = from.source.take(&mut self.raws);
        if lost > 0 || self.raws.iter().any(|raw| raw.process != self.own) {
            from.wake()?;
        }
        from.rest()?;
        self.hear_raws(from, now, into);
        tell_lost(lost, into);
        let readers = &mut self.readers;
        let time = sys::monotonic_ns();
        self.looks.look(now, |process, file, found| {
            if let Some(found) = found {
                return readers.looked(process, file, found, time, into);
            }
            readers.unmapped(process, file);
            false
        });
        from.engine.allow_folios(self.allow_folios());
        Ok(Flow::On)
    }

    fn scan(&mut self, from: &Observe) -> Result<Flow, Fault> {
        self.scan_at = None;
        self.scanned = Instant::now();
        match from.scan() {
            Ok(()) => Ok(Flow::On),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Flow::Ended),
            Err(error) => Err(error.into()),
        }
    }

    fn hear_opens(&mut self, from: &Observe, into: &mut Vec<Event>) -> Result<(), Fault> {
        let Some(opens) = &from.opens else {
            return Ok(());
        };
        let mut opened = std::mem::take(&mut self.opened);
        let lost = opens.take(&mut opened);
        if lost > 0 || opened.iter().any(|one| one.kind == Kind::Open) {
            from.wake()?;
        }
        tell_lost(lost, into);
        let time_ns = sys::monotonic_ns();
        for one in opened.drain(..) {
            if !self.kinds.contains(one.kind) {
                continue;
            }
            let mut file = from.table().of_identity(one.file);
            // The file is new, perhaps so new that it was made after the changes were taken.
            if file.is_none() && (self.scan_at.is_some() || from.changes.take().files) {
                self.scan(from)?;
                file = from.table().of_identity(one.file);
            }
            let Some(file) = file else {
                continue;
            };
            let mut event = Event::new(one.kind, FileId(file), 0, one.size).by(one.process);
            event.time_ns = time_ns;
            into.push(event);
        }
        self.opened = opened;
        Ok(())
    }

    fn hear_raws(&mut self, from: &Observe, now: Instant, into: &mut Vec<Event>) {
        let mut table = from.table();
        for raw in self.raws.drain(..) {
            let Some((file, mut size)) = table.of_key(raw.key) else {
                continue;
            };
            if raw.first.saturating_mul(self.page) >= size
                && let Some(known) = table.get(file)
                // It has grown.
                && let Ok(found) = Tree::open(&from.root).map_err(Fault::from)
                    .and_then(|tree| tree.file(&known.path))
                && let Ok(metadata) = found.metadata()
            {
                size = metadata.len();
                table.resize(file, size);
            }
            let id = FileId(file);
            if raw.process == self.own {
                self.readers.loaded(&raw, id, self.page);
                continue;
            }
            if self.readers.looks()
                && (raw.point.maps() || self.partly)
                && let Some(known) = table.get(file)
            {
                self.looks.reads(raw.process, id, known.identity, now);
            }
            self.readers.hear(&raw, (id, size), self.page, into);
        }
    }
}

/// Whether this kernel maps folios of any size with one fault, as Linux does from 6.18 on.
pub(super) fn maps_whole_folios() -> bool {
    sys::kernel_release().is_some_and(|release| release >= (6, 18))
}

pub(super) fn tell_lost(count: u64, into: &mut Vec<Event>) {
    if count == 0 {
        return;
    }
    let mut lost = Event::new(Kind::Lost, FileId(0), 0, 0).by(0);
    (lost.count, lost.time_ns) = (count, sys::monotonic_ns());
    into.push(lost);
}
