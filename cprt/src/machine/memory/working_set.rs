//! The working set: what kubelet counts as used, of the node and of each pod. Pure.
//!
//! # What kubelet counts
//!
//! `usage - inactive_file`, so page cache on the active list counts like the memory of processes, though
//! the kernel would drop it at no cost. Of the node, `memory.available` is the capacity minus that, and
//! below its eviction threshold kubelet ends pods.
//!
//! # What follows for pages that we load
//!
//! A page that was loaded and not read is inactive: kubelet does not count it, and it replaces free memory
//! or other inactive pages, so that `memory.available` stays as it is. The second use makes it
//! active: `read` twice, by a second worker of the same model for instance, or through a mapping when the
//! kernel looks for pages to reclaim. Then it counts, without any load at that moment, and dropping it
//! again may be too late. So our pages count from the load on, as what they may become.
//!
//! A load with `PPC_IO_HOLD` makes its pages active at once, so that the kernel reclaims them last.
//!
//! Which of our pages are active already is not known. The active list as it was when nothing was ours, or shorter, is
//! taken for that of others, and what it grows by for ours. Others may make it grow as well; then less than all of
//! ours counts, but never less than kubelet's own figure.

use super::decide::{Latch, LimitVerdict, percent};
use super::parse::{Meminfo, Stat};
use crate::control::config;

/// What stays free beyond a threshold, in percent of the limit: kubelet looks every 10 s, and processes grow meanwhile.
const MARGIN: u8 = 2;

/// The last reading, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkingSet {
    pub(super) limit: u64,
    /// `usage - inactive_file`
    pub(super) used: u64,
    /// File pages that are a part of `used`.
    pub(super) active: u64,
    /// File pages that are not, yet.
    pub(super) inactive: u64,
}

impl WorkingSet {
    /// Of the node. The root cgroup's usage is computed from the counters of `/proc/meminfo`, in v2 by kubelet and
    /// in v1 by the kernel: all that is not free, or in newer versions processes' memory and page cache without
    /// that of the kernel. The former is more.
    pub(super) fn of_host(info: Meminfo) -> Self {
        Self {
            limit: info.total,
            used: info
                .total
                .saturating_sub(info.free)
                .saturating_sub(info.inactive),
            active: info.file.saturating_sub(info.inactive),
            inactive: info.inactive,
        }
    }

    pub(super) fn of_cgroup(limit: u64, usage: u64, stat: Stat) -> Self {
        Self {
            limit,
            used: usage.saturating_sub(stat.inactive),
            active: stat.file.saturating_sub(stat.inactive),
            inactive: stat.inactive,
        }
    }
}

/// A limit of the working set, as long as it is watched.
#[derive(Debug, Default)]
pub(super) struct WorkingSetLimit {
    /// None: there is no limit, or it cannot be read.
    pub(super) reading: Option<WorkingSet>,
    /// Active pages that are not ours.
    others: Option<u64>,
    latch: Latch,
}

