//! A model: receives its events, keeps its templates, and turns advice into plans.
//!
//! ```text
//! files and their headers ─ prepare ─▶ what is going to be read ─┐
//! template of the service ──────────▶                            ├─ load ─ window ─▶ plan
//! events, memory, processes ─────────────────────────────────────┘     └─ record ─▶ template
//! ```

mod late;
mod life;
mod report;
mod share;
mod templates;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use ppc::ranks::Layout;
use ppc::{Event, Features, FileId, Host, Io, Kind, Kinds, Level, Memory, Plan, Result};

use crate::config::{Beginning, Config, Recording};
use crate::extent::{Extent, PAGE};
use crate::host::{FileTable, NodeWatch};
use crate::load::{Advice, Forecast, Load, Outcome, Processes};
use crate::models::ModelKey;
use crate::peers::{Belongs, Demand};
use crate::predict::{is_small, kind};
use crate::save::TemplateThread;
use crate::template::Template;
use crate::workers::ProcessFacts;
use late::LateReads;
use templates::Search;

pub(crate) use share::Share;

/// How often memory and processes are checked while a model is loaded.
const TICK: Duration = Duration::from_millis(100);
/// Upper bound on the bytes from one PROGRESS event of a reader to the next,
const BEACON: u64 = 4 << 20;
/// and the fraction of what may be held that bounds them, too.
const BEACONS: u64 = 64;
/// The cached part of a model, in percent, from which on there is nothing to do.
const CACHED: u64 = 99;
/// Priority of loads whose reader has not come: they do not hold up others.
const BACKGROUND: i32 = -1;
/// How often claims are exchanged with other services, in ns; how much memory each takes, with each tick.
const EXCHANGE: u64 = 1_000_000_000;
/// How often dropped ranges are checked, in ns: without the module, mapped pages stay until they are
/// unmapped.
const LOOK_AGAIN: u64 = 100_000_000;
/// The unexpected part of a load's reads, in percent, above which its template no longer fits.
const DRIFT: u64 = 5;
/// Fewer bytes than this are a look at a file, whatever part of the load they are.
const STRAY: u64 = 1 << 20;
/// How many times a template has been right before that is no longer written to it.
const PROVEN: u32 = 16;
/// How long an event waits for answers about its process, in ns: where other processes have the processors,
/// the thread that answers may be late, and without its rank a process is taken for another worker.
const PATIENCE: u64 = 2_000_000_000;
/// How many events may wait behind one that waits.
const MOST_WAITING: usize = 4096;

/// A model of the mount, and its loads.
#[derive(Debug)]
pub(crate) struct Model {
    key: ModelKey,
    config: Config,
    /// How the model is split, if that is known.
    layout: Layout,
    service: String,
    files: FileTable,
    forecast: Forecast,
    /// The template of that forecast; `None`: it is from headers.
    template: Option<Template>,
    /// The template does not fit any more.
    stale: bool,
    load: Option<Load>,
    /// Events in their order, the first of which waits for an answer.
    waiting: VecDeque<WaitingEvent>,
    node: NodeWatch,
    /// `None`: templates are neither looked for nor kept.
    templates: Option<TemplateThread>,
    search: Search,
    exchanged_ns: u64,
    looked_ns: u64,
    recording: Recorded,
    late: LateReads,
    /// All events of a load are wanted, as one is under way or may be beginning.
    alert: bool,
    wanted: (Kinds, u64),
    others: Vec<Share>,
    /// What other services take of the memory; and since when the load waits for them to say that.
    demands: Vec<Demand>,
    unheard_ns: Option<u64>,
    /// How many bytes the readers of the load had yet to come past when that was last found out.
    left: u64,
    /// Bytes that are going to be read.
    total: u64,
}

/// What is recorded of loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    Nothing,
    /// All reads, for a template.
    Whole,
    /// Reads after the first event, to compare them with the template: until then readers pay nothing.
    Proof,
}

/// An event that waits until its process is known.
#[derive(Debug)]
struct WaitingEvent {
    event: Event,
    since_ns: u64,
    /// Of the question whether this process reads around the page cache.
    ticket: Option<u64>,
}

/// Processes as the host and the kernel know them.
struct HostProcesses<'a, 'b> {
    host: &'a Host<'b>,
    node: &'a NodeWatch,
}

impl Processes for HostProcesses<'_, '_> {
    fn facts(&self, process: u32) -> ProcessFacts {
        ProcessFacts {
            rank: self.rank(process),
            xpu: self.host.process_xpu(process),
        }
    }

    fn rank(&self, process: u32) -> Option<u32> {
        self.node.rank(process)
    }

