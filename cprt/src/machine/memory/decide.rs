//! Decides whether too much memory is in use. Pure: the caller reads files and the clock.

use std::time::{Duration, Instant};

use super::parse::{Meminfo, Psi, Stat};
use crate::control::config;

/// The last reading of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// In bytes.
    pub(super) limit: u64,
    /// Memory that the kernel cannot drop at no cost: that of processes, its own, dirty pages.
    pub(super) held: u64,
    /// Page cache that it can drop at no cost, ours or not.
    pub(super) cache: u64,
}

impl Reading {
    pub(super) fn of_cgroup(limit: u64, usage: u64, stat: Stat) -> Self {
        let cache = stat.file.saturating_sub(stat.dirty);
        Self {
            limit: limit.min(stat.limit.unwrap_or(limit)),
            // The two numbers are read one after the other.
            held: usage.saturating_sub(cache),
            cache,
        }
    }

    pub(super) fn of_host(info: Meminfo) -> Self {
        // Memory set aside for huge pages is neither used nor available.
        let limit = info.total.saturating_sub(info.hugetlb);
        Self {
            limit,
            held: limit
                .saturating_sub(info.available)
                .saturating_add(info.dirty),
            cache: info.file.saturating_sub(info.dirty),
        }
    }

    /// Of a host whose GPU takes memory from the same place. Its driver gets none of what the kernel calls
    /// available, which is cache: allocations fail, or wait for the kernel to drop pages one by one. So all
    /// cache counts, ours or not, and our loads have to stop while this much is free.
    pub(super) fn of_free(info: Meminfo, free: u64) -> Self {
        let limit = info.total.saturating_sub(info.hugetlb);
        Self {
            limit,
            held: limit.saturating_sub(free),
            cache: 0,
        }
    }

    fn used(&self, ours: u64, new: u64) -> u64 {
        self.held
            .saturating_add(self.cache.saturating_add(new).min(ours))
    }
}

/// A state with hysteresis: over or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Latch(bool);

impl Latch {
    /// Sets at `rise`, clears below `fall`, stays as it is between them.
    pub(super) fn update(&mut self, value: u64, rise: u64, fall: u64) -> bool {
        self.0 = value >= rise || (self.0 && value >= fall);
        self.0
    }
}

/// A limit, as long as it is watched.
#[derive(Debug, Default)]
pub(super) struct Limit {
    /// None: there is no limit, or it cannot be read.
    pub(super) reading: Option<Reading>,
    latch: Latch,
}

/// The verdict on a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LimitVerdict {
    pub(super) limit: u64,
    pub(super) used: u64,
    pub(super) threshold: u64,
    pub(super) over: bool,
}

impl Limit {
    /// Judges the limit, with `ours` bytes of the page cache being ours, `new` of them since the reading.
    pub(super) fn judge(
        &mut self,
        config: &config::MemoryConfig,
        ours: u64,
        new: u64,
    ) -> Option<LimitVerdict> {
        let reading = self.reading?;
        let used = reading.used(ours, new);
        let threshold = percent(reading.limit, config.threshold);
        let fall = config.threshold.saturating_sub(config.hysteresis);
        let fall = percent(reading.limit, fall);
        Some(LimitVerdict {
            limit: reading.limit,
            used,
            threshold,
            over: self.latch.update(used, threshold, fall),
        })
    }
}

impl LimitVerdict {
    /// Orders limits, the tightest first: those that are over, then by how much is left.
    pub(super) fn tightness(&self) -> (bool, i128) {
        let left = i128::from(self.threshold) - i128::from(self.used);
        (!self.over, left)
    }
}

/// The configuration for memory in large blocks: a quarter of what has to be free has to be in such.
/// More would be asking too much of a machine that has been running for long, where memory is free in small blocks,
/// too.
pub(super) fn for_blocks(config: &config::MemoryConfig) -> config::MemoryConfig {
    let free = 100_u8.saturating_sub(config.threshold) / 4;
    config::MemoryConfig {
        threshold: 100 - free,
        hysteresis: config.hysteresis.min(free / 2),
        ..*config
    }
}

pub(super) fn percent(of: u64, percent: u8) -> u64 {
    let bytes = u128::from(of) * u128::from(percent) / 100;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Memory pressure: the share of time in which some task waited for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// The share in the last half second or so, in hundredths of a percent.
    pub share: u16,
    /// The share was above what the configuration allows, and has not fallen below half of that since.
    pub over: bool,
}

/// Computes the share of time from a growing total.
///
/// The kernel's average of 10 s needs 7 s to show half of a change, when it begins and when it ends.
/// So the total's growth is measured over windows of half a second, and the average is used only where
/// there is no window: at first, and after a long time without a sample.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    /// When the window began, and the total then.
    base: Option<(Instant, u64)>,
    share: u16,
    latch: Latch,
}

const WINDOW: Duration = Duration::from_millis(500);
const STALE: Duration = Duration::from_secs(10);
const WHOLE: u16 = 10_000;

impl Gauge {
    /// Whether a new value would help.
    pub(super) fn due(&self, now: Instant) -> bool {
        self.base
            .is_none_or(|(begin, _)| now.saturating_duration_since(begin) >= WINDOW)
    }

    pub(super) fn update(&mut self, now: Instant, psi: Psi) {
        if !self.due(now) {
            return;
        }
        let share = self.base.and_then(|(begin, total)| {
            let window = now.saturating_duration_since(begin);
            if window > STALE {
                return None;
            }
            let waited = u128::from(psi.total.checked_sub(total)?);
            u32::try_from(waited * u128::from(WHOLE) / window.as_micros()).ok()
        });
        let share = share.unwrap_or(psi.avg10);
        self.share = u16::try_from(share).unwrap_or(WHOLE).min(WHOLE);
        self.base = Some((now, psi.total));
    }

    /// Forgets its state, as later totals are of another file.
    pub(super) fn restart(&mut self) {
        self.base = None;
    }

    pub(super) fn judge(&mut self, percent: u8) -> Pressure {
        let limit = u64::from(percent) * 100;
        Pressure {
            share: self.share,
            // More than the limit sets it, half of the limit or less clears it.
            over: self
                .latch
                .update(self.share.into(), limit + 1, limit / 2 + 1),
        }
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
