//! Completes recordings of tensors that were read. Pure.
//!
//! Without the module the kernel does not report all pages that a process reads through a mapping. No worker
//! reads most of a tensor and leaves out the rest: one that reads a slice leaves out at least half. So a
//! tensor of which nearly all is recorded was read whole.

use std::collections::HashMap;
use std::ops::Range;

use crate::extent::Extent;
use crate::ranges::Ranges;

/// The recorded part of a unit, in eighths, from which on it counts as read.
const NEARLY: u64 = 7;

/// The recorded extents in order, with the gaps in nearly complete units appended; and how many pages those gaps have.
/// `units` returns the ranges of pages of a file that are read as a whole.
pub(crate) fn complete(
    extents: Vec<Extent>,
    mut units: impl FnMut(u32) -> Vec<Range<u32>>,
) -> (Vec<Extent>, u64) {
    let mut read: HashMap<u32, Ranges> = HashMap::new();
    for extent in &extents {
        let ranges = read.entry(extent.file).or_default();
        ranges.insert(&(extent.first..extent.end()), |_| {});
    }
    let mut gaps = Vec::new();
    for (&file, ranges) in &mut read {
        for unit in units(file) {
            let pages = u64::from(unit.end.saturating_sub(unit.start));
            if ranges.pages_in(&unit) * 8 < pages * NEARLY {
                continue;
            }
            ranges.insert(&unit, |part| {
                gaps.push(Extent {
                    file,
                    first: part.start,
                    pages: part.end - part.start,
                });
            });
        }
    }
    let added = gaps.iter().map(|gap| u64::from(gap.pages)).sum();
    (fill(extents, &gaps), added)
}

/// Each gap is read when what is before it is; when what is behind it is, if nothing is before.
fn fill(mut extents: Vec<Extent>, gaps: &[Extent]) -> Vec<Extent> {
    let places = |of: fn(&Extent) -> u32| -> HashMap<(u32, u32), usize> {
        let keyed = extents.iter().zip(0..);
        keyed.map(|(it, at)| ((it.file, of(it)), at)).collect()
    };
    let (ends, starts) = (places(Extent::end), places(|it| it.first));
    for gap in gaps {
        if let Some(&at) = ends.get(&(gap.file, gap.first)) {
            extents[at].pages += gap.pages;
        } else if let Some(&at) = starts.get(&(gap.file, gap.end())) {
            extents[at].first = gap.first;
            extents[at].pages += gap.pages;
        }
    }
    let goes_on = |last: &Extent, next: &Extent| last.file == next.file && last.end() == next.first;
    let mut joined: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents {
        match joined.last_mut() {
            Some(last) if goes_on(last, &extent) => last.pages += extent.pages,
            _ => joined.push(extent),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn extent(file: u32, first: u32, pages: u32) -> Extent {
        Extent { file, first, pages }
    }

    #[test]
    fn holes_in_tensors_are_filled_where_they_are() {
        let units = |file| match file {
            1 => vec![0..1, 1..101, 101..201, 201..301],
            _ => Vec::new(),
        };
        let read = vec![
            // From its end to its beginning, and a hole of five pages, and the first two.
            extent(1, 160, 41),
            extent(1, 103, 52),
            // Half of it, as a slice is.
            extent(1, 1, 50),
            extent(2, 0, 99),
            extent(2, 100, 100),
        ];
        let expected = vec![
            extent(1, 160, 41),
            extent(1, 101, 59),
            extent(1, 1, 50),
            extent(2, 0, 99),
            extent(2, 100, 100),
        ];
        assert_eq!(complete(read, units), (expected, 7));
    }

    #[test]
    fn filled_gap_joins_its_neighbours_into_one_range() {
        let whole = |_| std::iter::once(0..100).collect();
        let read = vec![extent(1, 0, 60), extent(1, 64, 36)];
        assert_eq!(complete(read, whole), (vec![extent(1, 0, 100)], 4));
        assert_eq!(complete(Vec::new(), whole), (Vec::new(), 0));
    }

    proptest! {
        #[test]
        fn completion_keeps_all_pages_and_lists_each_once(
            cuts in prop::collection::btree_set(0_u32..400, 0..40),
            tensors in prop::collection::btree_set(0_u32..400, 2..10),
        ) {
            let cuts: Vec<_> = cuts.into_iter().collect();
            let read: Vec<_> = cuts
                .chunks_exact(2)
                .map(|pair| extent(1, pair[0], pair[1] - pair[0]))
                .collect();
            let tensors: Vec<_> = tensors.into_iter().collect();
            let units: Vec<_> = tensors.windows(2).map(|pair| pair[0]..pair[1]).collect();
            let pages = |extents: &[Extent]| -> Vec<u32> {
                extents.iter().flat_map(|it| it.first..it.end()).collect()
            };
            let before: BTreeSet<_> = pages(&read).into_iter().collect();
            let (all, added) = complete(read, |_| units.clone());
            let listed = pages(&all);
            let after: BTreeSet<_> = listed.iter().copied().collect();
            prop_assert_eq!(listed.len(), after.len(), "each page once");
            prop_assert!(after.is_superset(&before));
            prop_assert_eq!(after.len() - before.len(), usize::try_from(added).expect("few"));
            for unit in units {
                let of = |pages: &BTreeSet<u32>| pages.range(unit.clone()).count();
                let nearly = of(&before) * 8 >= unit.len() * 7;
                let expected = if nearly { unit.len() } else { of(&before) };
                prop_assert_eq!(of(&after), expected);
            }
        }
    }
}
