//! Turns the kernel's records into events for policies. Pure.
//!
//! | event | from |
//! |---|---|
//! | MISS | `Add`: pages that come in because of a process, including the kernel's readahead for it |
//! | TOUCH | `Get`; and for a mapping `Fault`, `Map` and what a look at its pages finds |
//! | PROGRESS | the same, summed up by process and file |
//!
//! A `Get` comes whenever a read continues, and covers everything from there to the request's end. So a read
//! has come to where its last `Get` began, or a little further. The better a mapping is served, the less the kernel
//! reports of it: a fault maps all of a large folio ([`Folios`]), and one that finds a huge page makes no record. So
//! page tables are looked at as well ([`Readers::looked`]), and pages that are new since the last look count as read.

use std::collections::HashMap;
use std::ops::Range;

use ppc::{Event, FileId, Kind, Kinds};

use super::by::By;
use super::folios::Folios;
use super::record::{AT_ONCE, Point, Raw};
use crate::machine::ranges::Ranges;

/// How far from a fault the kernel reads for it.
const ROUND: u64 = 32 << 20;
/// Upper bound on readers followed at once; beyond that, the table starts over.
const MOST: usize = 4096;
/// How many events back to search for one that the new event continues.
const BACK: usize = 8;

/// What processes have read.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// The kernel reports only pages that come in, and those have to stand for reads.
    partly: bool,
    wanted: Kinds,
    step: u64,
    all: HashMap<(u32, FileId), Reader>,
    /// The place of each thread's last fault.
    faults: HashMap<u32, (FileId, u64)>,
    folios: Folios,
    by: By,
}

/// A process that reads a file.
#[derive(Debug, Default)]
struct Reader {
    /// Bytes since the last PROGRESS.
    unsaid: u64,
    requests: HashMap<u32, ReadRequest>,
    /// The ranges that it is known to have read by mappings.
    mapped: Ranges,
    /// It has mappings of the file.
    maps: bool,
    /// How far it has come by a mapping, according to records since its pages were last looked at.
    come_to: u64,
}

/// A thread's read under way.
#[derive(Clone, Debug, Default)]
struct ReadRequest {
    at: u64,
    /// The place up to which its bytes are counted.
    counted: u64,
    end: u64,
    length: u64,
    /// The contiguous range that came in for the thread before its first record of a read.
    came: Range<u64>,
}

impl ReadRequest {
    /// Notes that these bytes have come in for the thread.
    fn brought(&mut self, range: &Range<u64>) {
        if self.length > 0 {
            return;
        }
        let goes_on = self.came.end == range.start;
        let start = if goes_on {
            self.came.start
        } else {
            range.start
        };
        self.came = start..range.end;
    }

    /// Where the request of this first record began. The kernel makes no record for folios that are
    /// followed by one whose I/O is under way: the first record of a reader that catches up with a load is then
    /// in the middle of a request. Where the system call's arguments are unknown, a reader with requests of one
    /// length began this one where the last one ended, and its first request with the bytes that came in for it.
    fn beginning(&self, range: &Range<u64>, known: Option<u64>) -> u64 {
        if let Some(known) = known {
            return known;
        }
        if self.length == 0 && self.came.contains(&range.start) {
            return self.came.start;
        }
        let goes_on = self.end < range.start && range.end - self.end == self.length;
        if goes_on { self.end } else { range.start }
    }

    /// Goes on to `range`, which ends where the request ends. Returns where the part begins that has not been
    /// reported yet, and how many bytes have been read meanwhile.
    fn advance(&mut self, range: &Range<u64>, beginning: Option<u64>) -> (u64, u64) {
        let same = range.end == self.end && range.start >= self.at;
        let again = range.start == self.at && self.counted == self.end;
        let to = range.end.min(range.start.saturating_add(AT_ONCE));
        if same && !again {
            let new = to.saturating_sub(self.counted);
            self.at = range.start;
            self.counted = self.counted.max(to);
            return (range.start, new);
        }
        let from = self.beginning(range, beginning);
        // The last request was read to its end if this one begins there.
        let rest = if self.end == from {
            self.end - self.counted
        } else {
            0
        };
        *self = Self {
            at: range.start,
            counted: to,
            end: range.end,
            length: range.end - from,
            came: 0..0,
        };
        (from, rest + (to - from))
    }
}

