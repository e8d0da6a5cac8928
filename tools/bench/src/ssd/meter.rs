//! The counters of a device: bytes over time, and the lateness of replies.

use serde::{Deserialize, Serialize};

use crate::units::index;

/// Length of the intervals in which bytes are counted, in ns.
pub(crate) const BIN: u64 = 100_000_000;
/// Upper bound on the replies and intervals that are remembered individually; no run has that many.
const MOST: usize = 1 << 20;

/// How much later than the model's time replies were sent, in us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lateness {
    pub(crate) p50: u32,
    pub(crate) p99: u32,
    pub(crate) max: u32,
}

/// The counts since the meter was reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Readings {
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    /// Bytes in each tenth of a second.
    pub(crate) bins: Vec<u64>,
    pub(crate) lateness: Lateness,
    /// Time of the reset, in ns of the clock that all processes share.
    pub(crate) since: u64,
    /// CPU time of the simulating process so far, in ms.
    pub(crate) cpu_ms: u64,
}

#[derive(Debug)]
pub(crate) struct Meter {
    since: u64,
    bytes: u64,
    requests: u64,
    bins: Vec<u64>,
    late: Vec<u32>,
}

impl Meter {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            since: now,
            bytes: 0,
            requests: 0,
            bins: Vec::new(),
            late: Vec::new(),
        }
    }

    /// Counts a request that was due at `due` and answered at `now`.
    pub(crate) fn count(&mut self, bytes: u64, due: u64, now: u64) {
        self.bytes += bytes;
        self.requests += 1;
        let bin = index(due.saturating_sub(self.since) / BIN);
        if bin < MOST {
            if self.bins.len() <= bin {
                self.bins.resize(bin + 1, 0);
            }
            self.bins[bin] += bytes;
        }
        if self.late.len() < MOST {
            let late = now.saturating_sub(due) / 1000;
            self.late.push(u32::try_from(late).unwrap_or(u32::MAX));
        }
    }

    pub(crate) fn read(&self, cpu_ms: u64) -> Readings {
        let mut late = self.late.clone();
        late.sort_unstable();
        let at = |part: usize| late.get(late.len() * part / 100).copied().unwrap_or(0);
        Readings {
            bytes: self.bytes,
            requests: self.requests,
            bins: self.bins.clone(),
            lateness: Lateness {
                p50: at(50),
                p99: at(99),
                max: late.last().copied().unwrap_or(0),
            },
            since: self.since,
            cpu_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_when_they_were_due() {
        let mut meter = Meter::new(1_000);
        meter.count(10, 2_000, 5_000);
        meter.count(20, 1_000 + 2 * BIN, 1_000 + 2 * BIN);
        let read = meter.read(3);
        assert_eq!((read.bytes, read.requests, read.cpu_ms), (30, 2, 3));
        assert_eq!(read.bins, [10, 0, 20]);
        assert_eq!((read.lateness.p50, read.lateness.max), (3, 3));
    }

    #[test]
    fn lateness_is_reported_in_percentiles() {
        let mut meter = Meter::new(0);
        for late in 0..200 {
            meter.count(1, 0, late * 1000);
        }
        let Lateness { p50, p99, max } = meter.read(0).lateness;
        assert_eq!((p50, p99, max), (100, 198, 199));
        assert_eq!(Meter::new(0).read(0).lateness, Lateness::default());
    }
}
