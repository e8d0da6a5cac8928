//! What the store knows of a start. A thread looks: the store may be on a network, whose server may be gone, and a
//! command waits for its start to begin.

use std::time::Duration;

use ppc::{Host, Level};

use crate::config::{Config, Recording};
use crate::host::{IoThread, Reply, failed};
use crate::template::{Store, Template, TemplateError, TemplateKind};

/// How long the start waits for the store.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many records of other nodes are examined, the newest first.
const RECORDS: usize = 4;
/// How many other starts are consulted for a start without a record.
const OTHERS: usize = 8;

/// The templates that may tell what this start will read.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// This node's, or why it is not used.
    pub(super) own: Option<Result<Template, TemplateError>>,
    /// Without one of this node, what other nodes have recorded of the same start, the newest first.
    pub(super) elsewhere: Vec<Template>,
    /// Without one of this node, other starts of this node, the newest first.
    pub(super) others: Vec<Template>,
}

/// The search in the store, and whether that answers at all.
#[derive(Debug)]
pub(super) struct Search {
    /// `None` once the store has answered.
    pending: Option<IoThread<Question, Records>>,
}

#[derive(Debug)]
struct Question {
    name: String,
    node: String,
    /// Whether other starts are of use.
    others: bool,
}

impl Search {
    /// Searches the store for records of a start. There are none if the store does not answer in time.
    pub(super) fn begin(
        host: &Host<'_>,
        config: &Config,
        name: &str,
    ) -> ppc::Result<(Self, Records)> {
        let wanted = config
            .store
            .clone()
            .filter(|_| config.recording != Recording::Always);
        let Some(store) = wanted else {
            return Ok((Self { pending: None }, Records::default()));
        };
        let look = move |question: Question| Reply::Quiet(look(&store, &question));
        let thread = IoThread::start("maio-records", host.waker(), look);
        let thread = thread.map_err(|it| failed(&it))?;
        thread.ask(Question {
            name: name.to_owned(),
            node: config.node.clone(),
            others: config.recording == Recording::Auto,
        });
        if let Some(found) = thread.wait(PATIENCE) {
            return Ok((Self { pending: None }, found));
        }
        let line =
            "The directory of templates does not answer: the start continues without a template";
        host.log(Level::Warn, line);
        let pending = Some(thread);
        Ok((Self { pending }, Records::default()))
    }

    /// Whether the store has answered by now, if too late.
    pub(super) fn is_answered(&mut self) -> bool {
        self.pending.take_if(|thread| !thread.take().is_empty());
        self.pending.is_none()
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        if let Some(thread) = self.pending.take() {
            thread.leave();
        }
    }
}

fn look(store: &Store, question: &Question) -> Records {
    let Question { name, node, others } = question;
    let own = store.load(name, node).transpose();
    if matches!(&own, Some(Ok(template)) if !template.groups.is_empty()) {
        return Records {
            own,
            ..Records::default()
        };
    }
    let elsewhere = store.load_others(name, node, None).map(|found| {
        let starts = found.filter(|it| it.kind == TemplateKind::Start);
        starts.take(RECORDS).collect()
    });
    Records {
        own,
        elsewhere: elsewhere.unwrap_or_default(),
        others: others
            .then(|| store.recent_starts(node, OTHERS))
            .unwrap_or_default(),
    }
}
