//! Between loads and the store: recorded reads become a template, and a template becomes a forecast. A thread
//! accesses the store, which may be on a network and slow.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ppc::{Host, Level, Result, Waker};

use crate::complete::complete;
use crate::extent::Extent;
use crate::host::{FileTable, HostLibrary, IoThread, Reply};
use crate::load::{Forecast, Part};
use crate::order::Pieces;
use crate::predict::Units;
use crate::template::{
    FoundTemplate, Group, Identity, Store, Template, TemplateError, TemplateKind, learn,
};
use crate::workers::ExpectedWorker;

#[derive(Debug)]
enum StoreQuestion {
    Find {
        ticket: u64,
        service: String,
        node: String,
        workers: u32,
    },
    Save(Box<Template>),
}

#[derive(Debug)]
enum StoreAnswer {
    Found {
        ticket: u64,
        found: Finding,
    },
    Saved {
        what: String,
        result: Result<(), TemplateError>,
    },
}

/// The store's templates of a service, the best first, or why they are not used.
pub(crate) type Finding = Result<Vec<FoundTemplate>, TemplateError>;

/// The store, as the policy's callbacks see it.
#[derive(Debug)]
pub(crate) struct TemplateThread {
    thread: IoThread<StoreQuestion, StoreAnswer>,
    /// The number of the search whose outcome is still wanted.
    ticket: u64,
    /// How many searches have no answer yet, and when the last one began.
    unanswered: Cell<u32>,
    asked: Instant,
}

/// How long a search may take when the policy ends: a store that does not answer saves nothing in bounded time either.
const PATIENCE: Duration = Duration::from_secs(1);

impl TemplateThread {
    pub(crate) fn start(store: Store, waker: Waker) -> io::Result<Self> {
        let answer = move |question| Reply::Urgent(answer(&store, question));
        Ok(Self {
            thread: IoThread::start("maio-store", waker, answer)?,
            ticket: 0,
            unanswered: Cell::new(0),
            asked: Instant::now(),
        })
    }

    /// Looks for a template of a service: this node's, or one composed of the other nodes' with at least
    /// `workers` workers.
    pub(crate) fn find(&mut self, service: &str, node: &str, workers: u32) {
        self.ticket += 1;
        self.unanswered.update(|it| it + 1);
        self.asked = Instant::now();
        self.thread.ask(StoreQuestion::Find {
            ticket: self.ticket,
            service: service.to_owned(),
            node: node.to_owned(),
            workers,
        });
    }

    /// Discards the outcome of the search under way.
    pub(crate) const fn forget(&mut self) {
        self.ticket += 1;
    }

    pub(crate) fn save(&self, template: &Template) {
        let template = Box::new(template.clone());
        self.thread.ask(StoreQuestion::Save(template));
    }

    /// The outcome of the search, if it comes within that time.
    pub(crate) fn wait(&self, host: &Host<'_>, at_most: Duration) -> Option<Finding> {
        let answer = self.thread.wait(at_most)?;
        self.sort(host, answer)
    }

    /// Logs what was saved, and returns what was found.
    pub(crate) fn collect(&self, host: &Host<'_>) -> Option<Finding> {
        let answers = self.thread.take().into_iter();
        answers.filter_map(|it| self.sort(host, it)).last()
    }

    /// Whether an answer is there that the policy waits for.
    pub(crate) fn has_urgent(&self) -> bool {
        self.thread.has_urgent()
    }

    /// Waits until all is saved, unless the store does not answer.
    pub(crate) fn finish(mut self, host: &Host<'_>) {
        while self.unanswered.get() > 0 {
            let left = PATIENCE.saturating_sub(self.asked.elapsed());
            let Some(answer) = self.thread.wait(left) else {
                let line = "No more templates are saved: their directory does not answer";
                host.log(Level::Warn, line);
                return self.thread.leave();
            };
            self.sort(host, answer);
        }
        let (answers, sound) = self.thread.finish();
        for answer in answers {
            self.sort(host, answer);
        }
        if !sound {
            host.log(Level::Warn, "The thread that saves templates has panicked");
        }
    }

