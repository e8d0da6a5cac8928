//! A set as it is kept: what it has of its parts, and what became of that. Pure; the time comes from outside.

use std::time::Instant;

use super::backoff::Backoff;
use super::share::bytes;
use crate::Error;
use crate::control::config::{Bytes, TimeSpan};
use crate::control::keep::{KeepSet, KeepState, KeepStatus};
use crate::residency::{LeftOut, Part};

/// Upper bound on what was left out and is told.
const MOST_TOLD: usize = 8;

/// A set that is kept.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) wanted: KeepSet,
    /// What it is to keep, in order.
    pub(super) parts: Vec<Part>,
    /// How many bytes of each part were cached when that was settled last.
    pub(super) there: Vec<u64>,
    /// The same at the last look.
    pub(super) counted: Vec<u64>,
    /// Only its first bytes, this many, count as kept: what follows was released.
    pub(super) cap: u64,
    /// Bytes of all its files or parts.
    pub(super) whole: u64,
    pub(super) released: u64,
    is_found: bool,
    expected: u64,
    loaded: u64,
    reclaimed: u64,
    lost: u64,
    backoff: Backoff,
    problem: Option<String>,
    left_out: Vec<LeftOut>,
}

/// What the daemon knows besides the set itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outlook {
    /// It is being loaded, and this much has come in.
    pub(super) fresh: Option<u64>,
    /// Memory is over the threshold.
    pub(super) over: bool,
    /// Bytes that may be loaded.
    pub(super) free: u64,
}

impl Kept {
    pub(super) fn new(name: &str, wanted: &KeepSet) -> Self {
        Self {
            name: name.to_owned(),
            wanted: wanted.clone(),
            parts: Vec::new(),
            there: Vec::new(),
            counted: Vec::new(),
            cap: u64::MAX,
            whole: 0,
            released: 0,
            is_found: false,
            expected: 0,
            loaded: 0,
            reclaimed: 0,
            lost: 0,
            backoff: Backoff::default(),
            problem: None,
            left_out: Vec::new(),
        }
    }

    /// Its files have been found, but for these.
    pub(super) fn found(&mut self, left_out: Vec<LeftOut>) {
        self.left_out = left_out;
        if !self.is_found || self.parts.is_empty() {
            self.problem = None;
        }
        self.is_found = true;
    }

    /// One of its paths is not there.
    pub(super) fn not_found(&mut self, error: &Error) {
        self.is_found = true;
        self.left_out = Vec::new();
        self.problem = Some(crate::error::chain(error));
    }

    /// It keeps these parts from now on.
    pub(super) fn take(&mut self, parts: Vec<Part>) {
        self.there = vec![0; parts.len()];
        self.counted = vec![0; parts.len()];
        self.parts = parts;
        self.expected = 0;
    }

    pub(super) fn there(&self) -> u64 {
        self.there.iter().sum()
    }

    pub(super) fn lacks(&self) -> bool {
        self.there() < bytes(&self.parts)
    }

    pub(super) fn may_load(&self, now: Instant) -> bool {
        !self.backoff.waits(now)
    }

    /// Bytes came in.
    pub(super) fn has_loaded(&mut self, loaded: u64, now: Instant) {
        self.loaded += loaded;
        self.backoff.loaded(now);
    }

    /// At least this many bytes are to be there at the next look.
    pub(super) fn expect(&mut self, at_least: u64) {
        self.expected = at_least.min(bytes(&self.parts));
    }

    /// Takes over the last look: what is missing was lost.
    pub(super) fn settle(&mut self, now: Instant) {
        let counted: u64 = self.counted.iter().sum();
        let lost = self.expected.saturating_sub(counted);
        if lost > 0 {
            self.reclaimed += lost;
            self.lost = lost;
            self.backoff.lost(now);
        }
        self.settle_quietly();
    }

    /// Takes over the last look, of which the set itself has been the cause.
    pub(super) fn settle_quietly(&mut self) {
        self.there.clone_from(&self.counted);
        self.expected = self.there();
        if !self.lacks() && !self.parts.is_empty() {
            self.problem = None;
        }
    }

    /// It could not be loaded, and why.
    pub(super) fn fails(&mut self, why: &str, now: Instant) {
        if self.problem.is_none() {
            log::error!("The set {} is not kept as a whole: {why}", self.name);
        }
        self.problem = Some(why.to_owned());
        self.backoff.failed(now);
    }

    pub(super) fn status(&self, outlook: &Outlook, now: Instant) -> KeepStatus {
        let wanted = bytes(&self.parts);
        let cached = self.there() + outlook.fresh.unwrap_or(0);
        let (state, reason) = self.state(outlook, now);
        let mut files: Vec<_> = self.parts.iter().map(|part| part.file).collect();
        files.sort_unstable();
        files.dedup();
        let told = self.left_out.iter().take(MOST_TOLD);
        KeepStatus {
            name: self.name.clone(),
            configured: false,
            paths: self.wanted.paths.clone(),
            priority: self.wanted.priority,
            budget_bytes: self.wanted.budget,
            state,
            reason,
            files: files.len() as u64,
            whole_bytes: self.whole,
            wanted_bytes: wanted,
            cached_bytes: cached.min(wanted),
            loaded_bytes: self.loaded + outlook.fresh.unwrap_or(0),
            released_bytes: self.released,
            reclaimed_bytes: self.reclaimed,
            left_out: told
                .map(|it| format!("{}: {}", it.path.display(), it.why))
                .collect(),
            incomplete: self.left_out.iter().any(|it| it.why.is_failure()),
        }
    }

    fn state(&self, outlook: &Outlook, now: Instant) -> (KeepState, Option<String>) {
        if !self.is_found {
            return (KeepState::Finding, None);
        }
        if outlook.fresh.is_some() {
            return (KeepState::Loading, None);
        }
        let failed = |why: &str| (KeepState::Failed, Some(why.to_owned()));
        if self.parts.is_empty() && self.whole == 0 {
            let why = self.problem.as_deref();
            return failed(why.unwrap_or("there is no file on storage among its paths"));
        }
        if !self.lacks() {
            return (KeepState::Kept, None);
        }
        if let Some(left) = self.backoff.left(now) {
            let again = TimeSpan(std::time::Duration::from_secs(left.as_secs().max(1)));
            return match &self.problem {
                Some(why) => (
                    KeepState::Failed,
                    Some(format!("{why}; the next attempt is in {again}")),
                ),
                None => (
                    KeepState::Waiting,
                    Some(reclaimed(self.lost, &again.to_string())),
                ),
            };
        }
        if outlook.over {
            let why = "memory is over the threshold; free some, or lower the budget";
            return (KeepState::Short, Some(why.to_owned()));
        }
        let missing = bytes(&self.parts) - self.there();
        if outlook.free < missing {
            let why = format!(
                "{} of it do not fit beside what programs and sets of a higher priority have; free memory, or lower \
                 the budget",
                Bytes(missing - outlook.free)
            );
            return (KeepState::Short, Some(why));
        }
        (KeepState::Loading, None)
    }
}

fn reclaimed(lost: u64, again: &str) -> String {
    format!(
        "{} of it were reclaimed soon after they had been loaded; the next attempt is in {again}: free memory, or lower \
         the budget",
        Bytes(lost)
    )
}
