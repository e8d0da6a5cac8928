//! Which template a load replays: searches the store, checks that templates fit the files, and updates them
//! when the load is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ppc::ranks::Layout;
use ppc::{Event, Host, Kind, Level};

use super::{DRIFT, Model, PROVEN, WEIGHTS};
use crate::config::Recording;
use crate::extent::{Extent, PAGE};
use crate::host::{FileTable, HostLibrary};
use crate::load::{Forecast, Part};
use crate::models::ModelKey;
use crate::predict::{Deployment, predict_reads};
use crate::proof::Proof;
use crate::save::{Finding, complete_parts, forecast, forecast_of, make_template};
use crate::service::service_id;
use crate::template::{FoundTemplate, Group, Sameness, Template, valid_name};
use crate::workers::ExpectedWorker;

/// How long the policy waits for the store at the beginning,
const FIRST: Duration = Duration::from_secs(1);
/// in any case no longer than this many deadlines of callbacks; `init` has ten.
const FIRST_DEADLINES: u32 = 5;
/// How long a load waits for the store, and how soon the store is asked again for a model without files, in ns.
const SEARCH: u64 = 2_000_000_000;

/// The state of the search in the store.
#[derive(Debug, Default)]
pub(super) enum Search {
    /// No question is pending.
    #[default]
    Idle,
    /// Asked at this time.
    Asked(u64),
    /// Answered; the templates have yet to be used.
    Done(Vec<FoundTemplate>),
    /// Answered at about this time, and there is nothing to load: the model has no files, or they cannot be listed.
    Vain(u64),
}

impl Model {
    /// Asks the store for templates of this service, unless that is known to be useless.
    pub(super) fn search_store(&mut self, host: &Host<'_>) {
        self.search = match self.templates.as_mut().filter(|_| !self.stale) {
            Some(templates) => {
                let workers = self.config.tp.unwrap_or(1);
                templates.find(&self.service, &self.config.node, workers);
                Search::Asked(host.now())
            }
            None => Search::Done(Vec::new()),
        };
    }

    /// Waits for a template at the beginning, as nothing is read yet; the answer of a slower store is
    /// taken later.
    pub(super) fn prepare_first(&mut self, host: &Host<'_>) {
        self.search_store(host);
        if let (Some(templates), Search::Asked(_)) = (&self.templates, &self.search) {
            let deadline = host.deadline().unwrap_or(FIRST);
            match templates.wait(host, FIRST.min(deadline * FIRST_DEADLINES)) {
                Some(found) => self.search = Search::Done(self.usable(host, found)),
                None => host.log(
                    Level::Info,
                    "The store of templates is slow: starts without it",
                ),
            }
        }
        let found = match std::mem::take(&mut self.search) {
            Search::Done(found) => found,
            slow => {
                self.search = slow;
                Vec::new()
            }
        };
        self.prepare(host, found);
        self.rest(host);
    }

    /// The store has answered.
    pub(super) fn found(&mut self, host: &Host<'_>, finding: Finding) {
        self.search = Search::Done(self.usable(host, finding));
        if self.load.is_none() {
            self.is_prepared(host);
        }
    }

    /// Whether the forecast for a load that begins now is ready. If files have changed the store is asked
    /// again, as it may have a template of the new ones by now.
    pub(super) fn is_prepared(&mut self, host: &Host<'_>) -> bool {
        if let Search::Vain(since_ns) = self.search {
            if host.now() < since_ns + SEARCH {
                return true;
            }
            self.search = Search::Idle;
        }
        if matches!(self.search, Search::Idle) {
            if !self.has_changed(host) {
                return true;
            }
            self.search_store(host);
        }
        let found = match std::mem::take(&mut self.search) {
            Search::Asked(since_ns) if host.now() < since_ns + SEARCH => {
                self.search = Search::Asked(since_ns);
                return false;
            }
            Search::Done(found) => found,
            // A later answer of the store is for the next load.
            Search::Asked(_) | Search::Idle | Search::Vain(_) if !self.has_changed(host) => {
                return true;
            }
            Search::Asked(_) | Search::Idle | Search::Vain(_) => Vec::new(),
        };
        self.prepare(host, found);
        if self.forecast.files.is_empty() {
            self.search = Search::Vain(host.now());
        }
        self.rest(host);
        true
    }

