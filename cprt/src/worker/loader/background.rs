//! Finds how much is loaded at once in the background: the size of a piece, then how many pieces of that size. Pure;
//! the time comes from outside.
//!
//! A reader that the policy does not know waits for what is under way. So a piece takes little time, or at most twice
//! that of the smallest one by itself: where the device takes long to answer, the reader waits for the answer in any
//! case, and with as much under way as the device delivers in that time, it is busy. Each step is compared with the
//! smallest piece, and not with the step before: beside many readers each step takes hardly longer than the last, and
//! all together take the device from them.
//!
//! Large pieces cost less for each byte, and whole folios cost readers less; a device that takes as long to answer as
//! to deliver needs two pieces at once to be busy, and storage far away several. There are several only while others do
//! not read from the device.
//!
//! A reader hardly notices one such wait, but it does notice one at each of a thousand reads that follow each other, as
//! when it looks for names, or imports what is not cached. So until others have not read for a while, the kernel reads
//! nothing beyond a piece, and there is a rest after each that takes more than twice as long as the smallest one.

use std::time::{Duration, Instant};

/// Bytes of the smallest piece, the first one.
pub(super) const SMALLEST: u64 = 128 << 10;
/// Upper bound on pieces at once.
const MOST_AT_ONCE: usize = 16;
/// A reader does not notice that time.
const BRIEF: Duration = Duration::from_millis(4);
/// How long others must not have read for several pieces at once.
const QUIET: Duration = Duration::from_millis(250);
/// The factor on the time of the smallest piece by itself up to which a reader may wait.
const TWICE: u32 = 2;
/// The factor on the usual time above which the device has become slower.
const SLOWER: u32 = 2;
/// How many loads a time is the mean of, for each piece at once.
const FEW: u32 = 4;
/// How many times to measure before everything is measured again.
const STAY: u32 = 64;
/// How long to rest after a piece while others read, as a multiple of the time that it took: they meet with one in a
/// fifth of their reads.
const REST: u32 = 4;
/// How many pieces begin before the device is looked at again, with none of them under way.
const LOOK_AFTER: u32 = 64;
/// How long after the last of these to look: a small read that has waited behind a piece is done just after it.
const LOOK_LATER: Duration = Duration::from_micros(500);

/// When to double the loads in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    LargerPieces,
    MorePieces,
}

/// What is under way at once, and the measurements to find it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Background {
    piece: u64,
    most: u64,
    at_once: usize,
    /// The mean time of the smallest piece by itself, beside the reads of others.
    alone: Option<Duration>,
    /// The step that is being tried.
    tried: Option<Step>,
    /// Larger pieces have turned out to take too long.
    large_enough: bool,
    /// The mean time of a piece with the present amount when that turned out to suit the device.
    usual: Option<Duration>,
    /// Loads that began before the present amount was tried, and so say nothing about it.
    stale: u32,
    loads: u32,
    took: Duration,
    /// How many times to measure before everything is measured again.
    stay: Option<u32>,
    /// When a look last found that others read.
    seen: Option<Instant>,
    /// They have not read for a while.
    quiet: bool,
    /// Pieces that have begun since the last look.
    begun: u32,
}

impl Background {
    /// Pieces of at most `most` bytes.
    pub(super) fn new(most: u64) -> Self {
        Self {
            piece: SMALLEST.min(most),
            most,
            at_once: 1,
            alone: None,
            tried: None,
            large_enough: false,
            usual: None,
            stale: 0,
            loads: 0,
            took: Duration::ZERO,
            stay: None,
            seen: None,
            quiet: false,
            begun: 0,
        }
    }

    pub(super) const fn piece(&self) -> u64 {
        self.piece
    }

    /// How many pieces may be under way. Where others read, or to look whether they do, there is one.
    pub(super) const fn at_once(&self) -> usize {
        if self.is_to_look() { 1 } else { self.at_once }
    }

    /// Whether to look, once none of the pieces is under way: before each while others read, else from time to time.
    pub(super) const fn is_to_look(&self) -> bool {
        !self.quiet || self.begun >= LOOK_AFTER
    }

    /// How long to rest after a piece that took this time, and before looking.
    pub(super) fn rest(&self, took: Duration) -> Duration {
        if !self.quiet {
            let is_long = self.alone.is_some_and(|alone| took > alone * TWICE);
            if is_long { took * REST } else { Duration::ZERO }
        } else if self.is_to_look() {
            LOOK_LATER
        } else {
            Duration::ZERO
        }
    }

