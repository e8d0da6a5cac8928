//! The life of a model: how it is opened, called and closed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ppc::ranks::Layout;
use ppc::{Event, Host, Io, Kinds, Memory, Plan, Result};

use super::late::LateReads;
use super::share::{Share, beside, share};
use super::templates::{Search, name_of};
use super::{BEACON, Model, Recorded, io, is_absent, memory};
use crate::config::{Beginning, Config};
use crate::host::{FileTable, NodeWatch, failed};
use crate::load::Load;
use crate::models::ModelKey;
use crate::peers::Members;
use crate::save::{TemplateThread, forecast};

impl Model {
    /// Opens a model and starts the search for its template, without waiting for that.
    pub(crate) fn open(
        host: &Host<'_>,
        config: Config,
        key: ModelKey,
        alone: bool,
        members: Option<Arc<Members>>,
    ) -> Result<Self> {
        let mut model = Self::new(host, config, key, alone, members)?;
        model.search_store(host);
        model.rest(host);
        Ok(model)
    }

    /// The same at the beginning, when nothing is read yet and waiting for a template does no harm.
    pub(crate) fn open_first(
        host: &Host<'_>,
        config: Config,
        key: ModelKey,
        alone: bool,
        members: Option<Arc<Members>>,
        plan: &mut Plan<'_>,
    ) -> Result<Self> {
        let mut model = Self::new(host, config, key, alone, members)?;
        model.prepare_first(host);
        model.begin_early(host)?;
        model.advise(host, plan)?;
        Ok(model)
    }

    fn new(
        host: &Host<'_>,
        config: Config,
        key: ModelKey,
        alone: bool,
        members: Option<Arc<Members>>,
    ) -> Result<Self> {
        let service = name_of(host, config.service.as_deref(), &key, alone);
        let node = NodeWatch::start(host.waker(), members).map_err(|it| failed(&it))?;
        let start = |store| TemplateThread::start(store, host.waker());
        let templates = config.store.clone().map(start).transpose();
        Ok(Self {
            config,
            layout: Layout::default(),
            service,
            files: FileTable::below(&key.root, []),
            key,
            forecast: forecast(Vec::new(), &[], Vec::new()),
            template: None,
            stale: false,
            load: None,
            waiting: VecDeque::new(),
            node,
            templates: templates.map_err(|it| failed(&it))?,
            search: Search::Idle,
            exchanged_ns: 0,
            looked_ns: 0,
            recording: Recorded::Nothing,
            late: LateReads::default(),
            alert: false,
            wanted: (Kinds::default(), BEACON),
            others: Vec::new(),
            demands: Vec::new(),
            unheard_ns: None,
            left: 0,
            total: 0,
        })
    }

    pub(crate) fn exit(mut self, host: &Host<'_>) -> Result<()> {
        self.collect(host);
        let heard = self.hear_rest(host);
        if let Some(load) = self.load.take() {
            self.finish(host, load);
        }
        self.extend_template(host, Duration::ZERO);
        if let Some(templates) = self.templates.take() {
            templates.finish(host);
        }
        self.files.close(host);
        heard
    }

    pub(crate) fn prefetch(
        &mut self,
        host: &Host<'_>,
        event: Option<&Event>,
        plan: &mut Plan<'_>,
    ) -> Result<()> {
        self.collect(host);
        if let Some(event) = event {
            self.line_up(host, event);
        }
        self.hear_waiting(host)?;
        if event.is_none() {
            self.begin_early(host)?;
            self.tick(host, plan)?;
            self.extend_template(host, self.config.idle);
        }
        self.advise(host, plan)?;
        self.stay_awake(host)
    }

    pub(crate) fn evict(&mut self, host: &Host<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let memory = self.memory(host);
        let Some(load) = &mut self.load else {
            return Ok(());
        };
        load.set_memory(memory);
        for extent in load.drop_passed() {
            if let Some(io) = io(&mut self.files, host, &extent, Io::drop) {
                plan.add(io)?;
            }
        }
        Ok(())
    }

    /// Sets when the loads of the model begin, from now on.
    pub(crate) const fn set_beginning(&mut self, beginning: Beginning) {
        self.config.beginning = beginning;
    }

    /// The kinds of events it wants, and the bytes from one PROGRESS to the next.
    pub(crate) const fn wanted(&self) -> (Kinds, u64) {
        self.wanted
    }

    /// While the model is loaded, how many bytes are held for it and how many it has.
    pub(crate) fn loads(&self) -> Option<Share> {
        let load = self.load.as_ref()?;
        Some(Share {
            held: load.held(),
            total: self.total,
        })
    }

    /// Whether it is being loaded.
    pub(crate) const fn is_loading(&self) -> bool {
        self.load.is_some()
    }

    /// What else is being loaded by this policy.
    pub(crate) fn set_others(&mut self, others: Vec<Share>) {
        self.others = others;
    }

    /// Whether an answer has arrived that the next callback waits for.
    pub(crate) fn has_urgent(&self) -> bool {
        let templates = self.templates.as_ref();
        self.node.has_urgent() || templates.is_some_and(TemplateThread::has_urgent)
    }

    /// Abandons the load, as another model turns out to be loaded, unless a reader has read this one's weights.
    /// Returns whether it did.
    pub(crate) fn abandon(&mut self, host: &Host<'_>, plan: &mut Plan<'_>) -> Result<bool> {
        let Some(mut load) = self.load.take_if(|load| !load.has_workers()) else {
            return Ok(false);
        };
        let files = &mut self.files;
        let advice = load.hold_back(|extent| is_absent(files, host, extent));
        self.carry_out(host, &advice, plan)?;
        self.report(host, &mut load);
        self.node.end_load();
        self.rest(host);
        Ok(true)
    }

    /// How much memory there is for this load.
    pub(super) fn memory(&self, host: &Host<'_>) -> Memory {
        let held = self.load.as_ref().map_or(0, Load::held);
        let memory = share(memory(host), held, &self.others);
        beside(memory, held, self.config.priority, &self.demands)
    }
}