    /// The command line of the first reader shows how the model is split, which headers do not.
    pub(super) fn fit_layout(&mut self, host: &Host<'_>, process: u32) {
        let Some(layout) = self.node.layout(process) else {
            return;
        };
        let of = |layout: &Layout| (layout.tensor, layout.expert);
        if self.template.is_none() && of(&layout) != of(&self.layout) {
            self.layout = layout;
            self.prepare(host, Vec::new());
        }
    }

    /// Makes the forecast: from a template that fits, if one was found, otherwise from the files'
    /// headers.
    fn prepare(&mut self, host: &Host<'_>, found: Vec<FoundTemplate>) {
        // Headers are better than a record of readers that bypassed the page cache and no longer do.
        let outdated = |it: &Template| it.loads == 0 && it.bypasses_cache();
        let root = &self.key.root;
        let mut found = found.into_iter().filter(|found| !outdated(&found.template));
        let fitting = found.find(|found| fits(host, root, &found.template));
        let by_template = fitting.and_then(|found| {
            let forecast = forecast_of(host, &found.template)?;
            let several = found.several;
            // Whichever node recorded it, its successor is this node's.
            let node = self.config.node.clone();
            let template = Template {
                node,
                ..found.template
            };
            Some((
                Forecast {
                    several,
                    ..forecast
                },
                template,
            ))
        });
        let forecast = if let Some((forecast, template)) = by_template {
            self.template = Some(template);
            forecast
        } else {
            self.template = None;
            self.of_headers(host)
        };
        self.expect(host, forecast);
    }

    fn usable(&self, host: &Host<'_>, finding: Finding) -> Vec<FoundTemplate> {
        finding.unwrap_or_else(|error| {
            let service = &self.service;
            host.log(
                Level::Warn,
                format_args!("Template of {service} is not used: {error}"),
            );
            Vec::new()
        })
    }

    fn expect(&mut self, host: &Host<'_>, forecast: Forecast) {
        self.files.close(host);
        let paths = forecast.files.iter().map(|(path, _)| path.clone());
        self.files = FileTable::below(&self.key.root, paths);
        self.total = forecast.pieces.total() * PAGE;
        self.forecast = forecast;
    }

    fn of_headers(&self, host: &Host<'_>) -> Forecast {
        let wanted = Deployment {
            tp: self.config.tp.or(self.layout.tensor).unwrap_or(1),
            experts: self.layout.expert,
            order: None,
        };
        let library = HostLibrary {
            host,
            root: &self.key.root,
            family: self.key.family.as_deref(),
        };
        let prediction = match predict_reads(&library, &wanted) {
            Ok(prediction) => prediction,
            Err(error) => {
                host.log(
                    Level::Info,
                    format_args!("No files of a model were found to load: {error}"),
                );
                return forecast(Vec::new(), &[], Vec::new());
            }
        };
        for note in &prediction.notes {
            host.log(Level::Info, note);
        }
        let expected = (0..)
            .zip(&prediction.groups)
            .map(|(worker, _)| ExpectedWorker { worker, xpu: None });
        let expected = expected.collect();
        forecast(prediction.files, &prediction.groups, expected)
    }

    /// Whether a file of the forecast has changed since that was made, or there is no forecast
    /// yet.
    fn has_changed(&mut self, host: &Host<'_>) -> bool {
        let then = Arc::clone(&self.forecast.files);
        let changed = |(number, (_, size)): (u32, &(String, u64))| {
            let now = self.files.identity(host, number, false);
            now.is_none_or(|now| now.size != *size)
        };
        then.is_empty() || (0..).zip(then.iter()).any(changed)
    }

    /// Stops using the template, and marks it in the store, so that the node that finds it records the next load.
    pub(super) fn distrust_template(&mut self, host: &Host<'_>) {
        if let Some(template) = self.template.take() {
            self.save(&Template {
                loads: 0,
                ..template
            });
        }
        self.stale = true;
        self.forget_search();
        self.prepare(host, Vec::new());
    }

    /// Counts one more load that replayed this template.
    pub(super) fn confirm_template(&mut self) {
        let Some(mut template) = self.template.take_if(|it| it.loads < PROVEN) else {
            return;
        };
        template.loads += 1;
        self.save(&template);
        self.template = Some(template);
    }

