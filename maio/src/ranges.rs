//! A set of pages of a file, as ranges that neither overlap nor touch.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

/// The ranges, each end by its start. A tree, as workers that read their tensors by name come to a file's
/// ranges in any order, and headers can make up any number of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    ends: BTreeMap<u32, u32>,
    pages: u64,
}

impl Ranges {
    /// Adds a range, and passes its new parts to `new` in order.
    pub(crate) fn insert(&mut self, range: &Range<u32>, mut new: impl FnMut(Range<u32>)) {
        if range.is_empty() {
            return;
        }
        let pages = &mut self.pages;
        let mut add = |part: Range<u32>| {
            *pages += u64::from(part.end - part.start);
            new(part);
        };
        let (mut at, mut joined) = (range.start, range.clone());
        if let Some((&start, end)) = self.ends.range_mut(..=range.start).next_back()
            && *end >= range.start
        {
            if *end >= range.end {
                return;
            }
            at = *end;
            joined.start = start;
        }
        let touching = (Bound::Excluded(range.start), Bound::Included(range.end));
        while let Some((&start, &end)) = self.ends.range(touching).next() {
            if at < start {
                add(at..start);
            }
            at = at.max(end);
            joined.end = joined.end.max(end);
            self.ends.remove(&start);
        }
        if at < range.end {
            add(at..range.end);
        }
        self.ends.insert(joined.start, joined.end);
    }

    /// Takes a range out.
    pub(crate) fn remove(&mut self, range: &Range<u32>) {
        if range.is_empty() {
            return;
        }
        let parts: Vec<_> = self.parts_in(range).collect();
        for part in parts {
            self.pages -= u64::from(part.end - part.start);
            // A part lies in one range.
            let Some((&start, &end)) = self.ends.range(..=part.start).next_back() else {
                continue;
            };
            self.ends.remove(&start);
            if start < part.start {
                self.ends.insert(start, part.start);
            }
            if part.end < end {
                self.ends.insert(part.end, end);
            }
        }
    }

    /// The ranges in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u32>> {
        self.ends.iter().map(|(&start, &end)| start..end)
    }

    /// Adds all of another set.
    pub(crate) fn extend(&mut self, other: &Self) {
        for (&start, &end) in &other.ends {
            self.insert(&(start..end), |_| {});
        }
    }

    /// How many pages of a range are in the set.
    #[must_use]
    pub(crate) fn pages_in(&self, range: &Range<u32>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let before = self.ends.range(..=range.start).next_back();
        let after = self
            .ends
            .range((Bound::Excluded(range.start), Bound::Excluded(range.end)));
        let length = |(&start, &end): (&u32, &u32)| {
            let (start, end) = (start.max(range.start), end.min(range.end));
            u64::from(end.saturating_sub(start))
        };
        before.into_iter().chain(after).map(length).sum()
    }

    /// The parts of a range that are in the set.
    pub(crate) fn parts_in(&self, range: &Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let (from, to) = (range.start, range.end);
        let before = self.ends.range(..=from).next_back();
        let after = self
            .ends
            .range((Bound::Excluded(from), Bound::Excluded(to.max(from + 1))));
        let part = move |(&start, &end): (&u32, &u32)| start.max(from)..end.min(to);
        before
            .into_iter()
            .chain(after)
            .map(part)
            .filter(|part| !part.is_empty())
    }

    /// How many pages are in the set.
    #[must_use]
    pub(crate) const fn pages(&self) -> u64 {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_behave_like_a_set_of_pages(
            ranges in prop::collection::vec((0_u32..60, 0_u32..20), 0..20),
            taken in prop::collection::vec((0_u32..60, 0_u32..20), 0..5),
        ) {
            let (mut set, mut model) = (Ranges::default(), BTreeSet::new());
            for (start, length) in ranges {
                let range = start..start + length;
                let expected: Vec<_> = range.clone().filter(|&it| model.insert(it)).collect();
                let mut new = Vec::new();
                set.insert(&range, |part| new.extend(part));
                prop_assert_eq!(new, expected);
                let all: Vec<_> = set.ends.iter().flat_map(|(&start, &end)| start..end).collect();
                prop_assert_eq!(all, model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.pages(), model.len() as u64);
                for of in [0..80, range.clone(), range.start / 2..range.end / 2 + 1] {
                    prop_assert_eq!(set.pages_in(&of), model.range(of.clone()).count() as u64);
                }
                let ends: Vec<_> = set.ends.iter().collect();
                prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
            let mut copy = Ranges::default();
            copy.extend(&set);
            prop_assert_eq!(&copy, &set);
            for (start, length) in taken {
                let range = start..start + length;
                set.remove(&range);
                model.retain(|page| !range.contains(page));
                let all: Vec<_> = set.iter().flatten().collect();
                prop_assert_eq!(all, model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.pages(), model.len() as u64);
            }
        }
    }
}
