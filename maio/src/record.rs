//! What one worker reads, by its events: an ordered list of ranges, each page once. Pure.
//!
//! Events come in pieces, and of several streams at once where a worker has several threads or the
//! kernel reports mappings late. A piece extends one of the last ranges if it touches that, and
//! begins a new one otherwise.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use crate::extent::Extent;
use crate::ranges::Ranges;

/// How many streams of one worker are followed.
const STREAMS: usize = 32;
/// Upper bound on the pages of a small range: a page table of them, in which late parts are found.
const STRIPE: u32 = 512;
/// Upper bound on the pages of a range that may have been just a look at the beginning of a tensor.
const HEAD: u32 = 32;
/// In how many other places the worker must have gone on since for it to have been a look.
const ELSEWHERE: usize = 8;
/// Upper bound on the ranges kept: beyond it, neighbours with the smallest gaps become one.
pub(crate) const MOST_RANGES: usize = 1 << 16;

/// One worker's list.
#[derive(Debug, Default)]
pub(crate) struct Record {
    extents: Vec<Extent>,
    /// The ranges that have grown last, the latest at the end.
    streams: Vec<usize>,
    /// The ranges that begin behind a mere look of the worker.
    bodies: HashSet<usize>,
    seen: HashMap<u32, Ranges>,
    pages: u64,
    /// Ranges that may only have been mapped along with a read, the latest at the end.
    along: VecDeque<(Along, Extent)>,
}

/// On which side of a read the pages are that may only have been mapped along with it.
#[derive(Clone, Copy, Debug)]
enum Along {
    Before,
    Behind,
}

impl Record {
    /// The worker has read the `own` pages of this. Those before and behind may only have been mapped along: they count
    /// if it has read what adjoins them on their other side, or comes to it.
    pub(crate) fn add_part(&mut self, extent: &Extent, own: &Range<u32>) -> u64 {
        let (before, rest) = extent.cut(own.start);
        let (own, behind) = rest.cut(own.end);
        let mut pages = 0;
        if self.has(before.file, before.first.checked_sub(1)) {
            pages += self.add(&before);
        } else {
            self.keep(Along::Before, before);
        }
        pages += self.add(&own);
        if self.has(behind.file, Some(behind.end())) {
            pages += self.add(&behind);
        } else {
            self.keep(Along::Behind, behind);
        }
        pages
    }

    /// Whether the worker has read a page, if there is one.
    fn has(&self, file: u32, page: Option<u32>) -> bool {
        let of = self.seen.get(&file).zip(page);
        of.is_some_and(|(seen, page)| seen.pages_in(&(page..page.saturating_add(1))) > 0)
    }

    fn keep(&mut self, side: Along, extent: Extent) {
        if extent.pages == 0 {
            return;
        }
        if self.along.len() == STREAMS {
            self.along.pop_front();
        }
        self.along.push_back((side, extent));
    }

    /// The worker has read this; returns how many of its pages are new.
    pub(crate) fn add(&mut self, extent: &Extent) -> u64 {
        if extent.pages == 0 {
            return 0;
        }
        let reached = |(side, it): &(Along, Extent)| {
            it.file == extent.file
                && match side {
                    Along::Before => extent.end() == it.first,
                    Along::Behind => it.end() == extent.first,
                }
        };
        let along = self.along.iter().rposition(reached);
        let along = along.and_then(|at| self.along.remove(at));
        along.map_or(0, |(_, it)| self.take(&it)) + self.take(extent)
    }

    fn take(&mut self, extent: &Extent) -> u64 {
        let seen = self.seen.entry(extent.file).or_default();
        let mut new = Vec::new();
        seen.insert(&(extent.first..extent.end()), |part| new.push(part));
        let mut pages = 0;
        for part in new {
            let extent = Extent {
                file: extent.file,
                first: part.start,
                pages: part.end - part.start,
            };
            pages += u64::from(extent.pages);
            self.append(extent);
        }
        self.pages += pages;
        pages
    }

    /// How many pages it has read, each once.
    #[must_use]
    pub(crate) const fn pages(&self) -> u64 {
        self.pages
    }