    fn is_alive(&self, process: u32) -> bool {
        !self.node.is_gone(process)
    }
}

impl Model {
    /// Takes the threads' answers.
    fn collect(&mut self, host: &Host<'_>) {
        match (self.node.collect(), &mut self.load) {
            (Some(Ok(heard)), Some(load)) => {
                load.set_claims(heard.claims);
                (self.demands, self.unheard_ns) = (heard.demands, None);
                let memory = self.memory(host);
                if let Some(load) = &mut self.load {
                    load.set_memory(memory);
                }
            }
            (Some(Err(line)), _) => {
                (self.demands, self.unheard_ns) = (Vec::new(), None);
                host.log(Level::Debug, line);
            }
            _ => {}
        }
        let found = self.templates.as_ref().and_then(|it| it.collect(host));
        if let Some(found) = found {
            self.found(host, found);
        }
    }

    /// Queues an event behind the waiting ones, and asks for the facts needed about its process.
    fn line_up(&mut self, host: &Host<'_>, event: &Event) {
        let mut ticket = None;
        if event.kind != Kind::Lost && !event.direct && (self.load.is_some() || begins(event)) {
            if self.load.is_none() && !self.alert {
                // What follows at once is part of it.
                self.listen(host, true);
            }
            self.node.ask_rank(event.process);
            if event.kind == Kind::Open && event.length > WEIGHTS {
                let info = host.info(event.file).ok();
                ticket = info.map(|info| self.node.ask_direct(event.process, info.inode));
            }
        }
        self.waiting.push_back(WaitingEvent {
            event: event.clone(),
            since_ns: host.now(),
            ticket,
        });
    }

    fn hear_waiting(&mut self, host: &Host<'_>) -> Result<()> {
        while let Some(first) = self.waiting.pop_front() {
            if !self.is_ready(host, &first) {
                self.waiting.push_front(first);
                break;
            }
            self.hear(host, &first)?;
        }
        if self.alert && self.load.is_none() && self.waiting.is_empty() {
            // It was no load after all.
            self.listen(host, false);
        }
        Ok(())
    }

    /// Takes in all waiting events, as no callback follows: waits for the thread's answers no longer than an
    /// event does.
    fn hear_rest(&mut self, host: &Host<'_>) -> Result<()> {
        let until = Instant::now() + Duration::from_nanos(PATIENCE);
        while let Some(first) = self.waiting.pop_front() {
            let left = || until.saturating_duration_since(Instant::now());
            while !self.is_ready(host, &first) && self.node.wait(left()) {}
            self.node.give_up_rank(first.event.process);
            self.hear(host, &first)?;
        }
        Ok(())
    }

    /// Whether all facts that an event needs are known, or it has waited for them long enough.
    fn is_ready(&mut self, host: &Host<'_>, waiting: &WaitingEvent) -> bool {
        let event = &waiting.event;
        let heard = self.load.is_some() || begins(event);
        if event.kind == Kind::Lost || event.direct || !heard {
            return true;
        }
        let patient = host.now() < waiting.since_ns + PATIENCE && self.waiting.len() < MOST_WAITING;
        if !self.node.knows(event.process) {
            // The earlier question may have been for a load that is over.
            self.node.ask_rank(event.process);
            if patient {
                return false;
            }
            self.node.give_up_rank(event.process);
        }
        let direct = waiting.ticket.map(|ticket| self.node.direct(ticket));
        if direct == Some(None) && patient {
            return false;
        }
        if self.load.is_some() || direct == Some(Some(true)) {
            return true;
        }
        let prepared = self.is_prepared(host);
        let process = event.process;
        if prepared {
            self.fit_layout(host, process);
        }
        prepared
    }

    /// Asks for a callback if anything waits.
    fn stay_awake(&self, host: &Host<'_>) -> Result<()> {
        if self.load.is_none() && (!self.waiting.is_empty() || self.late.waits()) {
            host.wake(TICK)?;
        }
        if self.has_urgent() {
            // This may just have replaced the wake of the thread that has answered.
            host.wake(Duration::ZERO)?;
        }
        Ok(())
    }

    fn advise(&mut self, host: &Host<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if self
            .unheard_ns
            .is_some_and(|since| host.now() < since + PATIENCE)
        {
            return Ok(());
        }
        let Some(load) = &mut self.load else {
            return Ok(());
        };
        let files = &mut self.files;
        let absent = |extent: &Extent| is_absent(files, host, extent);
        let advice = if load.is_to_hold_back() {
            load.hold_back(absent)
        } else {
            load.advise(absent)
        };
        self.carry_out(host, &advice, plan)
    }

