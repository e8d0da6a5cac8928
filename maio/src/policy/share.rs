//! How several loads share the memory: those of this policy, and those of other services. Pure.

use std::cmp::Ordering;

use ppc::Memory;

use crate::peers::Demand;

/// A load that is under way: how many bytes are held for it, and how many its model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) held: u64,
    pub(crate) total: u64,
}

/// The memory available to a load that holds `held`, without the parts that the `others` hold and may still take:
/// no more than an even part each, and no more than the size of their models.
pub(super) fn share(memory: Memory, held: u64, others: &[Share]) -> Memory {
    if others.is_empty() {
        return memory;
    }
    let theirs: u64 = others.iter().map(|other| other.held).sum();
    let used = memory.used.saturating_sub(theirs);
    let room = memory.threshold.saturating_sub(used.saturating_sub(held));
    let even = room / (others.len() as u64 + 1);
    let reserved: u64 = others.iter().map(|other| other.total.min(even)).sum();
    Memory {
        used,
        threshold: memory.threshold - reserved.min(memory.threshold),
        ..memory
    }
}

/// The memory available to a load that holds `held`, without what other services take of the same: what they hold, and
/// to an even part what those of the same priority may still take, and all of that if theirs is higher.
pub(super) fn beside(memory: Memory, held: u64, priority: i32, others: &[Demand]) -> Memory {
    let others = || {
        others
            .iter()
            .filter(|it| (it.group, it.limit) == (memory.group, memory.limit))
    };
    let used = memory.used.saturating_sub(held);
    let room = memory.threshold.saturating_sub(used);
    let equals = others().filter(|it| it.priority == priority).count() as u64;
    let even = room / (equals + 1);
    let reserved = others().map(|it| match it.priority.cmp(&priority) {
        Ordering::Less => it.held,
        Ordering::Equal => it.held.max(it.total.min(even)),
        Ordering::Greater => it.held.max(it.total.min(room)),
    });
    let reserved = reserved.fold(0, u64::saturating_add);
    Memory {
        threshold: memory.threshold.saturating_sub(reserved),
        ..memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_share_what_is_left_and_small_ones_take_no_more_than_they_are() {
        let of = |used, held, others: &[(u64, u64)]| {
            let memory = Memory {
                limit: 1000,
                used,
                threshold: 900,
                available: 1000 - used,
                group: 0,
            };
            let others: Vec<_> = others
                .iter()
                .map(|&(held, total)| Share { held, total })
                .collect();
            let seen = share(memory, held, &others);
            // Computes the room as the load does.
            seen.threshold - (seen.used - held)
        };
        assert_eq!(of(100, 0, &[]), 800);
        assert_eq!(of(100, 0, &[(0, 5000)]), 400);
        assert_eq!(
            of(600, 0, &[(500, 5000)]),
            400,
            "what another one holds is not used"
        );
        assert_eq!(of(700, 200, &[(400, 5000)]), 400);
        assert_eq!(of(100, 0, &[(0, 50)]), 750);
        assert_eq!(of(100, 0, &[(0, 50), (0, 5000)]), 800 - 50 - 266);
    }

    #[test]
    fn services_share_a_memory_by_what_they_hold_and_by_priority() {
        let of = |held, others: &[(u64, u64, i32)]| {
            let memory = Memory {
                limit: 1000,
                used: 100 + held,
                threshold: 900,
                available: 800,
                group: 7,
            };
            let others: Vec<_> = others
                .iter()
                .map(|&(held, total, priority)| Demand {
                    held,
                    total,
                    limit: 1000,
                    group: 7,
                    priority,
                })
                .collect();
            let seen = beside(memory, held, 5, &others);
            // Computes the room as the load does.
            seen.threshold.saturating_sub(seen.used - held)
        };
        assert_eq!(of(0, &[]), 800);
        assert_eq!(of(0, &[(0, 5000, 5)]), 400);
        assert_eq!(of(0, &[(600, 5000, 5)]), 200, "what is held is not there");
        assert_eq!(of(700, &[(100, 5000, 5)]), 400, "less than it holds");
        assert_eq!(of(0, &[(0, 50, 5)]), 750);
        assert_eq!(of(0, &[(100, 5000, 4)]), 700, "those of less wait");
        assert_eq!(of(0, &[(0, 5000, 6)]), 0, "as it does for those of more");
        assert_eq!(of(0, &[(0, 300, 6), (0, 5000, 5)]), 800 - 300 - 400);
        let memory = Memory {
            limit: 1000,
            used: 0,
            threshold: 900,
            available: 900,
            group: 7,
        };
        for (limit, group) in [(2000, 7), (1000, 8)] {
            let another = Demand {
                held: 900,
                limit,
                group,
                ..Demand::default()
            };
            let seen = beside(memory, 0, 0, &[another]);
            assert_eq!(seen, memory, "another limit, or that of another pod");
        }
    }
}
