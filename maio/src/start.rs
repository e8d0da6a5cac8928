//! A start, from exec until reading has come to rest. Everything a command and its children read, of any file, is
//! recorded in the order of first touch, and loaded in that order ahead of them the next time.
//!
//! ```text
//! template: the last starts ─ expected ─▶ what will be read ─ joined ─▶ plan
//! events ─ touches ─▶ this start ─▶ template
//! ```
//!
//! A template of a start has a group for each of the last starts, the newest first.

mod blocks;
mod closure;
mod dynamic;
mod elsewhere;
mod expected;
mod installed;
mod next;
mod object;
mod others;
mod records;
mod siblings;
#[cfg(test)]
mod tests;
mod touches;

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ppc::{Event, Host, Io, Kind, Level, Plan, Result, Settings};

use crate::config::{Config, Recording};
use crate::extent::{Extent, PAGE};
use crate::host::{FileTable, failed};
use crate::load::Part;
use crate::save::{TemplateThread, complete_parts};
use crate::template::{
    Group, Identity, Sameness, Template, TemplateError, TemplateKind, is_folder,
};
use blocks::LargeFiles;
use closure::{Closure, Linked};
use expected::ahead;
use installed::Installed;
pub use next::{NextStart, next_start};
use others::{OtherStarts, Shared};
use records::{Records, Search};
use siblings::Siblings;
use touches::FirstTouches;

/// How many starts are remembered.
const STARTS: usize = 3;
/// Upper bound on the length of a start, in ns: a command that still reads something new after that is serving.
const LONGEST: u64 = 600_000_000_000;
/// Lower bound on the pages of a start that is worth a template.
const FEW: u64 = 16;

/// The policy for one start.
#[derive(Debug)]
pub struct Start {
    name: String,
    node: String,
    idle: Duration,
    templates: Option<TemplateThread>,
    search: Search,
    /// The first files of the table are those of the template.
    files: FileTable,
    /// The directory whose files another policy loads.
    without: Option<String>,
    /// The files' identities in the template, and their present ones as of their first touch.
    then: Vec<Identity>,
    now: Vec<Option<Identity>>,
    /// The last starts, the newest first.
    before: Vec<Vec<Extent>>,
    /// Used if this start has no record.
    others: OtherStarts,
    siblings: Option<Siblings>,
    closure: Option<Closure>,
    /// If it is recorded.
    installed: Option<Installed>,
    large: Option<LargeFiles>,
    /// How much of the last start's reads a start that is cut short must have read to be kept, in percent.
    least: u64,
    priority: i32,
    /// The ranges that have yet to be asked for.
    ahead: VecDeque<Extent>,
    expected: FirstTouches,
    touches: FirstTouches,
    /// How many of these pages were not expected.
    unexpected: u64,
    lost: u64,
    began: SystemTime,
    began_ns: u64,
    /// When a page was last touched for the first time.
    last_ns: u64,
    over: bool,
}

impl Start {
    /// Begins to load what the last starts read, and to record this one.
    pub(crate) fn begin(
        host: &Host<'_>,
        name: String,
        settings: &mut Settings,
        plan: &mut Plan<'_>,
    ) -> Result<Self> {
        let config = Config::from_settings(settings)?;
        let records = config.recording != Recording::Never;
        let without = without(settings)?;
        let least = least(settings)?;
        let (search, mut found) = Search::begin(host, &config, &name)?;
        let others = std::mem::take(&mut found.others);
        let (then, before) = known(host, found, &name);
        let mut ahead = ahead(&before);
        let files = FileTable::new(then.iter().map(|file| file.path.clone()));
        ahead.retain(|extent| !is_left_out(&files, extent.file, without.as_deref()));
        let is_unknown = before.is_empty() && config.recording == Recording::Auto;
        let siblings = is_unknown.then(|| Siblings::start(host.waker()));
        let closure = is_unknown.then(|| Closure::start(host.waker()));
        let thread = config
            .store
            .filter(|_| records)
            .map(|store| TemplateThread::start(store, host.waker()));
        let templates = thread.transpose().map_err(|it| failed(&it))?;
        let mut start = Self {
            name,
            node: config.node,
            idle: config.idle,
            templates,
            search,
            without,
            least,
            priority: config.priority,
            files,
            then,
            now: Vec::new(),
            before,
            others: OtherStarts::new(if is_unknown { others } else { Vec::new() }),
            siblings: siblings.transpose().map_err(|it| failed(&it))?,
            closure: closure.transpose().map_err(|it| failed(&it))?,
            installed: records.then(|| Installed::new(host.waker())),
            large: is_unknown.then(LargeFiles::default),
            expected: FirstTouches::of(&ahead),
            ahead: ahead.into(),
            touches: FirstTouches::default(),
            unexpected: 0,
            lost: 0,
            began: SystemTime::now(),
            began_ns: host.now(),
            last_ns: host.now(),
            over: false,
        };
        if records {
            host.want(Kind::Touch, 0)?;
        }
        start.ask(host, plan)?;
        host.wake(start.idle)?;
        Ok(start)
    }

