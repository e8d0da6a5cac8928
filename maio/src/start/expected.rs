//! What the next start will read, predicted from the last ones. Pure.
//!
//! Two starts read nearly the same, never exactly: names of temporary files, hash seeds, an odd run in between.
//! Ranges that two of the last three did not read are left out; the order is that of the newest one.

use std::collections::HashMap;

use crate::extent::Extent;
use crate::ranges::Ranges;

/// Upper bound on the pages between two ranges of a file that are loaded as one: those pages cost less than
/// another request.
const GAP: u32 = 64;
/// Upper bound on the pages of one range to load, or the beginning of a file would bring in all of it.
const LONGEST: u32 = 1024;

/// What one start read, by file.
type Pages = HashMap<u32, Ranges>;

fn pages_of(start: &[Extent]) -> Pages {
    let mut pages = Pages::new();
    for extent in start {
        let file = pages.entry(extent.file).or_default();
        file.insert(&(extent.first..extent.end()), |_| {});
    }
    pages
}

/// What to load for the next start, in order, from the reads of the last ones, the newest first.
pub(super) fn ahead(starts: &[Vec<Extent>]) -> Vec<Extent> {
    joined(expected(starts))
}

/// What will be read, in order. The newest start comes first.
fn expected(starts: &[Vec<Extent>]) -> Vec<Extent> {
    let pages: Vec<_> = starts.iter().map(|start| pages_of(start)).collect();
    let mut order = Vec::new();
    let mut done = Pages::new();
    for (number, start) in starts.iter().enumerate() {
        for extent in start {
            let others = || {
                pages
                    .iter()
                    .enumerate()
                    .filter(|&(other, _)| other != number)
            };
            // A file that only the newest start read is new, as after an upgrade.
            let is_new =
                number == 0 && others().all(|(_, other)| !other.contains_key(&extent.file));
            let whole = extent.first..extent.end();
            let mut add = |part: std::ops::Range<u32>| {
                done.entry(extent.file).or_default().insert(&part, |part| {
                    order.push(Extent {
                        file: extent.file,
                        first: part.start,
                        pages: part.end - part.start,
                    });
                });
            };
            if starts.len() < 3 || is_new {
                add(whole);
                continue;
            }
            for (_, other) in others() {
                if let Some(ranges) = other.get(&extent.file) {
                    ranges.parts_in(&whole).for_each(&mut add);
                }
            }
        }
    }
    order
}

/// Joins ranges that lie close together in a file, at the place of the first of them.
fn joined(order: Vec<Extent>) -> Vec<Extent> {
    let mut numbered: Vec<(usize, Extent)> = order.into_iter().enumerate().collect();
    numbered.sort_unstable_by_key(|(_, extent)| (extent.file, extent.first));
    let mut ranges: Vec<(usize, Extent)> = Vec::new();
    for (number, extent) in numbered {
        if let Some((first, last)) = ranges.last_mut()
            && last.file == extent.file
            && extent.first <= last.end().saturating_add(GAP)
            && extent.end() - last.first <= LONGEST
        {
            last.pages = last.end().max(extent.end()) - last.first;
            *first = number.min(*first);
        } else {
            ranges.push((number, extent));
        }
    }
    ranges.sort_unstable_by_key(|&(number, _)| number);
    ranges.into_iter().map(|(_, extent)| extent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(file: u32, first: u32, pages: u32) -> Extent {
        Extent { file, first, pages }
    }

    #[test]
    fn one_start_or_two_are_taken_as_they_are() {
        let one = vec![extent(1, 0, 4), extent(2, 0, 4)];
        assert_eq!(expected(std::slice::from_ref(&one)), one);
        let other = vec![extent(3, 0, 1), extent(1, 2, 4)];
        let both = [
            extent(1, 0, 4),
            extent(2, 0, 4),
            extent(3, 0, 1),
            extent(1, 4, 2),
        ];
        assert_eq!(expected(&[one, other]), both);
    }

    #[test]
    fn pages_read_by_only_one_of_three_starts_are_dropped() {
        let starts = [
            vec![extent(1, 0, 8), extent(2, 0, 4)],
            vec![extent(2, 2, 4), extent(1, 0, 2)],
            vec![extent(1, 4, 2), extent(2, 4, 4)],
        ];
        let kept = [
            extent(1, 0, 2),
            extent(1, 4, 2),
            extent(2, 2, 2),
            extent(2, 4, 2),
        ];
        assert_eq!(expected(&starts), kept);
    }

    #[test]
    fn an_odd_run_spoils_nothing_and_a_new_file_is_learned_at_once() {
        let usual = vec![extent(1, 0, 8), extent(2, 0, 8)];
        let odd = vec![extent(9, 0, 100)];
        let after_odd = expected(&[odd.clone(), usual.clone(), usual.clone()]);
        assert_eq!(after_odd, [odd.clone(), usual.clone()].concat());
        let later = expected(&[usual.clone(), odd, usual.clone()]);
        assert_eq!(later, usual);
        let upgraded = vec![extent(1, 0, 8), extent(7, 0, 8)];
        assert_eq!(
            expected(&[upgraded.clone(), usual.clone(), usual])[..2],
            upgraded
        );
    }

    #[test]
    fn nearby_extents_are_merged_into_one_load() {
        let order = vec![
            extent(1, 100, 4),
            extent(2, 0, 1),
            extent(1, 0, 4),
            extent(1, 40, 4),
            extent(1, 300, 1),
        ];
        let expected = [extent(1, 0, 104), extent(2, 0, 1), extent(1, 300, 1)];
        assert_eq!(joined(order), expected);
        let long: Vec<_> = (0..64).map(|at| extent(1, at * 32, 32)).collect();
        assert_eq!(joined(long), [extent(1, 0, 1024), extent(1, 1024, 1024)]);
    }
}
