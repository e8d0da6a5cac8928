//! Containers that are about to start, as their runtime reports them, and what is remembered of those that started.
//!
//! ```text
//! created: image, arguments ─ remembered? ─ its layers and volumes ─▶ ahead: loads what the last starts read
//! started: its first process, before it executes the program ─────▶ as any program of a service
//! ```
//!
//! A start is known by its program and the layers of its image, which there are only once the container has a process.
//! So the first start of an image with some arguments is remembered with both; the next container that is created with
//! the same has its files loaded before it has a process.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::control::start_name::start_name_in;
use crate::machine::view::Place;

/// Upper bound on containers remembered; beyond it, the one that started first goes.
const MOST: usize = 256;
/// Upper bound on news that wait for the services' thread: a runtime starts one container after another.
const WAITING: usize = 1024;
/// Upper bound on the volumes of a container that are looked into.
const VOLUMES: usize = 128;

/// A container, as its runtime reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerFacts {
    pub(crate) id: String,
    /// Namespace, pod and container, for people.
    pub(crate) name: String,
    pub(crate) image: Option<String>,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<String>,
    /// Where the container has them, and where the host does.
    pub(crate) volumes: Vec<(PathBuf, PathBuf)>,
    /// Its first process, if there is one and the runtime names it.
    pub(crate) process: Option<u32>,
    /// The runtime's own process: paths of the host are those that it sees.
    pub(crate) runtime: Option<u32>,
}

/// A change in the state of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerNews {
    /// It is being made: it has no process and no root directory yet.
    Created(Box<ContainerFacts>),
    /// It is about to run: it has a process that waits to execute its program.
    Started(Box<ContainerFacts>),
    /// It is being stopped, or has ended.
    Stopped(String),
}

impl ContainerFacts {
    /// What a container has in common with the next one of its kind, before it has a process.
    pub(super) fn kind(&self) -> Option<String> {
        let (program, arguments) = self.arguments.split_first()?;
        Some(start_name_in(self.image.as_deref()?, program, arguments))
    }

    /// Where the files are that the container will see, if its root directory has these layers, the topmost first.
    pub(super) fn view(&self, layers: &[PathBuf]) -> Vec<Place> {
        let root = Place {
            at: "/".into(),
            layers: layers.to_vec(),
        };
        let volumes = self.volumes.iter().take(VOLUMES);
        let volumes = volumes.map(|(at, source)| Place {
            at: at.clone(),
            layers: vec![source.clone()],
        });
        std::iter::once(root).chain(volumes).collect()
    }
}

/// News that wait for the thread of the services. Its lock is held for moments only: the runtime's plugin never waits.
#[derive(Debug, Default)]
pub(super) struct Inbox(Mutex<VecDeque<ContainerNews>>);

impl Inbox {
    /// Adds news; false if too many wait.
    pub(super) fn put(&self, news: ContainerNews) -> bool {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = waiting.len() < WAITING;
        if has_room {
            waiting.push_back(news);
        }
        has_room
    }

    pub(super) fn take(&self) -> VecDeque<ContainerNews> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How a kind of container started the last time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    pub(super) service: String,
    /// The name of the start.
    pub(super) start: String,
    /// The layers of the root directory, the topmost first, on the host.
    pub(super) layers: Vec<PathBuf>,
    /// Counts starts, so that the oldest is known.
    number: u64,
}

/// What is remembered of containers, by their kinds.
#[derive(Debug, Default)]
pub(super) struct Memory {
    kinds: BTreeMap<String, Remembered>,
}

impl Memory {
    /// What was saved last; nothing, if it cannot be read.
    pub(super) fn read(path: &Path) -> Self {
        let kinds = super::known::read_json(path, "cprtd learns containers again");
        Self { kinds }
    }

    pub(super) fn get(&self, kind: &str) -> Option<&Remembered> {
        self.kinds.get(kind)
    }

