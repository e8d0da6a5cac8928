//! The touched pages, in the order of first touch. Pure.

use std::collections::HashMap;

use crate::extent::Extent;
use crate::ranges::Ranges;
use crate::template::MAX_EXTENTS;

/// Upper bound on the pages of a range, which grows while touches continue at its end: with longer ranges
/// there would be no order between files that are read side by side.
const LONGEST: u32 = 1024;

/// Pages of files, in an order.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstTouches {
    seen: HashMap<u32, Ranges>,
    order: Vec<Extent>,
    /// The place of each file's last range in the order.
    last: HashMap<u32, usize>,
    pages: u64,
}

impl FirstTouches {
    /// All of these, in this order.
    pub(super) fn of(extents: &[Extent]) -> Self {
        let mut touches = Self::default();
        for extent in extents {
            touches.touch(extent);
        }
        touches
    }

    /// Returns how many pages are new.
    pub(super) fn touch(&mut self, extent: &Extent) -> u64 {
        if self.order.len() >= MAX_EXTENTS {
            return 0;
        }
        let mut parts = Vec::new();
        let seen = self.seen.entry(extent.file).or_default();
        seen.insert(&(extent.first..extent.end()), |part| parts.push(part));
        let mut new = 0;
        for part in parts {
            new += u64::from(part.end - part.start);
            self.add(Extent {
                file: extent.file,
                first: part.start,
                pages: part.end - part.start,
            });
        }
        self.pages += new;
        new
    }

    fn add(&mut self, part: Extent) {
        let last = self
            .last
            .get(&part.file)
            .and_then(|&at| self.order.get_mut(at));
        if let Some(last) = last
            && last.end() == part.first
            && last.pages.saturating_add(part.pages) <= LONGEST
        {
            last.pages += part.pages;
            return;
        }
        self.last.insert(part.file, self.order.len());
        self.order.push(part);
    }

    /// How many pages of a range have been touched.
    pub(super) fn has(&self, extent: &Extent) -> u64 {
        let seen = self.seen.get(&extent.file);
        seen.map_or(0, |seen| seen.pages_in(&(extent.first..extent.end())))
    }

    pub(super) fn order(&self) -> &[Extent] {
        &self.order
    }

    pub(super) const fn pages(&self) -> u64 {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(file: u32, first: u32, pages: u32) -> Extent {
        Extent { file, first, pages }
    }

    #[test]
    fn only_the_first_touch_counts() {
        let mut touches = FirstTouches::default();
        let heard = [
            (extent(1, 10, 2), 2),
            (extent(2, 0, 4), 4),
            (extent(1, 12, 3), 3),
            (extent(1, 11, 2), 0),
            (extent(1, 8, 10), 5),
        ];
        for (heard, new) in heard {
            assert_eq!(touches.touch(&heard), new, "{heard:?}");
        }
        let expected = [
            extent(1, 10, 5),
            extent(2, 0, 4),
            extent(1, 8, 2),
            extent(1, 15, 3),
        ];
        assert_eq!(touches.order(), expected);
        assert_eq!((touches.pages(), touches.has(&extent(1, 0, 12))), (14, 4));
    }

    #[test]
    fn files_that_are_read_side_by_side_take_turns() {
        let mut touches = FirstTouches::default();
        for chunk in 0..64 {
            for file in 0..2 {
                touches.touch(&extent(file, chunk * 32, 32));
            }
        }
        let order = touches.order();
        let files: Vec<_> = order.iter().map(|one| one.file).collect();
        assert_eq!(files, [0, 1, 0, 1]);
    }
}
