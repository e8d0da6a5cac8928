//! When a request is done: the model of a device.
//!
//! A device has slots. A request waits for a free one, then a fixed latency passes, then its bytes go
//! over a bus that carries one request after the other; then it is done and its slot is free. As the
//! latency is the same for all, requests are done in the order in which they came, so the moment is
//! known as soon as one arrives.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{MB, nanoseconds, transfer};

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Timing {
    /// Of each request, in us.
    pub(crate) latency_us: u64,
    /// Of the bus, in bytes per second.
    pub(crate) bandwidth: u64,
    /// Requests under way at most.
    pub(crate) slots: usize,
}

/// What the file is called that is the device.
pub(crate) const FILE: &str = "disk";

/// What the testbed was made with: at these, the kernel alone uses a sixth of the device, as it was
/// found to on real machines.
pub(crate) const TIMING: Timing = Timing {
    latency_us: 1500,
    bandwidth: 350 * MB,
    slots: 64,
};

impl Timing {
    /// 20 MB/s where the usual one has 350.
    pub(crate) const fn of_a_slow_device(self) -> Self {
        Self {
            bandwidth: self.bandwidth * 2 / 35,
            ..self
        }
    }

    /// So many times as slow.
    pub(crate) const fn slower(self, times: u64) -> Self {
        Self {
            latency_us: self.latency_us * times,
            bandwidth: self.bandwidth / times,
            slots: self.slots,
        }
    }

    /// How long so many requests of a size take of which so many are under way at all times.
    pub(crate) fn expected(&self, requests: u64, bytes: u64, depth: usize) -> Duration {
        let mut service = Service::new(*self);
        let mut ends: VecDeque<u64> = VecDeque::new();
        let mut last = 0;
        for _ in 0..requests {
            let begin = if ends.len() < depth.max(1) {
                0
            } else {
                ends.pop_front().unwrap_or(0)
            };
            last = service.arrive(begin, bytes);
            ends.push_back(last);
        }
        Duration::from_nanos(last)
    }
}

/// A device at work.
#[derive(Debug)]
pub(crate) struct Service {
    timing: Timing,
    /// When each slot is free; the first is so first.
    slots: VecDeque<u64>,
    bus_free: u64,
}

impl Service {
    pub(crate) fn new(timing: Timing) -> Self {
        Self {
            timing,
            slots: VecDeque::new(),
            bus_free: 0,
        }
    }

    /// A request of so many bytes has arrived now; says when it is done, in the same nanoseconds.
    pub(crate) fn arrive(&mut self, now: u64, bytes: u64) -> u64 {
        let begin = if self.slots.len() < self.timing.slots.max(1) {
            now
        } else {
            self.slots.pop_front().unwrap_or(0).max(now)
        };
        let ready = begin + nanoseconds(Duration::from_micros(self.timing.latency_us));
        let done = ready.max(self.bus_free) + nanoseconds(transfer(bytes, self.timing.bandwidth));
        self.bus_free = done;
        self.slots.push_back(done);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILD: Timing = Timing {
        latency_us: 1000,
        bandwidth: 100_000_000,
        slots: 4,
    };
    const MS: u64 = 1_000_000;

    #[test]
    fn one_by_one_each_pays_the_latency() {
        let mut service = Service::new(MILD);
        assert_eq!(service.arrive(0, 100_000), 2 * MS);
        assert_eq!(service.arrive(2 * MS, 100_000), 4 * MS);
        assert_eq!(service.arrive(10 * MS, 0), 11 * MS);
    }

    #[test]
    fn together_they_share_the_bus() {
        let mut service = Service::new(MILD);
        let done: Vec<_> = (0..4).map(|_| service.arrive(0, 100_000) / MS).collect();
        assert_eq!(done, [2, 3, 4, 5]);
        // The fifth waits for the first slot, and the bus is busy for longer than its latency.
        assert_eq!(service.arrive(0, 100_000), 6 * MS);
    }

    #[test]
    fn few_slots_do_not_fill_the_bus() {
        let mut service = Service::new(Timing { slots: 1, ..MILD });
        assert_eq!(service.arrive(0, 100_000), 2 * MS);
        assert_eq!(service.arrive(0, 100_000), 4 * MS);
    }

    #[test]
    fn what_is_expected_of_a_depth() {
        let of = |depth| MILD.expected(10, 100_000, depth).as_millis();
        assert_eq!((of(1), of(2), of(4)), (20, 11, 11));
        assert_eq!(
            MILD.expected(0, 1, 1),
            Duration::ZERO,
            "nothing takes no time"
        );
    }
}