impl Readers {
    /// `partly`: the kernel reports only pages that come in; `whole_folios`: it maps folios of any size as a whole.
    pub(super) fn new(partly: bool, whole_folios: bool) -> Self {
        Self {
            partly,
            folios: Folios::new(whole_folios),
            ..Self::default()
        }
    }

    /// Sets which events to make from now on.
    pub(super) fn want(&mut self, kinds: Kinds, step: u64) {
        if self.wanted != kinds {
            self.by = By::default();
        }
        (self.wanted, self.step) = (kinds, step.max(1));
        if !self.looks() {
            self.folios.clear();
        }
    }

    /// Whether the policy learns all that it wants even if loads bring in the largest folios, which processes map
    /// without a record: page faults have to be reported, or all reads be made by `read`.
    pub(super) fn allow_folios(&self, faults: bool) -> bool {
        !self.wanted.contains(Kind::Touch) || faults || self.by.is_read()
    }

    /// Notes that a load has brought in a folio.
    pub(super) fn came(&mut self, file: FileId, folio: &Range<u64>) {
        if self.looks() {
            self.folios.add(file, folio);
        }
    }

    /// The same by a record of this process's own.
    pub(super) fn loaded(&mut self, raw: &Raw, file: FileId, page: u64) {
        if raw.point == Point::Add {
            self.came(file, &(raw.first * page..(raw.last + 1) * page));
        }
    }

    /// Whether the pages of mappings have to be looked at.
    pub(super) fn looks(&self) -> bool {
        self.wanted.contains(Kind::Touch) || self.wanted.contains(Kind::Progress)
    }

    /// Handles a record of a file of that size.
    pub(super) fn hear(
        &mut self,
        raw: &Raw,
        (file, size): (FileId, u64),
        page: u64,
        into: &mut Vec<Event>,
    ) {
        let start = raw.first.saturating_mul(page);
        let end = raw.last.saturating_add(1).saturating_mul(page).min(size);
        if start >= end {
            return;
        }
        let mut event = Event {
            kind: Kind::Miss,
            file,
            offset: start,
            length: end - start,
            time_ns: raw.time_ns,
            count: 1,
            process: raw.process,
            thread: raw.thread,
            cpu: raw.cpu,
            mmap: raw.point.maps(),
            direct: false,
        };
        if raw.point == Point::Fault {
            self.faulted(raw.thread, file, start);
        }
        if raw.point.maps() {
            let mapped = self
                .folios
                .mapped_by(file, &(start..end), raw.point == Point::Fault);
            event.offset = mapped.start;
            event.length = mapped.end.min(size) - mapped.start;
        }
        if raw.point == Point::Add {
            self.loaded(raw, file, page);
            event.mmap = self.by_fault(raw.thread, file, &(start..end));
            if self.partly && !self.reader(event.process, file).maps {
                self.count(&event, end, end - start, into);
            }
            if !event.mmap && self.looks() {
                self.request(&event).brought(&(start..end));
            }
            if self.wanted.contains(Kind::Miss) {
                push(into, event);
            }
        } else if self.looks() {
            let bytes = event.length.min(AT_ONCE);
            self.by.used(raw.point.maps(), bytes, size);
            let beginning = raw.beginning.map(|first| first.saturating_mul(page));
            self.read(&event, beginning, raw.late, into);
        }
    }

    fn read(&mut self, event: &Event, beginning: Option<u64>, late: bool, into: &mut Vec<Event>) {
        let range = event.offset..event.end();
        let reader = self.reader(event.process, event.file);
        let (from, new) = if event.mmap {
            reader.come_to = range.end;
            // Ranges that are known have been reported.
            match reader.mapped.insert(&range) {
                0 => return,
                new => (range.start, new),
            }
        } else if late {
            // It counts as read, but the reader is elsewhere by now.
            reader.unsaid = reader.unsaid.saturating_add(event.length);
            return;
        } else {
            self.request(event).advance(&range, beginning)
        };
        let to = if event.mmap {
            range.end
        } else {
            range.end.min(range.start.saturating_add(AT_ONCE))
        };
        self.count(event, to, new, into);
        if self.wanted.contains(Kind::Touch) {
            let touch = Event {
                kind: Kind::Touch,
                offset: from,
                length: range.end - from,
                ..event.clone()
            };
            push(into, touch);
        }
    }

