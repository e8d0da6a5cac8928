//! The numbers on the screen, from what cprtd answers. Pure.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cprt::control::keep::KeepStatus;
use cprt::control::protocol::{MountStats, ServiceStatus, StartPhase, Status};
use cprt::control::stats::Stats;

use crate::show::stats::per_second;

/// All that is drawn.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    /// Why there is no newer answer.
    pub(super) problem: Option<String>,
    pub(super) version: String,
    pub(super) uptime_s: u64,
    pub(super) mounts: Vec<MountRow>,
    pub(super) services: Vec<ServiceRow>,
    /// Sets of files that are kept.
    pub(super) kept: Vec<KeepStatus>,
    before: BTreeMap<PathBuf, Before>,
    at: Option<Instant>,
}

/// A mount with a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MountRow {
    pub(super) path: String,
    /// The policy, and why no worker runs, if none does.
    pub(super) state: String,
    /// Bytes of the load under way: loaded, and in all; both 0 if there is none.
    pub(super) done: u64,
    pub(super) whole: u64,
    /// Bytes per second.
    pub(super) rate: u64,
    /// Loads that may run at once.
    pub(super) streams: u64,
    /// What readers read, missed, missed as it was being loaded, and read directly, per second.
    pub(super) reads: [u64; 4],
    pub(super) lost: u64,
    pub(super) memory_used: u64,
    pub(super) memory_limit: u64,
    /// Bytes dropped per second.
    pub(super) dropped: u64,
}

impl MountRow {
    /// Seconds until the load is done, if it continues like this.
    pub(super) fn left_s(&self) -> Option<u64> {
        let left = self.whole.saturating_sub(self.done);
        let seconds = left.checked_div(self.rate)?;
        (left > 0).then_some(seconds.max(1))
    }
}

/// A service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceRow {
    pub(super) name: String,
    pub(super) processes: u64,
    pub(super) starts: u64,
    /// The newest start, and how many seconds ago it began.
    pub(super) last: Option<(StartPhase, u64)>,
    pub(super) loaded: u64,
}

/// A worker at the last answer.
#[derive(Clone, Debug, Default)]
struct Before {
    counters: Stats,
    /// Bytes loaded before the load under way.
    base: u64,
}

impl Model {
    /// Takes a new answer.
    pub(super) fn update(&mut self, status: &Status, counted: &[MountStats], at: Instant) {
        let ago = self.at.map(|then| at.saturating_duration_since(then));
        let mut before = std::mem::take(&mut self.before);
        self.problem = None;
        status.version.clone_into(&mut self.version);
        self.uptime_s = status.uptime_s;
        self.mounts.clear();
        for mount in &status.mounts {
            let Some(policy) = &mount.policy else {
                continue;
            };
            let mut row = MountRow {
                path: mount.path.display().to_string(),
                state: policy.name.clone(),
                ..MountRow::default()
            };
            match counted.iter().find(|it| it.path == mount.path) {
                Some(now) => {
                    let old = before.remove(&mount.path);
                    let base = base(old.as_ref(), &now.stats);
                    row.count(&now.stats, base);
                    if let Some((old, ago)) = old.zip(ago) {
                        row.gain(&old.counters, &now.stats, ago);
                    }
                    let counters = now.stats.clone();
                    let now = Before { counters, base };
                    self.before.insert(mount.path.clone(), now);
                }
                None => row.state = format!("{}: {}", policy.name, mount.state),
            }
            self.mounts.push(row);
        }
        // What is being loaded comes first.
        let left = |row: &MountRow| row.whole.saturating_sub(row.done);
        self.mounts.sort_by_key(|row| std::cmp::Reverse(left(row)));
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        let services = status.services.iter().flat_map(|it| &it.known);
        self.services = services.map(|it| ServiceRow::new(it, now)).collect();
        self.kept.clone_from(&status.kept);
        self.at = Some(at);
    }
}

/// What had been loaded when the load under way began: it continues as long as something is left.
fn base(before: Option<&Before>, now: &Stats) -> u64 {
    let is_new = |it: &&Before| it.counters.load_bytes > now.load_bytes;
    match before.filter(|it| !is_new(it)) {
        Some(before) if left(&before.counters) > 0 => before.base,
        Some(before) => before.counters.load_bytes,
        None => 0,
    }
}

fn left(stats: &Stats) -> u64 {
    stats.queued_bytes + stats.in_flight_bytes
}

impl MountRow {
    fn count(&mut self, stats: &Stats, base: u64) {
        if left(stats) > 0 {
            self.done = stats.load_bytes.saturating_sub(base);
            self.whole = self.done + left(stats);
        }
        self.rate = stats.load_rate;
        self.streams = stats.streams;
        self.lost = stats.lost;
        self.memory_used = stats.memory_used;
        self.memory_limit = stats.memory_limit;
    }

    /// What was gained since the last answer; nothing, if the worker is another.
    fn gain(&mut self, old: &Stats, now: &Stats, ago: Duration) {
        let gain = |old: u64, now: u64| per_second(now.saturating_sub(old), ago);
        self.reads = [
            gain(old.reader_bytes, now.reader_bytes),
            gain(old.missed_bytes, now.missed_bytes),
            gain(old.late_bytes, now.late_bytes),
            gain(old.direct_bytes, now.direct_bytes),
        ];
        self.dropped = gain(old.evicted_bytes, now.evicted_bytes);
    }
}

impl ServiceRow {
    /// `now` is in seconds since 1970.
    fn new(service: &ServiceStatus, now: u64) -> Self {
        let last = service.last.as_ref();
        Self {
            name: service.name.clone(),
            processes: service.running.len() as u64,
            starts: service.starts,
            last: last.map(|it| (it.phase, now.saturating_sub(it.began_s))),
            loaded: service.totals.loaded_bytes,
        }
    }
}