    /// Remembers a start; true if that is news.
    pub(super) fn add(
        &mut self,
        kind: String,
        service: &str,
        start: &str,
        layers: &[PathBuf],
    ) -> bool {
        let last = self.kinds.values().map(|it| it.number).max().unwrap_or(0);
        let one = |number| Remembered {
            service: service.to_owned(),
            start: start.to_owned(),
            layers: layers.to_vec(),
            number,
        };
        if let Some(there) = self.kinds.get(&kind)
            && *there == one(there.number)
        {
            return false;
        }
        if self.kinds.len() >= MOST && !self.kinds.contains_key(&kind) {
            let oldest = self.kinds.iter().min_by_key(|(_, it)| it.number);
            let oldest = oldest.map(|(kind, _)| kind.clone());
            oldest.and_then(|kind| self.kinds.remove(&kind));
        }
        self.kinds.insert(kind, one(last + 1));
        true
    }

    /// Saves it by rename, so that the file is always complete.
    pub(super) fn write(&self, path: &Path) {
        super::known::write_json(path, &self.kinds);
    }
}

#[cfg(test)]
mod tests {
    use test_support::Folder;

    use super::*;

    fn container(image: Option<&str>, words: &[&str]) -> ContainerFacts {
        ContainerFacts {
            id: "c".into(),
            name: "default/pod/c".into(),
            image: image.map(str::to_owned),
            arguments: words.iter().map(|&it| it.to_owned()).collect(),
            environment: Vec::new(),
            volumes: vec![("/models".into(), "/srv/models".into())],
            process: None,
            runtime: None,
        }
    }

    #[test]
    fn a_kind_is_an_image_with_arguments() {
        let kind = |image, words: &[&str]| container(image, words).kind();
        let one = kind(Some("a:1"), &["serve", "--model", "m", "--port", "1"]);
        assert!(one.is_some());
        assert_eq!(one, kind(Some("a:1"), &["serve", "--port=2", "--model=m"]));
        assert_ne!(one, kind(Some("a:2"), &["serve", "--model", "m"]));
        assert_ne!(one, kind(Some("a:1"), &["serve", "--model", "n"]));
        assert_eq!(kind(None, &["serve"]), None);
        assert_eq!(kind(Some("a:1"), &[]), None);
    }

    #[test]
    fn a_view_has_the_layers_and_the_volumes() {
        let view = container(None, &[]).view(&["/l/2".into(), "/l/1".into()]);
        let places: Vec<_> = view.iter().map(|it| (&it.at, it.layers.len())).collect();
        assert_eq!(places, [(&"/".into(), 2), (&"/models".into(), 1)]);
    }

    #[test]
    fn memory_is_bounded_and_there_again() {
        let folder = Folder::new("containers");
        let path = folder.path().join("deep/containers.json");
        let mut memory = Memory::read(&path);
        for number in 0..MOST + 10 {
            assert!(memory.add(format!("k{number}"), "s", "start-x", &["/l".into()]));
        }
        assert!(!memory.add(format!("k{MOST}"), "s", "start-x", &["/l".into()]));
        assert!(memory.add(format!("k{MOST}"), "s", "start-x", &["/m".into()]));
        memory.write(&path);
        let again = Memory::read(&path);
        assert_eq!((again.kinds.len(), again.get("k9")), (MOST, None));
        let newest = again.get(&format!("k{MOST}")).expect("the newest");
        assert_eq!(newest.layers, [PathBuf::from("/m")]);
        std::fs::write(&path, "[").expect("ours");
        assert!(Memory::read(&path).kinds.is_empty());
    }

    #[test]
    fn news_that_nothing_takes_are_bounded() {
        let inbox = Inbox::default();
        let all = (0..2 * WAITING).filter(|it| inbox.put(ContainerNews::Stopped(it.to_string())));
        assert_eq!((all.count(), inbox.take().len()), (WAITING, WAITING));
        assert!(inbox.take().is_empty());
    }
}
