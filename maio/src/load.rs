//! One load of a model, from the first event to the end: its readers and their positions, what to load
//! and drop, and what to remember of it. It does no I/O: all its input is passed in.

mod course;
mod outcome;
mod phases;
mod sources;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ppc::{Event, Kind, Memory, Xpu};

use crate::bypass::Bypass;
use crate::extent::{Extent, PAGE};
use crate::order::Pieces;
use crate::peers::Claims;
use crate::record::Record;
use crate::window::{Access, Leftover, Prefetch, Window};
use crate::workers::{ExpectedWorker, ProcessFacts, Worker, Workers};

pub(crate) use outcome::{Outcome, Part};
use phases::{Activity, Phases};
use sources::Sources;
pub(crate) use tally::Tally;

/// An event that is heard so many ns after it is not the last one, unless no other follows within `MORE`.
const BEHIND: u64 = 200_000_000;
const MORE: Duration = Duration::from_secs(1);

/// How long a reader may be silent before it no longer holds up others.
const STALLED: Duration = Duration::from_secs(5);
/// The same for an expected reader that has not come.
const MISSING: Duration = Duration::from_secs(30);
/// How long after its last read the end of a process counts as premature.
const CUT_SHORT: Duration = Duration::from_secs(2);
/// The part of the expected pages, in percent, from which on a load is whole, however its readers ended.
const WHOLE: u64 = 95;
/// The part of the expected pages, in percent, that ends a load once all its files are closed and it has been
/// quiet for `CLOSED`: mappings outlive descriptors, so closed files alone say little.
const ALL: u64 = 99;
const CLOSED: Duration = Duration::from_secs(2);
/// Upper bound on the delay of an OPEN after the reads that follow it.
const TOLD_LATE: Duration = Duration::from_millis(200);
/// How many pages make a reader a worker: one of fewer looks at the configuration, say.
const WORKER: u64 = (1 << 20) / PAGE;
/// The factor on the idle time until a worker comes, as frameworks take their time between the configuration and the
/// weights, and while something is being loaded.
const STARTING: u32 = 30;

/// How long a load that began before its readers waits for them.
const EARLY: Duration = Duration::from_mins(10);

/// How many unexpected pages, beyond the expected ones read since, show that the readers are not the expected
/// ones;
const ASTRAY: u64 = (16 << 20) / PAGE;
/// of a large model, this fraction of it.
const ASTRAY_PART: u64 = 128;

/// The fraction of the budget reserved for pages that readers bring in themselves.
const OWN: u64 = 8;

/// Upper bound on the pages that one fault maps: those of a large folio.
const ALONG: u32 = 512;
/// Upper bound on the kernel's readahead in pages, 8 MiB, unless it is configured otherwise.
const AHEAD: u32 = 2048;

/// What is known of processes.
pub(crate) trait Processes {
    fn facts(&self, process: u32) -> ProcessFacts;
    /// Its rank, which may become known only after its first events.
    fn rank(&self, process: u32) -> Option<u32>;
    fn is_alive(&self, process: u32) -> bool;
}

/// What is going to be read, and by which workers.
#[derive(Clone, Debug)]
pub(crate) struct Forecast {
    /// The files and their sizes, as the pieces number them.
    pub(crate) files: Arc<[(String, u64)]>,
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) expected: Vec<ExpectedWorker>,
    /// The workers are those of several nodes: nothing is loaded for a worker before it appears.
    pub(crate) several: bool,
}

/// A range to load, and its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) extent: Extent,
    pub(crate) process: Option<u32>,
    pub(crate) xpu: Option<Xpu>,
    pub(crate) instead: bool,
    pub(crate) hold: bool,
    /// In the background: it must not hold up other reads.
    pub(crate) behind: bool,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) drops: Vec<Extent>,
    /// Issued loads to take back.
    pub(crate) cancels: Vec<Extent>,
    pub(crate) loads: Vec<Request>,
}