impl WorkingSetLimit {
    /// Judges the limit, of which `reserve` has to stay available; see [`super::decide::Limit::judge`].
    pub(super) fn judge(
        &mut self,
        config: &config::MemoryConfig,
        reserve: u64,
        ours: u64,
        new: u64,
    ) -> Option<LimitVerdict> {
        let reading = self.reading?;
        let others = match self.others {
            Some(before) if ours > 0 => before.min(reading.active),
            _ => reading.active,
        };
        self.others = Some(others);
        let ours_inactive = ours.saturating_sub(reading.active - others);
        let may_become = reading.inactive.saturating_add(new).min(ours_inactive);
        let used = reading.used.saturating_add(may_become);
        let margin = percent(reading.limit, MARGIN);
        let threshold = reading.limit.saturating_sub(reserve).saturating_sub(margin);
        let fall = threshold.saturating_sub(percent(reading.limit, config.hysteresis));
        Some(LimitVerdict {
            limit: reading.limit,
            used,
            threshold,
            over: self.latch.update(used, threshold, fall),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> config::MemoryConfig {
        config::MemoryConfig::default()
    }

    fn reading(used: u64, active: u64, inactive: u64) -> WorkingSet {
        WorkingSet {
            limit: 1000,
            used,
            active,
            inactive,
        }
    }

    fn used(limit: &mut WorkingSetLimit, reading: WorkingSet, ours: u64, new: u64) -> u64 {
        limit.reading = Some(reading);
        let verdict = limit.judge(&config(), 100, ours, new).expect("reads");
        assert_eq!((verdict.limit, verdict.threshold), (1000, 880));
        verdict.used
    }

    #[test]
    fn working_set_is_computed_for_host_and_cgroup() {
        let info = Meminfo {
            total: 1000,
            available: 700,
            free: 300,
            file: 400,
            inactive: 150,
            dirty: 50,
            hugetlb: 0,
        };
        assert_eq!(
            WorkingSet::of_host(info),
            WorkingSet {
                limit: 1000,
                used: 550,
                active: 250,
                inactive: 150
            }
        );
        let stat = Stat {
            file: 60,
            inactive: 50,
            dirty: 0,
            limit: None,
        };
        let set = WorkingSet::of_cgroup(100, 70, stat);
        assert_eq!((set.used, set.active, set.inactive), (20, 10, 50));
        // The two numbers are of different moments.
        assert_eq!(WorkingSet::of_cgroup(100, 40, stat).used, 0);
    }

    #[test]
    fn active_pages_of_others_count() {
        let limit = &mut WorkingSetLimit::default();
        assert_eq!(used(limit, reading(700, 500, 200), 0, 0), 700);
        // Inactive ones do not, and ours count though they are inactive.
        assert_eq!(used(limit, reading(700, 500, 200), 50, 0), 750);
        assert_eq!(used(limit, reading(700, 500, 200), 90, 40), 790);
        // No more than there are.
        assert_eq!(used(limit, reading(700, 500, 20), 90, 40), 760);
    }

    #[test]
    fn a_page_of_ours_that_becomes_active_counts_once() {
        let limit = &mut WorkingSetLimit::default();
        used(limit, reading(300, 100, 500), 0, 0);
        assert_eq!(used(limit, reading(300, 100, 500), 200, 0), 500);
        // Half of ours is used again, then all.
        assert_eq!(used(limit, reading(400, 200, 400), 200, 0), 500);
        assert_eq!(used(limit, reading(500, 300, 300), 200, 0), 500);
        // It is kubelet's figure at least, even if others made the list grow.
        assert_eq!(used(limit, reading(700, 500, 100), 200, 0), 700);
    }

    #[test]
    fn active_list_baseline_is_attributed_to_others() {
        let limit = &mut WorkingSetLimit::default();
        assert_eq!(used(limit, reading(300, 100, 500), 200, 0), 500);
        // Their list becomes shorter: what comes after is ours.
        assert_eq!(used(limit, reading(250, 50, 500), 200, 0), 450);
        assert_eq!(used(limit, reading(300, 100, 500), 200, 0), 450);
        // The worker holds nothing now, so all of it is theirs again.
        assert_eq!(used(limit, reading(300, 100, 500), 0, 0), 300);
        assert_eq!(used(limit, reading(300, 100, 500), 200, 0), 500);
    }

    #[test]
    fn over_from_the_threshold_until_below_the_band() {
        let mut limit = WorkingSetLimit::default();
        for (used, over) in [
            (879, false),
            (880, true),
            (830, true),
            (829, false),
            (879, false),
        ] {
            limit.reading = Some(reading(used, 0, 0));
            let verdict = limit.judge(&config(), 100, 0, 0).expect("reads");
            assert_eq!(verdict.over, over, "at {used}");
        }
    }

    #[test]
    fn extremes_do_not_overflow() {
        assert_eq!(WorkingSetLimit::default().judge(&config(), 1, 1, 1), None);
        for bytes in [0, 1, u64::MAX] {
            for reserve in [0, 1, u64::MAX] {
                let mut limit = WorkingSetLimit {
                    reading: Some(WorkingSet {
                        limit: bytes,
                        used: bytes,
                        active: bytes,
                        inactive: bytes,
                    }),
                    ..WorkingSetLimit::default()
                };
                let verdict = limit.judge(&config(), reserve, bytes, bytes);
                assert!(verdict.is_some());
            }
        }
    }
}
