//! What the daemon knows of services: how often they started, how the last start went, and which programs the learned
//! ones are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::facts::Life;
use super::totals::Totals;
use crate::control::protocol::{ServiceStatus, StartPhase, StartStatus};
use crate::worker::crashes::{AfterCrash, Crashes};

/// Upper bound on processes of a service in the status.
const RUNNING: usize = 64;
/// Upper bound on names of a service's starts: each has a template.
const NAMES: usize = 32;
/// Upper bound on learned services; beyond it, the one with the fewest starts goes.
const LEARNT: usize = 64;

/// A program that has started often and read much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Learnt {
    /// The name of its start.
    pub(super) name: String,
    /// Its path.
    pub(super) program: String,
}

impl Learnt {
    /// The last part of its program's path.
    pub(super) fn end(&self) -> &str {
        self.program.rsplit('/').next().unwrap_or_default()
    }
}

/// A service.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) learnt: Option<Learnt>,
    starts: u64,
    running: Vec<Life>,
    left_out: Option<String>,
    /// The names of its starts.
    names: BTreeSet<String>,
    crashes: Crashes,
    /// Why it gets no more workers: its policy failed too often.
    off: Option<String>,
    pub(super) last: Option<StartStatus>,
    pub(super) totals: Totals,
}

impl Known {
    /// Why a start of this name is left alone, whichever process makes it.
    pub(super) fn refusal(&mut self, start: &str) -> Option<String> {
        if let Some(off) = &self.off {
            return Some(off.clone());
        }
        if !self.names.contains(start) {
            if self.names.len() >= NAMES {
                let why = "its arguments differ each time; settings = { service-id = \"NAME\" } gives them one name";
                return Some(why.to_owned());
            }
            self.names.insert(start.to_owned());
        }
        None
    }

    /// Notes that a process starts it, and why the start is left alone, if it is. Returns whether it is followed.
    pub(super) fn begins(&mut self, life: Life, start: &str, left_out: Option<String>) -> bool {
        self.starts += 1;
        self.run([life]);
        self.left_out = left_out;
        if self.left_out.is_some() {
            self.totals.leave_alone();
            return false;
        }
        self.totals.begin(life.process, Instant::now());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.last = Some(StartStatus {
            start: start.to_owned(),
            process: life.process,
            began_s: now.map_or(0, |now| now.as_secs()),
            phase: StartPhase::Beginning,
            loaded_bytes: 0,
            cached_bytes: 0,
            said: None,
        });
        true
    }

    /// Notes that its policy failed.
    pub(super) fn failed(&mut self, fault: &str) {
        if let AfterCrash::Never(reason) = self.crashes.add(Instant::now(), fault) {
            self.off = Some(format!(
                "{reason}, the last time: {fault}; 'systemctl reload cprtd' tries again"
            ));
        }
    }

    /// Forgets its failures and the names of its starts.
    pub(super) fn forgive(&mut self) {
        (self.crashes, self.off) = (Crashes::default(), None);
        self.names.clear();
    }

    /// Notes that these processes of it run.
    pub(super) fn run(&mut self, lives: impl IntoIterator<Item = Life>) {
        self.running.retain(|it| it.is_there());
        for life in lives {
            if self.running.len() < RUNNING && !self.running.contains(&life) {
                self.running.push(life);
            }
        }
    }

    pub(super) fn status(&self, name: &str) -> ServiceStatus {
        let running = self.running.iter().filter(|it| it.is_there());
        ServiceStatus {
            name: name.to_owned(),
            learnt: self.learnt.is_some(),
            running: running.map(|it| it.process).collect(),
            starts: self.starts,
            totals: self.totals.sum(),
            left_out: self.left_out.clone(),
            last: self.last.clone(),
        }
    }
}