#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is something that has or has not happened, in any order"
)]
pub(crate) struct Load {
    window: Window,
    pieces: Arc<Pieces>,
    files: Arc<[(String, u64)]>,
    workers: Workers,
    records: Option<HashMap<u32, Record>>,
    /// Memory used by others.
    others: u64,
    /// Nothing is to be loaded: all of it is cached, or its readers bypass the page cache.
    quiet: bool,
    began_ns: u64,
    heard_ns: u64,
    /// How long after it the last event was heard.
    late_ns: u64,
    lost: bool,
    bypass: Bypass,
    cut_short: bool,
    /// Its first event was no OPEN, so it had begun before; unless the OPEN of this file and process still comes.
    midway: Option<(u32, u32)>,
    /// How often each of its files is open, and whether OPEN events come at all.
    open: HashMap<u32, u32>,
    opens: bool,
    /// Unexpected pages that were read, less the expected ones read since.
    astray: u64,
    /// Pages that workers have read though by their ranks they belong to others.
    off_course: u64,
    /// All known readers are gone.
    deserted: bool,
    /// Issued loads have been taken back.
    held_back: bool,
    /// A reader has reached the weights.
    reached: bool,
    /// It began before its readers, and none of them has reached the weights.
    early: bool,
    /// It has begun so, and does again where those that came were forerunners.
    awaits: bool,
    /// Until then it is loaded in the background.
    behind: bool,
    /// A reader has reached them since, and the ranges issued before that are yet to be issued anew.
    come: bool,
    cap: u64,
    sources: Sources,
    phases: Phases,
    /// What it did when that was last found out.
    activity: Activity,
    /// When that was last found to be loading.
    loading_ns: u64,
    /// What was asked for and may not have come yet, in order.
    awaited: VecDeque<Extent>,
}

impl Load {
    /// Begins now; a `quiet` load records what is read and loads nothing.
    pub(crate) fn new(
        forecast: Forecast,
        memory: Memory,
        cap: u64,
        quiet: bool,
        now_ns: u64,
    ) -> Self {
        let Forecast {
            pieces,
            expected,
            several,
            files,
        } = forecast;
        let mut load = Self {
            window: Window::new(Arc::clone(&pieces), 0),
            pieces,
            files,
            workers: Workers::new(expected),
            records: None,
            others: memory.used,
            quiet,
            began_ns: now_ns,
            heard_ns: now_ns,
            late_ns: 0,
            lost: false,
            bypass: Bypass::default(),
            cut_short: false,
            midway: None,
            open: HashMap::new(),
            opens: false,
            astray: 0,
            off_course: 0,
            deserted: false,
            held_back: false,
            reached: false,
            early: false,
            awaits: false,
            behind: false,
            come: false,
            cap,
            sources: Sources::default(),
            phases: Phases::new(now_ns),
            activity: Activity::Done,
            loading_ns: now_ns,
            awaited: VecDeque::new(),
        };
        for group in (0..load.pieces.groups()).filter(|_| several) {
            load.window.leave(group);
        }
        load.set_memory(memory);
        load
    }

    /// Records what is read. `midway` is the file and process of a first event that was no OPEN: unless that OPEN
    /// still comes, the load had begun before, and the recording is not kept.
    pub(crate) fn record(&mut self, midway: Option<(u32, u32)>) {
        self.records = Some(HashMap::new());
        self.midway = midway;
    }

    /// The load begins before its readers, unless one of them has reached the weights already; `behind` means in the
    /// background until they come.
    pub(crate) const fn await_readers(&mut self, behind: bool) {
        (self.early, self.awaits, self.behind) = (!self.reached, true, behind);
    }

    /// Whether it began before its readers, and none of them has reached the weights.
    pub(crate) const fn is_early(&self) -> bool {
        self.early
    }

    /// A reader has opened weights with `O_DIRECT`: prefetched pages are of no use to it.
    pub(crate) const fn suspect_bypass(&mut self) {
        (self.reached, self.early) = (true, false);
        self.bypass.suspect();
    }