    /// Takes in an event, or asks for the next ranges.
    pub(crate) fn prefetch(
        &mut self,
        host: &Host<'_>,
        event: Option<&Event>,
        plan: &mut Plan<'_>,
    ) -> Result<()> {
        if let Some(templates) = &self.templates {
            templates.collect(host);
        }
        if let Some(event) = event {
            self.hear(host, event);
        }
        self.bring_siblings();
        self.bring_linked();
        let installed = self.installed.as_ref().map(Installed::take);
        self.bring_installed(host, installed);
        self.ask(host, plan)?;
        if event.is_some() || self.over {
            return Ok(());
        }
        let rests = Duration::from_nanos(host.now().saturating_sub(self.last_ns));
        let left = self.idle.saturating_sub(rests);
        let lasts = host.now().saturating_sub(self.began_ns);
        if !left.is_zero() && lasts < LONGEST {
            // This wake replaces the threads'.
            let waits = self.siblings.as_ref().is_some_and(Siblings::has_some)
                || self.closure.as_ref().is_some_and(Closure::has_some)
                || self.installed.as_ref().is_some_and(Installed::has_some);
            return host.wake(if waits { Duration::ZERO } else { left });
        }
        self.finish(host);
        host.want(ppc::Kinds::default(), 0)
    }

    /// Saves what was recorded, and waits until it is saved.
    pub(crate) fn exit(mut self, host: &Host<'_>) {
        let installed = self.installed.as_mut().map(Installed::finish);
        self.bring_installed(host, installed);
        if !self.over && self.died() {
            self.over = true;
            let line =
                "The start is not kept: it ended early, and had read much less than the last one";
            host.log(Level::Info, line);
        }
        self.finish(host);
        if let Some(templates) = self.templates.take() {
            templates.finish(host);
        }
        self.files.close(host);
    }

    /// Whether it has read so little that it must have died half-way.
    fn died(&self) -> bool {
        let pages = |extent: &Extent| u64::from(extent.pages);
        let last = self
            .before
            .first()
            .map_or(0, |it| it.iter().map(pages).sum());
        self.touches.pages().saturating_mul(100) < self.least.saturating_mul(last)
    }

    /// Asks for as many of the ranges ahead as the host takes at once.
    fn ask(&mut self, host: &Host<'_>, plan: &mut Plan<'_>) -> Result<()> {
        while let Some(extent) = self.ahead.front() {
            if let Some(id) = self.files.id(host, extent.file) {
                let range = extent.offset()..extent.offset() + extent.length();
                plan.add(Io::load(id, range).priority(self.priority))?;
                if plan.is_full() {
                    return host.wake(Duration::ZERO);
                }
            }
            self.ahead.pop_front();
        }
        Ok(())
    }

    fn hear(&mut self, host: &Host<'_>, event: &Event) {
        if self.over {
            return;
        }
        if event.kind == Kind::Lost {
            self.lost += event.count;
            return;
        }
        let Some(number) = self.files.number(host, event.file) else {
            return;
        };
        let range = event.offset..event.end();
        let Some(extent) = Extent::of_bytes(number, &range) else {
            return;
        };
        if is_left_out(&self.files, number, self.without.as_deref()) {
            return;
        }
        let new = self.touches.touch(&extent);
        if new == 0 {
            return;
        }
        self.unexpected += new.saturating_sub(self.expected.has(&extent));
        self.last_ns = self.last_ns.max(event.time_ns);
        if self.identify(host, number) {
            self.share(host, number);
        }
        self.go_on(&extent);
    }

    /// Asks for what will be read of a large file that is being read, if this start has no record.
    fn go_on(&mut self, extent: &Extent) {
        let at = usize::try_from(extent.file).ok();
        let known = at.and_then(|at| self.now.get(at)?.as_ref());
        let (Some(large), Some(known)) = (&mut self.large, known) else {
            return;
        };
        for block in large.touch(extent, known.size) {
            self.expect(block);
        }
    }

    /// Asks for what goes with a file that has been touched for the first time: most of it only if this start has no
    /// record.
    fn share(&mut self, host: &Host<'_>, number: u32) {
        let Some(path) = self.files.path(number).map(str::to_owned) else {
            return;
        };
        for Shared { path, first, pages } in self.others.touched(&path) {
            if let Some(file) = self.files.named(path) {
                self.expect(Extent { file, first, pages });
            }
        }
        if is_folder(&path) {
            return;
        }
        if let Some(siblings) = &mut self.siblings {
            siblings.touch(&path);
        }
        if let Some(closure) = &mut self.closure {
            closure.touch(&path);
        }
        let asked = self.installed.as_mut().map(|it| it.touch(&path));
        if let Some(Err(error)) = asked {
            let line = format_args!("The directories of packages are not loaded: {error}");
            host.log(Level::Warn, line);
            self.installed = None;
        }
    }

