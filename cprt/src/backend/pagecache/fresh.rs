//! How much a load has brought in. Pure: the caller counts pages.
//!
//! Pages that are cached when a load comes to a place may have come in with the previous load: the kernel
//! reads ahead. So the pages are counted some way ahead, before the kernel gets there, and all that have
//! been added when the place has been loaded count as the load's.

use std::collections::HashMap;
use std::ops::Range;

use crate::machine::mappings::Identity;

/// Bytes counted at once.
const BUCKET: u64 = 1 << 20;
/// How far ahead to count: where several threads load the same run, the kernel is ahead of the foremost, by
/// 8 MiB or twice that on nearly all machines.
const AHEAD: u64 = 64 << 20;
/// Upper bound on buckets remembered: enough for as many runs as there may be loads.
const MOST: usize = 16384;

/// Pages that were there, by file and bucket.
#[derive(Debug, Default)]
pub(super) struct Before(HashMap<(Identity, u64), u64>);

/// The bytes of a bucket.
pub(super) const fn bytes(bucket: u64) -> Range<u64> {
    bucket * BUCKET..(bucket + 1) * BUCKET
}

/// The buckets that a range touches.
pub(super) const fn buckets(range: &Range<u64>) -> Range<u64> {
    range.start / BUCKET..range.end.div_ceil(BUCKET)
}

impl Before {
    /// The buckets to count before a load of this range of a file of that size begins.
    pub(super) fn unknown(&self, file: Identity, range: &Range<u64>, size: u64) -> Vec<u64> {
        let end = range.end.saturating_add(AHEAD).min(size);
        let unknown = |bucket: &u64| !self.0.contains_key(&(file, *bucket));
        buckets(&(range.start..end)).filter(unknown).collect()
    }

    /// Notes how many pages of a bucket are cached.
    pub(super) fn learn(&mut self, file: Identity, bucket: u64, pages: u64) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert((file, bucket), pages);
    }

    /// Notes how many pages of a bucket are cached after a load; returns how many are new. The bucket is
    /// counted anew the next time.
    pub(super) fn take(&mut self, file: Identity, bucket: u64, pages: u64) -> u64 {
        let before = self.0.remove(&(file, bucket));
        before.map_or(0, |before| pages.saturating_sub(before))
    }

    /// Forgets a range of a file that has been dropped.
    pub(super) fn forget(&mut self, file: Identity, range: &Range<u64>) {
        for bucket in buckets(range) {
            self.0.remove(&(file, bucket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Identity = Identity {
        device: 1,
        inode: 2,
    };

    #[test]
    fn what_the_kernel_reads_on_is_the_loads() {
        let mut before = Before::default();
        let size = 90 * BUCKET + 1;
        let first = before.unknown(FILE, &(0..4 * BUCKET), size);
        assert_eq!(first, (0..68).collect::<Vec<_>>());
        for bucket in first {
            before.learn(FILE, bucket, 0);
        }
        // The load brings in its own four and four more.
        let brought: u64 = (0..4).map(|bucket| before.take(FILE, bucket, 256)).sum();
        assert_eq!(brought, 1024);
        let next = 4 * BUCKET..8 * BUCKET;
        let expected: Vec<_> = (68..72).collect();
        assert_eq!(before.unknown(FILE, &next, size), expected);
        assert_eq!(before.take(FILE, 4, 256), 256, "it was not there before");
        assert_eq!(before.take(FILE, 4, 256), 0, "counted once");
        let end = 89 * BUCKET..size;
        assert_eq!(before.unknown(FILE, &end, size), [89, 90]);
    }

    #[test]
    fn what_was_there_is_not_and_what_is_dropped_is_counted_anew() {
        let mut before = Before::default();
        before.learn(FILE, 7, 200);
        assert_eq!(before.take(FILE, 7, 256), 56);
        before.learn(FILE, 7, 256);
        before.forget(FILE, &(bytes(7).start + 1..bytes(7).start + 2));
        assert_eq!(before.unknown(FILE, &bytes(7), 8 * BUCKET), [7]);
        for bucket in 0..3 * MOST as u64 {
            before.learn(FILE, bucket, 0);
        }
        assert!(before.0.len() <= MOST);
    }
}