    /// Bytes that are held.
    pub(crate) fn held(&self) -> u64 {
        self.window.held() * PAGE
    }

    /// How many bytes readers have yet to come past.
    pub(crate) fn left(&self) -> u64 {
        if self.quiet || self.is_in_vain() {
            return 0;
        }
        self.pieces.total().saturating_sub(self.window.passed()) * PAGE
    }

    /// How many bytes it may hold by now, with so many left.
    pub(crate) fn reserved(&self, left: u64) -> u64 {
        self.held().max(left.min(self.window.budget() * PAGE))
    }

    /// Whether any process has read more than a little of it.
    pub(crate) fn has_workers(&self) -> bool {
        !self.workers().is_empty()
    }

    /// How much memory there is.
    pub(crate) fn set_memory(&mut self, memory: Memory) {
        let budget = budget(memory, self.window.held() * PAGE, self.others);
        self.window
            .set_budget(budget.min(self.cap) / OWN * (OWN - 1) / PAGE);
    }

    /// Checks dropped ranges: `there` returns how many of their pages are still cached. With `goes`, mapped pages can
    /// be dropped, so leftovers are never taken for mapped ones.
    pub(crate) fn recheck_dropped(&mut self, goes: bool, mut there: impl FnMut(&Extent) -> u64) {
        let (opens, open) = (self.opens, &self.open);
        self.window.recheck_dropped(|extent| {
            let closed = opens && !open.contains_key(&extent.file);
            match there(extent) {
                0 => Leftover::Nothing,
                // A page or two are those of a large one that a neighbour keeps.
                pages if goes || closed || pages * 2 < u64::from(extent.pages) => Leftover::Part,
                _ => Leftover::Mapped,
            }
        });
    }

    /// The pages of a file that have stayed can be dropped now.
    pub(crate) fn release_file(&mut self, file: u32) {
        self.window.release_file(file);
    }

    /// Whether no process has a file open any more; mappings count as open.
    pub(crate) fn is_closed(&self, file: u32) -> bool {
        !self.open.contains_key(&file)
    }

    /// What other services of this node have yet to read.
    pub(crate) fn set_claims(&mut self, claims: Claims) {
        self.window.set_claims(claims);
    }

    /// What this one's readers have yet to read.
    pub(crate) fn claims(&self) -> Claims {
        if self.quiet || self.is_in_vain() {
            return Claims::default();
        }
        self.window.claims()
    }

    /// Stops loading: takes back the issued ranges that are still `absent`.
    pub(crate) fn hold_back(&mut self, absent: impl FnMut(&Extent) -> bool) -> Advice {
        self.held_back = true;
        let cancels = self.window.hold_back(absent);
        for extent in &cancels {
            self.sources.take_back(extent);
        }
        Advice {
            cancels,
            drops: self.window.drops(),
            loads: Vec::new(),
        }
    }

    /// Whether to stop loading now: all readers are gone, or they read something else.
    pub(crate) fn is_to_hold_back(&self) -> bool {
        self.is_in_vain() && !self.held_back
    }

    fn is_in_vain(&self) -> bool {
        let most = ASTRAY.max(self.pieces.total() / ASTRAY_PART);
        (self.deserted && !self.early) || self.astray >= most || self.bypass.is_likely()
    }

    /// Memory is short: drops all pages that may go.
    pub(crate) fn drop_passed(&mut self) -> Vec<Extent> {
        self.window.drop_all();
        self.window.drops()
    }