    /// Notes that a piece begins.
    pub(super) const fn begin(&mut self) {
        self.begun += 1;
    }

    /// Whether others have not read for a while.
    pub(super) const fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Notes whether the device reads while none of the pieces is under way; `None` if it does not say.
    pub(super) fn look(&mut self, now: Instant, reads: Option<bool>) {
        self.begun = 0;
        if reads == Some(true) {
            self.seen = Some(now);
        }
        let is_long_ago = |seen| now.saturating_duration_since(seen) >= QUIET;
        self.quiet = reads.is_none() || self.seen.is_none_or(is_long_ago);
    }

    /// Notes how long the load of a piece took, all of which came from the device.
    pub(super) fn loaded(&mut self, bytes: u64, took: Duration) {
        // With fewer pieces than allowed, the time does not show the effect of the limit.
        if bytes != self.piece || (self.at_once > 1 && !self.quiet) {
            return;
        }
        if self.stale > 0 {
            self.stale -= 1;
            return;
        }
        self.loads += 1;
        self.took += took;
        if self.loads >= FEW * self.pieces() {
            let mean = self.took / self.loads;
            (self.loads, self.took) = (0, Duration::ZERO);
            self.judge(mean);
        }
    }

    fn pieces(&self) -> u32 {
        u32::try_from(self.at_once).unwrap_or(u32::MAX / FEW)
    }

    fn judge(&mut self, mean: Duration) {
        let alone = *self.alone.get_or_insert(mean);
        let tried = self.tried.take();
        if mean > BRIEF
            && mean > alone * TWICE
            && let Some(step) = tried
        {
            return self.take_back(step);
        }
        if tried.is_some() {
            self.usual = Some(mean);
        }
        let usual = *self.usual.get_or_insert(mean);
        let is_slower = mean > BRIEF && mean > usual * SLOWER;
        if is_slower || self.stay == Some(0) {
            self.begin_anew();
        } else if let Some(stay) = &mut self.stay {
            *stay -= 1;
        } else {
            self.tried = self.step();
        }
    }

    fn begin_anew(&mut self) {
        *self = Self {
            stale: self.pieces() - 1,
            seen: self.seen,
            quiet: self.quiet,
            begun: self.begun,
            ..Self::new(self.most)
        };
    }

    /// Has twice as much be under way, if that may be.
    fn step(&mut self) -> Option<Step> {
        if self.piece < self.most && !self.large_enough {
            self.piece = (self.piece * 2).min(self.most);
            return Some(Step::LargerPieces);
        }
        if self.quiet && self.at_once < MOST_AT_ONCE {
            // Pieces of the same size may still be under way, with fewer beside them.
            self.stale = self.pieces();
            self.at_once *= 2;
            return Some(Step::MorePieces);
        }
        None
    }