    /// Modules that lie beside those which have been imported are asked for.
    fn bring_siblings(&mut self) {
        let modules = self.siblings.as_ref().map(Siblings::take);
        for path in modules.unwrap_or_default() {
            if let Some(file) = self.files.named(path) {
                self.expect(siblings::module(file));
            }
        }
    }

    /// What is read of objects by all that link them is asked for.
    fn bring_linked(&mut self) {
        let linked = self.closure.as_mut().map(Closure::take);
        for Linked { path, ranges, .. } in linked.unwrap_or_default() {
            let Some(file) = self.files.named(path) else {
                continue;
            };
            for range in ranges {
                if let Some(extent) = Extent::of_bytes(file, &range) {
                    self.expect(extent);
                }
            }
        }
    }

    /// Directories of packages in which this start looks for each file count as read by it: nothing else reports that.
    fn bring_installed(&mut self, host: &Host<'_>, folders: Option<Vec<String>>) {
        for path in folders.unwrap_or_default() {
            let Some(file) = self.files.named(path).filter(|_| !self.over) else {
                continue;
            };
            let whole = Extent {
                file,
                first: 0,
                pages: 1,
            };
            if self.touches.touch(&whole) > 0 && self.expected.has(&whole) == 0 {
                self.expect(whole);
            }
            self.identify(host, file);
        }
    }

    fn expect(&mut self, extent: Extent) {
        if !is_left_out(&self.files, extent.file, self.without.as_deref()) {
            self.expected.touch(&extent);
            self.ahead.push_back(extent);
        }
    }

    /// Asks for a file's present identity just after its reader has opened it, when that costs nothing. Returns whether
    /// the file is new here.
    fn identify(&mut self, host: &Host<'_>, number: u32) -> bool {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        if self.now.len() <= at {
            self.now.resize(at.saturating_add(1), None);
        }
        let is_new = self.now[at].is_none();
        if is_new {
            self.now[at] = self.files.identity(host, number, false);
        }
        is_new
    }

    /// Ends the start: keeps what it has read together with what the last ones read.
    fn finish(&mut self, host: &Host<'_>) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let (read, expected) = (self.touches.pages(), self.expected.pages());
        let mib = |pages: u64| (pages * PAGE) >> 20;
        host.log(
            Level::Info,
            format_args!(
                "A start is over: {} MiB read, {} of it unexpected, {} expected",
                mib(read),
                mib(self.unexpected),
                mib(expected)
            ),
        );
        if self.lost > 0 {
            let line = format_args!("The start is not kept: {} events were lost", self.lost);
            host.log(Level::Info, line);
            return;
        }
        // What would be saved there now might have to wait, too.
        if self.templates.is_some() && !self.search.is_answered() {
            let line = "The start is not kept: the store of templates has not answered";
            host.log(Level::Warn, line);
            return;
        }
        match self.template(host) {
            Ok(template) => {
                if let (Some(templates), Some(template)) = (&self.templates, template) {
                    templates.save(&template);
                }
            }
            Err(error) => host.log(Level::Warn, format_args!("The start is not kept: {error}")),
        }
    }

    fn template(
        &mut self,
        host: &Host<'_>,
    ) -> std::result::Result<Option<Template>, TemplateError> {
        // Not all reads through large mappings are reported: a tensor that was mostly read counts as read.
        let mut parts = [Part {
            worker: 0,
            xpu: None,
            extents: self.touches.order().to_vec(),
        }];
        // As they were at the first read: to open a thousand files again would keep the command waiting at its end.
        let now = &self.now;
        let size = |number| Some(now.get(usize::try_from(number).ok()?)?.as_ref()?.size);
        complete_parts(host, &mut self.files, &mut parts, size);
        let [whole] = parts;
        let kept = Kept::new(self);
        let now = kept.of_now(&whole.extents);
        if now
            .iter()
            .map(|extent| u64::from(extent.pages))
            .sum::<u64>()
            < FEW
        {
            return Ok(None);
        }
        let mut groups = vec![Group::new(0, None, &now)?];
        for (number, start) in (1..).zip(self.before.iter().take(STARTS - 1)) {
            groups.push(Group::new(number, None, &kept.of_then(start))?);
        }
        let made = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Some(Template {
            kind: TemplateKind::Start,
            service: self.name.clone(),
            node: self.node.clone(),
            made_s: made.as_secs(),
            loads: u32::try_from(self.before.len() + 1).unwrap_or(1),
            files: kept.files,
            groups,
        }))
    }

    /// A file's identity, if it was read and not written meanwhile.
    fn as_read(&self, number: usize) -> Option<&Identity> {
        let began = self.began.duration_since(UNIX_EPOCH).unwrap_or_default();
        let began = i64::try_from(began.as_nanos()).unwrap_or(i64::MAX);
        let now = self.now.get(number)?.as_ref()?;
        (now.mtime_ns < began).then_some(now)
    }
}