    fn sort(&self, host: &Host<'_>, answer: StoreAnswer) -> Option<Finding> {
        match answer {
            StoreAnswer::Found { ticket, found } => {
                self.unanswered.update(|it| it.saturating_sub(1));
                return Some(found).filter(|_| ticket == self.ticket);
            }
            StoreAnswer::Saved { what, result } => match result {
                Ok(()) => host.log(Level::Info, format_args!("Kept the template of {what}")),
                // Another node keeps it.
                Err(TemplateError::ReadOnly { .. }) => {}
                Err(error) => {
                    let line = format_args!("Cannot save the template of {what}: {error}");
                    host.log(Level::Warn, line);
                }
            },
        }
        None
    }
}

fn answer(store: &Store, question: StoreQuestion) -> StoreAnswer {
    match question {
        StoreQuestion::Find {
            ticket,
            service,
            node,
            workers,
        } => StoreAnswer::Found {
            ticket,
            found: find(store, &service, &node, workers),
        },
        StoreQuestion::Save(template) => StoreAnswer::Saved {
            what: format!("{} on {}", template.service, template.node),
            result: store.save(&template),
        },
    }
}

/// How many templates of other nodes are tried besides this node's: files may have changed since that was recorded.
const BESIDE: usize = 2;

fn find(store: &Store, service: &str, node: &str, workers: u32) -> Finding {
    let own = store.load(service, node)?;
    if own
        .as_ref()
        .is_some_and(|it| it.kind == TemplateKind::Start)
    {
        return Err(TemplateError::OfAStart);
    }
    let alone = |template| FoundTemplate {
        template,
        several: false,
    };
    let good = |it: &Template| it.kind == TemplateKind::Model && it.loads > 0;
    Ok(match own {
        Some(own) if own.loads > 0 => {
            let since = store.saved_at(service, node)?;
            let newer = store.load_others(service, node, since)?;
            let newer = newer.filter(good).take(BESIDE).map(alone);
            std::iter::once(alone(own.clone())).chain(newer).collect()
        }
        // This node's was wrong: another node may have recorded a right one since.
        Some(own) => {
            let newer = store.load_others(service, node, None)?;
            let newer = newer.filter(|it| good(it) && it.made_s > own.made_s);
            let all = u32::try_from(own.groups.len()).unwrap_or(u32::MAX);
            let learnt = learn(newer, workers.max(all));
            learnt.into_iter().chain([alone(own)]).collect()
        }
        None => {
            let others = store.load_others(service, node, None)?;
            let of_models = others.filter(|it| it.kind == TemplateKind::Model);
            learn(of_models, workers).into_iter().collect()
        }
    })
}

/// Adds reads that caused no event; returns how many pages. The host is asked for those sizes that `size` does not
/// know.
pub(crate) fn complete_parts(
    host: &Host<'_>,
    files: &mut FileTable,
    parts: &mut [Part],
    size: impl Fn(u32) -> Option<u64>,
) -> u64 {
    let root = files.root().to_owned();
    let library = HostLibrary {
        host,
        root: &root,
        family: None,
    };
    let mut units = Units::new(&library);
    let mut known: HashMap<u32, Vec<Range<u32>>> = HashMap::new();
    let mut added = 0;
    for part in parts {
        let of = |file| {
            let units = known.entry(file).or_insert_with(|| {
                let asked = || Some(host.info(files.id(host, file)?).ok()?.size);
                let size = size(file).or_else(asked).unwrap_or_default();
                let ranges = files.path(file).map(|path| units.of(path, size));
                let pages = |bytes: &Range<u64>| Extent::of_bytes(file, bytes);
                let ranges = ranges.unwrap_or_default();
                let extents = ranges.iter().filter_map(pages);
                extents.map(|it| it.first..it.end()).collect()
            });
            units.clone()
        };
        let (extents, pages) = complete(std::mem::take(&mut part.extents), of);
        part.extents = extents;
        added += pages;
    }
    added
}