    /// No load is under way: wants as few events as possible, but misses none of a load that is to be
    /// recorded.
    fn rest(&mut self, host: &Host<'_>) {
        // A template with 0 loads was made from headers, or has been wrong.
        let unproven = self.template.as_ref().is_none_or(|it| it.loads == 0);
        self.recording = match self.config.recording {
            _ if self.templates.is_none() || !host.features().contain(Features::TOUCH) => {
                Recorded::Nothing
            }
            Recording::Never => Recorded::Nothing,
            Recording::Auto if !unproven => Recorded::Proof,
            Recording::Always | Recording::Auto => Recorded::Whole,
        };
        self.listen(host, false);
    }

    fn listen(&mut self, host: &Host<'_>, loads: bool) {
        self.alert = loads;
        let has = |feature, kind: Kind| host.features().contain(feature).then_some(kind);
        let records = match self.recording {
            Recorded::Nothing => false,
            Recorded::Whole => true,
            Recorded::Proof => loads,
        };
        let kinds: Kinds = [
            Some(Kind::Miss),
            has(Features::OPEN, Kind::Open),
            has(Features::OPEN, Kind::Close).filter(|_| loads),
            has(Features::TOUCH, Kind::Touch).filter(|_| records),
            has(Features::PROGRESS, Kind::Progress).filter(|_| loads && !records),
        ]
        .into_iter()
        .flatten()
        .map(Kinds::from)
        .chain((!loads || self.proves_later()).then_some(Kinds::FROM_OPEN))
        .collect();
        let held = memory(host).threshold.min(self.config.budget);
        self.wanted = (kinds, (held / BEACONS).clamp(PAGE, BEACON));
    }

    /// Whether the load has no reader yet, and only has to be compared with its template: the first reads after the
    /// first OPEN may be missed.
    fn proves_later(&self) -> bool {
        let early = self.load.as_ref().is_some_and(Load::is_early);
        early && self.recording == Recorded::Proof
    }

    fn hear(&mut self, host: &Host<'_>, waiting: &WaitingEvent) -> Result<()> {
        let event = &waiting.event;
        if event.kind == Kind::Lost {
            if let Some(load) = &mut self.load {
                load.lose();
            }
            return Ok(());
        }
        let found_direct = waiting.ticket.and_then(|it| self.node.take_direct(it));
        match self.node.owner(event.process) {
            Belongs::Elsewhere => return Ok(()),
            Belongs::Unclear if self.load.is_none() => return Ok(()),
            _ => {}
        }
        let Some(number) = self.files.number(host, event.file) else {
            return Ok(());
        };
        if event.direct || found_direct == Some(true) {
            // Its process has no use for the page cache, so there is nothing to do for it.
            if let Some(load) = self.load.as_mut().filter(|_| event.length > WEIGHTS) {
                load.suspect_bypass();
            }
            return Ok(());
        }
        if self.load.is_none() {
            if !begins(event) {
                return Ok(());
            }
            if self.is_served(event, number) {
                self.hear_late(event, number);
                return Ok(());
            }
            if !self.is_part(number) {
                return Ok(());
            }
            self.begin(host, event, number)?;
        }
        if let Some(load) = &mut self.load
            && let Some(extent) = Extent::of_bytes(number, &place(event))
        {
            let node = &self.node;
            load.hear(event, &extent, &HostProcesses { host, node }, host.now());
        }
        if let Some(load) = &self.load
            && event.kind == Kind::Close
            && load.is_closed(number)
        {
            // Pages that were mapped until now could not be dropped.
            self.recheck_dropped(host, Some(number));
        }
        Ok(())
    }

    /// Dropped pages that have stayed are held, or left to the kernel until their file is closed.
    fn recheck_dropped(&mut self, host: &Host<'_>, closed: Option<u32>) {
        let Some(load) = &mut self.load else {
            return;
        };
        self.looked_ns = host.now();
        let files = &mut self.files;
        let goes = host.features().contain(Features::EVICT_MAPPED);
        let there = |extent: &Extent| resident(files, host, extent).unwrap_or(0).div_ceil(PAGE);
        load.recheck_dropped(goes, there);
        if let Some(closed) = closed {
            load.release_file(closed);
        }
    }

    /// Whether this process has its model, and now reads another file, a tokenizer or an adapter, or one
    /// that it still has open.
    fn is_served(&self, event: &Event, file: u32) -> bool {
        let opens = self.wanted.0.contains(Kind::Open);
        let file = self.forecast.files.get(file as usize);
        let is_late =
            (opens && event.kind == Kind::Miss) || file.is_none_or(|(_, size)| *size < WEIGHTS);
        self.late.is_served(event.process) && is_late
    }

