//! Sets of files that stay in the page cache while memory allows.
//!
//! ```text
//! requests, [keep.NAME] ─ sets ─▶ upkeep, in a thread of its own: find ─ look ─ decide ─┬─ Warming, in the background
//!                                                                                       └─ release, the last sets first
//! ```
//!
//! The kernel decides what it reclaims; a set only says what to bring back. So what is missing is loaded while memory is
//! ample, and once memory is over the threshold sets give way before the kernel has to choose. What is reclaimed again
//! and again is loaded ever less often.
//!
//! The thread may wait for a file system that does not answer: requests and the daemon's end do not wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::upkeep::Upkeep;
use super::state;
use crate::control::config::Config;
use crate::control::keep::{KeepRemoved, KeepSet, KeepState, KeepStatus};
use crate::error::{Refusal, RefusalKind};
use crate::machine::memory::Roots;
use crate::sys;
use crate::{Error, Result};

mod backoff;
mod decide;
mod set;
mod share;
#[cfg(test)]
mod tests;
mod upkeep;

/// Upper bound on sets.
const MOST: usize = 64;
/// How long a request waits until a set has been parted with.
const TO_PART: Duration = Duration::from_secs(50);
/// How long the daemon's end waits for the thread.
const TO_END: Duration = Duration::from_secs(2);

/// All sets.
pub(crate) struct KeptSets {
    shared: Arc<Shared>,
    /// Where those that were asked for are saved.
    file: PathBuf,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What requests and the thread share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    configured: BTreeMap<String, KeepSet>,
    asked: BTreeMap<String, KeepSet>,
    /// Those that are gone and whose pages are to be dropped.
    drop: BTreeSet<String>,
    /// Grows with each change,
    wanted: u64,
    /// which the thread follows.
    done: u64,
    removed: Vec<KeepRemoved>,
    reports: Vec<KeepStatus>,
    ending: bool,
}

impl KeptSets {
    /// Takes up the sets that were saved, and those of the configuration.
    pub(crate) fn start(config: &Config) -> Result<Self> {
        Self::start_in(config, Roots::default())
    }