    /// Adds to the bytes that the process has read, and makes a PROGRESS when one is due.
    fn count(&mut self, event: &Event, to: u64, new: u64, into: &mut Vec<Event>) {
        let (step, wanted) = (self.step, self.wanted);
        let reader = self.reader(event.process, event.file);
        reader.unsaid = reader.unsaid.saturating_add(new);
        if reader.unsaid < step || !wanted.contains(Kind::Progress) {
            return;
        }
        into.push(Event {
            kind: Kind::Progress,
            offset: to,
            length: std::mem::take(&mut reader.unsaid),
            ..event.clone()
        });
    }

    /// Handles the result of a look at all that a process has mapped of a file; returns whether some of it is new.
    pub(super) fn looked(
        &mut self,
        process: u32,
        file: FileId,
        found: Ranges,
        time_ns: u64,
        into: &mut Vec<Event>,
    ) -> bool {
        let touches = self.wanted.contains(Kind::Touch);
        let reader = self.reader(process, file);
        let new = found.without(&reader.mapped);
        // Pages that were dropped count as new when they come again.
        reader.mapped = found;
        reader.maps = true;
        let come_to = std::mem::take(&mut reader.come_to);
        let mut last = None;
        for range in new.iter() {
            let length = range.end - range.start;
            let mut event = Event::new(Kind::Touch, file, range.start, length).by(process);
            (event.time_ns, event.mmap) = (time_ns, true);
            last = Some(event.clone());
            if touches {
                push(into, event);
            }
        }
        let Some(last) = last else {
            return false;
        };
        // Huge pages make no records, and the look may find pages before the place that records have reported.
        self.count(&last, last.end().max(come_to), new.bytes(), into);
        true
    }

    /// Notes that the process is gone, or has unmapped the file.
    pub(super) fn unmapped(&mut self, process: u32, file: FileId) {
        if let Some(reader) = self.all.get_mut(&(process, file)) {
            (reader.mapped, reader.maps) = (Ranges::default(), false);
            reader.come_to = 0;
        }
    }

    fn reader(&mut self, process: u32, file: FileId) -> &mut Reader {
        if self.all.len() >= MOST && !self.all.contains_key(&(process, file)) {
            self.all.clear();
        }
        self.all.entry((process, file)).or_default()
    }

    /// The thread's current read.
    fn request(&mut self, event: &Event) -> &mut ReadRequest {
        let requests = &mut self.reader(event.process, event.file).requests;
        if requests.len() > MOST {
            requests.clear();
        }
        requests.entry(event.thread).or_default()
    }

    fn faulted(&mut self, thread: u32, file: FileId, at: u64) {
        if self.faults.len() >= MOST {
            self.faults.clear();
        }
        self.faults.insert(thread, (file, at));
    }

    /// Whether these pages come in for a fault: the thread's last fault was near them.
    fn by_fault(&self, thread: u32, file: FileId, range: &Range<u64>) -> bool {
        let fault = self.faults.get(&thread);
        fault.is_some_and(|&(of, at)| {
            of == file
                && at < range.end.saturating_add(ROUND)
                && at.saturating_add(ROUND) > range.start
        })
    }
}

/// Adds an event, or merges it into one that it touches.
fn push(into: &mut Vec<Event>, event: Event) {
    let goes_on = |old: &&mut Event| {
        old.kind == event.kind
            && old.file == event.file
            && old.process == event.process
            && old.mmap == event.mmap
            && event.offset <= old.end()
            && old.offset <= event.end()
    };
    let Some(old) = into.iter_mut().rev().take(BACK).find(goes_on) else {
        into.push(event);
        return;
    };
    let end = old.end().max(event.end());
    old.offset = old.offset.min(event.offset);
    old.length = end - old.offset;
    old.count += event.count;
}

#[cfg(test)]
mod tests {
    use super::super::record::Key;
    use super::*;

    const PAGE: u64 = 4096;
    const MIB: u64 = 1 << 20;
    const FILE: FileId = FileId(3);