    /// What it has read of each file.
    pub(crate) fn files(&self) -> impl Iterator<Item = (u32, &Ranges)> {
        self.seen.iter().map(|(&file, set)| (file, set))
    }

    /// The list, in the order in which it was read.
    #[must_use]
    pub(crate) fn extents(&self) -> Vec<Extent> {
        let mut extents = self.extents.clone();
        extents.retain(|extent| extent.pages > 0);
        shorten(without_stripes(extents), MOST_RANGES)
    }

    fn append(&mut self, extent: Extent) {
        let touches = |&&at: &&usize| {
            let known = &self.extents[at];
            known.file == extent.file
                && (known.end() == extent.first || extent.end() == known.first)
        };
        let found = self.streams.iter().rev().find(touches).copied();
        let head = found.filter(|&at| self.is_head(at));
        let Some(at) = found.filter(|_| head.is_none()) else {
            if head.is_some() {
                self.bodies.insert(self.extents.len());
            }
            self.streams.retain(|&it| Some(it) != head);
            if self.streams.len() == STREAMS {
                self.streams.remove(0);
            }
            self.streams.push(self.extents.len());
            self.extents.push(extent);
            return;
        };
        let known = &mut self.extents[at];
        known.first = known.first.min(extent.first);
        known.pages += extent.pages;
        self.streams.retain(|&it| it != at);
        self.streams.push(at);
        self.join(at);
    }

    /// Whether the worker had only looked at this, and comes back for the data behind it. The look must keep its
    /// place, or a replay would load the whole tensor for it, and the next look would wait for that.
    fn is_head(&self, at: usize) -> bool {
        let latest = self.streams.iter().rev().take(ELSEWHERE);
        self.extents[at].pages <= HEAD
            && !self.bodies.contains(&at)
            && latest.into_iter().all(|&it| it != at)
    }

    /// A range that has grown may have reached another followed one: the earlier one takes it over.
    fn join(&mut self, grown: usize) {
        let one = self.extents[grown];
        let meets = |&&at: &&usize| {
            let other = &self.extents[at];
            at != grown
                && other.file == one.file
                && (other.end() == one.first || one.end() == other.first)
        };
        let other = self.streams.iter().find(meets).copied();
        let Some(other) = other.filter(|&at| !self.is_head(at)) else {
            return;
        };
        let (early, late) = (grown.min(other), grown.max(other));
        let gone = std::mem::replace(
            &mut self.extents[late],
            Extent {
                file: one.file,
                first: 0,
                pages: 0,
            },
        );
        let known = &mut self.extents[early];
        known.first = known.first.min(gone.first);
        known.pages += gone.pages;
        self.streams.retain(|&at| at != late);
    }
}

/// Of mappings the kernel may report every other part at once and the rest late: a small range that touches another
/// small one, or one that was read before it, is put at the place of the first of both.
fn without_stripes(extents: Vec<Extent>) -> Vec<Extent> {
    let mut sorted: Vec<(Extent, usize)> = extents.into_iter().zip(0..).collect();
    sorted.sort_unstable_by_key(|(extent, _)| (extent.file, extent.first));
    let mut joined: Vec<(Extent, usize)> = Vec::with_capacity(sorted.len());
    // The length of the last part of the last range.
    let mut part = 0;
    for (extent, place) in sorted {
        match joined.last_mut() {
            Some((last, first))
                if last.file == extent.file
                    && last.end() == extent.first
                    && belong((part, *first), (extent.pages, place)) =>
            {
                last.pages += extent.pages;
                *first = place.min(*first);
            }
            _ => joined.push((extent, place)),
        }
        part = extent.pages;
    }
    joined.sort_unstable_by_key(|&(_, place)| place);
    joined.into_iter().map(|(extent, _)| extent).collect()
}

/// Whether two ranges that touch are parts of one, by their pages and their places in the order.
const fn belong(one: (u32, usize), other: (u32, usize)) -> bool {
    match (one.0 < STRIPE, other.0 < STRIPE) {
        (true, true) => true,
        (true, false) => one.1 > other.1,
        (false, true) => other.1 > one.1,
        (false, false) => false,
    }
}

