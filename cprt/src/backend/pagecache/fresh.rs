//! How much a load has brought in. Pure: the caller counts pages.
//!
//! Pages that are cached when a load comes to a place may have come in with the previous load: the kernel
//! reads ahead. So the pages are counted some way ahead, before the kernel gets there, and all that have
//! been added when the place has been loaded count as the load's. Where no load came, what was counted is looked at
//! again before the next one: another process may have dropped the pages since.
//!
//! Several loads may be in the same bucket at once, and none of them gets more than it asked for: what is left over
//! is another's, which has it still in flight, or will come for it.

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

/// The cached pages of a bucket that no load is still to be credited with.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// `None` before they have been counted.
    pages: Option<u64>,
    /// When they were counted last.
    at: Option<Instant>,
    /// How many loads of some of them are in flight.
    loads: u32,
}

/// The length of what two ranges share.
pub(super) fn shared(one: &Range<u64>, other: &Range<u64>) -> u64 {
    let end = one.end.min(other.end);
    end.saturating_sub(one.start.max(other.start))
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
    /// Notes that a load of this range begins: it takes from each of its buckets once, whatever becomes of it.
    pub(super) fn begin(&mut self, file: Identity, range: &Range<u64>) {
        self.make_room();
        for bucket in buckets(range) {
            self.0.entry((file, bucket)).or_default().loads += 1;
        }
    }

    fn make_room(&mut self) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
    }

    /// The buckets to count before a load of this range of a file of that size begins.
    pub(super) fn unknown(
        &self,
        file: Identity,
        range: &Range<u64>,
        size: u64,
        now: Instant,
    ) -> Vec<u64> {
        let end = range.end.saturating_add(AHEAD).min(size);
        let is_new = |at| now.saturating_duration_since(at) < HOLDS;
        let holds = |count: &Count| count.at.is_some_and(is_new);
        let unknown = |bucket: &u64| !self.0.get(&(file, *bucket)).is_some_and(holds);
        buckets(&(range.start..end)).filter(unknown).collect()
    }

    /// Notes how many pages of a bucket are cached. Of two counts the lower one stands: the kernel may have read ahead
    /// since the first, and pages that were there may be gone.
    pub(super) fn learn(&mut self, file: Identity, bucket: u64, pages: u64, now: Instant) {
        self.make_room();
        let count = self.0.entry((file, bucket)).or_default();
        count.pages = Some(count.pages.map_or(pages, |before| before.min(pages)));
        count.at = Some(now);
    }

    /// Notes how many pages of a bucket are cached after a load of `most` of them; returns how many are the load's.
    /// Where none is left for another load, the bucket is counted again the next time.
    pub(super) fn take(&mut self, file: Identity, bucket: u64, pages: u64, most: u64) -> u64 {
        let Some(count) = self.0.get_mut(&(file, bucket)) else {
            return 0;
        };
        let before = count.pages.unwrap_or(pages);
        let new = pages.saturating_sub(before);
        let taken = new.min(most);
        count.pages = Some(before + taken);
        count.loads = count.loads.saturating_sub(1);
        if count.loads == 0 && taken == new {
            self.0.remove(&(file, bucket));
        }
        taken
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
        let brought: u64 = (0..4)
            .map(|bucket| before.take(FILE, bucket, 256, 256))
            .sum();
        assert_eq!(brought, 1024);
        let next = 4 * BUCKET..8 * BUCKET;
        let expected: Vec<_> = (68..72).collect();
        assert_eq!(before.unknown(FILE, &next, size, now), expected);
        assert_eq!(
            before.take(FILE, 4, 256, 256),
            256,
            "it was not there before"
        );
        assert_eq!(before.take(FILE, 4, 256, 256), 0, "counted once");
        let end = 89 * BUCKET..size;
        assert_eq!(before.unknown(FILE, &end, size, now), [89, 90]);
    }

    /// Two loads of a quarter of a bucket each, the kernel ahead of both, and a third after them.
    #[test]
    fn loads_in_the_same_bucket_share_what_came() {
        let (mut before, now) = (Before::default(), Instant::now());
        let quarter = |number: u64| number * BUCKET / 4..(number + 1) * BUCKET / 4;
        let unknown = |before: &Before, number| before.unknown(FILE, &quarter(number), BUCKET, now);
        before.begin(FILE, &quarter(0));
        assert_eq!(unknown(&before, 0), [0]);
        before.begin(FILE, &quarter(1));
        assert_eq!(unknown(&before, 1), [0], "not counted yet");
        before.learn(FILE, 0, 8, now);
        before.learn(FILE, 0, 70, now);
        assert_eq!(before.take(FILE, 0, 128, 64), 64);
        assert_eq!(before.take(FILE, 0, 136, 64), 64, "and 8 were there before");
        // It has been counted before each load that comes in it, and none counts twice.
        before.begin(FILE, &quarter(2));
        assert_eq!(unknown(&before, 2), [0], "none was left over");
        before.learn(FILE, 0, 136, now);
        assert_eq!(before.take(FILE, 0, 256, 64), 64);
        before.begin(FILE, &quarter(3));
        assert!(unknown(&before, 3).is_empty(), "the kernel is ahead of it");
        assert_eq!(before.take(FILE, 0, 256, 64), 56);
        assert!(before.0.is_empty());
    }

    #[test]
    fn a_load_that_fails_takes_nothing_and_leaves_nothing() {
        let (mut before, now) = (Before::default(), Instant::now());
        for _ in 0..2 {
            before.begin(FILE, &bytes(7));
        }
        before.learn(FILE, 7, 0, now);
        assert_eq!(before.take(FILE, 7, 100, 0), 0);
        assert_eq!(before.take(FILE, 7, 256, 256), 256);
        assert!(before.0.is_empty());
    }

    #[test]
    fn cached_pages_do_not_count_and_dropped_are_recounted() {
        let (mut before, now) = (Before::default(), Instant::now());
        before.learn(FILE, 7, 200, now);
        assert_eq!(before.take(FILE, 7, 256, 256), 56);
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
        assert_eq!(before.take(FILE, 7, 256, 256), 256);
        // What the kernel has read ahead in the meantime is the load's.
        before.learn(FILE, 7, 16, now);
        before.learn(FILE, 7, 200, later);
        assert_eq!(before.take(FILE, 7, 256, 256), 240);
    }
}
