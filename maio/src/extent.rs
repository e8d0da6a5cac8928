//! A range of a file in whole pages, the unit of all of MAIO.

use std::ops::Range;

/// The unit that ranges are counted in. Machines with larger pages have multiples of it.
pub const PAGE: u64 = 4096;

/// Consecutive pages of a file. The type is small, because a template has hundreds of thousands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// The file, by its index in the table of files that goes with it.
    pub file: u32,
    /// The first page.
    pub first: u32,
    /// How many; none only in a part that is cut off.
    pub pages: u32,
}

impl Extent {
    /// The pages that this range of bytes touches; `None` if it is empty or beyond the largest page number.
    #[must_use]
    pub fn of_bytes(file: u32, bytes: &Range<u64>) -> Option<Self> {
        let first = u32::try_from(bytes.start / PAGE).ok()?;
        let end = u32::try_from(bytes.end.div_ceil(PAGE)).ok()?;
        (bytes.start < bytes.end).then(|| Self {
            file,
            first,
            pages: end - first,
        })
    }

    /// The page after the last one.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.first.saturating_add(self.pages)
    }

    /// Its pages before this one, and the others.
    #[must_use]
    pub(crate) fn cut(&self, page: u32) -> (Self, Self) {
        let at = page.clamp(self.first, self.end());
        let before = Self {
            pages: at - self.first,
            ..*self
        };
        let rest = Self {
            first: at,
            pages: self.end() - at,
            ..*self
        };
        (before, rest)
    }

    /// Where it begins, in bytes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.first as u64 * PAGE
    }

    /// How long it is, in bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.pages as u64 * PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_rounded_out_to_pages() {
        let of = |bytes: Range<u64>| Extent::of_bytes(3, &bytes).map(|it| (it.first, it.pages));
        assert_eq!(of(0..1), Some((0, 1)));
        assert_eq!(of(4095..4097), Some((0, 2)));
        assert_eq!(of(4096..8192), Some((1, 1)));
        assert_eq!(of(5..5), None);
        assert_eq!(of(0..u64::MAX), None);
    }

    #[test]
    fn an_extent_is_cut_at_a_page_within_it() {
        let extent = |first, pages| Extent {
            file: 3,
            first,
            pages,
        };
        let all = extent(10, 5);
        assert_eq!(all.cut(12), (extent(10, 2), extent(12, 3)));
        assert_eq!(all.cut(3), (extent(10, 0), all));
        assert_eq!(all.cut(20), (all, extent(15, 0)));
    }
}