    /// What to do now; `absent` says whether an issued range has not arrived yet.
    pub(crate) fn advise(&mut self, mut absent: impl FnMut(&Extent) -> bool) -> Advice {
        if self.quiet || self.is_in_vain() {
            return Advice {
                drops: self.window.drops(),
                ..Advice::default()
            };
        }
        self.held_back = false;
        let mut cancels = if std::mem::take(&mut self.come) {
            // Not in the background any more; and some machines reclaim pages that were not read at once.
            self.window.issue_again()
        } else {
            Vec::new()
        };
        let withdrawn = self.window.withdraw_earlier(&mut absent);
        for extent in &withdrawn {
            self.sources.take_back(extent);
        }
        cancels.extend(withdrawn);
        self.window.reissue_overtaken(absent);
        let loads = self.window.loads();
        self.asked(loads.iter().map(|load| load.extent));
        let (workers, behind) = (&self.workers, self.early && self.behind);
        let wish = |issue: Prefetch| {
            let (process, xpu) = workers.reader(issue.reader);
            Request {
                extent: issue.extent,
                process,
                xpu,
                instead: issue.instead,
                hold: issue.hold,
                behind,
            }
        };
        Advice {
            loads: loads.into_iter().map(wish).collect(),
            drops: self.window.drops(),
            cancels,
        }
    }

    /// Takes in an event on these pages. That may be long after it, and others may wait: how long readers are silent
    /// counts from now.
    pub(crate) fn hear(
        &mut self,
        event: &Event,
        extent: &Extent,
        processes: &dyn Processes,
        now_ns: u64,
    ) {
        let now_ns = now_ns.max(self.heard_ns);
        self.heard_ns = now_ns;
        self.late_ns = now_ns.saturating_sub(event.time_ns);
        self.deserted = false;
        self.reach(event, extent.file);
        let process = event.process;
        self.meet(process, processes);
        // The OPEN may arrive a little after the first read.
        let began = Duration::from_nanos(event.time_ns.saturating_sub(self.began_ns));
        if event.kind == Kind::Open && began <= TOLD_LATE {
            self.midway.take_if(|it| *it == (extent.file, process));
        }
        match event.kind {
            Kind::Open => {
                self.opens = true;
                *self.open.entry(extent.file).or_default() += 1;
            }
            Kind::Close => self.closed(extent.file),
            _ => {}
        }
        let step = match event.kind {
            Kind::Miss => Access::Miss,
            Kind::Touch => Access::Read,
            Kind::Progress => Access::Beacon,
            _ => return,
        };
        if let Some(member) = self.workers.member(process) {
            (member.heard_ns, member.gone) = (now_ns, false);
        }
        let read = event.length / PAGE;
        // A fault also maps neighbouring pages, which need not be read.
        let mapped = (event.kind == Kind::Touch && event.mmap)
            .then(|| self.pieces.expected_in(extent))
            .flatten();
        let heard = mapped.as_ref().unwrap_or(extent);
        if step == Access::Miss {
            self.sources.miss(extent);
            if self.is_read_ahead(extent) {
                return;
            }
        }
        let known = self.follow(process, heard, step, read);
        if event.kind == Kind::Touch {
            self.note(process, extent, event.mmap);
        }
        let read = if step == Access::Beacon {
            read
        } else {
            u64::from(extent.pages)
        };
        if !self.is_small(extent.file) {
            self.bypass.read_cached(read, self.pieces.total());
        }
        self.astray = if known {
            self.astray.saturating_sub(read)
        } else {
            self.astray.saturating_add(read)
        };
    }

    /// A load that waits for readers has them from the first event of the weights on; after forerunners, only from the
    /// first read on.
    fn reach(&mut self, event: &Event, file: u32) {
        if self.is_small(file) {
            return;
        }
        let is_first = !std::mem::replace(&mut self.reached, true);
        let reads = !matches!(event.kind, Kind::Open | Kind::Close);
        if (is_first || reads) && std::mem::take(&mut self.early) {
            self.come = true;
            self.began_ns = self.heard_ns;
        }
    }

