//! What to load next, and who gives way. Pure.

use crate::control::config::MemoryConfig;
use crate::machine::memory::MemoryState;

/// Fewer bytes are not worth a load, unless they are all that a set lacks.
const STEP: u64 = 64 << 20;
/// While tasks wait for memory, this fraction of all that is kept goes at a time.
const EASED: u64 = 8;

/// A set. Sets are in order of precedence: the last one gives way first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) priority: i32,
    /// The bytes of its parts in their order, and how many of each are cached: the first ones, for want of
    /// knowing better.
    pub(super) parts: Vec<(u64, u64)>,
    /// What is missing may be loaded now.
    pub(super) may_load: bool,
}

impl View {
    pub(super) fn wanted(&self) -> u64 {
        self.parts.iter().map(|(bytes, _)| bytes).sum()
    }

    pub(super) fn there(&self) -> u64 {
        self.parts.iter().map(|(_, there)| there).sum()
    }

    fn missing(&self) -> u64 {
        self.wanted().saturating_sub(self.there())
    }

    /// How many bytes it has from its beginning to where a tail begins of which this much is cached.
    fn without(&self, bytes: u64) -> u64 {
        let mut before = self.wanted();
        let mut left = bytes;
        for &(length, there) in self.parts.iter().rev() {
            before -= length;
            if there >= left {
                return before + (there - left);
            }
            left -= there;
        }
        0
    }
}

/// A set that gives way, and how many of its bytes, from the first on, it may keep.
pub(super) type Cut = (usize, u64);

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// These sets give way.
    Release(Vec<Cut>),
    /// Load no more than this of what a set lacks.
    Load(usize, u64),
    /// Nothing is to be done.
    Rest,
}

/// Memory, as far as it concerns what is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// Bytes that have to go.
    pub(super) excess: u64,
    /// Bytes that may come. Not up to the threshold: what others then take would drive them out again.
    pub(super) free: u64,
}

impl Room {
    /// `kept`: bytes that are kept.
    pub(super) fn of(state: &MemoryState, config: &MemoryConfig, kept: u64) -> Self {
        let gap = state.limit / 100 * u64::from(config.hysteresis);
        if !state.over {
            let free = state.available.saturating_sub(gap);
            return Self { excess: 0, free };
        }
        let line = state.threshold.saturating_sub(gap);
        let mut excess = state.used.saturating_sub(line).min(kept);
        if state.pressure.is_some_and(|pressure| pressure.over) {
            excess = excess.max((kept / EASED).max(STEP).min(kept));
        }
        // Of memory that is not known, nothing is known to help.
        let excess = if state.limit == 0 { 0 } else { excess };
        Self { excess, free: 0 }
    }
}

/// What to do next.
pub(super) fn next(sets: &[View], room: Room) -> Step {
    if room.excess > 0 {
        let cuts = give_way(sets, room.excess, |_| true);
        return if cuts.is_empty() {
            Step::Rest
        } else {
            Step::Release(cuts)
        };
    }
    for (at, set) in sets.iter().enumerate().filter(|(_, set)| set.may_load) {
        let missing = set.missing();
        if missing == 0 {
            continue;
        }
        let load = missing.min(room.free);
        if load >= missing.min(STEP) {
            return Step::Load(at, load);
        }
        let cuts = give_way(sets, missing - load, |it| it.priority < set.priority);
        if !cuts.is_empty() {
            return Step::Release(cuts);
        }
    }
    Step::Rest
}