    /// Whether frameworks read a file: they do not read a description of the model.
    fn is_part(&self, file: u32) -> bool {
        let known = self.forecast.files.len();
        let is_known = known == 0 || usize::try_from(file).is_ok_and(|file| file < known);
        is_known
            || self
                .files
                .path(file)
                .is_some_and(|path| is_small(path) || kind(path).is_some())
    }

    fn begin(&mut self, host: &Host<'_>, event: &Event, number: u32) -> Result<()> {
        let quiet = self.is_cached(host);
        let opens = host.features().contain(Features::OPEN);
        let midway = (opens && event.kind != Kind::Open).then_some((number, event.process));
        let load = self.new_load(host, quiet, midway, event.time_ns);
        self.take_up(host, load)
    }

    /// If so configured, begins before anything is opened, unless all of the model is cached.
    fn begin_early(&mut self, host: &Host<'_>) -> Result<()> {
        let beginning = std::mem::replace(&mut self.config.beginning, Beginning::Open);
        if beginning == Beginning::Open {
            return Ok(());
        }
        if let Some(load) = &mut self.load {
            // A forerunner that has read the configuration, say, has begun it.
            load.await_readers(beginning == Beginning::Early);
            return Ok(());
        }
        if self.forecast.pieces.total() == 0 || self.is_cached(host) {
            return Ok(());
        }
        let mut load = self.new_load(host, false, None, host.now());
        load.await_readers(beginning == Beginning::Early);
        self.take_up(host, load)
    }

    /// A load that begins now; `midway` if it has begun before, with that file and process.
    fn new_load(
        &self,
        host: &Host<'_>,
        quiet: bool,
        midway: Option<(u32, u32)>,
        now_ns: u64,
    ) -> Load {
        let (forecast, cap) = (self.forecast.clone(), self.config.budget);
        let mut load = Load::new(forecast, self.memory(host), cap, quiet, now_ns);
        match self.recording {
            Recorded::Whole => load.record(midway),
            Recorded::Proof if !quiet => load.record(None),
            Recorded::Proof | Recorded::Nothing => {}
        }
        load
    }

    fn take_up(&mut self, host: &Host<'_>, load: Load) -> Result<()> {
        self.load = Some(load);
        self.join_peers(host);
        self.exchange(host, true, true);
        self.listen(host, true);
        host.wake(TICK)
    }

    /// Announces this load to the other services that load on this node.
    fn join_peers(&mut self, host: &Host<'_>) {
        let Some(directory) = self.config.leases.clone() else {
            return;
        };
        let numbers = (0..).zip(self.forecast.files.iter());
        let keys = numbers.map(|(number, _)| self.files.key(host, number));
        self.node.join_peers(directory, keys.collect());
        // Before they have said what they take of the memory, nothing is loaded.
        self.demands.clear();
        self.unheard_ns = Some(host.now());
    }

    /// Tells other services how much memory this load takes, and perhaps what it has yet to read; `waits` for what they
    /// say.
    fn exchange(&mut self, host: &Host<'_>, claims: bool, waits: bool) {
        let Some(load) = self.load.as_ref().filter(|_| self.config.leases.is_some()) else {
            return;
        };
        let claims = claims.then(|| load.claims());
        if claims.is_some() {
            (self.exchanged_ns, self.left) = (host.now(), load.left());
        }
        let memory = memory(host);
        let demand = Demand {
            held: load.reserved(self.left),
            total: self.left.max(load.held()),
            limit: memory.limit,
            group: memory.group,
            priority: self.config.priority,
        };
        self.node.exchange(demand, claims, waits);
    }

    fn is_cached(&mut self, host: &Host<'_>) -> bool {
        let (mut cached, mut all) = (0, 0);
        for extent in self.forecast.pieces.runs() {
            all += extent.length();
            cached += resident(&mut self.files, host, &extent).unwrap_or(0);
            if (all - cached.min(all)) * 100 > self.forecast.pieces.total() * PAGE * (100 - CACHED)
            {
                return false;
            }
        }
        true
    }

    fn tick(&mut self, host: &Host<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let memory = self.memory(host);
        let Some(load) = &mut self.load else {
            return Ok(());
        };
        load.set_memory(memory);
        let files = &mut self.files;
        load.pass(host.now(), memory, |extent| is_absent(files, host, extent));
        let node = &self.node;
        let processes = HostProcesses { host, node };
        let over = load.tick(host.now(), self.config.idle, &processes);
        self.node.look_for(load.processes());
        if !over {
            if self.wanted.0.from_open() && !self.proves_later() {
                self.listen(host, true);
            }
            let now = host.now();
            if now >= self.looked_ns + LOOK_AGAIN {
                self.recheck_dropped(host, None);
            }
            self.exchange(host, now >= self.exchanged_ns + EXCHANGE, false);
            return host.wake(TICK);
        }
        if let Some(mut load) = self.load.take() {
            let files = &mut self.files;
            let advice = load.hold_back(|extent| is_absent(files, host, extent));
            self.carry_out(host, &advice, plan)?;
            self.finish(host, load);
        }
        self.rest(host);
        Ok(())
    }