    fn save(&self, template: &Template) {
        if let Some(templates) = &self.templates {
            templates.save(template);
        }
    }

    /// Discards the answer of the store, which is older than what is known here.
    fn forget_search(&mut self) {
        self.search = Search::Idle;
        if let Some(templates) = &mut self.templates {
            templates.forget();
        }
    }

    /// Compares the template with a load that replayed it. Where it was wrong the next load is recorded from
    /// its beginning, and replays this load's reads if the template lacked some; pages that were merely not read
    /// this time stay until that recording confirms it.
    pub(super) fn prove_template(
        &mut self,
        host: &Host<'_>,
        mut parts: Vec<Part>,
        off_course: u64,
    ) {
        let mut proof = Proof::new(&self.forecast.pieces, &parts);
        if !proof.is_right() {
            complete_parts(host, &mut self.files, &mut parts, |_| None);
            proof = Proof::new(&self.forecast.pieces, &parts);
        }
        // Several workers may read the same page.
        let of_others = off_course * 100 > proof.read * DRIFT;
        if proof.is_right() && !of_others {
            host.log(Level::Debug, format_args!("The template is right: {proof}"));
            return self.confirm_template();
        }
        if of_others {
            let mib = (off_course * PAGE) >> 20;
            let line = format_args!("{mib} MiB were read by other workers than in the template");
            host.log(Level::Info, line);
        }
        host.log(
            Level::Info,
            format_args!("The template was wrong, {proof}: the next load is recorded"),
        );
        if proof.is_incomplete() || of_others {
            self.keep_recording(host, parts, 0);
        } else if let Some(template) = &mut self.template {
            template.loads = 0;
            let template = template.clone();
            self.save(&template);
        }
    }

    /// Makes the recorded reads the template, valid for `loads` loads: 0 if the next one is to be recorded, too.
    pub(super) fn keep_recording(&mut self, host: &Host<'_>, mut parts: Vec<Part>, loads: u32) {
        let added = complete_parts(host, &mut self.files, &mut parts, |_| None);
        if added > 0 {
            let kib = (added * PAGE) >> 10;
            let line = format_args!("Added {kib} KiB without events, of tensors that were read");
            host.log(Level::Info, line);
        }
        let parts = &parts[..];
        let template = match make_template(host, &mut self.files, parts) {
            Ok(made) => self.own(made, loads),
            Err(error) => {
                return host.log(Level::Warn, format_args!("The load is not kept: {error}"));
            }
        };
        self.keep(host, template);
    }

    /// The readers of the weights bypass the page cache: keeps a template of their other reads, and that nothing
    /// more is to be loaded for them.
    pub(super) fn keep_bypass(&mut self, host: &Host<'_>, parts: &[Part]) {
        let made = make_template(host, &mut self.files, parts);
        let Ok(mut template) = made.map(|made| self.own(made, 1)) else {
            return;
        };
        for (number, (path, size)) in (0..).zip(self.forecast.files.iter()) {
            let known = template.files.iter().any(|file| file.path == *path);
            let weights = *size >= WEIGHTS && !known;
            let identity = weights.then(|| self.files.identity(host, number, true));
            template.files.extend(identity.flatten());
        }
        host.log(
            Level::Info,
            "The readers bypass the page cache: nothing is loaded for them next time",
        );
        self.keep(host, template);
    }

    /// A template of this service and node.
    fn own(&self, made: Template, loads: u32) -> Template {
        Template {
            service: self.service.clone(),
            node: self.config.node.clone(),
            loads,
            ..made
        }
    }

    fn keep(&mut self, host: &Host<'_>, template: Template) {
        self.save(&template);
        self.stale = false;
        self.forget_search();
        self.adopt_template(host, template);
    }

    /// A process that has its model reads more of it.
    pub(super) fn hear_late(&mut self, event: &Event, number: u32) {
        let Some(template) = &self.template else {
            return;
        };
        let range = event.offset..event.end();
        let extent = Extent::of_bytes(number, &range).filter(|_| event.kind == Kind::Miss);
        if let Some(extent) = extent {
            let group = |worker| extents_of(template, worker).unwrap_or_default();
            self.late.add(event.process, &extent, event.time_ns, group);
        }
    }