/// Takes this many bytes, or all there are, from the last sets first.
fn give_way(sets: &[View], bytes: u64, may: impl Fn(&View) -> bool) -> Vec<Cut> {
    let mut left = bytes;
    let mut cuts = Vec::new();
    for (at, set) in sets.iter().enumerate().rev().filter(|(_, set)| may(set)) {
        let goes = set.there().min(left);
        if goes > 0 {
            cuts.push((at, set.without(goes)));
            left -= goes;
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::memory::{LimitSource, Pressure};

    const GIB: u64 = 1 << 30;

    fn set(priority: i32, parts: &[(u64, u64)]) -> View {
        View {
            priority,
            parts: parts.iter().map(|(a, b)| (a * GIB, b * GIB)).collect(),
            may_load: true,
        }
    }

    fn free(gib: u64) -> Room {
        Room {
            excess: 0,
            free: gib * GIB,
        }
    }

    fn excess(bytes: u64) -> Room {
        Room {
            excess: bytes,
            free: 0,
        }
    }

    #[test]
    fn the_first_sets_are_loaded_first_and_no_more_than_fits() {
        let sets = [set(5, &[(4, 4)]), set(1, &[(8, 2)]), set(0, &[(4, 0)])];
        assert_eq!(next(&sets, free(100)), Step::Load(1, 6 * GIB));
        assert_eq!(next(&sets, free(3)), Step::Load(1, 3 * GIB));
        let mut waits = sets.clone();
        waits[1].may_load = false;
        assert_eq!(next(&waits, free(3)), Step::Load(2, 3 * GIB));
        let full = [set(5, &[(4, 4)])];
        assert_eq!(next(&full, free(3)), Step::Rest);
    }

    #[test]
    fn a_little_room_is_used_only_for_the_rest_of_a_set() {
        let little = Room {
            excess: 0,
            free: 1 << 20,
        };
        assert_eq!(next(&[set(0, &[(4, 0)])], little), Step::Rest);
        let rest = View {
            parts: vec![(GIB, GIB - 4096)],
            ..set(0, &[])
        };
        assert_eq!(next(&[rest], little), Step::Load(0, 4096));
    }

    #[test]
    fn the_last_sets_give_way_first_and_lose_their_tails() {
        let sets = [
            set(5, &[(4, 4)]),
            set(1, &[(4, 4), (4, 4)]),
            set(1, &[(2, 1)]),
        ];
        // One of the last, and one of the tail of the one before.
        let cuts = vec![(2, 0), (1, 7 * GIB)];
        assert_eq!(next(&sets, excess(2 * GIB)), Step::Release(cuts));
        let all = vec![(2, 0), (1, 0), (0, 0)];
        assert_eq!(next(&sets, excess(99 * GIB)), Step::Release(all));
        // What is not cached does not count.
        let holes = [set(0, &[(4, 4), (4, 0), (4, 1)])];
        let cuts = vec![(0, 3 * GIB)];
        assert_eq!(next(&holes, excess(2 * GIB)), Step::Release(cuts));
        assert_eq!(next(&[set(0, &[(4, 0)])], excess(GIB)), Step::Rest);
    }

    #[test]
    fn a_higher_priority_displaces_a_lower_one_and_no_equal_one() {
        let sets = [set(5, &[(4, 0)]), set(1, &[(8, 8)])];
        let cuts = vec![(1, 4 * GIB)];
        assert_eq!(next(&sets, free(0)), Step::Release(cuts));
        let equal = [set(1, &[(4, 0)]), set(1, &[(8, 8)])];
        assert_eq!(next(&equal, free(0)), Step::Rest);
    }

    fn state(used: u64, over: bool, pressure: Option<bool>) -> MemoryState {
        MemoryState {
            limit: 100 * GIB,
            used: used * GIB,
            threshold: 80 * GIB,
            available: if over { 0 } else { (80 - used) * GIB },
            over,
            pressure: pressure.map(|over| Pressure { share: 0, over }),
            source: LimitSource::Host,
        }
    }

    #[test]
    fn room_keeps_the_hysteresis_below_the_threshold() {
        let config = MemoryConfig::default();
        let of = |state: &MemoryState, kept: u64| Room::of(state, &config, kept * GIB);
        assert_eq!(of(&state(60, false, None), 10), free(15));
        assert_eq!(of(&state(78, false, None), 10), free(0));
        assert_eq!(of(&state(85, true, None), 30), excess(10 * GIB));
        assert_eq!(of(&state(85, true, None), 3), excess(3 * GIB));
        // Tasks wait for memory, though much of it is free.
        assert_eq!(of(&state(10, true, Some(true)), 8), excess(GIB));
        assert_eq!(of(&state(10, true, Some(true)), 0), excess(0));
        let unknown = MemoryState {
            limit: 0,
            threshold: 0,
            ..state(0, true, None)
        };
        assert_eq!(of(&unknown, 8), excess(0));
    }
}
