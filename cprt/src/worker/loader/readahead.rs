//! How far the kernel reads on beyond the end of a load that streams.

use std::fs;
use std::path::Path;

use super::common::of_block_device;
use nix::sys::stat::{major, minor};

/// Where the kernel does not tell here, as for btrfs: as of a device that is set to read 8 MiB ahead.
pub(super) const UNKNOWN: u64 = 16 << 20;

/// How many bytes the kernel may read ahead of a load from the device with this number. A load that streams has it
/// read ahead twice as far as is set.
pub(super) fn of(device: u64) -> u64 {
    let block = of_block_device(device);
    let number = format!("{}:{}", major(device), minor(device));
    let places = [
        block.join("queue"),
        // Of the disk that a partition is on.
        block.join("../queue"),
        Path::new("/sys/class/bdi").join(number),
    ];
    places
        .iter()
        .find_map(|place| fs::read_to_string(place.join("read_ahead_kb")).ok())
        .and_then(|text| beyond(&text))
        .unwrap_or(UNKNOWN)
}

fn beyond(kib: &str) -> Option<u64> {
    kib.trim().parse::<u64>().ok()?.checked_mul(2 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_reads_twice_as_far_ahead() {
        assert_eq!(beyond("8192\n"), Some(16 << 20));
        assert_eq!(beyond("0\n"), Some(0));
        assert_eq!(beyond(""), None);
    }

    #[test]
    fn a_device_that_does_not_tell_may_read_far() {
        // No block device has this number.
        assert_eq!(of(0), UNKNOWN);
    }
}
