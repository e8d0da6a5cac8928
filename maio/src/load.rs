//! One load of a model, from the first event to the end: who reads, where they are, what is to be
//! loaded and dropped, and what of it is worth remembering. It knows the world only by what it is told.

mod outcome;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ppc::{Event, Kind, Memory, Xpu};

use crate::bypass::Bypass;
use crate::extent::{Extent, PAGE};
use crate::order::Pieces;
use crate::peers::Claims;
use crate::ranges::Ranges;
use crate::record::Record;
use crate::window::{Access, Expectation, Leftover, Prefetch, TABLE, Window};
use crate::workers::{Assignment, ExpectedWorker, ProcessFacts, Worker, Workers};

pub(crate) use outcome::{Outcome, Part};

/// A reader that has not been heard for so long does not hold up others.
const STALLED: Duration = Duration::from_secs(5);
/// And one that was expected and did not come.
const MISSING: Duration = Duration::from_secs(30);
/// A process that ends so soon after it has read did not mean to.
const CUT_SHORT: Duration = Duration::from_secs(2);
/// With so much of what was expected a load is whole, however its readers ended, in percent.
const WHOLE: u64 = 95;
/// With all of its files closed, what has been read so far, in percent, and nobody reading for so long, it
/// is over: mappings outlive descriptors, so one of these alone says little.
const ALL: u64 = 99;
const CLOSED: Duration = Duration::from_secs(2);
/// An OPEN comes this much later than what it led to, at most.
const TOLD_LATE: Duration = Duration::from_millis(200);
/// A reader of less than this is no worker: it looks at the configuration, say.
const WORKER: u64 = (1 << 20) / PAGE;
/// Until a worker comes a load may be idle so many times as long: frameworks take their time between
/// the configuration and the weights.
const STARTING: u32 = 30;

/// A load that began before its readers waits for them so long.
const EARLY: Duration = Duration::from_mins(10);

/// Readers that have read so much that nobody was expected to, and more than what was, are not those
/// that were expected;
const ASTRAY: u64 = (16 << 20) / PAGE;
/// of a large model, a part.
const ASTRAY_PART: u64 = 128;

/// Who has read so much of another's course follows that one.
const COURSE: u64 = (4 << 20) / PAGE;

/// This part of the budget is for what readers bring in by themselves.
const OWN: u64 = 8;

/// Pages that one fault maps at most: those of a large folio.
const ALONG: u32 = 512;
/// The kernel reads no further ahead than so many pages, 8 MiB, unless somebody has told it to.
const AHEAD: u32 = 2048;

/// What is known of processes.
pub(crate) trait Processes {
    fn facts(&self, process: u32) -> ProcessFacts;
    fn is_alive(&self, process: u32) -> bool;
}

/// What is going to be read, by whom.
#[derive(Clone, Debug)]
pub(crate) struct Forecast {
    /// The files and their sizes, as the pieces number them.
    pub(crate) files: Arc<[(String, u64)]>,
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) expected: Vec<ExpectedWorker>,
    /// These are workers of several nodes: for each of them nothing is loaded before it is there.
    pub(crate) several: bool,
}

/// A range to load, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) extent: Extent,
    pub(crate) process: Option<u32>,
    pub(crate) xpu: Option<Xpu>,
    pub(crate) instead: bool,
    pub(crate) hold: bool,
    /// It is not to hold up what else is read.
    pub(crate) behind: bool,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) drops: Vec<Extent>,
    /// Not to be loaded any more.
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
    /// What others take of the memory.
    others: u64,
    /// Nothing is to be loaded: it is all there, or nobody would read it from there.
    quiet: bool,
    began_ns: u64,
    heard_ns: u64,
    lost: bool,
    bypass: Bypass,
    cut_short: bool,
    /// Its first event was no OPEN: it had begun before. Unless that is told yet, of this file and process.
    midway: Option<(u32, u32)>,
    /// How often each of its files is open, and whether that is told.
    open: HashMap<u32, u32>,
    opens: bool,
    /// Pages that nobody was expected to read, less those that somebody was, since.
    astray: u64,
    /// Pages that workers have read though by their ranks they were others'.
    off_course: u64,
    /// Everybody who was heard is gone.
    deserted: bool,
    /// What was issued has been taken back.
    held_back: bool,
    /// It began before its readers, and none of them has come to the weights.
    early: bool,
    /// And nothing is to wait for it until then.
    behind: bool,
    /// A reader has come to them since, and what was asked for before that is still to be asked for anew.
    come: bool,
    cap: u64,
}