    fn take_back(&mut self, step: Step) {
        match step {
            // More pieces may be what this device needs.
            Step::LargerPieces => {
                self.piece /= 2;
                self.large_enough = true;
            }
            Step::MorePieces => {
                self.stale = self.pieces();
                self.at_once /= 2;
                self.stay = Some(STAY);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// What is under way after some loads from a device that answers after `latency` and delivers `rate` bytes a
    /// second, to all loads together: the bytes of a piece, and how many at once.
    #[allow(clippy::cast_precision_loss, reason = "a simulation")]
    fn found(latency: Duration, rate: f64, loads: usize) -> (u64, usize) {
        let mut background = Background::new(2 << 20);
        background.look(Instant::now(), None);
        for _ in 0..loads {
            let piece = background.piece();
            let alone = latency + Duration::from_secs_f64(piece as f64 / rate);
            let beside =
                Duration::from_secs_f64((piece * background.at_once() as u64) as f64 / rate);
            background.loaded(piece, alone.max(beside));
        }
        (background.piece(), background.at_once())
    }

    #[test]
    fn pieces_are_large_where_that_takes_little_time_or_at_most_twice_as_long() {
        for (latency, rate, expected) in [
            (MILLI / 10, 2e9, 2 << 20),
            (MILLI, 1e9, 2 << 20),
            (20 * MILLI, 1e9, 2 << 20),
            // The simulated SSD, which takes as long to answer as to deliver.
            (3 * MILLI / 2, 3.5e8, 512 << 10),
            (MILLI / 10, 5e7, 2 * SMALLEST),
        ] {
            assert_eq!(found(latency, rate, 40).0, expected, "{latency:?} {rate}");
        }
    }

    #[test]
    fn several_pieces_are_loaded_where_a_reader_waits_at_most_twice_as_long() {
        for (latency, rate, expected) in [
            // A reader waits for 4 MiB, 2 or 4 ms; for 16 MiB, 3 ms.
            (MILLI / 10, 2e9, (2 << 20, 2)),
            (MILLI / 10, 1.2e9, (2 << 20, 2)),
            (MILLI / 10, 6e9, (2 << 20, 8)),
            // It waits for the answer of a network in any case.
            (4 * MILLI, 1e9, (2 << 20, 2)),
            (20 * MILLI, 1e9, (2 << 20, 16)),
            (100 * MILLI, 1e10, (2 << 20, 16)),
            (3 * MILLI / 2, 3.5e8, (512 << 10, 2)),
            (MILLI / 10, 5e7, (2 * SMALLEST, 1)),
        ] {
            assert_eq!(found(latency, rate, 200), expected, "{latency:?} {rate}");
        }
    }

    #[test]
    fn a_hard_disk_has_one_piece_at_once() {
        // It moves its head for each.
        let mut background = Background::new(2 << 20);
        background.look(Instant::now(), None);
        for _ in 0..200 {
            let pieces = u32::try_from(background.at_once()).expect("few");
            let one = 8 * MILLI + Duration::from_micros(background.piece() / 150);
            background.loaded(background.piece(), one * pieces);
        }
        assert_eq!((background.piece(), background.at_once()), (1 << 20, 1));
    }

    #[test]
    fn parts_of_pieces_say_nothing_and_a_slower_device_has_smaller_ones() {
        let mut background = Background::new(2 << 20);
        background.look(Instant::now(), None);
        for _ in 0..100 {
            background.loaded(4096, MILLI / 100);
        }
        assert_eq!(background.piece(), SMALLEST);
        for _ in 0..300 {
            background.loaded(background.piece(), MILLI / 10);
        }
        assert_eq!(
            (background.piece(), background.at_once()),
            (2 << 20, MOST_AT_ONCE)
        );
        // Another service reads from the same device.
        for _ in 0..FEW * background.pieces() {
            background.loaded(background.piece(), 50 * MILLI);
        }
        assert_eq!((background.piece(), background.at_once()), (SMALLEST, 1));
    }

    #[test]
    fn there_is_one_piece_at_once_while_others_read() {
        let mut background = Background::new(2 << 20);
        let mut now = Instant::now();
        let mut load = |background: &mut Background, reads| {
            for _ in 0..500 {
                now += 2 * MILLI;
                background.look(now, Some(reads));
                background.loaded(background.piece(), MILLI / 10);
            }
            (background.piece(), background.at_once())
        };
        assert_eq!(load(&mut background, true), (2 << 20, 1));
        assert_eq!(load(&mut background, false), (2 << 20, MOST_AT_ONCE));
        assert_eq!(load(&mut background, true).1, 1);
    }

    #[test]
    fn there_is_a_rest_after_a_piece_that_others_wait_for_long() {
        let mut background = Background::new(2 << 20);
        assert_eq!(background.rest(MILLI), Duration::ZERO, "nothing is known");
        for _ in 0..FEW {
            background.loaded(SMALLEST, MILLI / 4);
        }
        assert_eq!(background.rest(MILLI / 2), Duration::ZERO);
        assert_eq!(background.rest(MILLI), 4 * MILLI);
        background.look(Instant::now(), None);
        assert_eq!(background.rest(MILLI), Duration::ZERO, "no one else reads");
    }

    #[test]
    fn pieces_end_from_time_to_time_so_that_the_device_can_be_looked_at() {
        let mut background = Background::new(2 << 20);
        background.look(Instant::now(), None);
        for _ in 0..300 {
            background.loaded(background.piece(), MILLI / 10);
        }
        let begun = (0..1000).take_while(|_| {
            background.begin();
            background.at_once() > 1
        });
        assert_eq!(begun.count() + 1, usize::try_from(LOOK_AFTER).expect("few"));
        assert!(background.is_to_look());
        assert_eq!(background.rest(MILLI), LOOK_LATER);
        background.look(Instant::now() + QUIET, Some(false));
        assert!(!background.is_to_look());
        assert_eq!(background.at_once(), MOST_AT_ONCE);
    }
}
