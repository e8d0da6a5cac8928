//! Whether others read from the device that files are loaded from.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::common::of_block_device;

/// The kernel's count of requests in flight on a device: reads, then writes.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    in_flight: Option<File>,
}

impl Neighbours {
    /// Of the device with this number. A network file system has none.
    pub(super) fn of(device: u64) -> Self {
        Self {
            in_flight: File::open(of_block_device(device).join("inflight")).ok(),
        }
    }

    /// Whether the device reads, and so reads for others if this worker has no load in flight; `None` if the device
    /// does not say.
    pub(super) fn read(&self) -> Option<bool> {
        let mut text = [0; 64];
        let length = self.in_flight.as_ref()?.read_at(&mut text, 0).ok()?;
        reads(std::str::from_utf8(text.get(..length)?).ok()?)
    }
}

fn reads(in_flight: &str) -> Option<bool> {
    let reads: u64 = in_flight.split_whitespace().next()?.parse().ok()?;
    Some(reads > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_count_and_writes_do_not() {
        assert_eq!(reads("       3        0\n"), Some(true));
        assert_eq!(reads("       0        7\n"), Some(false));
        assert_eq!(reads(""), None);
    }

    #[test]
    fn a_device_without_a_count_does_not_say() {
        assert_eq!(Neighbours::default().read(), None);
        // No block device has this number.
        assert_eq!(Neighbours::of(0).read(), None);
    }
}