    fn carry_out(&mut self, host: &Host<'_>, advice: &Advice, plan: &mut Plan<'_>) -> Result<()> {
        for extent in &advice.drops {
            if let Some(io) = io(&mut self.files, host, extent, Io::drop) {
                plan.add(io)?;
            }
        }
        for extent in &advice.cancels {
            if let Some(io) = io(&mut self.files, host, extent, Io::cancel) {
                plan.add(io)?;
            }
        }
        for wish in &advice.loads {
            let Some(io) = io(&mut self.files, host, &wish.extent, Io::load) else {
                continue;
            };
            let io = io.by(wish.process).near(wish.xpu);
            let io = io.priority(if wish.behind {
                BACKGROUND
            } else {
                self.config.priority
            });
            let io = if wish.instead { io.replace() } else { io };
            plan.add(if wish.hold { io.hold() } else { io })?;
        }
        Ok(())
    }

    fn finish(&mut self, host: &Host<'_>, mut load: Load) {
        self.report(host, &mut load);
        self.node.end_load();
        self.demands.clear();
        let seats = load.seats(self.recording == Recorded::Whole);
        self.late.serve(seats.into_iter());
        let Outcome {
            parts,
            read,
            expected,
            unknown,
            direct,
            off_course,
        } = load.end();
        let drift = unknown + off_course;
        let mib = |pages: u64| (pages * PAGE) >> 20;
        // Without reads, a process only looked at the configuration.
        let level = if read > 0 { Level::Info } else { Level::Debug };
        host.log(
            level,
            format_args!(
                "A load is over: {} MiB read of {} expected, {} unexpected",
                mib(read),
                mib(expected),
                mib(unknown)
            ),
        );
        match (self.recording, parts) {
            (_, Ok(parts)) if direct => self.keep_bypass(host, &parts),
            (Recorded::Whole, Ok(parts)) => self.keep_recording(host, parts, 1),
            (Recorded::Whole, Err(why)) => {
                host.log(Level::Info, format_args!("The load is not kept: {why}"));
            }
            (Recorded::Proof, Ok(parts)) => self.prove_template(host, parts, off_course),
            _ if self.template.is_some()
                && drift * PAGE >= STRAY
                && drift * 100 > (read + unknown) * DRIFT =>
            {
                host.log(
                    Level::Info,
                    "The template does not fit any more: the next load is recorded",
                );
                self.distrust_template(host);
            }
            _ if read * 2 > expected => self.confirm_template(),
            _ => {}
        }
    }
}

/// The range an event is about. A beacon gives the position of a process, and how much it has read since the
/// last one, wherever that was.
fn place(event: &Event) -> Range<u64> {
    if event.kind == Kind::Progress {
        let last = event.offset.saturating_sub(1);
        return last..last + 1;
    }
    event.offset..event.end()
}

/// Smaller files are no weights.
const WEIGHTS: u64 = 16 << 20;

/// Whether a load begins with such an event.
const fn begins(event: &Event) -> bool {
    matches!(event.kind, Kind::Open | Kind::Miss)
}

fn io(
    files: &mut FileTable,
    host: &Host<'_>,
    extent: &Extent,
    op: fn(FileId, Range<u64>) -> Io,
) -> Option<Io> {
    let id = files.id(host, extent.file)?;
    Some(op(id, extent.offset()..extent.offset() + extent.length()))
}

/// How many bytes of it are cached, if that is known.
fn resident(files: &mut FileTable, host: &Host<'_>, extent: &Extent) -> Option<u64> {
    let id = files.id(host, extent.file)?;
    host.resident(id, extent.offset(), extent.length()).ok()
}

fn is_absent(files: &mut FileTable, host: &Host<'_>, extent: &Extent) -> bool {
    resident(files, host, extent) == Some(0)
}

fn memory(host: &Host<'_>) -> Memory {
    // Without knowing how much memory there is, be modest.
    const MODEST: u64 = 1 << 30;
    host.memory().unwrap_or(Memory {
        limit: MODEST,
        used: 0,
        threshold: MODEST,
        available: MODEST,
        group: 0,
    })
}
