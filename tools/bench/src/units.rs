//! Numbers for people, and for the arithmetic of measurements.

use std::time::Duration;

pub(crate) const MB: u64 = 1_000_000;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const PAGE: u64 = 4096;

/// The number as floating point.
#[allow(
    clippy::cast_precision_loss,
    reason = "these are measurements, of far less than 52 bits"
)]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}

/// The number as an index into memory; files that are mapped here always fit.
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

pub(crate) fn seconds(ns: u64) -> f64 {
    float(ns) / 1e9
}

pub(crate) fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// How long a transfer of this many bytes takes.
pub(crate) fn transfer(bytes: u64, per_second: u64) -> Duration {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(per_second.max(1));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// The time in ns, by a clock that all processes share.
pub(crate) fn now() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    // This clock always exists.
    let time = nix::time::clock_gettime(clock).map(Duration::from);
    nanoseconds(time.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_their_time() {
        assert_eq!(transfer(350 * MB, 350 * MB), Duration::from_secs(1));
        assert_eq!(transfer(0, 0), Duration::ZERO);
        assert!(transfer(u64::MAX, 1) > Duration::from_secs(1 << 33));
        let one = now();
        assert!(now() >= one && one > 0);
    }
}