    fn raw(point: Point, first: u64, last: u64) -> Raw {
        Raw {
            point,
            key: Key {
                device: 1,
                inode: 1,
            },
            first,
            beginning: None,
            last,
            process: 10,
            thread: 11,
            cpu: 1,
            time_ns: 5,
            late: false,
        }
    }

    fn readers(kinds: &[Kind], step: u64) -> Readers {
        let mut readers = Readers::default();
        readers.want(kinds.iter().copied().collect(), step);
        readers
    }

    /// The events that records of a file of this size cause: kind, offset, length, whether through a mapping.
    fn told(readers: &mut Readers, size: u64, raws: &[Raw]) -> Vec<(Kind, u64, u64, bool)> {
        let mut events = Vec::new();
        for raw in raws {
            readers.hear(raw, (FILE, size), PAGE, &mut events);
        }
        let short = |event: &Event| (event.kind, event.offset, event.length, event.mmap);
        events.iter().map(short).collect()
    }

    #[test]
    fn request_start_is_inferred_from_the_previous_request() {
        let mut readers = readers(&[Kind::Touch], 0);
        let raws = [
            raw(Point::Get, 0, 31),
            // Its first 17 pages were followed by one that was being read.
            raw(Point::Get, 49, 63),
            // A jump, and a request of another length, may begin anywhere.
            raw(Point::Get, 116, 131),
            raw(Point::Get, 140, 150),
        ];
        let ranges: Vec<_> = told(&mut readers, u64::MAX, &raws)
            .into_iter()
            .map(|(_, from, length, _)| (from / PAGE, length / PAGE))
            .collect();
        assert_eq!(ranges, [(0, 64), (116, 16), (140, 11)]);
    }

    #[test]
    fn first_request_start_is_inferred_from_added_pages() {
        let mut readers = readers(&[Kind::Touch], 0);
        let raws = [
            raw(Point::Add, 4, 7),
            raw(Point::Add, 8, 35),
            raw(Point::Get, 19, 19),
            // Pages read ahead later do not say where the next request begins.
            raw(Point::Add, 36, 63),
            raw(Point::Get, 40, 47),
        ];
        let ranges: Vec<_> = told(&mut readers, u64::MAX, &raws)
            .into_iter()
            .map(|(_, from, length, _)| (from / PAGE, length / PAGE))
            .collect();
        assert_eq!(ranges, [(4, 16), (40, 8)]);
    }

    #[test]
    fn request_start_comes_from_its_system_call() {
        let mut readers = readers(&[Kind::Touch], 0);
        let began = |beginning, first, last| Raw {
            beginning: Some(beginning),
            ..raw(Point::Get, first, last)
        };
        let raws = [
            began(0, 0, 31),
            // The reader continues elsewhere, at the end of a request of the same length.
            began(60, 60, 63),
            began(100, 117, 131),
            began(100, 125, 131),
        ];
        let ranges: Vec<_> = told(&mut readers, u64::MAX, &raws)
            .into_iter()
            .map(|(_, from, length, _)| (from / PAGE, length / PAGE))
            .collect();
        assert_eq!(ranges, [(0, 32), (60, 4), (100, 32)]);
    }

    #[test]
    fn a_fault_touches_the_folio_that_it_maps() {
        let mut readers = Readers::new(false, true);
        readers.want([Kind::Touch].into_iter().collect(), 0);
        let raws = [
            raw(Point::Add, 0, 255),
            raw(Point::Add, 256, 511),
            raw(Point::Map, 16, 31),
            raw(Point::Map, 290, 305),
        ];
        let size = 300 * PAGE;
        assert_eq!(
            told(&mut readers, size, &raws),
            [(Kind::Touch, 0, 300 * PAGE, true)]
        );
        let mut others = Readers::new(false, true);
        others.want([Kind::Touch].into_iter().collect(), 0);
        others.loaded(&raws[0], FILE, PAGE);
        assert_eq!(
            told(&mut others, size, &raws[2..3]),
            [(Kind::Touch, 0, 256 * PAGE, true)]
        );
    }

