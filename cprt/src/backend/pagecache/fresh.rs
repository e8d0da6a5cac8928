//! How much a load has brought in. Pure: the caller counts pages.
//!
//! Pages that are cached when a load comes to a place may have come in with the previous load: the kernel
//! reads ahead. So the pages are counted some way ahead, before the kernel gets there, and all that have
//! been added when the place has been loaded count as the load's. Where no load came, what was counted is looked at
//! again before the next one: another process may have dropped the pages since.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::machine::mappings::Identity;

/// Bytes counted at once.
const BUCKET: u64 = 1 << 20;
/// How far ahead to count: where several threads load the same run, the kernel is ahead of the foremost, by
/// 8 MiB or twice that on nearly all machines.
const AHEAD: u64 = 64 << 20;
/// Upper bound on buckets remembered: enough for as many runs as there may be loads.
const MOST: usize = 16384;
/// How long a count holds: a load under way gets to the buckets ahead of it within that time, or counts them again.
pub(super) const HOLDS: Duration = Duration::from_secs(1);

/// Pages that were there, by file and bucket.
#[derive(Debug, Default)]
pub(super) struct Before(HashMap<(Identity, u64), Count>);

/// The cached pages of a bucket at some time.
#[derive(Clone, Copy, Debug)]
struct Count {
    pages: u64,
    at: Instant,
}

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
    pub(super) fn unknown(
        &self,
        file: Identity,
        range: &Range<u64>,
        size: u64,
        now: Instant,
    ) -> Vec<u64> {
        let end = range.end.saturating_add(AHEAD).min(size);
        let holds = |count: &Count| now.saturating_duration_since(count.at) < HOLDS;
        let unknown = |bucket: &u64| !self.0.get(&(file, *bucket)).is_some_and(holds);
        buckets(&(range.start..end)).filter(unknown).collect()
    }

    /// Notes how many pages of a bucket are cached. Of two counts the lower one stands: the kernel may have read ahead
    /// since the first, and pages that were there may be gone.
    pub(super) fn learn(&mut self, file: Identity, bucket: u64, pages: u64, now: Instant) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let count = self
            .0
            .entry((file, bucket))
            .or_insert(Count { pages, at: now });
        count.pages = count.pages.min(pages);
        count.at = now;
    }

    /// Notes how many pages of a bucket are cached after a load; returns how many are new. The bucket is
    /// counted again the next time.
    pub(super) fn take(&mut self, file: Identity, bucket: u64, pages: u64) -> u64 {
        let before = self.0.remove(&(file, bucket));
        before.map_or(0, |before| pages.saturating_sub(before.pages))
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
    fn readahead_pages_count_once_as_loaded() {
        let (mut before, now) = (Before::default(), Instant::now());
        let size = 90 * BUCKET + 1;
        let first = before.unknown(FILE, &(0..4 * BUCKET), size, now);
        assert_eq!(first, (0..68).collect::<Vec<_>>());
        for bucket in first {
            before.learn(FILE, bucket, 0, now);
        }
        // The load brings in its own four and four more.
        let brought: u64 = (0..4).map(|bucket| before.take(FILE, bucket, 256)).sum();
        assert_eq!(brought, 1024);
        let next = 4 * BUCKET..8 * BUCKET;
        let expected: Vec<_> = (68..72).collect();
        assert_eq!(before.unknown(FILE, &next, size, now), expected);
        assert_eq!(before.take(FILE, 4, 256), 256, "it was not there before");
        assert_eq!(before.take(FILE, 4, 256), 0, "counted once");
        let end = 89 * BUCKET..size;
        assert_eq!(before.unknown(FILE, &end, size, now), [89, 90]);
    }

    #[test]
    fn cached_pages_do_not_count_and_dropped_are_recounted() {
        let (mut before, now) = (Before::default(), Instant::now());
        before.learn(FILE, 7, 200, now);
        assert_eq!(before.take(FILE, 7, 256), 56);
        before.learn(FILE, 7, 256, now);
        before.forget(FILE, &(bytes(7).start + 1..bytes(7).start + 2));
        assert_eq!(before.unknown(FILE, &bytes(7), 8 * BUCKET, now), [7]);
        for bucket in 0..3 * MOST as u64 {
            before.learn(FILE, bucket, 0, now);
        }
        assert!(before.0.len() <= MOST);
    }

    #[test]
    fn an_old_count_is_no_evidence() {
        let (mut before, now) = (Before::default(), Instant::now());
        // A load before it counted what a reader had brought in, and another process has dropped the file since.
        before.learn(FILE, 7, 256, now);
        let unknown = |before: &Before, then| before.unknown(FILE, &bytes(7), 8 * BUCKET, then);
        assert!(unknown(&before, now + HOLDS / 2).is_empty());
        let later = now + HOLDS;
        assert_eq!(unknown(&before, later), [7]);
        before.learn(FILE, 7, 0, later);
        assert_eq!(before.take(FILE, 7, 256), 256);
        // What the kernel has read ahead in the meantime is the load's.
        before.learn(FILE, 7, 16, now);
        before.learn(FILE, 7, 200, later);
        assert_eq!(before.take(FILE, 7, 256), 240);
    }
}