    fn start_in(config: &Config, roots: Roots) -> Result<Self> {
        let saved = state::read(&config.kept, "add the sets again");
        let asked = saved.unwrap_or_else(|error| {
            log::error!("{}", crate::error::chain(&error));
            BTreeMap::new()
        });
        let kept = Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    asked,
                    ..State::default()
                }),
                changed: Condvar::new(),
            }),
            file: config.kept.clone(),
            thread: Mutex::default(),
        };
        let (shared, upkeep) = (Arc::clone(&kept.shared), Upkeep::new(config, roots)?);
        let thread = std::thread::Builder::new()
            .name("keep".to_owned())
            .stack_size(512 << 10)
            .spawn(move || shared.run(upkeep));
        let thread = thread.map_err(|source| Error::System {
            doing: "Starting a thread",
            source,
        })?;
        *kept.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        kept.apply(config);
        Ok(kept)
    }

    /// Switches to the sets of this configuration; those that were asked for stay.
    pub(crate) fn apply(&self, config: &Config) {
        let mut state = self.shared.state();
        let sets = config.keep.iter();
        state.configured = sets
            .map(|(name, keep)| (name.clone(), keep.into()))
            .collect();
        for name in state
            .configured
            .keys()
            .filter(|name| state.asked.contains_key(*name))
        {
            log::warn!(
                "The set {name} is the configuration's; the one that was added rests meanwhile"
            );
        }
        self.shared.change(&mut state);
    }

    /// Keeps a set, instead of the one of that name.
    pub(crate) fn keep(&self, name: &str, set: KeepSet) -> Result<KeepStatus> {
        let invalid = |message| {
            Error::from(Refusal {
                kind: RefusalKind::Invalid,
                message,
                remedy: None,
            })
        };
        set.check(name)
            .map_err(|why| invalid(format!("The set {name}: {why}")))?;
        let mut state = self.shared.state();
        state.is_free(name)?;
        if !state.asked.contains_key(name) && state.asked.len() >= MOST {
            return Err(invalid(format!(
                "There are {MOST} sets already; remove one by 'ppcctl keep rm NAME'"
            )));
        }
        let mut asked = state.asked.clone();
        asked.insert(name.to_owned(), set);
        self.save(&asked)?;
        state.asked = asked;
        state.drop.remove(name);
        self.shared.change(&mut state);
        let reports = state.status();
        let report = reports.into_iter().find(|it| it.name == name);
        report.ok_or_else(|| not_found(name))
    }

    /// Removes a set, and returns once that has been done; with `drop`, its pages are dropped.
    pub(crate) fn remove(&self, name: &str, drop: bool) -> Result<KeepRemoved> {
        let mut state = self.shared.state();
        state.is_free(name)?;
        let mut asked = state.asked.clone();
        if asked.remove(name).is_none() {
            return Err(not_found(name));
        }
        self.save(&asked)?;
        state.asked = asked;
        if drop {
            state.drop.insert(name.to_owned());
        }
        self.shared.change(&mut state);
        let wanted = state.wanted;
        let until = Instant::now() + TO_PART;
        while state.done < wanted && !state.ending {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let rested = self.shared.changed.wait_timeout(state, left);
            state = rested.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.done < wanted {
            return Err(Error::from(Refusal {
                kind: RefusalKind::Failed,
                message: format!(
                    "The set {name} is removed, but files have not answered for {} s",
                    TO_PART.as_secs()
                ),
                remedy: Some("see whether their file system hangs".to_owned()),
            }));
        }
        let at = state.removed.iter().position(|it| it.name == name);
        // The thread may never have come to it.
        let removed = at.map(|at| state.removed.swap_remove(at));
        Ok(removed.unwrap_or_else(|| KeepRemoved {
            name: name.to_owned(),
            dropped_bytes: drop.then_some(0),
            cached_bytes: 0,
        }))
    }

    /// What became of the sets, by precedence.
    pub(crate) fn status(&self) -> Vec<KeepStatus> {
        self.shared.state().status()
    }

    /// Ends the thread; what is cached stays.
    pub(crate) fn end(&self) {
        self.shared.state().ending = true;
        self.shared.changed.notify_all();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let since = Instant::now();
        while let Some(thread) = &thread
            && !thread.is_finished()
            && since.elapsed() < TO_END
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn save(&self, asked: &BTreeMap<String, KeepSet>) -> Result<()> {
        if let Some(folder) = self.file.parent() {
            std::fs::create_dir_all(folder).map_err(|source| Error::Write {
                path: folder.to_owned(),
                source,
            })?;
        }
        state::write(Path::new(&self.file), asked)
    }
}

fn not_found(name: &str) -> Error {
    Error::from(Refusal {
        kind: RefusalKind::NotFound,
        message: format!("There is no set {name}"),
        remedy: Some("'ppcctl keep ls' lists the sets".to_owned()),
    })
}

impl State {
    /// The sets in force: those of the configuration before those of the same name that were asked for.
    fn sets(&self) -> BTreeMap<String, KeepSet> {
        let mut sets = self.asked.clone();
        sets.extend(self.configured.clone());
        sets
    }

    fn status(&self) -> Vec<KeepStatus> {
        let mut reports = self.reports.clone();
        for report in &mut reports {
            report.configured = self.configured.contains_key(&report.name);
        }
        reports
    }

    /// Refuses what the configuration decides.
    fn is_free(&self, name: &str) -> Result<()> {
        if !self.configured.contains_key(name) {
            return Ok(());
        }
        Err(Error::from(Refusal {
            kind: RefusalKind::Invalid,
            message: format!("The set {name} is in the configuration"),
            remedy: Some(format!(
                "change [keep.{name}] of /etc/cprt.toml, and 'systemctl reload cprtd'"
            )),
        }))
    }

    /// Takes over reports, unless they are of earlier sets.
    fn told(&mut self, reports: Vec<KeepStatus>) {
        if self.done == self.wanted {
            self.reports = reports;
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the thread. Until it has found the files of a new set, that is all that is known of it.
    fn change(&self, state: &mut State) {
        state.wanted += 1;
        let sets = state.sets();
        let is_same =
            |report: &KeepStatus| sets.get(&report.name).is_some_and(|set| is_of(report, set));
        state.reports.retain(is_same);
        for (name, set) in &sets {
            if !state.reports.iter().any(|it| it.name == *name) {
                state.reports.push(unknown(name, set));
            }
        }
        self.changed.notify_all();
    }

    /// Runs the thread.
    fn run(&self, mut upkeep: Upkeep) {
        if let Err(error) = sys::yield_io() {
            log::debug!("Loads of sets have the usual priority of I/O: {error}");
        }
        let mut state = self.state();
        while !state.ending {
            if state.done < state.wanted {
                let (wanted, sets) = (state.wanted, state.sets());
                let drop = std::mem::take(&mut state.drop);
                std::mem::drop(state);
                let removed = upkeep.apply(&sets, |name| drop.contains(name));
                let reports = upkeep.report();
                state = self.state();
                state.done = wanted;
                // No request waits for those that the configuration has given up.
                state
                    .removed
                    .retain(|old| removed.iter().all(|it| it.name != old.name));
                state.removed.extend(removed);
                state.removed.truncate(MOST);
                state.told(reports);
                self.changed.notify_all();
                continue;
            }
            std::mem::drop(state);
            let rest = upkeep.turn();
            let reports = upkeep.report();
            state = self.state();
            state.told(reports);
            if state.ending || state.done < state.wanted {
                continue;
            }
            state = match rest {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(rest) => {
                    let waited = self.changed.wait_timeout(state, rest);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        std::mem::drop(state);
        upkeep.end();
    }
}

/// Whether a report is of this set.
fn is_of(report: &KeepStatus, set: &KeepSet) -> bool {
    report.paths == set.paths
        && report.budget_bytes == set.budget
        && report.priority == set.priority
        && set.parts.is_empty()
}

/// All that is known of a set whose files have not been found yet.
fn unknown(name: &str, set: &KeepSet) -> KeepStatus {
    KeepStatus {
        name: name.to_owned(),
        configured: false,
        paths: set.paths.clone(),
        priority: set.priority,
        budget_bytes: set.budget,
        state: KeepState::Finding,
        reason: None,
        files: 0,
        whole_bytes: 0,
        wanted_bytes: 0,
        cached_bytes: 0,
        loaded_bytes: 0,
        released_bytes: 0,
        reclaimed_bytes: 0,
        left_out: Vec::new(),
        incomplete: false,
    }
}