impl Load {
    /// Begins now; nothing of it is loaded if it is to be `quiet`.
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
            early: false,
            behind: false,
            come: false,
            cap,
        };
        for group in (0..load.pieces.groups()).filter(|_| several) {
            load.window.leave(group);
        }
        load.set_memory(memory);
        load
    }

    /// What is read is recorded; in vain, if that had begun before what was first heard, of a file and a
    /// process.
    pub(crate) fn record(&mut self, midway: Option<(u32, u32)>) {
        self.records = Some(HashMap::new());
        self.midway = midway;
    }

    /// It begins before its readers; `behind` all else until they come.
    pub(crate) const fn await_readers(&mut self, behind: bool) {
        (self.early, self.behind) = (true, behind);
    }

    /// A reader has opened weights with `O_DIRECT`: what was prefetched is of no use to it.
    pub(crate) const fn suspect_bypass(&mut self) {
        self.early = false;
        self.bypass.suspect();
    }

    /// Bytes that are held.
    pub(crate) fn held(&self) -> u64 {
        self.window.held() * PAGE
    }

    /// Whether anybody has read more than a little of it.
    pub(crate) fn has_workers(&self) -> bool {
        !self.workers().is_empty()
    }

    /// How much memory there is.
    pub(crate) fn set_memory(&mut self, memory: Memory) {
        let budget = budget(memory, self.window.held() * PAGE, self.others);
        self.window
            .set_budget(budget.min(self.cap) / OWN * (OWN - 1) / PAGE);
    }

    /// Of what was dropped, so many pages are `there`; of what is mapped none has to be, if it `goes`.
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

    /// What has stayed of a file can be dropped now.
    pub(crate) fn release_file(&mut self, file: u32) {
        self.window.release_file(file);
    }

    /// Whether nobody has a file open any more, which mappings do.
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

    /// Nothing more is to be loaded: what is `absent` of what was issued is taken back.
    pub(crate) fn hold_back(&mut self, absent: impl FnMut(&Extent) -> bool) -> Advice {
        self.held_back = true;
        Advice {
            cancels: self.window.hold_back(absent),
            drops: self.window.drops(),
            loads: Vec::new(),
        }
    }

    /// Whether that is to be done now: nobody is there to load for, or they read something else.
    pub(crate) fn is_to_hold_back(&self) -> bool {
        self.is_in_vain() && !self.held_back
    }

    fn is_in_vain(&self) -> bool {
        let most = ASTRAY.max(self.pieces.total() / ASTRAY_PART);
        (self.deserted && !self.early) || self.astray >= most || self.bypass.is_likely()
    }

    /// Memory is short: what may go is to go.
    pub(crate) fn drop_passed(&mut self) -> Vec<Extent> {
        self.window.drop_all();
        self.window.drops()
    }

    /// What to do, of what has been issued some being `absent` still.
    pub(crate) fn advise(&mut self, absent: impl FnMut(&Extent) -> bool) -> Advice {
        if self.quiet || self.is_in_vain() {
            return Advice {
                drops: self.window.drops(),
                ..Advice::default()
            };
        }
        self.held_back = false;
        let cancels = if std::mem::take(&mut self.come) {
            // Not in the background any more; and some machines take back what was not read at once.
            self.window.issue_again()
        } else {
            Vec::new()
        };
        self.window.reissue_overtaken(absent);
        let loads = self.window.loads();
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

    /// Somebody has done something to these pages.
    pub(crate) fn hear(&mut self, event: &Event, extent: &Extent, processes: &dyn Processes) {
        let now_ns = event.time_ns.max(self.heard_ns);
        self.heard_ns = now_ns;
        self.deserted = false;
        if self.early && !self.is_small(extent.file) {
            (self.early, self.come) = (false, true);
            self.began_ns = now_ns;
        }
        let process = event.process;
        if self.workers.member(process).is_none() {
            let facts = processes.facts(process);
            self.workers.add(process, facts, now_ns);
            if let Some(group) = self.workers.unassigned_of_rank(facts.rank) {
                // It may not have been expected on this node.
                self.window.resume(group);
            }
        }
        // It may be told a little after the first read.
        let began = Duration::from_nanos(now_ns.saturating_sub(self.began_ns));
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
        // What is mapped is mapped with its neighbours, though nobody may read those.
        let mapped = (event.kind == Kind::Touch && event.mmap)
            .then(|| self.pieces.expected_in(extent))
            .flatten();
        let heard = mapped.as_ref().unwrap_or(extent);
        if step == Access::Miss && self.is_read_ahead(extent) {
            return;
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

    /// Whether the kernel may have read this ahead for who reads what is expected: nobody has to want it.
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

    /// Who reads what, if that is recorded. A fault maps what is cached behind it, 64 KiB or the rest
    /// of a large folio, of which the last may be another worker's: it counts unless this worker's part
    /// is known to end there. If that was wrong, it misses so much next time, and a recording of that has it:
    /// a fault tells of its own page first.
    fn note(&mut self, process: u32, extent: &Extent, mapped: bool) {
        let Some(records) = &mut self.records else {
            return;
        };
        let member = self.workers.member(process).filter(|_| mapped);
        let group = member.and_then(|member| member.place);
        let reach = |(group, _)| self.pieces.reach(group, extent, ALONG);
        let end = group.map_or(extent.end(), reach);
        let record = records.entry(process).or_default();
        record.add_up_to(extent, end);
    }

    /// Some events could not be told.
    pub(crate) const fn lose(&mut self) {
        self.lost = true;
    }

    /// Says whether anybody was expected to read that.
    fn follow(&mut self, process: u32, extent: &Extent, step: Access, read: u64) -> bool {
        let place = self.workers.member(process).and_then(|member| member.place);
        if let Some((group, reader)) = place {
            let heard = self.window.hear(reader, extent, step, read);
            let sure = self.window.progress(reader).0 * PAGE > Self::SURE;
            if self.stays(process, group, heard, sure, extent) {
                return heard != Expectation::Unexpected;
            }
            self.workers.unassign(process);
        }
        let page = match step {
            Access::Miss => extent.first,
            Access::Read | Access::Beacon => extent.end().saturating_sub(1),
        };
        let Some(piece) = self.pieces.at(extent.file, page) else {
            self.window.count_unexpected(extent);
            return false;
        };
        if self.is_small(extent.file) {
            // Who looks at the configuration need not be a worker.
            return true;
        }
        let pieces = Arc::clone(&self.pieces);
        let near = match step {
            // What is mapped is mapped with its neighbours, which may be other workers' parts.
            Access::Beacon => pieces.up_to(piece, page.saturating_sub(TABLE)),
            Access::Miss | Access::Read => piece..piece + 1,
        };
        let fits = |group| {
            let order = pieces.order(group);
            order.is_some_and(|it| near.clone().any(|piece| it.place(piece).is_some()))
        };
        let (group, reader) = match self.workers.choose(process, fits) {
            Some(Assignment::Expected(group)) => (group, Some(group)),
            Some(Assignment::Extra(group)) => (group, self.window.join(group)),
            None => return true,
        };
        if let Some(reader) = reader {
            self.workers.assign(process, group, reader);
            self.window.hear(reader, extent, step, read);
        }
        true
    }

    /// Whether a process is still taken for the worker of a group, of which it may be `sure`. One that has a rank,
    /// or has come far, may look at what is another's; when it has read a few MiB of that it is that one.
    fn stays(
        &mut self,
        process: u32,
        group: usize,
        heard: Expectation,
        sure: bool,
        extent: &Extent,
    ) -> bool {
        let ranked = self.workers.ranked(process);
        let Some(member) = self.workers.member(process) else {
            return true;
        };
        let pages = u64::from(extent.pages);
        let by_rank = ranked.is_some() && !member.by_course;
        let elsewhere = ranked.is_some_and(|it| it != group);
        if heard == Expectation::Others {
            member.strayed += pages;
        } else {
            member.strayed = member.strayed.saturating_sub(pages);
        }
        let strays = heard == Expectation::Others && (by_rank || sure);
        let leaves =
            heard == Expectation::Others && (member.strayed > COURSE || !(by_rank || sure));
        if leaves {
            member.by_course |= by_rank;
            member.strayed = 0;
        }
        if strays || (elsewhere && heard != Expectation::Unexpected) {
            self.off_course += pages;
        }
        !leaves
    }

    fn is_small(&self, file: u32) -> bool {
        let file = self.files.get(file as usize);
        file.is_some_and(|(_, size)| *size < WORKER * PAGE)
    }

    /// A process that has read so much of an order follows it, even if it reads something else now and then.
    const SURE: u64 = 64 << 20;

    /// Time has passed. Says whether the load is over, with readers that have been quiet for `idle`.
    pub(crate) fn tick(&mut self, now_ns: u64, idle: Duration, processes: &dyn Processes) -> bool {
        let since = |then: u64| Duration::from_nanos(now_ns.saturating_sub(then));
        let workers = self.workers();
        let finished = self.finished();
        let mut ended = false;
        let mut leave = Vec::new();
        for (process, member) in self
            .workers
            .members_mut()
            .filter(|(_, member)| !member.gone)
        {
            if !processes.is_alive(process) {
                member.gone = true;
                let works = workers.contains(&process) && !finished.contains(&process);
                ended |= works && since(member.heard_ns) < CUT_SHORT;
                leave.extend(member.place);
            } else if since(member.heard_ns) > STALLED {
                leave.extend(member.place);
            }
        }
        if since(self.began_ns) > MISSING && !self.early {
            leave.extend(self.workers.missing().map(|group| (group, group)));
        }
        self.cut_short |= ended && !self.has_read(WHOLE);
        for (_, reader) in leave {
            self.window.leave(reader);
        }
        let all_gone = self.workers.members().all(|(_, member)| member.gone);
        self.deserted = all_gone;
        let quiet = since(self.heard_ns);
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
            // Who looked at the configuration and went may have been sent ahead.
            return quiet > if all_gone { idle } else { idle * STARTING };
        }
        let closed = self.opens && self.open.is_empty();
        let closed = closed && quiet > CLOSED && self.has_read(ALL);
        quiet > idle || closed || (all_gone && quiet > Duration::from_secs(1))
    }

    /// None of what was prefetched is of use.
    fn let_go(&mut self) {
        for reader in 0..self.window.readers() {
            self.window.leave(reader);
        }
        self.window.drop_all();
    }

    /// The processes that are there, as far as is known.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let there = self.workers.members().filter(|(_, member)| !member.gone);
        there.map(|(process, _)| process).collect()
    }

    /// The processes that have read more than a little.
    fn workers(&self) -> HashSet<u32> {
        let recorded = |process| {
            let record = self
                .records
                .as_ref()
                .and_then(|records| records.get(&process));
            record.map_or(0, Record::pages)
        };
        let followed = |member: &Worker| {
            let place = member.place;
            place.map_or(0, |(_, reader)| self.window.progress(reader).0)
        };
        let members = self.workers.members();
        members
            .filter(|&(process, member)| recorded(process).max(followed(member)) >= WORKER)
            .map(|(process, _)| process)
            .collect()
    }

    /// Those who have come to the end of what was expected of them.
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

    /// Whether so much of what was expected has been read, in percent.
    fn has_read(&self, percent: u64) -> bool {
        self.read() * 100 >= self.pieces.total() * percent
    }

    /// Pages that somebody has read, as far as is known.
    fn read(&self) -> u64 {
        match &self.records {
            None => self.window.passed(),
            Some(records) => {
                let mut files: BTreeMap<u32, Ranges> = BTreeMap::new();
                for (file, set) in records.values().flat_map(Record::files) {
                    files.entry(file).or_default().extend(set);
                }
                files.values().map(Ranges::pages).sum()
            }
        }
    }
}

/// How much may be held, with so much held now and so much taken by others at the beginning.
fn budget(memory: Memory, held: u64, others: u64) -> u64 {
    // What is held counts as used as far as it has come in.
    let others = memory
        .used
        .saturating_sub(held)
        .max(others.min(memory.used));
    memory.threshold.saturating_sub(others)
}
