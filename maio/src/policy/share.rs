//! How several loads share the memory. Pure.

use ppc::Memory;

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
}
