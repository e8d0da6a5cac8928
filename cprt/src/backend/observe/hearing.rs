//! The thread that receives: takes records from the sources, finds their files, and makes events of them.

use std::collections::HashSet;
use std::io;
use std::time::Instant;

use ppc::{Event, FileId, Kind, Kinds};

use super::faults::{FaultSource, PageFault};
use super::look::Looks;
use super::opens::Opened;
use super::readers::Readers;
use super::record::{Key, Point, Raw};
use super::table::FileTable;
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
    faults: FaultSource,
    /// Whether the kernel reports only pages that come in.
    partly: bool,
    page: u64,
    /// This process; of its own loads, only the large folios are noted.
    own: u32,
    raws: Vec<Raw>,
    faulted: Vec<PageFault>,
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
            faults: FaultSource::default(),
            partly,
            page: sys::page_size(),
            own: std::process::id(),
            raws: Vec::new(),
            faulted: Vec::new(),
            opened: Vec::new(),
            scan_at: None,
            scanned: Instant::now(),
        }
    }

    pub(super) fn mirrored(&mut self, device: u64) {
        self.looks.mirrored(device);
    }

    /// Whether loads may bring in the largest folios.
    fn allow_folios(&mut self) -> bool {
        self.readers.allow_folios(self.faults.get().is_some())
    }

    pub(super) fn want(&mut self, kinds: Kinds, progress_bytes: u64) {
        self.kinds = kinds;
        self.readers.want(kinds, progress_bytes);
        // Older kernels have no TOUCH, and warn of such programs.
        if self.kinds.contains(Kind::Touch) && !self.partly {
            self.faults.ask();
        }
        if !self.readers.looks() {
            self.looks.end();
        }
    }

    /// When to run without being woken.
    pub(super) fn due(&self) -> Option<Instant> {
        let faults = match &self.faults {
            FaultSource::Open(faults) => faults.due(),
            _ => None,
        };
        let dues = [self.scan_at, self.looks.due(), faults];
        dues.into_iter().flatten().min()
    }

    /// Whether a scan of the directory is due.
    #[cfg(test)]
    pub(super) fn scans(&self) -> bool {
        self.scan_at.is_some()
    }

    /// Whether page faults are reported, once that is known.
    #[cfg(test)]
    pub(super) fn reports_faults(&mut self) -> bool {
        while matches!(self.faults, FaultSource::Opening(_)) && self.faults.get().is_none() {
            std::thread::yield_now();
        }
        self.faults.get().is_some()
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
        // Before the records: those that tell of folios come before the faults that map them. And before the opens: the
        // kernel has reported the open of a file before any fault in it.
        let lost_faults = self.faults.get().map_or(0, |it| it.take(&mut self.faulted));
        self.hear_opens(from, into)?;
        let lost = from.source.take(&mut self.raws);
        if lost > 0 || self.raws.iter().any(|raw| raw.process != self.own) {
            from.wake()?;
        }
        from.rest()?;
        self.hear_raws(from, now, into);
        tell_lost(lost + lost_faults, into);
        let readers = &mut self.readers;
        let time = sys::monotonic_ns();
        self.looks.look(now, |process, file, found| {
            if let Some(found) = found {
                return readers.looked(process, file, found, time, into);
            }
            readers.unmapped(process, file);
            false
        });
        if let Some(faults) = self.faults.get() {
            faults.list(self.looks.mapped(), Instant::now());
        }
        let allowed = self.allow_folios();
        from.engine.allow_folios(allowed);
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
            if one.kind == Kind::Open && one.size >= FOLIO && self.kinds.contains(Kind::Touch) {
                let now = Instant::now();
                self.looks.opens(one.process, FileId(file), one.file, now);
            }
            let mut event = Event::new(one.kind, FileId(file), 0, one.size).by(one.process);
            event.time_ns = time_ns;
            into.push(event);
        }
        self.opened = opened;
        Ok(())
    }

    /// Handles records of the page cache and page faults in the order of time; both may report the same pages.
    fn hear_raws(&mut self, from: &Observe, now: Instant, into: &mut Vec<Event>) {
        let mut table = from.table();
        for (identity, folio) in from.engine.take_folios() {
            if let Some(file) = table.of_identity(identity) {
                self.readers.came(FileId(file), &folio);
            }
        }
        let mut raws = std::mem::take(&mut self.raws);
        let mut faulted = std::mem::take(&mut self.faulted);
        let processes: HashSet<u32> = faulted.iter().map(|fault| fault.process).collect();
        for process in processes {
            self.looks.find(process);
        }
        let mut faults = faulted.drain(..).peekable();
        for raw in raws.drain(..) {
            while let Some(fault) = faults.next_if(|fault| fault.time_ns < raw.time_ns) {
                self.hear_fault(&fault, &table, into);
            }
            self.hear_raw(&raw, from, &mut table, now, into);
        }
        for fault in faults {
            self.hear_fault(&fault, &table, into);
        }
        (self.raws, self.faulted) = (raws, faulted);
    }

    fn hear_raw(
        &mut self,
        raw: &Raw,
        from: &Observe,
        table: &mut FileTable,
        now: Instant,
        into: &mut Vec<Event>,
    ) {
        let Some((file, mut size)) = table.of_key(raw.key) else {
            return;
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
            self.readers.loaded(raw, id, self.page);
            return;
        }
        if self.readers.looks()
            && (raw.point.maps() || self.partly)
            && let Some(known) = table.get(file)
        {
            self.looks
                .reads(raw.process, id, known.identity, now, raw.time_ns);
        }
        self.readers.hear(raw, (id, size), self.page, into);
    }

    /// Handles a page fault like a record of the page cache, if it was in a mapping of a file.
    fn hear_fault(&mut self, fault: &PageFault, table: &FileTable, into: &mut Vec<Event>) {
        let Some((id, offset)) = self.looks.place(fault) else {
            return;
        };
        let Some(known) = table.get(id.0) else {
            return;
        };
        let page = offset / self.page;
        let raw = Raw {
            point: Point::Fault,
            key: Key {
                device: 0,
                inode: known.identity.inode,
            },
            first: page,
            beginning: None,
            last: page,
            process: fault.process,
            thread: fault.thread,
            cpu: 0,
            time_ns: fault.time_ns,
            late: false,
        };
        self.readers.hear(&raw, (id, known.size), self.page, into);
    }
}

/// Smaller files have no folio that a process could map without a record.
const FOLIO: u64 = 2 << 20;

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
