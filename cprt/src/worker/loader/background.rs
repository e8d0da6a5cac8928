//! Finds how much is loaded at once in the background: the size of a piece, then how many pieces. Pure; the time comes
//! from outside.
//!
//! A reader that the policy does not know waits for what is under way. So a piece takes little time, or hardly more than
//! with half as much under way: where the device takes long to answer, and then delivers fast, the reader waits for the
//! answer in any case. Large pieces cost less for each byte, and whole folios cost readers less; storage far away needs
//! several at once to be fast.

use std::time::Duration;

/// Bytes of the smallest piece, the first one.
pub(super) const SMALLEST: u64 = 128 << 10;
/// Upper bound on pieces at once.
const MOST_AT_ONCE: usize = 16;
/// A reader does not notice that time.
const BRIEF: Duration = Duration::from_millis(4);
/// The factor on the time of a piece below which twice as much takes hardly longer.
const HARDLY: f64 = 1.3;
/// The factor on the usual time above which the device has become slower.
const SLOWER: u32 = 2;
/// How many loads a time is the mean of, for each piece at once.
const FEW: u32 = 4;
/// How many times to measure before more is tried again.
const STAY: u32 = 64;

/// What is under way at once, and the measurements to find it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Background {
    piece: u64,
    most: u64,
    at_once: usize,
    /// The mean time of a piece with half as much under way, while the present amount is being tried.
    half: Option<Duration>,
    /// The mean time of a piece with the present amount when that turned out to suit the device.
    usual: Option<Duration>,
    /// Loads that began before the present amount was tried, and so say nothing about it.
    stale: u32,
    loads: u32,
    took: Duration,
    stay: u32,
}

impl Background {
    /// Pieces of at most `most` bytes.
    pub(super) fn new(most: u64) -> Self {
        Self {
            piece: SMALLEST.min(most),
            most,
            at_once: 1,
            half: None,
            usual: None,
            stale: 0,
            loads: 0,
            took: Duration::ZERO,
            stay: 0,
        }
    }

    pub(super) const fn piece(&self) -> u64 {
        self.piece
    }

    pub(super) const fn at_once(&self) -> usize {
        self.at_once
    }

    /// Notes how long the load of a piece took, all of which came from the device.
    pub(super) fn loaded(&mut self, bytes: u64, took: Duration) {
        if bytes != self.piece {
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
        if let Some(half) = self.half.take() {
            if mean > BRIEF && mean > half.mul_f64(HARDLY) {
                self.halve();
                (self.usual, self.stay) = (Some(half), STAY);
                return;
            }
            self.usual = Some(mean);
        }
        let usual = *self.usual.get_or_insert(mean);
        if mean > BRIEF && mean > usual * SLOWER {
            let stale = self.pieces() - 1;
            *self = Self::new(self.most);
            self.stale = stale;
        } else if self.stay > 0 {
            self.stay -= 1;
        } else if self.double() {
            self.half = Some(mean);
        }
    }

    fn double(&mut self) -> bool {
        if self.piece < self.most {
            self.piece = (self.piece * 2).min(self.most);
        } else if self.at_once < MOST_AT_ONCE {
            // Pieces of the same size may still be under way, with fewer beside them.
            self.stale = self.pieces();
            self.at_once *= 2;
        } else {
            return false;
        }
        true
    }

    fn halve(&mut self) {
        if self.at_once > 1 {
            self.stale = self.pieces();
            self.at_once /= 2;
        } else {
            self.piece /= 2;
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
    fn pieces_are_large_where_that_takes_little_time_or_hardly_more() {
        for (latency, rate, expected) in [
            (MILLI / 10, 2e9, 2 << 20),
            (MILLI, 1e9, 2 << 20),
            (20 * MILLI, 1e9, 2 << 20),
            // A hard disk.
            (8 * MILLI, 1.5e8, 512 << 10),
            (MILLI / 10, 5e7, SMALLEST),
        ] {
            assert_eq!(found(latency, rate, 40).0, expected, "{latency:?} {rate}");
        }
    }

    #[test]
    fn several_pieces_are_loaded_where_a_reader_hardly_waits_longer_for_that() {
        for (latency, rate, expected) in [
            // A reader waits for 4 MiB, 2 or 4 ms; for 16 MiB, 3 ms.
            (MILLI / 10, 2e9, (2 << 20, 2)),
            (MILLI / 10, 1.2e9, (2 << 20, 2)),
            (MILLI / 10, 6e9, (2 << 20, 8)),
            // It waits for the answer of a network in any case.
            (20 * MILLI, 1e9, (2 << 20, 8)),
            (100 * MILLI, 1e10, (2 << 20, 16)),
            (8 * MILLI, 1.5e8, (512 << 10, 1)),
        ] {
            assert_eq!(found(latency, rate, 300), expected, "{latency:?} {rate}");
        }
    }

    #[test]
    fn parts_of_pieces_say_nothing_and_a_slower_device_has_smaller_ones() {
        let mut background = Background::new(2 << 20);
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
}
