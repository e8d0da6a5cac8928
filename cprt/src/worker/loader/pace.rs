//! How fast loads go: their rate, when they yield to readers and to workers of higher priority, and the configured
//! bandwidth. Pure; the time comes from outside.

use std::time::{Duration, Instant};

/// How long loads yield after a reader's miss.
const YIELD: Duration = Duration::from_millis(5);
/// The time that a rate is averaged over.
const WINDOW: Duration = Duration::from_secs(1);

/// What loads achieve, and whether readers wait meanwhile.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes of the running window, and of the one before.
    window: (Instant, u64),
    before: u64,
    /// ns per KiB of the fastest load so far, and of recent loads.
    best: f64,
    late: f64,
    yield_until: Option<Instant>,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            window: (Instant::now(), 0),
            before: 0,
            best: f64::INFINITY,
            late: 0.0,
            yield_until: None,
        }
    }

    /// Notes a finished load.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn loaded(&mut self, now: Instant, bytes: u64, took: Duration) {
        self.turn_over(now);
        self.window.1 += bytes;
        // Small pieces say more about latency than about bandwidth.
        if bytes < 64 << 10 {
            return;
        }
        let cost = took.as_nanos() as f64 / (bytes >> 10) as f64;
        self.late = if self.late == 0.0 {
            cost
        } else {
            self.late.mul_add(0.8, cost * 0.2)
        };
        self.best = self.best.min(cost);
    }

    /// Notes that a reader misses.
    pub(super) fn reader_waits(&mut self, now: Instant) {
        self.yield_until = now.checked_add(YIELD);
    }

    /// Whether one more load may begin, with `flying` of `threads` loads under way. Only half of the
    /// threads load while readers wait and loads queue at the device, that is, take more than twice as
    /// long as the fastest one.
    pub(super) fn may(&self, now: Instant, flying: usize, threads: usize) -> bool {
        let reader_waits = self.yield_until.is_some_and(|until| now < until);
        let device_is_full = self.late > 2.0 * self.best;
        flying < (threads / 2).max(1) || !(reader_waits && device_is_full)
    }

    /// Bytes per second.
    pub(super) fn rate(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.window.0);
        if since >= 2 * WINDOW {
            return 0;
        }
        // The part of the previous window that is still within the last second counts in proportion.
        let old = WINDOW.saturating_sub(since).as_millis();
        let old = u128::from(self.before) * old / WINDOW.as_millis();
        u64::try_from(old)
            .unwrap_or(u64::MAX)
            .saturating_add(self.window.1)
    }

    fn turn_over(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.window.0);
        if since < WINDOW {
            return;
        }
        self.before = if since < 2 * WINDOW { self.window.1 } else { 0 };
        self.window = (now, 0);
    }
}

/// The rest after each load while others read from the same device: workers that load at a higher priority, or for the
/// background, anyone. By one load at a time alone, a worker would get a ninth of a device that serves eight of the
/// others at once, and half of one that serves one after the other.
#[derive(Debug, Default)]
pub(super) struct Rest {
    until: Option<Instant>,
}

impl Rest {
    /// How long to rest while outranked, as a multiple of the time that the load took.
    pub(super) const OUTRANKED: u32 = 2;

    /// Rests for this time, or longer if it has been resting for longer already.
    pub(super) fn begin(&mut self, now: Instant, time: Duration) {
        self.until = self.until.max(now.checked_add(time));
    }

    /// The time until it is over.
    pub(super) fn left(&self, now: Instant) -> Duration {
        let left = |until: Instant| until.saturating_duration_since(now);
        self.until.map_or(Duration::ZERO, left)
    }
}

/// A bandwidth to keep to, in bytes per second; 0 for no limit.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: u64,
    /// When the rate has covered all bytes spent.
    clear_at: Option<Instant>,
}

impl Bucket {
    pub(super) fn new(rate: u64) -> Self {
        Self {
            rate,
            clear_at: None,
        }
    }

    /// How long to wait before anything more is spent.
    pub(super) fn wait(&mut self, now: Instant) -> Option<Duration> {
        let at = self.clear_at?;
        let left = at.saturating_duration_since(now);
        if left.is_zero() {
            self.clear_at = None;
            return None;
        }
        Some(left)
    }

    /// Notes that a load of this size begins.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.spend_at(Instant::now(), bytes);
    }

    fn spend_at(&mut self, now: Instant, bytes: u64) {
        if self.rate == 0 {
            return;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.clear_at = self.clear_at.unwrap_or(now).checked_add(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MIB: u64 = 1 << 20;

    #[test]
    fn loads_yield_only_while_readers_wait_at_a_full_device() {
        let mut pace = Pace::new();
        let now = Instant::now();
        assert!(pace.may(now, 3, 4), "no reader waits");
        pace.loaded(now, MIB, MS);
        pace.reader_waits(now);
        assert!(pace.may(now, 3, 4), "the device has room");
        for _ in 0..20 {
            pace.loaded(now, MIB, 4 * MS);
        }
        assert!(!pace.may(now, 3, 4), "readers wait, loads queue");
        assert!(!pace.may(now, 2, 4));
        assert!(pace.may(now, 1, 4), "half of them continue");
        assert!(pace.may(now, 0, 1), "and one always");
        assert!(pace.may(now + 2 * YIELD, 3, 4), "no reader waits now");
    }

    #[test]
    fn a_rest_ends_when_the_longest_does() {
        let (mut rest, now) = (Rest::default(), Instant::now());
        assert_eq!(rest.left(now), Duration::ZERO);
        rest.begin(now, 20 * MS);
        rest.begin(now, 10 * MS);
        assert_eq!(rest.left(now + 19 * MS), MS);
        assert_eq!(rest.left(now + 20 * MS), Duration::ZERO);
    }

    #[test]
    fn the_rate_follows_the_last_second_and_fades() {
        let mut pace = Pace::new();
        let start = pace.window.0;
        for i in 0..20 {
            pace.loaded(start + i * 100 * MS, 10 * MIB, MS);
        }
        let end = start + 1900 * MS;
        let rate = pace.rate(end) / MIB;
        assert!((90..=110).contains(&rate), "{rate}");
        assert_eq!(pace.rate(end + 5 * WINDOW), 0);
    }

    #[test]
    fn a_bandwidth_is_kept_and_none_is_no_limit() {
        let now = Instant::now();
        let mut none = Bucket::new(0);
        none.spend_at(now, u64::MAX);
        assert_eq!(none.wait(now), None);
        let mut bucket = Bucket::new(1000 * MIB);
        bucket.spend_at(now, MIB);
        bucket.spend_at(now, MIB);
        assert_eq!(bucket.wait(now), Some(2 * MS));
        assert_eq!(bucket.wait(now + 2 * MS), None);
    }
}
