//! What a start without a record goes on to read of large objects: the block around each page that it touches, and
//! while it goes through them in order, the next ones. Pure.
//!
//! The kernel soon stops reading ahead of a mapping whose pages are touched here and there, as those of code are, and
//! then each of them waits for the disk by itself.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::extent::{Extent, PAGE};

/// Pages of a block: the code that one start of torch touches lies in blocks of this size that it reads most of.
const BLOCK: u32 = 128;
/// Upper bound on the blocks that are asked for ahead.
const AHEAD: u32 = 8;

/// A part of a file that is mapped as one.
#[derive(Debug)]
struct Mapped {
    pages: Range<u32>,
    touched: BTreeSet<u32>,
    asked: BTreeSet<u32>,
}

impl Mapped {
    fn new(range: &Range<u64>) -> Option<Self> {
        let first = u32::try_from(range.start / PAGE).ok()?;
        let end = u32::try_from(range.end.div_ceil(PAGE)).ok()?;
        (first < end).then(|| Self {
            pages: first..end,
            touched: BTreeSet::new(),
            asked: BTreeSet::new(),
        })
    }

    /// The blocks to ask for as these pages have been touched, in order.
    fn touch(&mut self, pages: &Range<u32>) -> Vec<Range<u32>> {
        let inner = pages.start.max(self.pages.start)..pages.end.min(self.pages.end);
        if inner.is_empty() {
            return Vec::new();
        }
        let mut wanted = Vec::new();
        for block in self.block(inner.start)..=self.block(inner.end - 1) {
            if !self.touched.insert(block) {
                continue;
            }
            let before = (0..block).rev().take_while(|it| self.touched.contains(it));
            let ahead = u32::try_from(before.take(AHEAD as usize).count()).unwrap_or(AHEAD);
            let last = self.block(self.pages.end - 1).min(block + ahead);
            wanted.extend((block..=last).filter(|&it| self.asked.insert(it)));
        }
        wanted
            .into_iter()
            .map(|block| self.pages_of(block))
            .collect()
    }

    /// The number of a page's block, from the beginning of the part.
    fn block(&self, page: u32) -> u32 {
        (page - self.pages.start) / BLOCK
    }

    fn pages_of(&self, block: u32) -> Range<u32> {
        let first = self.pages.start + block * BLOCK;
        first..first.saturating_add(BLOCK).min(self.pages.end)
    }
}

/// The large objects that have been examined, by their files' numbers.
#[derive(Debug, Default)]
pub(super) struct LargeObjects(HashMap<u32, Vec<Mapped>>);

impl LargeObjects {
    /// These ranges of a file are mapped, each as one.
    pub(super) fn add(&mut self, file: u32, ranges: &[Range<u64>]) {
        let parts = ranges.iter().filter_map(Mapped::new);
        self.0.entry(file).or_insert_with(|| parts.collect());
    }

    /// What to ask for as these pages have been touched, in order.
    pub(super) fn touch(&mut self, touched: &Extent) -> Vec<Extent> {
        let Some(parts) = self.0.get_mut(&touched.file) else {
            return Vec::new();
        };
        let pages = touched.first..touched.end();
        let wanted = parts.iter_mut().flat_map(|part| part.touch(&pages));
        let extent = |pages: Range<u32>| Extent {
            file: touched.file,
            first: pages.start,
            pages: pages.end - pages.start,
        };
        wanted.map(extent).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: u32 = 7;

    /// What is asked for as these pages are touched, as first page and the one after the last.
    fn touched(objects: &mut LargeObjects, first: u32, pages: u32) -> Vec<(u32, u32)> {
        let extent = Extent {
            file: FILE,
            first,
            pages,
        };
        let asked = objects.touch(&extent).into_iter();
        asked.map(|it| (it.first, it.end())).collect()
    }

    /// An object with parts that end at these offsets, each beginning where the one before ends.
    fn object(ends: &[u64]) -> LargeObjects {
        let starts = std::iter::once(&0).chain(ends);
        let parts: Vec<_> = starts.zip(ends).map(|(&start, &end)| start..end).collect();
        let mut objects = LargeObjects::default();
        objects.add(FILE, &parts);
        objects
    }

    #[test]
    fn the_block_around_a_touched_page_is_asked_for_once_and_ends_with_its_part() {
        let mut objects = object(&[100 * PAGE, 400 * PAGE]);
        assert_eq!(touched(&mut objects, 300, 1), [(228, 356)]);
        assert!(touched(&mut objects, 228, 128).is_empty());
        assert_eq!(touched(&mut objects, 5, 1), [(0, 100)]);
        assert_eq!(touched(&mut objects, 399, 1), [(356, 400)]);
    }

    #[test]
    fn who_goes_on_in_order_is_kept_ahead_of() {
        let mut objects = object(&[100 * u64::from(BLOCK) * PAGE]);
        let mut blocks = |block: u32| touched(&mut objects, block * BLOCK, 1).len();
        let asked: Vec<_> = (0..12).map(&mut blocks).collect();
        assert_eq!(asked, [1, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1]);
        assert_eq!(blocks(50), 1);
    }

    #[test]
    fn nothing_is_asked_for_of_other_files() {
        assert!(touched(&mut LargeObjects::default(), 0, 9).is_empty());
    }

    proptest! {
        #[test]
        fn what_is_touched_is_asked_for_and_nothing_twice(
            touches in prop::collection::vec((0_u32..4096, 1_u32..300), 1..40),
        ) {
            let mut objects = object(&[4000 * PAGE - 5]);
            let mut asked = BTreeSet::new();
            for (first, pages) in touches {
                for (from, to) in touched(&mut objects, first, pages) {
                    prop_assert!((from..to).all(|page| page < 4000 && asked.insert(page)));
                }
                let mut inner = first..(first + pages).min(4000);
                prop_assert!(inner.all(|page| asked.contains(&page)));
            }
        }
    }
}