/// Adds a learned service.
pub(super) fn add(all: &mut BTreeMap<String, Known>, learnt: Learnt) {
    let is_learnt = |known: &Known| known.learnt.is_some();
    if all.values().filter(|it| is_learnt(it)).count() >= LEARNT {
        let learnt = all.iter().filter(|(_, known)| is_learnt(known));
        let least = learnt.min_by_key(|(_, known)| known.starts);
        let least = least.map(|(name, _)| name.clone());
        least.and_then(|name| all.remove(&name));
    }
    // A configured service of this name stays.
    all.entry(learnt.name.clone()).or_insert_with(|| Known {
        learnt: Some(learnt),
        ..Known::default()
    });
}

/// The learned services that were saved last; none, if they cannot be read.
pub(super) fn read(path: &Path) -> Vec<Learnt> {
    let learnt: Vec<Learnt> = read_json(path, "learning starts over");
    learnt.into_iter().take(LEARNT).collect()
}

/// Saves the learned services.
pub(super) fn write(path: &Path, all: &BTreeMap<String, Known>) {
    let learnt: Vec<_> = all.values().filter_map(|it| it.learnt.as_ref()).collect();
    write_json(path, &learnt);
}

/// What was saved last; nothing, if it cannot be read, which has the given consequence.
pub(super) fn read_json<T: DeserializeOwned + Default>(path: &Path, consequence: &str) -> T {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return T::default(),
        Err(error) => {
            log::warn!("Reading {}: {error}; {consequence}", path.display());
            return T::default();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        log::warn!("{}: {error}; {consequence}", path.display());
        T::default()
    })
}

/// Saves this by rename, so that the file is always complete.
pub(super) fn write_json(path: &Path, what: &impl Serialize) {
    let write = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let new = path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(what)?)?;
        std::fs::rename(&new, path)
    };
    if let Err(error) = write() {
        log::warn!(
            "Writing {}: {error}; the next daemon starts over",
            path.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(number: usize) -> Learnt {
        Learnt {
            name: format!("start-{number}"),
            program: format!("/bin/p{number}"),
        }
    }

    #[test]
    fn least_started_service_is_dropped_at_the_limit() {
        let mut all = BTreeMap::from([("mine".to_owned(), Known::default())]);
        let life = Life::of(std::process::id()).expect("this one");
        for number in 0..LEARNT {
            add(&mut all, learnt(number));
            let known = all
                .get_mut(&format!("start-{number}"))
                .expect("it is there");
            assert!(number == 5 || known.begins(life, "s", None));
        }
        add(&mut all, learnt(LEARNT));
        assert_eq!(all.len(), LEARNT + 1);
        assert!(all.contains_key("mine") && !all.contains_key("start-5"));
        let status = all["start-1"].status("start-1");
        assert_eq!(
            (status.starts, status.running, status.learnt),
            (1, vec![life.process], true)
        );
    }

    #[test]
    fn names_are_bounded_and_failures_are_remembered_until_they_are_forgiven() {
        let mut known = Known::default();
        for number in 0..2 * NAMES {
            let refusal = known.refusal(&format!("n{number}"));
            assert_eq!(refusal.is_some(), number >= NAMES, "{number}");
        }
        assert_eq!(known.refusal("n3"), None, "it is known");
        for _ in 0..3 {
            known.failed("SIGSEGV");
        }
        assert!(
            known
                .refusal("n3")
                .is_some_and(|why| why.contains("SIGSEGV"))
        );
        known.forgive();
        assert_eq!(known.refusal("another"), None);
    }

    #[test]
    fn learned_services_are_read_back_and_garbage_is_ignored() {
        let folder = std::env::temp_dir().join(format!("cprt-known-{}", std::process::id()));
        let path = folder.join("deep/learnt.json");
        assert_eq!(read(&path), []);
        let mut all = BTreeMap::from([("mine".to_owned(), Known::default())]);
        add(&mut all, learnt(1));
        write(&path, &all);
        assert_eq!(read(&path), [learnt(1)]);
        assert_eq!(learnt(1).end(), "p1");
        std::fs::write(&path, "{").expect("to write");
        assert_eq!(read(&path), []);
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}