    #[test]
    fn added_pages_are_misses_up_to_the_end_of_file() {
        let mut readers = readers(&[Kind::Miss], 0);
        let size = 10 * PAGE + 100;
        let raws = [
            raw(Point::Add, 0, 3),
            raw(Point::Get, 0, 7),
            raw(Point::Add, 4, 7),
            raw(Point::Add, 9, 9),
            raw(Point::Add, 10, 15),
            raw(Point::Add, 16, 31),
        ];
        let expected = [
            (Kind::Miss, 0, 8 * PAGE, false),
            (Kind::Miss, 9 * PAGE, PAGE + 100, false),
        ];
        assert_eq!(told(&mut readers, size, &raws), expected);
    }

    #[test]
    fn only_pages_added_near_a_fault_are_mmap_misses() {
        let mut readers = readers(&[Kind::Miss], 0);
        let far = 64 * MIB / PAGE;
        let raws = [
            raw(Point::Fault, 100, 100),
            raw(Point::Add, 96, 127),
            raw(Point::Add, 100 + far, 100 + far),
        ];
        let expected = [
            (Kind::Miss, 96 * PAGE, 32 * PAGE, true),
            (Kind::Miss, (100 + far) * PAGE, PAGE, false),
        ];
        assert_eq!(told(&mut readers, u64::MAX, &raws), expected);
    }

    #[test]
    fn a_read_is_one_touch_and_counts_once() {
        let mut readers = readers(&[Kind::Touch, Kind::Progress], MIB);
        // Two reads of 1 MiB, each in parts of 31 pages, and a third of the second one again.
        let mut raws = Vec::new();
        for request in [0, 256, 256] {
            let parts = (0..9).map(|part| raw(Point::Get, request + part * 31, request + 255));
            raws.extend(parts);
        }
        let told = told(&mut readers, 2 * MIB, &raws);
        let beacons: Vec<_> = told
            .iter()
            .filter(|event| event.0 == Kind::Progress)
            .collect();
        let expected = [
            &(Kind::Progress, MIB, MIB, false),
            &(Kind::Progress, 2 * MIB, MIB, false),
            &(Kind::Progress, 2 * MIB, MIB, false),
        ];
        assert_eq!(beacons, expected);
        let touches: Vec<_> = told.iter().filter(|event| event.0 == Kind::Touch).collect();
        assert_eq!(touches, [&(Kind::Touch, 0, 2 * MIB, false)]);
    }

    #[test]
    fn a_long_request_has_come_no_further_than_it_has() {
        let mut request = ReadRequest::default();
        let end = 1 << 30;
        assert_eq!(request.advance(&(0..end), None).1, AT_ONCE);
        assert_eq!(request.advance(&(0..end), None).1, 0, "tried once more");
        assert_eq!(request.advance(&(AT_ONCE..end), None).1, AT_ONCE);
        assert_eq!(request.advance(&(62 * MIB..end), None).1, 60 * MIB);
        assert_eq!(
            request.advance(&(end..end + MIB), None).1,
            (end - 64 * MIB) + MIB
        );
        assert_eq!(
            request.advance(&(end..end + MIB), None).1,
            MIB,
            "read again"
        );
        assert_eq!(request.advance(&(5..10), None).1, 5, "elsewhere");
    }

    #[test]
    fn late_record_counts_but_does_not_move_the_front() {
        let mut readers = readers(&[Kind::Progress], MIB);
        let late = Raw {
            late: true,
            ..raw(Point::Get, 5000, 5063)
        };
        // In the middle of one long request.
        let raws = [
            raw(Point::Get, 0, 4095),
            late,
            raw(Point::Get, 100, 4095),
            raw(Point::Get, 512, 4095),
        ];
        let expected = [
            (Kind::Progress, 2 * MIB, 2 * MIB, false),
            (Kind::Progress, 4 * MIB, 2 * MIB + 64 * PAGE, false),
        ];
        let mut told = told(&mut readers, 16 * MIB + 5064 * PAGE, &raws);
        // The one between has got on by what was kept and by less than a step.
        assert_eq!(told.remove(0), expected[0]);
        assert_eq!(told.iter().map(|it| it.2).sum::<u64>(), expected[1].2);
        assert_eq!(told.last().map(|it| it.1), Some(expected[1].1));
    }

