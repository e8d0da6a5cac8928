//! A node's directory in memory, and when its services have been recorded there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use maio::Extent;
use maio::template::{Group, Identity, Stamp, Template, TemplateKind};
use ppc_store::error::Result;
use ppc_store::known::Known;
use ppc_store::local::Local;
use ppc_store::slot::Place;
use tokio::time::Instant;

use super::storage::BEGIN_S;

/// Ranges that a worker reads: few, as a thousand nodes examine each template.
const RANGES: u32 = 20;

/// When a node has recorded its services, and when it has found the records right, from the beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) services: usize,
    pub(crate) recorded: Duration,
    pub(crate) proven: Duration,
}

#[derive(Debug)]
pub(crate) struct Directory {
    templates: Rc<Vec<Template>>,
    plan: Plan,
    began: Instant,
    held: RefCell<BTreeMap<Place, Template>>,
}

impl Directory {
    pub(crate) fn new(templates: Rc<Vec<Template>>, plan: Plan) -> Self {
        Self {
            templates,
            plan,
            began: Instant::now(),
            held: RefCell::default(),
        }
    }

    /// The number of loads that the node's templates have seen, and since when; `None` before they are recorded.
    fn loads(&self) -> Option<(u32, Duration)> {
        let now = self.began.elapsed();
        if now >= self.plan.proven {
            Some((2, self.plan.proven))
        } else {
            (now >= self.plan.recorded).then_some((1, self.plan.recorded))
        }
    }
}

impl Local for Directory {
    fn own(&self) -> Result<Vec<Stamp>> {
        let Some((_, since)) = self.loads() else {
            return Ok(Vec::new());
        };
        let stamp = |template: &Template| Stamp {
            service: template.service.clone(),
            node: "here".to_owned(),
            bytes: 11_000,
            modified: UNIX_EPOCH + Duration::from_secs(BEGIN_S) + since,
        };
        let services = self.templates.iter().take(self.plan.services);
        Ok(services.map(stamp).collect())
    }

    fn read_own(&self, service: &str, _: &str) -> Option<Template> {
        let (loads, _) = self.loads()?;
        let template = self.templates.iter().find(|it| it.service == service)?;
        Some(Template {
            loads,
            made_s: BEGIN_S + self.plan.recorded.as_secs(),
            ..template.clone()
        })
    }

    fn held(&self) -> Result<Vec<Place>> {
        Ok(self.held.borrow().keys().cloned().collect())
    }

    fn read_held(&self, place: &Place) -> Option<Template> {
        self.held.borrow().get(place).cloned()
    }

    fn hold(&self, place: &Place, template: Template, _: u64) -> Result<()> {
        // The ranges are not needed again, and a thousand nodes would have them a thousand times.
        let groups = Vec::new();
        self.held
            .borrow_mut()
            .insert(place.clone(), Template { groups, ..template });
        Ok(())
    }

    fn drop(&self, place: &Place) -> Result<()> {
        self.held.borrow_mut().remove(place);
        Ok(())
    }

    fn remember(&self, _: &Known) -> Result<()> {
        Ok(())
    }
}

/// Templates of this many services, each of a model that one worker reads.
pub(crate) fn templates(services: usize) -> Rc<Vec<Template>> {
    let one = |number: usize| {
        let file = |shard: u64| Identity {
            path: format!("model-{shard:05}-of-00004.safetensors"),
            size: 4 << 30,
            mtime_ns: 1,
            inode: shard,
            header: number as u64 * 4 + shard + 1,
        };
        let range = |range: u32| Extent {
            file: range % 4,
            // Not in order, so that they are as hard to pack as those of a model.
            first: (range * 13 % RANGES) * 256,
            pages: 1 + range * 7 % 250,
        };
        let ranges: Vec<_> = (0..RANGES).map(range).collect();
        Template {
            kind: TemplateKind::Model,
            service: format!("service-{number:04}"),
            node: "node".to_owned(),
            made_s: BEGIN_S,
            loads: 1,
            files: (0..4).map(file).collect(),
            groups: vec![Group::new(0, Some(0), &ranges).expect("a group")],
        }
    };
    Rc::new((0..services).map(one).collect())
}
