//! Collects what one worker reads, in order and each page once.

use std::ops::Range;

use super::tp::Run;
use crate::ranges::Ranges;
use crate::{Extent, PAGE};

/// The size of the largest file whose pages can all be counted.
pub(super) const LARGEST: u64 = u32::MAX as u64 * PAGE;

/// The ranges of one worker.
#[derive(Debug)]
pub(super) struct WorkerPages {
    extents: Vec<Extent>,
    /// Upper bound on the ranges recorded one by one.
    most: usize,
    full: bool,
    file: u32,
    size: u64,
    /// The pages of this file that are already recorded.
    seen: Ranges,
}

impl WorkerPages {
    pub(super) fn new(most: usize) -> Self {
        Self {
            extents: Vec::new(),
            most,
            full: false,
            file: 0,
            size: 0,
            seen: Ranges::default(),
        }
    }

    /// Begins a file; all that follows is read from it.
    pub(super) fn open(&mut self, file: u32, size: u64) {
        (self.file, self.size) = (file, size);
        self.seen = Ranges::default();
    }

    /// Adds the pages that these bytes touch, except those already recorded.
    pub(super) fn take(&mut self, bytes: &Range<u64>) {
        if self.extents.len() >= self.most {
            self.full = true;
            return self.whole();
        }
        self.add(bytes);
    }

    /// The same for bytes at equal distances; if there are too many pieces, the gaps are added as well.
    pub(super) fn take_run(&mut self, run: &Run) {
        let room = self.most.saturating_sub(self.extents.len()) as u64;
        if run.count > room {
            return self.take(&run.span());
        }
        for bytes in run.ranges() {
            self.take(&bytes);
        }
    }

    /// Adds the rest of the file.
    pub(super) fn whole(&mut self) {
        self.add(&(0..self.size));
    }

    pub(super) const fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn finish(self) -> Vec<Extent> {
        self.extents
    }

    fn add(&mut self, bytes: &Range<u64>) {
        let page = |page: u64| u32::try_from(page).unwrap_or(u32::MAX);
        let end = bytes.end.min(self.size);
        if bytes.start >= end {
            return;
        }
        let pages = page(bytes.start / PAGE)..page(end.div_ceil(PAGE));
        let Self {
            extents,
            file,
            seen,
            ..
        } = self;
        seen.insert(&pages, |new| push(extents, *file, &new));
    }
}

/// Appends a range, or extends the last one if the new one follows it directly.
fn push(extents: &mut Vec<Extent>, file: u32, pages: &Range<u32>) {
    if let Some(last) = extents.last_mut()
        && last.file == file
        && last.end() == pages.start
    {
        last.pages = pages.end - last.first;
        return;
    }
    extents.push(Extent {
        file,
        first: pages.start,
        pages: pages.end - pages.start,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(reading: WorkerPages) -> Vec<(u32, u32, u32)> {
        let extents = reading.finish().into_iter();
        extents.map(|it| (it.file, it.first, it.pages)).collect()
    }

    #[test]
    fn adjacent_ranges_merge_and_no_page_is_repeated() {
        let mut reading = WorkerPages::new(100);
        reading.open(0, 10 * PAGE);
        reading.take(&(0..100));
        reading.take(&(100..PAGE + 1));
        reading.take(&(8 * PAGE..8 * PAGE + 1));
        reading.take(&(PAGE..3 * PAGE));
        reading.take(&(5..5));
        reading.take(&(20 * PAGE..30 * PAGE));
        reading.whole();
        reading.open(1, PAGE + 1);
        reading.whole();
        let expected = [(0, 0, 2), (0, 8, 1), (0, 2, 6), (0, 9, 1), (1, 0, 2)];
        assert_eq!(pages(reading), expected);
    }

    #[test]
    fn after_too_many_ranges_the_file_is_taken_whole() {
        let mut reading = WorkerPages::new(3);
        reading.open(0, 100 * PAGE);
        for page in [10, 20, 30, 40, 50] {
            reading.take(&(page * PAGE..(page + 1) * PAGE));
        }
        assert!(reading.is_full());
        let all: u32 = reading.extents.iter().map(|extent| extent.pages).sum();
        assert_eq!(all, 100);
        assert_eq!(reading.extents.len(), 7);

        let mut reading = WorkerPages::new(3);
        reading.open(0, 100 * PAGE);
        let run = Run {
            start: 0,
            length: PAGE,
            step: 10 * PAGE,
            count: 5,
        };
        reading.take_run(&run);
        assert_eq!(pages(reading), [(0, 0, 41)]);
    }

    #[test]
    fn sizes_beyond_all_reason_are_cut() {
        let mut reading = WorkerPages::new(3);
        reading.open(0, u64::MAX);
        reading.take(&(u64::MAX - 5..u64::MAX));
        reading.whole();
        assert_eq!(pages(reading), [(0, 0, u32::MAX)]);
    }
}