    /// Takes in a process that is new.
    fn meet(&mut self, process: u32, processes: &dyn Processes) {
        if self.workers.member(process).is_some() {
            return;
        }
        let facts = processes.facts(process);
        self.workers.add(process, facts, self.heard_ns);
        if let Some(group) = self.workers.unassigned_of_rank(facts.rank) {
            // It may not have been expected on this node.
            self.window.resume(group);
        }
    }

    /// Whether the kernel may have read this ahead for a reader of expected pages: it need not be wanted itself.
    fn is_read_ahead(&self, extent: &Extent) -> bool {
        let behind = Extent {
            first: extent.first.saturating_sub(AHEAD),
            pages: extent.first.min(AHEAD),
            ..*extent
        };
        self.pieces.at(extent.file, extent.first).is_none()
            && self.pieces.expected_in(&behind).is_some()
    }

    fn closed(&mut self, file: u32) {
        if let Some(open) = self.open.get_mut(&file) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&file);
            }
        }
    }

    /// Records a process's read, if the load is recorded. A fault also maps cached pages around its own, 64 KiB or
    /// the rest of a large folio, the first and last of which may be another worker's: they do not count where this
    /// worker's part is known to begin or to end, unless it reads on there. If that was wrong, it has to bring them in
    /// itself.
    fn note(&mut self, process: u32, extent: &Extent, mapped: bool) {
        let Some(records) = &mut self.records else {
            return;
        };
        let record = records.entry(process).or_default();
        let member = self.workers.member(process).filter(|_| mapped);
        let Some((group, _)) = member.and_then(|member| member.place) else {
            record.add(extent);
            return;
        };
        // What precedes all parts of a file is its header, which each worker reads.
        let (header, rest) = extent.cut(self.pieces.first(extent.file));
        record.add(&header);
        record.add_part(&rest, &self.pieces.reach(group, &rest, ALONG));
    }

    /// Some events were lost.
    pub(crate) const fn lose(&mut self) {
        self.lost = true;
    }

    /// Whether a file is too small for weights, or none of the model's.
    fn is_small(&self, file: u32) -> bool {
        let file = self.files.get(file as usize);
        file.is_none_or(|(_, size)| *size < WORKER * PAGE)
    }

    /// Time has passed. Returns whether the load is over; `idle` is how long its readers may be quiet.
    pub(crate) fn tick(&mut self, now_ns: u64, idle: Duration, processes: &dyn Processes) -> bool {
        let since = |then: u64| Duration::from_nanos(now_ns.saturating_sub(then));
        if self.late_ns > BEHIND && since(self.heard_ns) < MORE {
            // What readers have done since is not known yet.
            return false;
        }
        let workers = self.workers();
        let mut leave = self.see_off(now_ns, &workers, processes);
        // As many as are expected read: the other groups have no process of their own.
        let reads = |(process, it): (u32, &Worker)| !it.gone && workers.contains(&process);
        let reading = self.workers.members().filter(|&it| reads(it)).count();
        let complete = reading >= self.workers.groups();
        if (complete || since(self.began_ns) > MISSING) && !self.early {
            leave.extend(self.workers.missing().map(|group| (group, group)));
        }
        for (_, reader) in leave {
            self.window.leave(reader);
        }
        let all_gone = self.workers.members().all(|(_, member)| member.gone);
        self.deserted = all_gone;
        let quiet = since(self.heard_ns);
        let has_none = workers.is_empty() && (all_gone || quiet > STALLED);
        let waits = self.awaits && has_none && !self.bypass.is_likely();
        self.early |= waits && !self.has_read(WHOLE);
        if self.bypass.is_likely() {
            if quiet > idle {
                self.let_go();
            }
            return quiet > idle;
        }
        if self.early {
            return since(self.began_ns) > EARLY;
        }
        if workers.is_empty() {
            // A process that read the configuration and ended may have been a forerunner.
            return quiet > if all_gone { idle } else { idle * STARTING };
        }
        let closed = self.opens && self.open.is_empty();
        let closed = closed && quiet > CLOSED && self.has_read(ALL);
        // Where the device takes longer than that, the readers wait for it, too.
        let idles = since(self.heard_ns.max(self.loading_ns)) > idle || quiet > idle * STARTING;
        idles || closed || (all_gone && quiet > Duration::from_secs(1))
    }

    /// Finds out which processes are gone or rest, and returns the places that hold up others no longer. A process that
    /// ends before it has read more than a little was a forerunner, and so is one that rests while no worker has come:
    /// its place is that of the worker to come.
    fn see_off(
        &mut self,
        now_ns: u64,
        workers: &HashSet<u32>,
        processes: &dyn Processes,
    ) -> Vec<(usize, usize)> {
        let since = |then: u64| Duration::from_nanos(now_ns.saturating_sub(then));
        let finished = self.finished();
        let (mut ended, mut leave, mut forerunners) = (false, Vec::new(), Vec::new());
        let members = self.workers.members_mut();
        for (process, member) in members.filter(|(_, member)| !member.gone) {
            member.facts.rank = member.facts.rank.or_else(|| processes.rank(process));
            let silent = since(member.heard_ns);
            member.gone = !processes.is_alive(process);
            if !member.gone && silent <= STALLED {
                continue;
            }
            let works = workers.contains(&process);
            ended |= member.gone && works && !finished.contains(&process) && silent < CUT_SHORT;
            let expected = member.place.is_some_and(|(group, reader)| group == reader);
            if expected && !works && (member.gone || workers.is_empty()) {
                forerunners.push(process);
            } else {
                leave.extend(member.place);
            }
        }
        for process in forerunners {
            self.workers.unassign(process);
        }
        self.cut_short |= ended && !self.has_read(WHOLE);
        leave
    }

    /// Drops everything that was prefetched: none of it is of use.
    fn let_go(&mut self) {
        for reader in 0..self.window.readers() {
            self.window.leave(reader);
        }
        self.window.drop_all();
    }

    /// The processes that are not known to be gone.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let there = self.workers.members().filter(|(_, member)| !member.gone);
        there.map(|(process, _)| process).collect()
    }

    /// The processes that have read more than a little.
    fn workers(&self) -> HashSet<u32> {
        let followed = |member: &Worker| {
            let place = member.place;
            place.map_or(0, |(_, reader)| self.window.progress(reader).0)
        };
        // A place far on in its order does not mean that it has read what comes before.
        let read = |process, member| match &self.records {
            Some(records) => records.get(&process).map_or(0, Record::pages),
            None => followed(member),
        };
        let members = self.workers.members();
        members
            .filter(|&(process, member)| read(process, member) >= WORKER)
            .map(|(process, _)| process)
            .collect()
    }

    /// The processes that have reached the end of what they were expected to read.
    fn finished(&self) -> HashSet<u32> {
        let at_end = |member: &Worker| {
            let (come, of) = member
                .place
                .map_or((0, 1), |(_, it)| self.window.progress(it));
            come * 100 >= of * WHOLE
        };
        let members = self.workers.members();
        let finished = members.filter(|(_, member)| at_end(member));
        finished.map(|(process, _)| process).collect()
    }

    /// Whether at least `percent` of the expected pages has been read.
    fn has_read(&self, percent: u64) -> bool {
        self.read() * 100 >= self.pieces.total() * percent
    }

    /// How many pages are known to have been read, each once.
    fn read(&self) -> u64 {
        if self.records.is_none() {
            return self.window.passed();
        }
        let ranges = self.read_ranges().into_iter();
        let pages = ranges.map(|(_, range)| u64::from(range.end - range.start));
        pages.sum()
    }
}

/// How many bytes may be held, given those `held` now and those used by `others` at the beginning.
fn budget(memory: Memory, held: u64, others: u64) -> u64 {
    // Held bytes count as used once they have arrived.
    let others = memory
        .used
        .saturating_sub(held)
        .max(others.min(memory.used));
    memory.threshold.saturating_sub(others)
}