/// A template of the recorded reads, with their files.
pub(crate) fn make_template(
    host: &Host<'_>,
    files: &mut FileTable,
    parts: &[Part],
) -> Result<Template, TemplateError> {
    let mut known: Vec<Option<u32>> = Vec::new();
    let mut identities: Vec<Identity> = Vec::new();
    let mut groups = Vec::new();
    for part in parts {
        let mut extents = Vec::with_capacity(part.extents.len());
        for extent in &part.extents {
            let at = usize::try_from(extent.file).unwrap_or(usize::MAX);
            if known.len() <= at {
                known.resize(at + 1, None);
            }
            if known[at].is_none() {
                let Some(identity) = files.identity(host, extent.file, true) else {
                    // It is gone already, and will not be read again.
                    continue;
                };
                known[at] = u32::try_from(identities.len()).ok();
                identities.push(identity);
            }
            if let Some(file) = known[at] {
                extents.push(Extent { file, ..*extent });
            }
        }
        groups.push(Group::new(
            part.worker,
            part.xpu.map(|xpu| xpu.0),
            &extents,
        )?);
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Ok(Template {
        kind: TemplateKind::Model,
        service: String::new(),
        node: String::new(),
        made_s: since.map_or(0, |since| since.as_secs()),
        loads: 1,
        files: identities,
        groups,
    })
}

/// The forecast of a template.
pub(crate) fn forecast_of(host: &Host<'_>, template: &Template) -> Option<Forecast> {
    let groups: Result<Vec<_>, _> = template.groups.iter().map(Group::extents).collect();
    match groups {
        Ok(groups) => {
            let expected = template.groups.iter().map(|group| ExpectedWorker {
                worker: group.worker,
                xpu: group.xpu.map(ppc::Xpu),
            });
            let files = template.files.iter();
            let files = files.map(|file| (file.path.clone(), file.size));
            Some(forecast(files.collect(), &groups, expected.collect()))
        }
        Err(error) => {
            host.log(Level::Warn, format_args!("Ignoring a template: {error}"));
            None
        }
    }
}

/// The forecast of the groups' ranges.
pub(crate) fn forecast(
    files: Vec<(String, u64)>,
    groups: &[Vec<Extent>],
    mut expected: Vec<ExpectedWorker>,
) -> Forecast {
    let pieces = Arc::new(Pieces::new(groups));
    expected.truncate(pieces.groups());
    Forecast {
        files: files.into(),
        pieces,
        expected,
        several: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_no_models_template() {
        let root = std::env::temp_dir().join(format!("maio-save-{}-start", std::process::id()));
        let store = Store::at(&root);
        let of = |node: &str, kind| Template {
            kind,
            service: "s".to_owned(),
            node: node.to_owned(),
            made_s: 1,
            loads: 1,
            files: Vec::new(),
            groups: vec![Group::new(0, None, &[]).expect("a group")],
        };
        let found = || find(&store, "s", "here", 1);
        store
            .save(&of("other", TemplateKind::Start))
            .expect("to save");
        assert!(found().expect("to look").is_empty());
        store
            .save(&of("third", TemplateKind::Model))
            .expect("to save");
        assert_eq!(found().expect("to look").len(), 1);
        store
            .save(&of("here", TemplateKind::Start))
            .expect("to save");
        assert!(matches!(found(), Err(TemplateError::OfAStart)));
        let _ = std::fs::remove_dir_all(&root);
    }

    #[test]
    fn the_freshest_good_template_wins_over_ones_own_that_was_wrong() {
        let root = std::env::temp_dir().join(format!("maio-save-{}-fresh", std::process::id()));
        let store = Store::at(&root);
        let save = |node: &str, made_s, loads| {
            let template = Template {
                kind: TemplateKind::Model,
                service: "s".to_owned(),
                node: node.to_owned(),
                made_s,
                loads,
                files: Vec::new(),
                groups: vec![Group::new(0, None, &[]).expect("a group")],
            };
            store.save(&template).expect("to save");
        };
        let found = || {
            let found = find(&store, "s", "here", 1).expect("to look");
            let nodes = found.into_iter().map(|it| it.template.node);
            nodes.collect::<Vec<_>>()
        };
        save("older", 1, 1);
        save("here", 2, 0);
        assert_eq!(found(), ["here"], "what is older may be wrong like it");
        save("newer", 3, 1);
        save("wrong", 4, 0);
        assert_eq!(found(), ["newer", "here"]);
        save("here", 5, 1);
        assert_eq!(found(), ["here"]);
        std::thread::sleep(Duration::from_millis(20));
        save("later", 6, 1);
        assert_eq!(
            found(),
            ["here", "later"],
            "should its files not fit any more"
        );
        let _ = std::fs::remove_dir_all(&root);
    }
}