    /// Appends reads after the end to the template, once it has been quiet for `idle`.
    pub(super) fn extend_template(&mut self, host: &Host<'_>, idle: Duration) {
        let wanted = self.late.waits() && self.config.recording != Recording::Never;
        if self.load.is_some() || !wanted {
            return;
        }
        let idle = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        let pages = self.forecast.pieces.total();
        let (Some(new), Some(template)) = (
            self.late.take(host.now(), idle, pages),
            self.template.clone(),
        ) else {
            return;
        };
        let added: usize = new.values().map(Vec::len).sum();
        if let Some(template) = extended(host, &mut self.files, template, new) {
            let line =
                format_args!("{added} ranges that were read after the end are in the template");
            host.log(Level::Info, line);
            self.save(&template);
            self.forget_search();
            self.adopt_template(host, template);
        }
    }

    /// Makes this the template of the next load.
    fn adopt_template(&mut self, host: &Host<'_>, template: Template) {
        if let Some(forecast) = forecast_of(host, &template) {
            self.expect(host, forecast);
            self.template = Some(template);
        }
    }
}

/// A worker's reads in a template.
fn extents_of(template: &Template, worker: u32) -> Option<Vec<Extent>> {
    let mut groups = template.groups.iter();
    groups.find(|it| it.worker == worker)?.extents().ok()
}

/// A template with later reads of its workers appended.
fn extended(
    host: &Host<'_>,
    files: &mut FileTable,
    mut template: Template,
    new: BTreeMap<u32, Vec<Extent>>,
) -> Option<Template> {
    for (worker, more) in new {
        let mut extents = extents_of(&template, worker)?;
        for extent in more {
            // The template's files come first in the table.
            let path = files.path(extent.file)?;
            let known = template.files.iter().position(|it| it.path == path);
            let file = if let Some(known) = known {
                known
            } else {
                template
                    .files
                    .push(files.identity(host, extent.file, true)?);
                template.files.len() - 1
            };
            let file = u32::try_from(file).ok()?;
            extents.push(Extent { file, ..extent });
        }
        let group = template.groups.iter_mut().find(|it| it.worker == worker)?;
        *group = Group::new(worker, group.xpu, &extents).ok()?;
    }
    Some(template)
}

/// Whether the files are still those of a template.
fn fits(host: &Host<'_>, root: &str, template: &Template) -> bool {
    let paths = template.files.iter().map(|file| file.path.clone());
    let mut files = FileTable::below(root, paths);
    let changed = (0..).zip(&template.files).find(|(number, then)| {
        // Its beginning is only read where times do not settle it.
        let mut like = |header| {
            let now = files.identity(host, *number, header);
            now.map_or(Sameness::Changed, |now| then.same(&now))
        };
        like(false) == Sameness::Changed && like(true) == Sameness::Changed
    });
    let changed = changed.map(|(_, file)| &file.path);
    files.close(host);
    if let Some(path) = changed {
        let line = format_args!("{path} is another file than it was: its template is not used");
        host.log(Level::Info, line);
    }
    changed.is_none()
}

/// The service name of a model's templates: that of the service, with a suffix for each of several models of a mount;
/// without a service, a name that depends on the model's files only.
pub(super) fn name_of(
    host: &Host<'_>,
    service: Option<&str>,
    key: &ModelKey,
    alone: bool,
) -> String {
    let pairs = match service {
        Some(service) if alone => return service.to_owned(),
        Some(service) => vec![
            ("service".to_owned(), service.to_owned()),
            ("folder".to_owned(), key.root.clone()),
            ("family".to_owned(), key.family.clone().unwrap_or_default()),
        ],
        None => {
            use crate::predict::Library as _;

            let library = HostLibrary {
                host,
                root: &key.root,
                family: key.family.as_deref(),
            };
            let files = library.files().into_iter();
            let text = files.map(|(path, size)| format!("{path} {size};"));
            vec![("files".to_owned(), text.collect::<String>())]
        }
    };
    let id = service_id(&pairs).unwrap_or_else(|_| "unnamed".to_owned());
    let Some(service) = service else { return id };
    let named = format!("{service}.{}", id.get(..8).unwrap_or(&id));
    if valid_name(&named) { named } else { id }
}