    #[test]
    fn mapped_ranges_are_reported_once_by_record_or_look() {
        let mut readers = readers(&[Kind::Touch, Kind::Progress], 16 * PAGE);
        let size = 1024 * PAGE;
        let raws = [
            raw(Point::Fault, 0, 0),
            raw(Point::Map, 0, 15),
            raw(Point::Map, 4, 8),
        ];
        let expected = [
            (Kind::Touch, 0, 16 * PAGE, true),
            (Kind::Progress, 16 * PAGE, 16 * PAGE, true),
        ];
        let mut got = told(&mut readers, size, &raws);
        got.sort_by_key(|event| event.0);
        assert_eq!(got, expected);
        let mut events = Vec::new();
        let mut look = |readers: &mut Readers, ranges: &[Range<u64>]| {
            events.clear();
            let found = ranges.iter().cloned().collect::<Ranges>();
            let new = readers.looked(10, FILE, found, 7, &mut events);
            let short = |event: &Event| (event.kind, event.offset, event.length);
            (new, events.iter().map(short).collect::<Vec<_>>())
        };
        let huge = 0..512 * PAGE;
        let new = 496 * PAGE;
        let (some, told) = look(&mut readers, std::slice::from_ref(&huge));
        assert!(some);
        assert_eq!(told[0], (Kind::Touch, 16 * PAGE, new));
        assert_eq!(told[1], (Kind::Progress, 512 * PAGE, new));
        assert_eq!(
            look(&mut readers, std::slice::from_ref(&huge)),
            (false, vec![])
        );
        assert_eq!(look(&mut readers, &[]), (false, vec![]), "dropped");
        assert!(look(&mut readers, &[huge]).0, "and read again");
    }

    #[test]
    fn a_look_at_what_a_reader_has_left_behind_takes_it_not_back() {
        let mut readers = readers(&[Kind::Progress], 16 * PAGE);
        // Faults on the huge page before these made no record.
        let raws = [raw(Point::Fault, 512, 527), raw(Point::Fault, 528, 543)];
        let size = 1024 * PAGE;
        assert_eq!(told(&mut readers, size, &raws).len(), 2);
        let mut offsets = |found: &[Range<u64>]| {
            let mut events = Vec::new();
            readers.looked(10, FILE, found.iter().cloned().collect(), 7, &mut events);
            let offset = |event: &Event| event.offset / PAGE;
            events.iter().map(offset).collect::<Vec<_>>()
        };
        let behind = 0..544 * PAGE;
        assert_eq!(offsets(std::slice::from_ref(&behind)), [544]);
        // No record has come since: only the look shows where the reader is.
        assert_eq!(offsets(&[0..544 * PAGE, 600 * PAGE..700 * PAGE]), [700]);
        assert_eq!(
            offsets(&[0..560 * PAGE, 600 * PAGE..700 * PAGE]),
            [560],
            "it has gone back"
        );
    }

    #[test]
    fn misses_count_as_progress_without_hit_reports() {
        let mut readers = readers(&[Kind::Progress], 8 * PAGE);
        readers.partly = true;
        let raws = [raw(Point::Add, 0, 3), raw(Point::Add, 4, 9)];
        let expected = [(Kind::Progress, 10 * PAGE, 10 * PAGE, false)];
        assert_eq!(told(&mut readers, u64::MAX, &raws), expected);
        // Processes that map the file are looked at instead.
        let (mut events, mut found) = (Vec::new(), Ranges::default());
        found.insert(&(0..PAGE));
        readers.looked(10, FILE, found, 0, &mut events);
        assert_eq!(told(&mut readers, u64::MAX, &[raw(Point::Add, 10, 99)]), []);
        readers.unmapped(10, FILE);
        assert_eq!(
            told(&mut readers, u64::MAX, &[raw(Point::Add, 10, 99)]).len(),
            1
        );
    }

    #[test]
    fn events_that_no_policy_wants_are_not_made() {
        let mut readers = readers(&[], 0);
        let raws = Point::ALL.map(|point| raw(point, 0, 9));
        assert_eq!(told(&mut readers, u64::MAX, &raws), []);
        assert!(!readers.looks());
        for id in 0..2 * MOST {
            readers.looked(10, FileId(id as u64), Ranges::default(), 0, &mut Vec::new());
        }
        assert!(readers.all.len() <= MOST);
    }
}
