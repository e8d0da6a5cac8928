//! How long to wait before what was lost is loaded again: the kernel has its reasons, and a loop of loads and reclaim
//! costs everyone. Pure; the time comes from outside.

use std::time::{Duration, Instant};

/// What stays this long has come to stay.
const STAYED: Duration = Duration::from_mins(10);
/// How long to wait the first time, which doubles each time,
const FIRST: Duration = Duration::from_secs(30);
/// up to this.
const LONGEST: Duration = Duration::from_hours(1);

/// The losses of a set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    loaded: Option<Instant>,
    /// Losses that each came soon after a load.
    losses: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// Something was loaded.
    pub(super) fn loaded(&mut self, now: Instant) {
        self.loaded = Some(now);
    }

    /// Something of it was lost. The first time, it is loaded again at once: another program may have dropped it.
    pub(super) fn lost(&mut self, now: Instant) {
        if self.waits(now) {
            return;
        }
        let Some(loaded) = self.loaded.take() else {
            return;
        };
        if now.saturating_duration_since(loaded) >= STAYED {
            self.losses = 0;
        }
        if self.losses > 0 {
            self.wait(now);
        }
        self.losses += 1;
    }

    /// It could not be loaded.
    pub(super) fn failed(&mut self, now: Instant) {
        self.losses = self.losses.max(1);
        self.wait(now);
        self.losses += 1;
    }

    fn wait(&mut self, now: Instant) {
        let doublings = self.losses.saturating_sub(1).min(16);
        self.until = Some(now + (FIRST * (1 << doublings)).min(LONGEST));
    }

    /// Whether to wait, now.
    pub(super) fn waits(&self, now: Instant) -> bool {
        self.left(now).is_some()
    }

    /// How long to wait still.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_loss_is_made_up_for_at_once_and_later_ones_take_ever_longer() {
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        backoff.lost(now);
        assert!(!backoff.waits(now), "it was not loaded by us");
        let mut waits = Vec::new();
        for _ in 0..10 {
            backoff.loaded(now);
            now += SECOND;
            backoff.lost(now);
            // Further looks find the same loss.
            backoff.lost(now);
            let left = backoff.left(now).unwrap_or_default();
            waits.push(left.as_secs());
            now += left;
            assert!(!backoff.waits(now));
        }
        assert_eq!(waits, [0, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
    }

    #[test]
    fn losses_after_a_long_stay_reset_the_backoff() {
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        for _ in 0..5 {
            backoff.loaded(now);
            now += STAYED;
            backoff.lost(now);
            assert!(!backoff.waits(now));
        }
        backoff.failed(now);
        assert_eq!(backoff.left(now), Some(FIRST));
    }
}
