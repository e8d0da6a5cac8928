//! MAIO as a policy: hears the host, keeps templates, and turns advice into plans.
//!
//! ```text
//! files and their headers ─ prepare ─▶ what is going to be read ─┐
//! template of the service ──────────▶                            ├─ load ─ window ─▶ plan
//! events, memory, processes ─────────────────────────────────────┘     └─ record ─▶ template
//! ```

use std::ffi::CStr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ppc::{
    Event, Evict, Features, FileId, FileInfo, Host, Io, Kind, Kinds, Level, Memory, Plan, Policy,
    Prefetch, Result, Settings,
};

use crate::crew::{Expected, Facts};
use crate::extent::{Extent, PAGE};
use crate::files::{Files, Shelf};
use crate::keeping::{Saving, of_template, outlook, template};
use crate::leases::Neighbours;
use crate::load::{Advice, Load, Outcome, Outlook, Part, Processes};
use crate::process;
use crate::service::service_id;
use crate::settings::{Recording, Told};
use crate::synth::{Wanted, synthesise};
use crate::template::{Learnt, Sameness, Template, learn};

/// While a model is loaded, memory and processes are looked at this often.
const TICK: Duration = Duration::from_millis(100);
/// A reader tells where it is after so many bytes at the latest,
const BEACON: u64 = 4 << 20;
/// and after this part of what may be held.
const BEACONS: u64 = 64;
/// With so much of it cached, in percent, there is nothing to do.
const CACHED: u64 = 99;
/// Other services are told and heard this often, in ns.
const EXCHANGE: u64 = 1_000_000_000;
/// What was dropped is looked at this often, in ns: mapped pages stay without the module, until they are
/// unmapped.
const LOOK_AGAIN: u64 = 100_000_000;
/// A load of which so much was not expected, in percent, was not this template's.
const DRIFT: u64 = 5;
/// Less than this is a look at a file, whatever part it is.
const STRAY: u64 = 1 << 20;
/// A template that has been right so often need not be written once more to say so.
const PROVEN: u32 = 16;

/// The policy.
#[derive(Debug)]
pub struct Maio {
    told: Told,
    service: String,
    files: Files,
    outlook: Outlook,
    /// What that is from; `None`: from headers.
    template: Option<Template>,
    /// It does not fit any more.
    stale: bool,
    load: Option<Load>,
    neighbours: Option<Neighbours>,
    exchanged_ns: u64,
    looked_ns: u64,
    recording: bool,
    saving: Option<Saving>,
}

/// Processes as the host and the kernel know them.
struct Live<'a, 'b>(&'a Host<'b>);

impl Processes for Live<'_, '_> {
    fn facts(&self, process: u32) -> Facts {
        Facts {
            rank: process::rank(process),
            xpu: self.0.process_xpu(process),
        }
    }

    fn is_alive(&self, process: u32) -> bool {
        process::is_alive(process)
    }
}

impl Policy for Maio {
    const NAME: &'static CStr = c"maio";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr =
        c"Loads models: replays who reads what ahead of the readers, drops what has been read";

    fn init(host: &Host<'_>, settings: &mut Settings, _: &mut Plan<'_>) -> Result<Self> {
        let told = Told::take(settings)?;
        let service = told.service.clone().unwrap_or_else(|| name_of_files(host));
        let mut maio = Self {
            told,
            service,
            files: Files::default(),
            outlook: outlook(Vec::new(), &[], Vec::new()),
            template: None,
            stale: false,
            load: None,
            neighbours: None,
            exchanged_ns: 0,
            looked_ns: 0,
            recording: false,
            saving: None,
        };
        maio.prepare(host);
        maio.rest(host)?;
        Ok(maio)
    }

    fn exit(mut self, host: &Host<'_>) -> Result<()> {
        if let Some(load) = self.load.take() {
            self.finish(host, load);
        }
        if let Some(saving) = self.saving.take() {
            saving.end(host);
        }
        self.files.close(host);
        Ok(())
    }
}

