//! When rounds are. Pure.
//!
//! Nodes that begin together, or that a storage has refused together, are to come back one by one.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

/// The longest wait before the first round.
const FIRST: Duration = Duration::from_secs(10);
/// The wait after the first failed round, doubled by each further one up to the longest.
const FAILED: Duration = Duration::from_secs(15);
const LONGEST: Duration = Duration::from_mins(15);

/// Numbers that no other node draws.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Numbers of this process.
    #[must_use]
    pub fn new() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }

    /// The same numbers at each run, for simulations.
    #[must_use]
    pub const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A part of this span.
    pub fn below(&mut self, span: Duration) -> Duration {
        let drawn = u32::try_from(self.next() >> 32).unwrap_or(0);
        span.mul_f64(f64::from(drawn) / f64::from(u32::MAX))
    }

    /// Puts a list into a random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let other = self.next() % (last as u64 + 1);
            list.swap(last, usize::try_from(other).unwrap_or(last));
        }
    }
}

impl Default for Dice {
    fn default() -> Self {
        Self::new()
    }
}

/// The rhythm of a node's rounds.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    interval: Duration,
    failures: u32,
}

impl Pace {
    /// Rounds this far apart on average.
    #[must_use]
    pub const fn new(interval: Duration) -> Self {
        Self {
            interval,
            failures: 0,
        }
    }

    /// The wait before the first round.
    pub fn first(&self, dice: &mut Dice) -> Duration {
        dice.below(FIRST.min(self.interval))
    }

    /// The wait after a round: the interval, give or take a quarter; after one that failed, twice as long as after the
    /// last one, give or take half.
    pub fn after(&mut self, succeeded: bool, dice: &mut Dice) -> Duration {
        if succeeded {
            self.failures = 0;
            return self.interval.mul_f64(0.75) + dice.below(self.interval.mul_f64(0.5));
        }
        let doubled = FAILED.saturating_mul(1 << self.failures.min(16));
        self.failures += 1;
        let wait = doubled.min(LONGEST.max(self.interval));
        wait.mul_f64(0.5) + dice.below(wait)
    }

    /// Whether the last round failed.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.failures > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_around_the_interval_and_grow_with_failures() {
        let interval = Duration::from_mins(5);
        let (mut dice, mut pace) = (Dice::seeded(1), Pace::new(interval));
        let between = |wait: Duration, least: u64, most: u64| {
            let span = Duration::from_secs(least)..=Duration::from_secs(most);
            assert!(span.contains(&wait), "{wait:?}");
        };
        for _ in 0..100 {
            between(pace.first(&mut dice), 0, 10);
            between(pace.after(true, &mut dice), 225, 375);
        }
        for wait in [15, 30, 60, 120, 240, 480, 900, 900] {
            between(pace.after(false, &mut dice), wait / 2, wait + wait / 2);
        }
        assert!(pace.has_failed());
        between(pace.after(true, &mut dice), 225, 375);
        between(pace.after(false, &mut dice), 7, 23);
    }

    #[test]
    fn a_shuffled_list_has_the_same_entries_in_another_order() {
        let mut list: Vec<u32> = (0..100).collect();
        Dice::seeded(7).shuffle(&mut list);
        assert_ne!(list, (0..100).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..100).collect::<Vec<_>>());
        assert_ne!(Dice::new().next(), Dice::new().next());
    }
}
