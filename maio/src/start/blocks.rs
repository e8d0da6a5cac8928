//! Predicts what a start without a record reads next of a large file: the block around each page that it touches, and
//! while it goes through blocks in order, the next ones. Pure.
//!
//! The kernel soon stops reading ahead of a mapping whose pages are touched here and there, as those of code are, and
//! then each of them waits for the disk by itself. Ahead of a reader in order it keeps 128 KiB, unless the machine is
//! configured to keep far more: then it needs no help.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::extent::{Extent, PAGE};

/// Upper bound on the pages of a small file.
const SMALL: u32 = 1024;
/// Pages of a block. Half and twice as many did not make a start of torch faster.
const BLOCK: u32 = 128;
/// Upper bound on the blocks that are asked for ahead: as much as a fast disk has under way.
const AHEAD: u32 = 64;

/// Lower bound on the pages that the kernel brings in at once where it reads far enough ahead by itself.
const FAR: u32 = 1024;

/// The blocks of one file.
#[derive(Debug)]
struct Blocks {
    /// Of the file.
    pages: u32,
    touched: BTreeSet<u32>,
    asked: BTreeSet<u32>,
}

impl Blocks {
    const fn new(pages: u32) -> Self {
        Self {
            pages,
            touched: BTreeSet::new(),
            asked: BTreeSet::new(),
        }
    }

    /// The pages to ask for as these have been touched, in order.
    fn touch(&mut self, pages: &Range<u32>) -> Vec<Range<u32>> {
        let end = pages.end.min(self.pages);
        let Some(last) = end.checked_sub(1).filter(|last| pages.start <= *last) else {
            return Vec::new();
        };
        let blocks = pages.start / BLOCK..=last / BLOCK;
        if pages.end - pages.start >= FAR {
            self.touched.extend(blocks.clone());
            self.asked.extend(blocks);
            return Vec::new();
        }
        let mut wanted = Vec::new();
        for block in blocks {
            if self.touched.insert(block) {
                wanted.extend(block..=block + self.ahead(block));
            }
        }
        let end = self.pages.div_ceil(BLOCK);
        wanted.retain(|&block| block < end && self.asked.insert(block));
        let pages = |block: u32| block * BLOCK..(block + 1).saturating_mul(BLOCK).min(self.pages);
        wanted.into_iter().map(pages).collect()
    }

    /// How many blocks to keep ahead of this one: as many as have been touched in order before it.
    fn ahead(&self, block: u32) -> u32 {
        let before = (block.saturating_sub(AHEAD)..block).rev();
        let before = before.take_while(|before| self.touched.contains(before));
        u32::try_from(before.count()).unwrap_or(AHEAD)
    }
}

/// The large files that have been touched, by their numbers.
#[derive(Debug, Default)]
pub(super) struct LargeFiles(HashMap<u32, Blocks>);

impl LargeFiles {
    /// What to ask for as these pages of a file of `size` bytes have been touched, in order.
    pub(super) fn touch(&mut self, touched: &Extent, size: u64) -> Vec<Extent> {
        let pages = u32::try_from(size.div_ceil(PAGE)).unwrap_or(u32::MAX);
        if pages <= SMALL {
            return Vec::new();
        }
        let blocks = self.0.entry(touched.file);
        let blocks = blocks.or_insert_with(|| Blocks::new(pages));
        let extent = |pages: Range<u32>| Extent {
            file: touched.file,
            first: pages.start,
            pages: pages.end - pages.start,
        };
        let wanted = blocks.touch(&(touched.first..touched.end())).into_iter();
        wanted.map(extent).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 4000 * PAGE - 5;

    /// What is asked for as these pages are touched, as first page and the one after the last.
    fn touched(files: &mut LargeFiles, first: u32, pages: u32) -> Vec<(u32, u32)> {
        let extent = Extent {
            file: 7,
            first,
            pages,
        };
        let asked = files.touch(&extent, SIZE).into_iter();
        asked.map(|it| (it.first, it.end())).collect()
    }

    #[test]
    fn touched_block_is_loaded_once_and_clipped_to_the_file() {
        let mut files = LargeFiles::default();
        assert_eq!(touched(&mut files, 300, 1), [(256, 384)]);
        assert!(touched(&mut files, 256, 128).is_empty());
        assert_eq!(touched(&mut files, 5, 1), [(0, 128)]);
        assert_eq!(touched(&mut files, 3999, 9), [(3968, 4000)]);
        assert!(touched(&mut files, 4000, 9).is_empty());
    }

    #[test]
    fn sequential_touches_load_ahead_as_much_as_was_read() {
        let mut files = LargeFiles::default();
        let mut blocks = |block: u32| touched(&mut files, block * BLOCK, 1).len();
        let asked: Vec<_> = (0..8).map(&mut blocks).collect();
        assert_eq!(asked, [1, 2, 2, 2, 2, 2, 2, 2]);
        assert_eq!(blocks(20), 1);
    }

    #[test]
    fn blocks_loaded_ahead_are_limited() {
        let mut blocks = Blocks::new(1000 * BLOCK);
        let most = (0..500).map(|block| blocks.touch(&(block * BLOCK..block * BLOCK + 1)));
        let last = most.flatten().last().expect("it asks");
        assert_eq!(last.start / BLOCK, 499 + AHEAD);
    }

    #[test]
    fn large_kernel_readahead_suppresses_loads() {
        let mut files = LargeFiles::default();
        assert!(touched(&mut files, 0, FAR).is_empty());
        assert!(touched(&mut files, 16, 16).is_empty(), "it has been read");
        assert!(touched(&mut files, FAR, FAR).is_empty());
        assert_eq!(
            touched(&mut files, 3 * FAR, 1),
            [(3072, 3200)],
            "it came alone"
        );
    }

    #[test]
    fn small_files_are_left_to_others() {
        let extent = Extent {
            file: 7,
            first: 0,
            pages: 9,
        };
        assert!(LargeFiles::default().touch(&extent, 100 * PAGE).is_empty());
    }

    proptest! {
        #[test]
        fn every_touched_page_is_requested_and_none_twice(
            touches in prop::collection::vec((0_u32..5000, 1_u32..300), 1..40),
        ) {
            let mut files = LargeFiles::default();
            let mut asked = BTreeSet::new();
            for (first, pages) in touches {
                for (from, to) in touched(&mut files, first, pages) {
                    prop_assert!((from..to).all(|page| page < 4000 && asked.insert(page)));
                }
                let mut inner = first..(first + pages).min(4000);
                prop_assert!(inner.all(|page| asked.contains(&page)));
            }
        }
    }
}