/// The files of a template, and their numbers in it.
struct Kept {
    files: Vec<Identity>,
    /// Indexed by the files' numbers in this start.
    now: Vec<Option<u32>>,
    then: Vec<Option<u32>>,
}

impl Kept {
    fn new(start: &Start) -> Self {
        let mut kept = Self {
            files: Vec::new(),
            now: Vec::new(),
            then: Vec::new(),
        };
        for number in 0..start.now.len().max(start.then.len()) {
            let read = start.as_read(number);
            let then = start.then.get(number);
            let place = u32::try_from(kept.files.len()).ok();
            kept.files.extend(read.or(then).cloned());
            let same = match (read, then) {
                (Some(now), Some(then)) => then.same(now) != Sameness::Changed,
                _ => true,
            };
            kept.now.push(place.filter(|_| read.is_some()));
            kept.then.push(place.filter(|_| then.is_some() && same));
        }
        kept
    }

    fn of_now(&self, extents: &[Extent]) -> Vec<Extent> {
        self.renumbered(extents, &self.now)
    }

    fn of_then(&self, extents: &[Extent]) -> Vec<Extent> {
        self.renumbered(extents, &self.then)
    }

    /// Ranges with the template's numbers, cut at the ends of files.
    fn renumbered(&self, extents: &[Extent], numbers: &[Option<u32>]) -> Vec<Extent> {
        let one = |extent: &Extent| {
            let file = (*numbers.get(usize::try_from(extent.file).ok()?)?)?;
            let size = self.files.get(usize::try_from(file).ok()?)?.size;
            let end = u32::try_from(size.div_ceil(PAGE)).ok()?.min(extent.end());
            let pages = end.checked_sub(extent.first).filter(|&pages| pages > 0)?;
            Some(Extent {
                file,
                pages,
                ..*extent
            })
        };
        extents.iter().filter_map(one).collect()
    }
}

/// How much of the last start's reads makes a start worth keeping that ends before it is over, in percent.
fn least(settings: &mut Settings) -> Result<u64> {
    let Some(text) = settings.text("least") else {
        return Ok(0);
    };
    let percent = text.parse().ok().filter(|percent| *percent <= 100);
    percent.ok_or_else(|| ppc::Error::Setting {
        key: "least".to_owned(),
        value: text,
        problem: "not 0 to 100 percent",
    })
}

/// The directory that another policy loads, from the root.
fn without(settings: &mut Settings) -> Result<Option<String>> {
    let Some(path) = settings.text("without") else {
        return Ok(None);
    };
    match path
        .strip_prefix('/')
        .map(|path| path.trim_end_matches('/'))
    {
        Some(inner) if !inner.is_empty() => Ok(Some(inner.to_owned())),
        _ => Err(ppc::Error::Setting {
            key: "without".to_owned(),
            value: path,
            problem: "no absolute path of a directory",
        }),
    }
}

/// Whether a file lies in the directory that another policy loads.
fn is_left_out(files: &FileTable, number: u32, without: Option<&str>) -> bool {
    let path = files.path(number).zip(without);
    let inner = path.and_then(|(path, directory)| path.strip_prefix(directory));
    inner.is_some_and(|inner| inner.starts_with('/'))
}

/// The files and reads of the last starts, or of those of other nodes.
fn known(host: &Host<'_>, found: Records, name: &str) -> (Vec<Identity>, Vec<Vec<Extent>>) {
    let own = found.own.and_then(|own| match own {
        Ok(template) => Some(template),
        Err(error) => {
            let line = format_args!("The template of {name} is not used: {error}");
            host.log(Level::Warn, line);
            None
        }
    });
    let known = own.or_else(|| elsewhere::find(host, found.elsewhere, name));
    known.map_or_else(Default::default, |it| (it.files, unpacked(host, it.groups)))
}

/// The starts of a template; one that does not unpack is left out.
fn unpacked(host: &Host<'_>, groups: Vec<Group>) -> Vec<Vec<Extent>> {
    let mut starts = Vec::new();
    for group in groups.into_iter().take(STARTS) {
        match group.extents() {
            Ok(extents) => starts.push(extents),
            Err(error) => host.log(Level::Warn, format_args!("A start is not used: {error}")),
        }
    }
    starts
}
