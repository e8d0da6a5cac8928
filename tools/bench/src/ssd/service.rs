//! The model of a device: when each request is done.
//!
//! A device has slots. A request waits for a free slot, then a fixed latency passes, then its bytes go
//! over a bus that carries one request after the other; then it is done and its slot is free. As the
//! latency is the same for all, requests are done in the order in which they arrived, so the time at which
//! a request will be done is known as soon as it arrives.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{MB, nanoseconds, transfer};

/// The speed of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Timing {
    /// Latency of each request, in us.
    pub(crate) latency_us: u64,
    /// Bandwidth of the bus, in bytes per second.
    pub(crate) bandwidth: u64,
    /// Upper bound on the requests in flight.
    pub(crate) slots: usize,
    /// Number of requests in flight beyond which each further one makes the bus a tenth slower; 0 for unlimited.
    #[serde(default)]
    pub(crate) crowd: usize,
}

/// The name of the file that is the device.
pub(crate) const FILE: &str = "disk";

/// The speed for which the testbed was designed: at this speed the kernel alone uses a sixth of the device, as
/// it was found to do on real machines.
pub(crate) const TIMING: Timing = Timing {
    latency_us: 1500,
    bandwidth: 350 * MB,
    slots: 64,
    crowd: 0,
};

/// A disk that is nearer.
pub(crate) const NEAR: Timing = Timing {
    latency_us: 100,
    bandwidth: 1000 * MB,
    ..TIMING
};

/// A nearby file server: each request takes a little, and many at once take no longer.
pub(crate) const FILER: Timing = Timing {
    latency_us: 4000,
    bandwidth: 1000 * MB,
    ..TIMING
};

/// Storage behind a network: far away, but as fast as any if many requests are in flight.
pub(crate) const NETWORK: Timing = Timing {
    latency_us: 20_000,
    bandwidth: 1000 * MB,
    ..TIMING
};

/// Storage that serves at most 16 requests at once.
pub(crate) const KNEE: Timing = Timing {
    latency_us: 5000,
    slots: 16,
    ..TIMING
};

/// Storage that has to seek: it copes with at most eight requests, which two streams make.
pub(crate) const SEEKS: Timing = Timing {
    latency_us: 5000,
    bandwidth: 150 * MB,
    crowd: 8,
    ..TIMING
};

impl Timing {
    /// The slow variant of this device: 20 MB/s if the usual one has 350.
    pub(crate) const fn of_a_slow_device(self) -> Self {
        Self {
            bandwidth: self.bandwidth * 2 / 35,
            ..self
        }
    }

    /// The same device, slower by this factor.
    pub(crate) const fn slower(self, times: u64) -> Self {
        Self {
            latency_us: self.latency_us * times,
            bandwidth: self.bandwidth / times,
            ..self
        }
    }

    /// How long `requests` requests of `bytes` bytes take with `depth` of them in flight at all times.
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

/// A device in operation.
#[derive(Debug)]
pub(crate) struct Service {
    timing: Timing,
    /// The time at which each slot becomes free, earliest first.
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

    /// Accepts a request that arrives at `now`; returns when it will be done, in ns of the same clock.
    pub(crate) fn arrive(&mut self, now: u64, bytes: u64) -> u64 {
        let begin = if self.slots.len() < self.timing.slots.max(1) {
            now
        } else {
            self.slots.pop_front().unwrap_or(0).max(now)
        };
        let ready = begin + nanoseconds(Duration::from_micros(self.timing.latency_us));
        let alone = nanoseconds(transfer(bytes, self.timing.bandwidth));
        let done = ready.max(self.bus_free) + alone + alone * self.too_many(now) / 10;
        self.bus_free = done;
        self.slots.push_back(done);
        done
    }

    /// The number of requests in flight in excess of `crowd`.
    fn too_many(&self, now: u64) -> u64 {
        if self.timing.crowd == 0 {
            return 0;
        }
        let under_way = self.slots.len() - self.slots.partition_point(|&done| done <= now);
        u64::try_from(under_way.saturating_sub(self.timing.crowd)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILD: Timing = Timing {
        latency_us: 1000,
        bandwidth: 100_000_000,
        slots: 4,
        crowd: 0,
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
    fn a_crowd_makes_the_bus_slow() {
        let mut service = Service::new(Timing { crowd: 2, ..MILD });
        let done: Vec<_> = (0..4).map(|_| service.arrive(0, 1_000_000) / MS).collect();
        assert_eq!(done, [11, 21, 31, 42]);
        assert_eq!(service.arrive(50 * MS, 1_000_000) / MS, 61);
    }

    #[test]
    fn few_slots_do_not_fill_the_bus() {
        let mut service = Service::new(Timing { slots: 1, ..MILD });
        assert_eq!(service.arrive(0, 100_000), 2 * MS);
        assert_eq!(service.arrive(0, 100_000), 4 * MS);
    }

    #[test]
    fn expected_time_depends_on_queue_depth() {
        let of = |depth| MILD.expected(10, 100_000, depth).as_millis();
        assert_eq!((of(1), of(2), of(4)), (20, 11, 11));
        assert_eq!(
            MILD.expected(0, 1, 1),
            Duration::ZERO,
            "nothing takes no time"
        );
    }
}
