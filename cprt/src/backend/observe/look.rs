//! Looks at the pages that processes have mapped, while they read.
//!
//! A fault that the page cache answers with a huge page makes no record there, so the page tables of a process
//! that reads through a mapping are walked, also where its page faults are reported (`faults.rs`), which need to know
//! where its mappings are. The looks begin when it opens a large file or with a record of it, come less often while
//! nothing changes, and end when nothing has changed for a while or the mapping is gone: the worker does not wake for
//! a reader that rests.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use ppc::FileId;

use super::faults::PageFault;
use crate::machine::mappings::{self, Identity, Mapping};
use crate::machine::ranges::Ranges;
use crate::sys::pagemap::Pagemap;
use crate::sys::{monotonic_ns, page_size};

/// How often to look at a reader that continues reading.
const OFTEN: Duration = Duration::from_millis(10);
/// How often to look at a reader that seems to rest.
const SELDOM: Duration = Duration::from_millis(320);
/// How many of these seldom looks without a change end the looks.
const IN_VAIN: u32 = 8;
/// How soon to look whether a process has mapped a file that it has opened, how many more times, and how much later
/// each time.
const SOON: Duration = Duration::from_millis(1);
const WAITS: u32 = 5;
const LATER: u32 = 4;
/// Looks take at most one part in this many of the time.
const SHARE: u32 = 20;
/// The number of looks after which one starts over, because a process may have mapped a file again, and pages may be
/// gone. The other looks are only for new pages.
const ANEW: u32 = 16;
/// The reach of a page table: known pages are left out only in pieces of at least this length.
const TABLE: u64 = 2 << 20;
/// Upper bound on readers looked at at once.
const MOST: usize = 256;

/// How long until the next look. Pure.
#[derive(Clone, Copy, Debug)]
struct LookPace {
    wait: Duration,
    in_vain: u32,
}

impl LookPace {
    const NEW: Self = Self {
        wait: OFTEN,
        in_vain: 0,
    };

    /// How long to wait after a look that took `took`; `None` to end the looks.
    fn next(&mut self, changed: bool, took: Duration) -> Option<Duration> {
        if changed {
            *self = Self::NEW;
        } else if self.wait < SELDOM {
            self.wait = (self.wait * 2).min(SELDOM);
        } else {
            self.in_vain += 1;
        }
        let wait = self.wait.max(took * SHARE);
        (self.in_vain < IN_VAIN).then_some(wait)
    }
}

/// A process and a file that it maps.
#[derive(Debug)]
struct LookedReader {
    file: Identity,
    pagemap: Pagemap,
    mappings: Vec<Mapping>,
    /// The pages that the last look found.
    known: Ranges,
    /// Where to begin looking for new pages, near the last one found: models are read upwards.
    from: u64,
    looks: u32,
    pace: LookPace,
    due: Instant,
    /// How many more looks to wait for it to map the file, which it has opened.
    waits: u32,
    /// When it was known to have opened or read the file, as the kernel's monotonic time in ns.
    since: u64,
    /// It is gone, or has unmapped the file; its last page faults are still to be taken.
    parts: bool,
    /// When it was last asked for whether it still has these mappings, and the answer: a page fault before that needs
    /// no other. Page faults come by the thousand, and to ask takes 5 to 10 µs.
    asked: Option<(u64, bool)>,
}

/// All readers that are looked at.
#[derive(Debug, Default)]
pub(super) struct Looks {
    readers: HashMap<(u32, FileId), LookedReader>,
    /// The device of the mirror through which they read, if they do.
    mirror: Option<u64>,
}

impl Looks {
    pub(super) fn mirrored(&mut self, device: u64) {
        self.mirror = Some(device);
    }

    /// Notes that a process has opened a file, which it may map and read without a record.
    pub(super) fn opens(&mut self, process: u32, id: FileId, file: Identity, now: Instant) {
        let reader = self.readers.get(&(process, id));
        if reader.is_none_or(|it| !mappings::are_still(process, file, &it.mappings)) {
            let (due, since) = (now + SOON, monotonic_ns());
            self.begin(process, id, file, due, WAITS, since);
        }
    }

    /// Notes that a process has read a file through a mapping, at this time.
    pub(super) fn reads(
        &mut self,
        process: u32,
        id: FileId,
        file: Identity,
        now: Instant,
        time_ns: u64,
    ) {
        let Some(reader) = self.readers.get_mut(&(process, id)) else {
            // At once, because only a look finds out where the mapping is.
            return self.begin(process, id, file, now, 0, time_ns);
        };
        if reader.mappings.is_empty() {
            reader.due = now;
        } else {
            reader.pace = LookPace::NEW;
            reader.due = reader.due.min(now + OFTEN);
        }
    }

