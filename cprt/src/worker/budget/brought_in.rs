//! How much of the page cache this worker has filled: an estimate, because the kernel reclaims pages without
//! notification.
//!
//! Pages that loads and misses bring in count as the worker's until they are dropped. Pages that should have been
//! dropped but stay, as processes map them, are left to the kernel, which reclaims them when it needs memory: they are
//! no longer ours, until they are loaded again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ppc::FileId;

use crate::backend::{Evicted, Span};
use crate::machine::ranges::Ranges;

/// Upper bound on files with pages left to the kernel: for more, those pages still count as ours.
const MOST_FILES: usize = 1 << 12;

/// The estimate.
#[derive(Debug, Default)]
pub(super) struct BroughtIn {
    bytes: AtomicI64,
    left: Mutex<HashMap<FileId, Ranges>>,
    /// Whether `left` has any: mostly not, and there are many events.
    any_left: AtomicBool,
}

impl BroughtIn {
    pub(super) fn bytes(&self) -> u64 {
        u64::try_from(self.bytes.load(Relaxed)).unwrap_or(0)
    }

    /// Notes that a range has come in, of which `fresh` bytes were not cached before.
    pub(super) fn came(&self, span: Span, fresh: u64) {
        let back = if self.any_left.load(Relaxed) {
            self.take_back(span)
        } else {
            0
        };
        self.moved(fresh.max(back).min(span.length).cast_signed());
    }

    /// Takes a range back from the kernel; returns how many bytes of it had been left.
    fn take_back(&self, span: Span) -> u64 {
        let mut left = self.lock();
        let Some(ranges) = left.get_mut(&span.file) else {
            return 0;
        };
        let back = ranges.within(&span.range());
        ranges.remove(&span.range());
        if ranges.is_empty() {
            left.remove(&span.file);
        }
        self.any_left.store(!left.is_empty(), Relaxed);
        back
    }

    /// Notes how much of a range has been dropped.
    pub(super) fn went(&self, span: Span, evicted: Evicted) {
        let length = span.length.max(1);
        let before = self.take_back(span).min(length);
        if evicted.kept > 0 {
            let mut left = self.lock();
            if left.len() < MOST_FILES || left.contains_key(&span.file) {
                left.entry(span.file).or_default().insert(&span.range());
                self.any_left.store(true, Relaxed);
            }
        }
        // Bytes that had been left before were subtracted then; which of them are in it is unknown, so in proportion.
        let all = u128::from(evicted.dropped + evicted.kept);
        let counted = all * u128::from(length - before) / u128::from(length);
        self.moved(-i64::try_from(counted).unwrap_or(i64::MAX));
    }

    /// Caps the estimate: `there` bytes are cached in all, including those left to the kernel, which
    /// `resident` counts.
    pub(super) fn at_most(&self, there: u64, resident: impl Fn(Span) -> u64) {
        let spans: Vec<Span> = {
            let left = self.lock();
            let spans = left.iter().flat_map(|(&file, ranges)| {
                ranges.iter().map(move |range| Span {
                    file,
                    offset: range.start,
                    length: range.end - range.start,
                })
            });
            spans.collect()
        };
        let left: u64 = spans.into_iter().map(resident).sum();
        // Other processes may have brought in some of it, so the estimate never grows here.
        let most = i64::try_from(there.saturating_sub(left)).unwrap_or(i64::MAX);
        self.bytes.fetch_min(most, Relaxed);
    }

    fn moved(&self, bytes: i64) {
        let after = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        if after < 0 {
            // We dropped what other processes had brought in.
            self.bytes.fetch_max(0, Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Ranges>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(offset: u64, length: u64) -> Span {
        Span {
            file: FileId(1),
            offset,
            length,
        }
    }

    fn evicted(dropped: u64, kept: u64) -> Evicted {
        Evicted { dropped, kept }
    }

    #[test]
    fn undropped_pages_are_not_counted_until_reloaded() {
        let ours = BroughtIn::default();
        ours.came(span(0, 100), 100);
        ours.came(span(100, 100), 40);
        assert_eq!(ours.bytes(), 140);
        ours.went(span(0, 100), evicted(0, 100));
        assert_eq!(ours.bytes(), 40);
        // Only the first drop counts, and pages dropped later are no longer ours.
        ours.went(span(0, 100), evicted(0, 100));
        ours.went(span(0, 50), evicted(50, 0));
        assert_eq!(ours.bytes(), 40);
        // What a later load brings in is ours again.
        ours.came(span(0, 100), 50);
        assert_eq!(ours.bytes(), 90);
        ours.went(span(0, 200), evicted(200, 0));
        assert_eq!(ours.bytes(), 0);
    }

    #[test]
    fn count_is_corrected_after_kernel_reclaim() {
        let ours = BroughtIn::default();
        ours.came(span(0, 300), 300);
        ours.went(span(0, 100), evicted(0, 100));
        // The kernel has reclaimed all of that, and half of the rest.
        ours.at_most(100, |left| {
            assert_eq!(left, span(0, 100));
            0
        });
        assert_eq!(ours.bytes(), 100);
        ours.at_most(150, |_| 100);
        assert_eq!(ours.bytes(), 50);
        ours.at_most(150, |_| 0);
        assert_eq!(ours.bytes(), 50, "never more than before");
    }
}
