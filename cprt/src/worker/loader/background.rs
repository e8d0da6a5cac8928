//! Finds how large the pieces are that are loaded in the background. Pure; the time comes from outside.
//!
//! A reader that the policy does not know waits for one piece at most. So a piece takes little time by itself, or
//! hardly more than a smaller one: where the device takes long to answer, and then delivers fast, the reader waits for
//! the answer in any case. Large pieces cost less for each byte, and whole folios cost readers less.

use std::time::Duration;

/// Bytes of the smallest piece, the first one.
pub(super) const SMALLEST: u64 = 128 << 10;
/// A reader does not notice that time.
const BRIEF: Duration = Duration::from_millis(4);
/// The factor on the time of a piece below which a piece of twice the bytes takes hardly longer.
const HARDLY: f64 = 1.3;
/// The factor on the usual time above which the device has become slower.
const SLOWER: u32 = 2;
/// How many loads a time is the mean of.
const FEW: u32 = 4;
/// How many times to measure before larger pieces are tried again.
const STAY: u32 = 64;

/// The bytes of a piece, and the measurements to find them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Background {
    piece: u64,
    most: u64,
    /// The mean time of pieces of half the bytes, while the present size is being tried.
    half: Option<Duration>,
    /// The mean time of pieces of the present size when that turned out to suit the device.
    usual: Option<Duration>,
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
            half: None,
            usual: None,
            loads: 0,
            took: Duration::ZERO,
            stay: 0,
        }
    }

    pub(super) const fn piece(&self) -> u64 {
        self.piece
    }

    /// Notes how long the load of a piece took, all of which came from the device.
    pub(super) fn loaded(&mut self, bytes: u64, took: Duration) {
        if bytes != self.piece {
            return;
        }
        self.loads += 1;
        self.took += took;
        if self.loads == FEW {
            let mean = self.took / FEW;
            (self.loads, self.took) = (0, Duration::ZERO);
            self.judge(mean);
        }
    }

    fn judge(&mut self, mean: Duration) {
        if let Some(half) = self.half.take() {
            if mean > BRIEF && mean > half.mul_f64(HARDLY) {
                (self.piece, self.usual) = (self.piece / 2, Some(half));
                self.stay = STAY;
                return;
            }
            self.usual = Some(mean);
        }
        let usual = *self.usual.get_or_insert(mean);
        if mean > BRIEF && mean > usual * SLOWER {
            *self = Self::new(self.most);
        } else if self.stay > 0 {
            self.stay -= 1;
        } else if self.piece < self.most {
            (self.piece, self.half) = ((self.piece * 2).min(self.most), Some(mean));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a piece after some loads from a device that answers after `latency` and delivers `rate` bytes a
    /// second, and the most of them there have been.
    fn found(latency: Duration, rate: f64) -> (u64, u64) {
        let mut background = Background::new(2 << 20);
        let mut most = 0;
        for _ in 0..40 {
            let piece = background.piece();
            most = most.max(piece);
            #[allow(clippy::cast_precision_loss, reason = "a simulation")]
            let took = latency + Duration::from_secs_f64(piece as f64 / rate);
            background.loaded(piece, took);
        }
        (background.piece(), most)
    }

    #[test]
    fn pieces_are_large_where_that_takes_little_time_or_hardly_more() {
        const MILLI: Duration = Duration::from_millis(1);
        for (latency, rate, expected) in [
            (MILLI / 10, 2e9, (2 << 20, 2 << 20)),
            (MILLI, 1e9, (2 << 20, 2 << 20)),
            (20 * MILLI, 1e9, (2 << 20, 2 << 20)),
            // A hard disk.
            (8 * MILLI, 1.5e8, (512 << 10, 1 << 20)),
            (MILLI / 10, 5e7, (SMALLEST, 256 << 10)),
        ] {
            assert_eq!(found(latency, rate), expected, "{latency:?} {rate}");
        }
    }

    #[test]
    fn parts_of_pieces_say_nothing_and_a_slower_device_has_smaller_ones() {
        let mut background = Background::new(2 << 20);
        for _ in 0..100 {
            background.loaded(4096, Duration::from_micros(10));
        }
        assert_eq!(background.piece(), SMALLEST);
        for _ in 0..100 {
            background.loaded(background.piece(), Duration::from_micros(100));
        }
        assert_eq!(background.piece(), 2 << 20);
        // Another service reads from the same device.
        for _ in 0..FEW {
            background.loaded(background.piece(), Duration::from_millis(50));
        }
        assert_eq!(background.piece(), SMALLEST);
    }
}