    fn begin(
        &mut self,
        process: u32,
        id: FileId,
        file: Identity,
        due: Instant,
        waits: u32,
        since: u64,
    ) {
        if self.readers.len() >= MOST {
            return;
        }
        // A process whose memory we may not look at is followed by records alone.
        let Ok(pagemap) = Pagemap::open(process) else {
            return;
        };
        let reader = LookedReader {
            file,
            pagemap,
            mappings: Vec::new(),
            known: Ranges::default(),
            from: 0,
            looks: 0,
            pace: LookPace::NEW,
            due,
            waits,
            since,
            parts: false,
            asked: None,
        };
        self.readers.insert((process, id), reader);
    }

    /// The file and the place in it where a process has had a page fault. A process that reads file by file often maps
    /// each to where the one before was. The fault was in the latest, unless that is mapped there, does not have the
    /// page in its page tables, and was opened later: then it was in the file mapped before.
    pub(super) fn place(&mut self, fault: &PageFault) -> Option<(FileId, u64)> {
        let &PageFault {
            address,
            process,
            time_ns,
            ..
        } = fault;
        let readers = self.readers.iter().filter(|((it, _), _)| *it == process);
        let unknown = readers.filter(|(_, reader)| reader.mappings.is_empty());
        let latest_unknown = unknown.map(|(_, reader)| reader.since).max().unwrap_or(0);
        let of = self
            .readers
            .iter_mut()
            .filter(|((it, _), _)| *it == process);
        let place = |reader: &LookedReader| {
            let mut mappings = reader.mappings.iter();
            let mapping = mappings.find(|it| it.addresses.contains(&address))?;
            Some(mapping.range_of(&(address..address)).start)
        };
        let found = of.filter_map(|(&(_, id), reader)| Some((id, place(reader)?, reader)));
        let mut found: Vec<_> = found.collect();
        found.sort_by_key(|(.., reader)| Reverse(reader.since));
        let last = found.len().checked_sub(1)?;
        let page = address - address % page_size();
        let page = page..page + page_size();
        let at = found.iter_mut().take(last).position(|(.., reader)| {
            let pages = reader.pagemap.present(&page);
            // The kernel reports a fault before it maps the page.
            reader.since <= time_ns
                || pages.is_ok_and(|pages| !pages.is_empty())
                || !reader.has_still(process, time_ns)
        });
        let (id, place, reader) = found.get_mut(at.unwrap_or(last))?;
        // It may have been in a file that was opened later, and is unmapped by now: where that was is not known.
        let is_known = latest_unknown < reader.since || reader.has_still(process, time_ns);
        is_known.then_some((*id, *place))
    }

    /// Finds where this process has mapped files that it has opened recently, so that its page faults are taken for
    /// reads of these.
    pub(super) fn find(&mut self, process: u32) {
        let of = self.readers.iter_mut();
        let of = of.filter(|((it, _), reader)| *it == process && reader.mappings.is_empty());
        let mut unknown: Vec<_> = of.map(|(_, reader)| reader).collect();
        if unknown.is_empty() {
            return;
        }
        let files: Vec<_> = unknown.iter().map(|reader| reader.file).collect();
        let found = mappings::of_each(process, &files, self.mirror);
        for (reader, mappings) in unknown.iter_mut().zip(found) {
            (reader.mappings, reader.asked) = (mappings, None);
        }
    }

    /// Between which addresses each process has mapped files.
    pub(super) fn mapped(&self) -> HashMap<u32, Range<u64>> {
        let mut all: HashMap<u32, Range<u64>> = HashMap::new();
        for (&(process, _), reader) in &self.readers {
            for Range { start, end } in reader.mappings.iter().map(|it| it.addresses.clone()) {
                let range = all.entry(process).or_insert(start..end);
                *range = range.start.min(start)..range.end.max(end);
            }
        }
        all
    }

    /// When the next look is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.readers.values().map(|reader| reader.due).min()
    }

    /// Ends all looks.
    pub(super) fn end(&mut self) {
        self.readers.clear();
    }

    /// Looks at the readers that are due. `each` gets the pages found of the file, or `None` when it is not
    /// mapped any more, and returns whether some of them are new.
    pub(super) fn look(
        &mut self,
        now: Instant,
        mut each: impl FnMut(u32, FileId, Option<Ranges>) -> bool,
    ) {
        let mirror = self.mirror;
        self.readers.retain(|&(process, id), reader| {
            if reader.due > now {
                return true;
            }
            let began = Instant::now();
            let found = reader.look(process, mirror);
            let gone = found.is_none();
            if gone && reader.waits > 0 {
                reader.waits -= 1;
                reader.due = Instant::now() + SOON * LATER.pow(WAITS - reader.waits);
                return true;
            }
            reader.waits = 0;
            if gone && !reader.parts && !reader.mappings.is_empty() {
                (reader.parts, reader.due) = (true, Instant::now());
                return true;
            }
            reader.parts = false;
            let changed = each(process, id, found);
            let took = began.elapsed();
            match reader.pace.next(changed, took) {
                Some(wait) if !gone => reader.due = Instant::now() + wait,
                _ => return false,
            }
            true
        });
    }
}