impl Prefetch for Maio {
    fn prefetch(
        &mut self,
        host: &Host<'_>,
        event: Option<&Event>,
        plan: &mut Plan<'_>,
    ) -> Result<()> {
        match event {
            None => self.tick(host, plan)?,
            Some(event) if event.kind == Kind::Lost => {
                if let Some(load) = &mut self.load {
                    load.lose();
                }
            }
            Some(event) => self.hear(host, event)?,
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
}

impl Evict for Maio {
    fn evict(&mut self, host: &Host<'_>, _: Option<&Event>, plan: &mut Plan<'_>) -> Result<()> {
        let Some(load) = &mut self.load else {
            return Ok(());
        };
        load.remember(memory(host));
        for extent in load.burn() {
            if let Some(io) = io(&mut self.files, host, &extent, Io::drop) {
                plan.add(io)?;
            }
        }
        Ok(())
    }
}

impl Maio {
    /// Finds out what is going to be read: by the template if there is one that fits, otherwise by the
    /// files' headers.
    fn prepare(&mut self, host: &Host<'_>) {
        let by_template = self.find_template(host).and_then(|learnt| {
            let outlook = of_template(host, &learnt.template)?;
            let several = learnt.several;
            // Whoever's it was, what comes of it is this node's.
            let node = self.told.node.clone();
            let template = Template {
                node,
                ..learnt.template
            };
            Some((Outlook { several, ..outlook }, template))
        });
        let outlook = if let Some((outlook, template)) = by_template {
            self.template = Some(template);
            outlook
        } else {
            self.template = None;
            self.of_headers(host)
        };
        self.expect(host, outlook);
    }

    fn expect(&mut self, host: &Host<'_>, outlook: Outlook) {
        self.files.close(host);
        self.files = Files::new(outlook.files.iter().map(|(path, _)| path.clone()));
        self.outlook = outlook;
    }

    fn find_template(&self, host: &Host<'_>) -> Option<Learnt> {
        let store = self.told.store.as_ref().filter(|_| !self.stale)?;
        let found = match store.load(&self.service, &self.told.node) {
            Ok(None) => {
                let others = store.load_all(&self.service);
                others.map(|others| learn(others, self.told.tp))
            }
            found => found.map(|own| {
                let several = false;
                own.map(|template| Learnt { template, several })
            }),
        };
        let learnt = match found {
            Ok(learnt) => learnt?,
            Err(error) => {
                let service = &self.service;
                host.log(
                    Level::Warn,
                    format_args!("Template of {service} is not used: {error}"),
                );
                return None;
            }
        };
        let template = &learnt.template;
        let mut files = Files::new(template.files.iter().map(|file| file.path.clone()));
        let changed = (0..).zip(&template.files).find(|(number, then)| {
            // Its beginning is only read where times do not tell.
            let mut like = |header| {
                let now = files.identity(host, *number, header);
                now.map_or(Sameness::Changed, |now| then.same(&now))
            };
            like(false) == Sameness::Changed && like(true) == Sameness::Changed
        });
        let changed = changed.map(|(_, file)| file.path.clone());
        files.close(host);
        if let Some(path) = changed {
            let line = format_args!("{path} is another file than it was: its template is not used");
            host.log(Level::Info, line);
            return None;
        }
        Some(learnt)
    }

    fn of_headers(&self, host: &Host<'_>) -> Outlook {
        let wanted = Wanted {
            tp: self.told.tp,
            order: None,
        };
        let synthesis = match synthesise(&Shelf { host }, &wanted) {
            Ok(synthesis) => synthesis,
            Err(error) => {
                host.log(
                    Level::Info,
                    format_args!("Nothing is expected to be read: {error}"),
                );
                return outlook(Vec::new(), &[], Vec::new());
            }
        };
        for note in &synthesis.notes {
            host.log(Level::Info, note);
        }
        let expected = (0..)
            .zip(&synthesis.groups)
            .map(|(worker, _)| Expected { worker, xpu: None });
        let expected = expected.collect();
        outlook(synthesis.files, &synthesis.groups, expected)
    }

    /// Nobody loads: as little as possible is to be heard, but nothing of a load that is recorded is
    /// to be missed.
    fn rest(&mut self, host: &Host<'_>) -> Result<()> {
        self.recording = match self.told.recording {
            Recording::Always => true,
            Recording::Never => false,
            // One without a load was made from headers, or has been wrong.
            Recording::Auto => self.template.as_ref().is_none_or(|it| it.loads == 0),
        } && self.told.store.is_some()
            && host.features().contain(Features::TOUCH);
        self.listen(host, false)
    }

    fn listen(&self, host: &Host<'_>, loads: bool) -> Result<()> {
        let has = |feature, kind: Kind| host.features().contain(feature).then_some(kind);
        let kinds: Kinds = [
            Some(Kind::Miss),
            has(Features::OPEN, Kind::Open),
            has(Features::OPEN, Kind::Close).filter(|_| loads),
            has(Features::TOUCH, Kind::Touch).filter(|_| self.recording),
            has(Features::PROGRESS, Kind::Progress).filter(|_| loads && !self.recording),
        ]
        .into_iter()
        .flatten()
        .collect();
        let held = memory(host).threshold.min(self.told.budget);
        host.want(kinds, (held / BEACONS).clamp(PAGE, BEACON))
    }

    fn hear(&mut self, host: &Host<'_>, event: &Event) -> Result<()> {
        let Some(number) = self.files.number(host, event.file) else {
            return Ok(());
        };
        let looked_at = event.kind == Kind::Open && event.length > WEIGHTS;
        if event.direct || looked_at && is_direct(host, event) {
            // It has no use for the page cache, and so there is nothing to do for it.
            if let Some(load) = self.load.as_mut().filter(|_| event.length > WEIGHTS) {
                load.stand_down();
            }
            return Ok(());
        }
        if self.load.is_none() {
            if !matches!(event.kind, Kind::Open | Kind::Miss) {
                return Ok(());
            }
            self.begin(host, event, number)?;
        }
        if let Some(load) = &mut self.load
            && let Some(extent) = Extent::of_bytes(number, &place(event))
        {
            load.hear(event, &extent, &Live(host));
        }
        if let Some(load) = &self.load
            && event.kind == Kind::Close
            && load.is_closed(number)
        {
            // What was mapped until now could not be dropped.
            self.look_again(host, Some(number));
        }
        Ok(())
    }

    /// What was dropped and has stayed is held, or left to the kernel until its file is closed.
    fn look_again(&mut self, host: &Host<'_>, closed: Option<u32>) {
        let Some(load) = &mut self.load else {
            return;
        };
        self.looked_ns = host.now();
        let files = &mut self.files;
        let goes = host.features().contain(Features::EVICT_MAPPED);
        let there = |extent: &Extent| resident(files, host, extent).unwrap_or(0).div_ceil(PAGE);
        load.look_again(goes, there);
        if let Some(closed) = closed {
            load.let_go(closed);
        }
    }

    fn begin(&mut self, host: &Host<'_>, event: &Event, number: u32) -> Result<()> {
        if self.has_changed(host) {
            self.prepare(host);
            self.rest(host)?;
        }
        let quiet = self.is_cached(host);
        let (outlook, cap) = (self.outlook.clone(), self.told.budget);
        let mut load = Load::new(outlook, memory(host), cap, quiet, event.time_ns);
        if self.recording {
            let opens = host.features().contain(Features::OPEN);
            let midway = (opens && event.kind != Kind::Open).then_some((number, event.process));
            load.record(midway);
        }
        self.load = Some(load);
        self.meet(host);
        self.listen(host, true)?;
        host.wake(TICK)
    }

    /// Finds the services that load on this node as well.
    fn meet(&mut self, host: &Host<'_>) {
        let Some(directory) = &self.told.leases else {
            return;
        };
        let numbers = (0..).zip(self.outlook.files.iter());
        let keys = numbers.map(|(number, _)| self.files.key(host, number));
        self.neighbours = match Neighbours::meet(directory, keys.collect()) {
            Ok(neighbours) => Some(neighbours),
            Err(error) => {
                let directory = directory.display();
                let line = format_args!("Other services are not heard in {directory}: {error}");
                host.log(Level::Debug, line);
                None
            }
        };
        self.exchange(host);
    }

    fn exchange(&mut self, host: &Host<'_>) {
        self.exchanged_ns = host.now();
        let (Some(load), Some(neighbours)) = (&mut self.load, &self.neighbours) else {
            return;
        };
        match neighbours.exchange(&load.claims()) {
            Ok(claims) => load.heed(claims),
            Err(error) => {
                let line = format_args!("Other services are not told any more: {error}");
                host.log(Level::Debug, line);
                self.neighbours = None;
            }
        }
    }

    /// Whether a file that is going to be read is another than when that was found out, or there was
    /// none yet.
    fn has_changed(&mut self, host: &Host<'_>) -> bool {
        let then = Arc::clone(&self.outlook.files);
        let changed = |(number, (_, size)): (u32, &(String, u64))| {
            let now = self.files.identity(host, number, false);
            now.is_none_or(|now| now.size != *size)
        };
        then.is_empty() || (0..).zip(then.iter()).any(changed)
    }

    fn is_cached(&mut self, host: &Host<'_>) -> bool {
        let (mut cached, mut all) = (0, 0);
        for extent in self.outlook.courses.runs() {
            all += extent.length();
            cached += resident(&mut self.files, host, &extent).unwrap_or(0);
            if (all - cached.min(all)) * 100 > self.outlook.courses.total() * PAGE * (100 - CACHED)
            {
                return false;
            }
        }
        true
    }

    fn tick(&mut self, host: &Host<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if let Some(saved) = self.saving.take_if(|saving| saving.is_done()) {
            saved.end(host);
        }
        let Some(load) = &mut self.load else {
            // To hear of what is being saved.
            return self.saving.as_ref().map_or(Ok(()), |_| host.wake(TICK));
        };
        load.remember(memory(host));
        if !load.tick(host.now(), self.told.idle, &Live(host)) {
            let now = host.now();
            if now >= self.looked_ns + LOOK_AGAIN {
                self.look_again(host, None);
            }
            if now >= self.exchanged_ns + EXCHANGE {
                self.exchange(host);
            }
            return host.wake(TICK);
        }
        if let Some(mut load) = self.load.take() {
            let files = &mut self.files;
            let advice = load.hold_back(|extent| is_absent(files, host, extent));
            self.carry_out(host, &advice, plan)?;
            self.finish(host, load);
        }
        if self.saving.is_some() {
            host.wake(TICK)?;
        }
        self.rest(host)
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
            let io = if wish.instead { io.replace() } else { io };
            plan.add(if wish.hold { io.hold() } else { io })?;
        }
        Ok(())
    }

    fn finish(&mut self, host: &Host<'_>, load: Load) {
        self.neighbours = None;
        let Outcome {
            parts,
            read,
            expected,
            unknown,
        } = load.end();
        let mib = |pages: u64| (pages * PAGE) >> 20;
        // Somebody had a look at the configuration.
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
        if self.recording {
            match parts {
                Ok(parts) => self.keep(host, &parts),
                Err(why) => host.log(Level::Info, format_args!("It is not kept: {why}")),
            }
        } else if self.template.is_some()
            && unknown * PAGE >= STRAY
            && unknown * 100 > (read + unknown) * DRIFT
        {
            host.log(
                Level::Info,
                "The template does not fit any more: the next load is recorded",
            );
            self.doubt(host);
        } else if read * 2 > expected {
            self.confirm(host);
        }
    }

    /// The template is not used any more, and whoever finds it in the store has the next load recorded.
    fn doubt(&mut self, host: &Host<'_>) {
        if let Some(template) = self.template.take() {
            self.save(
                host,
                &Template {
                    loads: 0,
                    ..template
                },
            );
        }
        self.stale = true;
        self.prepare(host);
    }

    /// One load more went by this template.
    fn confirm(&mut self, host: &Host<'_>) {
        let Some(mut template) = self.template.take_if(|it| it.loads < PROVEN) else {
            return;
        };
        template.loads += 1;
        self.save(host, &template);
        self.template = Some(template);
    }

    fn save(&mut self, host: &Host<'_>, template: &Template) {
        if let Some(before) = self.saving.take() {
            before.end(host);
        }
        let store = self.told.store.as_ref();
        self.saving = store.and_then(|store| Saving::start(store, template));
    }

    fn keep(&mut self, host: &Host<'_>, parts: &[Part]) {
        let template = match template(host, &mut self.files, parts) {
            Ok(made) => Template {
                service: self.service.clone(),
                node: self.told.node.clone(),
                ..made
            },
            Err(error) => {
                return host.log(Level::Warn, format_args!("It is not kept: {error}"));
            }
        };
        self.save(host, &template);
        self.stale = false;
        self.take(host, template);
    }

    /// The next load goes by this template.
    fn take(&mut self, host: &Host<'_>, template: Template) {
        if let Some(outlook) = of_template(host, &template) {
            self.expect(host, outlook);
            self.template = Some(template);
        }
    }
}

/// What an event is about. A beacon says where a process is, and how much it has read since the last
/// one, wherever that was.
fn place(event: &Event) -> Range<u64> {
    if event.kind == Kind::Progress {
        let last = event.offset.saturating_sub(1);
        return last..last + 1;
    }
    event.offset..event.end()
}

/// Smaller files are no weights.
const WEIGHTS: u64 = 16 << 20;

fn is_direct(host: &Host<'_>, event: &Event) -> bool {
    let inode = host.info(event.file).map(|FileInfo { inode, .. }| inode);
    inode.is_ok_and(|inode| process::reads_direct(event.process, inode))
}

fn io(
    files: &mut Files,
    host: &Host<'_>,
    extent: &Extent,
    op: fn(FileId, Range<u64>) -> Io,
) -> Option<Io> {
    let id = files.id(host, extent.file)?;
    Some(op(id, extent.offset()..extent.offset() + extent.length()))
}

/// Bytes of it that are cached, if that can be told.
fn resident(files: &mut Files, host: &Host<'_>, extent: &Extent) -> Option<u64> {
    let id = files.id(host, extent.file)?;
    host.resident(id, extent.offset(), extent.length()).ok()
}

fn is_absent(files: &mut Files, host: &Host<'_>, extent: &Extent) -> bool {
    resident(files, host, extent) == Some(0)
}

fn memory(host: &Host<'_>) -> Memory {
    // Who does not know how much there is had better be modest.
    const MODEST: u64 = 1 << 30;
    host.memory().unwrap_or(Memory {
        limit: MODEST,
        used: 0,
        threshold: MODEST,
        available: MODEST,
    })
}

/// Of a service without a name: the same for the same files.
fn name_of_files(host: &Host<'_>) -> String {
    use crate::synth::Library as _;

    let files = Shelf { host }.files();
    let text = files.iter().map(|(path, size)| format!("{path} {size};"));
    let pairs = [("files".to_owned(), text.collect::<String>())];
    service_id(&pairs).unwrap_or_else(|_| "unnamed".to_owned())
}

#[cfg(test)]
mod tests;
