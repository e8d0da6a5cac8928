//! Where readers had from what they read, and what no reader did. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::extent::Extent;
use crate::ranges::Ranges;

type Files = BTreeMap<u32, Ranges>;

/// The pages that were asked for, and those that readers missed.
#[derive(Debug, Default)]
pub(super) struct Sources {
    asked: Files,
    /// Asked for, and taken back since.
    back: Files,
    missed: Files,
}

/// Pages by source. The first three are those that were asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Read after they had come.
    pub(crate) used: u64,
    /// Missed by a reader all the same.
    pub(crate) late: u64,
    /// Never read.
    pub(crate) unread: u64,
    /// Missed, and not asked for.
    pub(crate) own: u64,
}

impl Sources {
    pub(super) fn ask(&mut self, extent: &Extent) {
        add(&mut self.asked, extent);
        if let Some(back) = self.back.get_mut(&extent.file) {
            back.remove(&pages(extent));
        }
    }

    /// It will not come any more, if it has not; what a reader has missed before was late.
    pub(super) fn take_back(&mut self, extent: &Extent) {
        let back = self.back.entry(extent.file).or_default();
        back.insert(&pages(extent), |_| {});
        if let Some(missed) = self.missed.get(&extent.file) {
            for part in missed.parts_in(&pages(extent)) {
                back.remove(&part);
            }
        }
    }

    pub(super) fn miss(&mut self, extent: &Extent) {
        add(&mut self.missed, extent);
    }

    /// Whether a page was asked for or missed.
    pub(super) fn has_any(&self) -> bool {
        let all = self.asked.values().chain(self.missed.values());
        all.map(Ranges::pages).any(|pages| pages > 0)
    }

    /// Sorts all pages, those of `read` having been read.
    pub(super) fn figures(&self, read: impl Iterator<Item = (u32, Range<u32>)>) -> Figures {
        let mut hits = Files::new();
        for (file, range) in read {
            hits.entry(file).or_default().insert(&range, |_| {});
        }
        let hits = without(hits, &self.missed);
        // What was read without a miss had come before it was taken back.
        let asked = without(self.asked.clone(), &without(self.back.clone(), &hits));
        let late = common(&asked, &self.missed);
        let used = common(&asked, &hits);
        Figures {
            used,
            late,
            unread: count(&asked) - used - late,
            own: count(&self.missed) - late,
        }
    }
}

impl Figures {
    pub(crate) const fn asked(&self) -> u64 {
        self.used + self.late + self.unread
    }
}

fn pages(extent: &Extent) -> Range<u32> {
    extent.first..extent.end()
}

fn add(files: &mut Files, extent: &Extent) {
    let file = files.entry(extent.file).or_default();
    file.insert(&pages(extent), |_| {});
}

fn count(files: &Files) -> u64 {
    files.values().map(Ranges::pages).sum()
}

/// The pages of these files that are not in the others.
fn without(mut files: Files, others: &Files) -> Files {
    for (file, ranges) in &mut files {
        for range in others.get(file).into_iter().flat_map(Ranges::iter) {
            ranges.remove(&range);
        }
    }
    files
}

/// How many pages are in both.
fn common(one: &Files, other: &Files) -> u64 {
    let of_file = |(file, ranges): (&u32, &Ranges)| {
        let other = other.get(file);
        other.map_or(0, |other| {
            ranges.iter().map(|range| other.pages_in(&range)).sum()
        })
    };
    one.iter().map(of_file).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn extent(first: u32, pages: u32) -> Extent {
        Extent {
            file: 0,
            first,
            pages,
        }
    }

    #[test]
    fn each_page_is_counted_under_one_source() {
        let mut sources = Sources::default();
        assert!(!sources.has_any());
        sources.ask(&extent(0, 100));
        sources.ask(&extent(50, 100));
        sources.miss(&extent(130, 20));
        sources.miss(&extent(130, 30));
        assert!(sources.has_any());
        let other = (1, 0..7);
        let figures = sources.figures([(0, 0..120), other].into_iter());
        let expected = Figures {
            used: 120,
            late: 20,
            unread: 10,
            own: 10,
        };
        assert_eq!((figures, figures.asked()), (expected, 150));
        let none = Sources::default().figures([(0, 0..9)].into_iter());
        assert_eq!(none, Figures::default());
    }

    #[test]
    fn cancelled_pages_count_only_if_they_were_loaded() {
        let mut sources = Sources::default();
        sources.ask(&extent(0, 100));
        sources.miss(&extent(0, 10));
        sources.take_back(&extent(0, 100));
        sources.miss(&extent(10, 5));
        sources.ask(&extent(90, 10));
        // Missed before, missed since, read, never read, asked for again.
        let figures = sources.figures([(0, 0..40)].into_iter());
        let expected = Figures {
            used: 25,
            late: 10,
            unread: 10,
            own: 5,
        };
        assert_eq!(figures, expected);
    }
}
