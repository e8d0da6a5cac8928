//! The window of one process on one file. Pure: offsets in, ranges out.

use std::ops::Range;

/// The position of a sequential reader, and how much is read ahead of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    max: u64,
    /// How many bytes were read ahead the last time; 0 if the reader was not sequential then.
    size: u64,
    /// The range that was last missed and read ahead.
    last: Option<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    end: u64,
}

impl Window {
    /// A window of at most this many bytes.
    pub(crate) const fn new(max: u64) -> Self {
        Self {
            max,
            size: 0,
            last: None,
        }
    }

    /// What to read ahead after this miss.
    pub(crate) fn miss(&mut self, offset: u64, length: u64) -> Option<Range<u64>> {
        let end = offset.saturating_add(length);
        // A reader that begins at the start of the file is taken for sequential; elsewhere it has to prove it.
        // A miss inside the range read ahead only shows that the reader is faster than the device.
        let sequential = match self.last {
            None => offset == 0,
            Some(last) => (last.start..=last.end).contains(&offset) || offset == 0,
        };
        let restarts = offset == 0 && self.last.is_some_and(|last| last.start > 0);
        if !sequential {
            (self.size, self.last) = (0, Some(Span { start: offset, end }));
            return None;
        }
        self.size = if self.size == 0 || restarts {
            first(length, self.max)
        } else {
            self.size.saturating_mul(2).min(self.max)
        };
        // Never request a range again that is in flight.
        let ahead = match self.last {
            Some(last) if !restarts => end.max(last.end),
            _ => end,
        };
        let until = ahead.saturating_add(self.size);
        let start = offset;
        self.last = Some(Span { start, end: until });
        (until > ahead).then_some(ahead..until)
    }
}

/// The kernel's rule: the smaller the request, the larger the first window in relation to it.
fn first(length: u64, max: u64) -> u64 {
    let size = length.checked_next_power_of_two().unwrap_or(max);
    if size <= max / 32 {
        size * 4
    } else if size <= max / 4 {
        size * 2
    } else {
        max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MAX: u64 = 128 * KIB;

    #[test]
    fn window_doubles_up_to_the_maximum() {
        let mut window = Window::new(MAX);
        assert_eq!(window.miss(0, 4 * KIB), Some(4 * KIB..20 * KIB));
        let mut at = 20 * KIB;
        for size in [32 * KIB, 64 * KIB, 128 * KIB, 128 * KIB] {
            let ahead = window.miss(at, 4 * KIB).expect("it is sequential");
            assert_eq!(ahead, at + 4 * KIB..at + 4 * KIB + size);
            at = ahead.end;
        }
    }

    #[test]
    fn the_first_window_is_the_kernels() {
        let cases = [
            (1, 4),
            (4 * KIB, 16 * KIB),
            (5 * KIB, 16 * KIB),
            (32 * KIB, 64 * KIB),
        ];
        for (length, size) in cases {
            assert_eq!(first(length, MAX), size, "{length}");
        }
        for length in [33 * KIB, 1 << 30, u64::MAX] {
            assert_eq!(first(length, MAX), MAX, "{length}");
        }
    }

    #[test]
    fn random_misses_close_it() {
        let mut window = Window::new(MAX);
        assert_eq!(window.miss(512 * KIB, 4 * KIB), None);
        assert_eq!(window.miss(64 * KIB, 4 * KIB), None);
        // The second in a row opens it, small again.
        assert_eq!(window.miss(68 * KIB, 4 * KIB), Some(72 * KIB..88 * KIB));
        assert!(window.miss(88 * KIB, 4 * KIB).is_some());
        assert_eq!(window.miss(900 * KIB, 4 * KIB), None);
        assert_eq!(window.miss(904 * KIB, 4 * KIB), Some(908 * KIB..924 * KIB));
    }

    #[test]
    fn a_reader_faster_than_the_device_gets_nothing_twice() {
        let mut window = Window::new(MAX);
        assert_eq!(window.miss(0, 4 * KIB), Some(4 * KIB..20 * KIB));
        assert_eq!(window.miss(8 * KIB, 4 * KIB), Some(20 * KIB..52 * KIB));
    }

    #[test]
    fn a_reader_that_starts_over_starts_small() {
        let mut window = Window::new(MAX);
        for at in [0, 20 * KIB, 56 * KIB] {
            window.miss(at, 4 * KIB);
        }
        assert_eq!(window.miss(0, 4 * KIB), Some(4 * KIB..20 * KIB));
    }

    #[test]
    fn the_end_of_numbers_is_no_panic() {
        let mut window = Window::new(u64::MAX);
        window.miss(0, u64::MAX);
        assert_eq!(window.miss(u64::MAX, u64::MAX), None);
        assert_eq!(Window::new(0).miss(0, 4096), None);
    }
}