impl LookedReader {
    fn look(&mut self, process: u32, mirror: Option<u64>) -> Option<Ranges> {
        let anew = self.looks.is_multiple_of(ANEW);
        if anew && !self.renew(process, mirror) {
            return None;
        }
        self.looks = self.looks.wrapping_add(1);
        let mut found = self.walk()?;
        // Another file may be there by now: this look would have found pages of that one.
        if !mappings::are_still(process, self.file, &self.mappings) {
            if !self.renew(process, mirror) {
                return None;
            }
            found = self.walk()?;
            self.looks = 0;
            if !mappings::are_still(process, self.file, &self.mappings) {
                return Some(self.known.clone());
            }
        }
        if let Some(last) = found
            .iter()
            .cloned()
            .collect::<Ranges>()
            .without(&self.known)
            .iter()
            .next_back()
        {
            self.from = last.end.saturating_sub(TABLE);
        }
        found.extend(self.known.iter());
        if found.is_empty() {
            // It may have been unmapped meanwhile, so the next look starts over.
            self.looks = 0;
        }
        self.known = found.into_iter().collect();
        Some(self.known.clone())
    }

    /// Finds its mappings, and forgets which pages are known; false if there are none.
    fn renew(&mut self, process: u32, mirror: Option<u64>) -> bool {
        let mappings = mappings::of(process, self.file, mirror);
        if mappings.is_empty() {
            self.looks = 0;
            return false;
        }
        self.mappings = mappings;
        self.asked = None;
        (self.known, self.from) = (Ranges::default(), 0);
        true
    }

    /// Whether it has had its mappings since this time or later.
    fn has_still(&mut self, process: u32, time_ns: u64) -> bool {
        if let Some((asked_ns, still)) = self.asked
            && time_ns <= asked_ns
        {
            return still;
        }
        let asked_ns = monotonic_ns();
        let still = mappings::are_still(process, self.file, &self.mappings);
        self.asked = Some((asked_ns, still));
        still
    }

    /// The pages that are present and not known yet.
    fn walk(&mut self) -> Option<Vec<Range<u64>>> {
        let mut found = Vec::new();
        for mapping in &self.mappings {
            let Range { start, end } = mapping.range();
            for gap in self.known.gaps(&(start.max(self.from)..end), TABLE) {
                let Some(addresses) = mapping.addresses_of(&gap) else {
                    continue;
                };
                let pages = self.pagemap.present(&addresses).ok()?;
                found.extend(pages.iter().map(|pages| mapping.range_of(pages)));
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::sys::testing::Mapped;

    #[test]
    fn looks_at_an_idle_reader_slow_down_and_stop() {
        let mut pace = LookPace::NEW;
        let took = Duration::from_micros(100);
        assert_eq!(pace.next(true, took), Some(OFTEN));
        let mut waits = Vec::new();
        while let Some(wait) = pace.next(false, took) {
            waits.push(wait);
        }
        assert!(waits.is_sorted());
        assert_eq!(waits.last(), Some(&SELDOM));
        let all: Duration = waits.iter().sum();
        assert!(
            all > Duration::from_secs(2) && all < Duration::from_secs(4),
            "{all:?}"
        );
        pace = LookPace::NEW;
        pace.next(false, took);
        assert_eq!(pace.next(true, took), Some(OFTEN), "it continues");
    }

    #[test]
    fn faults_before_the_last_question_need_no_other() {
        let folder = test_support::Folder::new("look");
        let file = |name: &str| {
            let path = folder.write(name, vec![7; 1 << 20]);
            let file = File::open(path).expect("it is there");
            let identity = Identity::of(&file.metadata().expect("ours"));
            (file, identity)
        };
        let ((mapped, identity), (_, unmapped)) = (file("mapped"), file("unmapped"));
        let (own, now) = (std::process::id(), Instant::now());
        let mut looks = Looks::default();
        looks.opens(own, FileId(1), identity, now);
        let mapping = Mapped::new(&mapped).expect("a mapping");
        // A file that was opened later may be mapped by now, and be where the other one was.
        looks.opens(own, FileId(2), unmapped, now);
        looks.find(own);
        let fault = |time_ns| PageFault {
            address: mapping.address() + 4 * page_size(),
            process: own,
            thread: own,
            time_ns,
        };
        let (first, second) = (monotonic_ns(), monotonic_ns());
        let place = Some((FileId(1), 4 * page_size()));
        assert_eq!(looks.place(&fault(second)), place);
        let later = fault(monotonic_ns());
        let earlier = fault(first);
        drop(mapping);
        assert_eq!(looks.place(&earlier), place, "it was mapped at `second`");
        assert_eq!(looks.place(&later), None, "not any more");
    }

    #[test]
    fn looking_takes_a_small_part_of_the_time() {
        let mut pace = LookPace::NEW;
        let wait = pace.next(true, Duration::from_millis(5));
        assert_eq!(wait, Some(Duration::from_millis(100)));
    }
}