/// Joins neighbours in the list with the smallest gaps until there are no more than `most`.
fn shorten(mut extents: Vec<Extent>, most: usize) -> Vec<Extent> {
    while extents.len() > most {
        let gap = |pair: &[Extent]| {
            let (one, next) = (&pair[0], &pair[1]);
            let between = next.first.checked_sub(one.end());
            between.filter(|_| one.file == next.file)
        };
        let mut gaps: Vec<u32> = extents.windows(2).filter_map(gap).collect();
        let excess = extents.len() - most;
        if gaps.is_empty() {
            // No two extents can be joined, so all are worth the same: keep the first ones.
            extents.truncate(most);
            return extents;
        }
        let at = excess.min(gaps.len()) - 1;
        let (_, &mut largest, _) = gaps.select_nth_unstable(at);
        let mut left = excess;
        let mut joined: Vec<Extent> = Vec::with_capacity(extents.len());
        for extent in extents {
            if left > 0
                && let Some(last) = joined.last_mut()
                && last.file == extent.file
                && extent.first >= last.end()
                && extent.first - last.end() <= largest
            {
                last.pages = extent.end() - last.first;
                left -= 1;
            } else {
                joined.push(extent);
            }
        }
        extents = joined;
    }
    extents
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(file: u32, first: u32, pages: u32) -> Extent {
        Extent { file, first, pages }
    }

    fn recorded(all: &[Extent]) -> Vec<(u32, u32, u32)> {
        let mut record = Record::default();
        for extent in all {
            record.add(extent);
        }
        let extents = record.extents();
        extents
            .iter()
            .map(|it| (it.file, it.first, it.pages))
            .collect()
    }

    #[test]
    fn pieces_of_a_stream_become_one_range() {
        let all: Vec<_> = (0..100).map(|at| extent(1, at * 32, 32)).collect();
        assert_eq!(recorded(&all), [(1, 0, 3200)]);
        let back: Vec<_> = all.iter().rev().copied().collect();
        assert_eq!(recorded(&back), [(1, 0, 3200)]);
    }

    #[test]
    fn late_parts_of_a_mapping_are_merged_but_slices_are_not() {
        // Every other 64 KiB of 8 MiB, and the rest when those streams are no longer followed.
        let half = |odd: u32| (0..64).map(move |at: u32| extent(1, (2 * at + odd) * 16, 16));
        let slices = (0..40).map(|at: u32| extent(2, at * 100, 50));
        let all: Vec<_> = half(0).chain(slices).chain(half(1)).collect();
        let recorded = recorded(&all);
        assert_eq!(recorded[0], (1, 0, 2048));
        assert_eq!(recorded.len(), 41);
        assert_eq!(recorded[1..3], [(2, 0, 50), (2, 100, 50)]);
    }

    #[test]
    fn looks_at_where_tensors_begin_stay_before_these() {
        let looks = (0..100).map(|at: u32| extent(0, at * 2000, 16));
        let tensors = (0..100).map(|at: u32| extent(0, at * 2000 + 16, 1984));
        let all: Vec<_> = looks.chain(tensors).collect();
        let recorded = recorded(&all);
        assert_eq!(recorded[..2], [(0, 0, 16), (0, 2000, 16)]);
        assert_eq!(recorded.len(), 200);
        assert_eq!(recorded[100..102], [(0, 16, 1984), (0, 2016, 1984)]);
        // If parts come in turn, only the first ones may look like looks, with any number of threads.
        let threads =
            (0..200).flat_map(|at: u32| (0..20).map(move |it: u32| extent(it, at * 16, 16)));
        let all: Vec<_> = threads.collect();
        assert_eq!(self::recorded(&all).len(), 40);
    }

    #[test]
    fn streams_of_several_threads_are_kept_apart_in_the_order_of_their_beginnings() {
        let mut all = Vec::new();
        for at in 0..10 {
            all.push(extent(1, 1000 + at, 1));
            all.push(extent(0, at * 2, 2));
        }
        assert_eq!(recorded(&all), [(1, 1000, 10), (0, 0, 20)]);
        all.push(extent(1, 5, 1));
        all.push(extent(1, 7, 1));
        all.push(extent(1, 6, 1));
        assert_eq!(
            recorded(&all)[2..],
            [(1, 5, 3)],
            "what was between joins both"
        );
    }

    #[test]
    fn a_page_counts_the_first_time() {
        let all = [
            extent(0, 0, 10),
            extent(0, 5, 10),
            extent(0, 0, 20),
            extent(0, 3, 1),
        ];
        assert_eq!(recorded(&all), [(0, 0, 20)]);
        let mut record = Record::default();
        assert_eq!(record.add(&extent(0, 10, 5)), 5);
        assert_eq!(record.add(&extent(0, 0, 30)), 25);
        assert_eq!((record.add(&extent(0, 29, 1)), record.pages()), (0, 30));
        let files = record.files().map(|(file, set)| (file, set.pages()));
        assert_eq!(files.collect::<Vec<_>>(), [(0, 30)]);
    }

    #[test]
    fn too_many_ranges_are_joined_where_little_is_between() {
        let mut all: Vec<_> = (0..10).map(|at| extent(0, at * 100, 10)).collect();
        all.push(extent(0, 912, 1));
        all.push(extent(1, 0, 1));
        let short = shorten(all.clone(), 11);
        assert_eq!(short[9], extent(0, 900, 13));
        assert_eq!(
            shorten(all.clone(), 2),
            [extent(0, 0, 913), extent(1, 0, 1)]
        );
        assert_eq!(shorten(all, 1).len(), 1);
    }

    #[test]
    fn pages_mapped_along_count_if_reading_continues_behind() {
        let mut record = Record::default();
        assert_eq!(record.add_part(&extent(0, 0, 16), &(0..10)), 10);
        assert_eq!(record.add(&extent(1, 16, 16)), 16, "of another file");
        assert_eq!(record.add_part(&extent(0, 40, 16), &(40..56)), 16);
        assert_eq!(record.add(&extent(0, 16, 16)), 22);
        assert_eq!(record.add_part(&extent(0, 100, 4), &(0..0)), 0);
        let pages = record.files().map(|(_, set)| set.pages());
        assert_eq!(pages.sum::<u64>(), 64);
    }

    #[test]
    fn pages_mapped_along_before_a_part_count_if_the_worker_reads_there() {
        let mut record = Record::default();
        let part = |at: u32| (extent(0, at, 16), at + 6..at + 16);
        let (all, own) = part(16);
        assert_eq!(record.add_part(&all, &own), 10, "not from before");
        assert_eq!(record.add(&extent(0, 32, 16)), 16, "and it goes on");
        assert_eq!(record.add(&extent(0, 0, 16)), 22, "it comes to them");
        let (all, own) = part(48);
        assert_eq!(record.add_part(&all, &own), 16, "it came from there");
        assert_eq!(record.add(&extent(0, 80, 16)), 16);
        assert_eq!(record.add_part(&extent(0, 64, 16), &(64..70)), 16);
        assert_eq!(record.extents(), [extent(0, 0, 96)]);
    }

    proptest! {
        #[test]
        fn record_holds_every_read_page_exactly_once(
            all in prop::collection::vec((0..2_u32, 0..300_u32, 1..40_u32), 0..120),
        ) {
            let mut record = Record::default();
            let mut expected = std::collections::BTreeSet::new();
            for &(file, first, pages) in &all {
                record.add(&extent(file, first, pages));
                expected.extend((first..first + pages).map(|page| (file, page)));
            }
            let extents = record.extents();
            let pages = |it: &Extent| {
                let file = it.file;
                (it.first..it.end()).map(move |page| (file, page))
            };
            let got: Vec<_> = extents.iter().flat_map(pages).collect();
            prop_assert_eq!(got.len(), expected.len());
            prop_assert_eq!(got.len() as u64, record.pages());
            prop_assert_eq!(got.into_iter().collect::<std::collections::BTreeSet<_>>(), expected);
        }
    }
}
