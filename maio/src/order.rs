//! What is read, cut into pieces, and the order in which each group reads them. Nothing here changes
//! while a model is loaded.
//!
//! The groups of a template share files, and often ranges of them. A piece is a range that each
//! group reads as a whole or not at all, and no longer than what is worth deciding on at once. It is
//! loaded once, for the group that needs it first, and dropped once, after the last one.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::extent::Extent;

/// Upper bound on the groups of a node: one for each of its accelerators, and a few more.
pub(crate) const MOST_GROUPS: usize = 60;
/// Lower bound on the pages of a piece, where its range has as many: what the kernel drops at once.
const SMALL: u32 = 512;
/// Upper bound on the pages of a piece.
const LARGE: u32 = 8192;
/// How many pieces are enough for any model: beyond that, pieces become larger.
const PIECES: u64 = 1 << 15;
/// The number of ranges above which not every page is worth its own piece.
const MANY: usize = 1 << 17;
/// Upper bound on the pages of a range that is small then.
const SMALL_RANGE: u32 = 32;
/// How many places share a line in the table of an order.
const BLOCK: usize = 128;

/// A place in the table of pieces.
pub(crate) type Piece = u32;

/// The pieces in the order of files and places, and an order for each group.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// Where each file's pieces begin; one more than there are files.
    files: Vec<u32>,
    first: Vec<u32>,
    pages: Arc<Vec<u16>>,
    groups: Vec<Arc<ReadOrder>>,
}

/// The order in which a group reads. A large model's node has a million places, and they live as long
/// as the policy: facts that can be counted or looked up within a block are in no table.
#[derive(Debug, Default)]
pub(crate) struct ReadOrder {
    order: Vec<Piece>,
    blocks: Vec<Block>,
    /// The pages of all pieces.
    pages: Arc<Vec<u16>>,
}

/// A block of successive places.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Pages before it.
    before: u32,
    /// Its pieces are from this one
    least: Piece,
    /// to this one.
    most: Piece,
}

impl ReadOrder {
    fn new(order: Vec<Piece>, pages: Arc<Vec<u16>>) -> Self {
        let mut before = 0_u32;
        let block = |block: &[Piece]| {
            let this = Block {
                before,
                least: block.iter().copied().min().unwrap_or(0),
                most: block.iter().copied().max().unwrap_or(0),
            };
            let all = block.iter().map(|&piece| u32::from(pages[piece as usize]));
            before = before.saturating_add(all.sum());
            this
        };
        let blocks = order.chunks(BLOCK).map(block).collect();
        Self {
            order,
            blocks,
            pages,
        }
    }

    /// The same pieces in the order of the device, beginning with this one, and the earlier ones behind them.
    pub(crate) fn of_device(&self, from: Piece) -> Self {
        let mut order = self.order.clone();
        order.sort_unstable();
        let earlier = order.partition_point(|&piece| piece < from);
        order.rotate_left(earlier);
        Self::new(order, Arc::clone(&self.pages))
    }

    /// The number of its pieces.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Which piece is read at a place.
    #[must_use]
    pub(crate) fn piece(&self, place: usize) -> Option<Piece> {
        self.order.get(place).copied()
    }

    fn pages(&self, places: Range<usize>) -> u64 {
        let pieces = self.order[places].iter();
        pieces.map(|&it| u64::from(self.pages[it as usize])).sum()
    }

    /// How many pages come before a place.
    #[must_use]
    pub(crate) fn before(&self, place: usize) -> u64 {
        let place = place.min(self.len());
        let number = (place / BLOCK).min(self.blocks.len().saturating_sub(1));
        let block = self.blocks.get(number);
        let before = block.map_or(0, |block| u64::from(block.before));
        before + self.pages(number * BLOCK..place)
    }

    /// The place at which a piece is read, if it is.
    #[must_use]
    pub(crate) fn place(&self, piece: Piece) -> Option<usize> {
        let blocks = self.blocks.iter().zip(self.order.chunks(BLOCK)).enumerate();
        let mut candidates = blocks.filter(|(_, (it, _))| (it.least..=it.most).contains(&piece));
        candidates.find_map(|(number, (_, order))| {
            let at = order.iter().position(|&it| it == piece)?;
            Some(number * BLOCK + at)
        })
    }

    /// The place up to which at most this many pages have been read.
    #[must_use]
    pub(crate) fn place_after(&self, pages: u64) -> usize {
        let fit = |block: &Block| u64::from(block.before) <= pages;
        let blocks = self.blocks.partition_point(fit);
        let first = blocks.saturating_sub(1) * BLOCK;
        let mut come = self.before(first);
        let fits = |&place: &usize| {
            come += self.pages(place..place + 1);
            come <= pages
        };
        first + (first..self.len()).take_while(fits).count()
    }
}

impl Pieces {
    /// Cuts the groups' ranges, each group's in reading order. Where a group reads a page twice, the first
    /// time counts.
    #[must_use]
    pub(crate) fn new(groups: &[Vec<Extent>]) -> Self {
        let groups = &groups[..groups.len().min(MOST_GROUPS)];
        if groups.iter().map(Vec::len).sum::<usize>() > MANY {
            Self::of(&simplified(groups))
        } else {
            Self::of(groups)
        }
    }

    fn of(groups: &[Vec<Extent>]) -> Self {
        let mut pieces = Self::default();
        pieces.cut(groups);
        let mut known: HashMap<&[Extent], Arc<ReadOrder>> = HashMap::new();
        for group in groups {
            let order = match known.get(group.as_slice()) {
                Some(order) => Arc::clone(order),
                None => Arc::new(pieces.put_in_order(group)),
            };
            known.insert(group, Arc::clone(&order));
            pieces.groups.push(order);
        }
        pieces
    }

    /// The number of groups.
    #[must_use]
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The number of pieces.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.first.len()
    }

    /// All pages, each once.
    #[must_use]
    pub(crate) fn total(&self) -> u64 {
        self.pages.iter().map(|&pages| u64::from(pages)).sum()
    }

    /// The order of a group.
    #[must_use]
    pub(crate) fn order(&self, group: usize) -> Option<&Arc<ReadOrder>> {
        self.groups.get(group)
    }

    /// How many pages a piece has.
    #[must_use]
    pub(crate) fn pages(&self, piece: Piece) -> u64 {
        self.pages.get(piece as usize).copied().map_or(0, u64::from)
    }

    /// Where a piece is.
    #[must_use]
    pub(crate) fn extent(&self, piece: Piece) -> Option<Extent> {
        let at = piece as usize;
        let (first, pages) = (*self.first.get(at)?, u32::from(*self.pages.get(at)?));
        let file = self.files.partition_point(|&start| start <= piece) - 1;
        let file = u32::try_from(file).ok()?;
        Some(Extent { file, first, pages })
    }

    /// All pages of any group, in the order of files and places, in runs as long as possible.
    #[must_use]
    pub(crate) fn runs(&self) -> Vec<Extent> {
        let pieces = 0..u32::try_from(self.len()).unwrap_or(u32::MAX);
        runs(pieces.filter_map(|piece| self.extent(piece)).collect())
    }

    /// The piece that a page of a file belongs to.
    #[must_use]
    pub(crate) fn at(&self, file: u32, page: u32) -> Option<Piece> {
        let piece = self.up_to_page(file, page)?;
        let (first, pages) = (self.first[piece as usize], self.pages[piece as usize]);
        (page - first < u32::from(pages)).then_some(piece)
    }

    /// The pieces of a file, from the one that reaches beyond a page through this one.
    #[must_use]
    pub(crate) fn up_to(&self, piece: Piece, page: u32) -> Range<Piece> {
        let last = self.extent(piece);
        let reaches = |it: &Piece| {
            let extent = self.extent(*it);
            let same = extent.map(|it| it.file) == last.map(|it| it.file);
            same && extent.is_some_and(|it| it.end() > page)
        };
        let first = (0..piece).rev().take_while(reaches).last();
        first.unwrap_or(piece)..piece + 1
    }

    /// The part of a range that a group reads: from the first of its pages there to the last, if fewer than `most` are
    /// before and behind; the range otherwise.
    #[must_use]
    pub(crate) fn reach(&self, group: usize, range: &Extent, most: u32) -> Range<u32> {
        let all = range.first..range.end();
        let Some(order) = self.order(group).filter(|_| !all.is_empty()) else {
            return all;
        };
        let front = all.start..all.end.min(all.start.saturating_add(most));
        let back = all.start.max(all.end.saturating_sub(most))..all.end;
        let within = |piece: Piece, pages: &Range<u32>| {
            let it = self.extent(piece)?;
            let meets = it.first < pages.end && it.end() > pages.start;
            (it.file == range.file && meets).then_some((piece, it))
        };
        let own = |&(piece, _): &(Piece, Extent)| order.place(piece).is_some();
        let from = self.beyond(range.file, front.start).into_iter();
        let mut ahead = from
            .flat_map(|it| it..Piece::MAX)
            .map_while(|it| within(it, &front));
        let from = self.up_to_page(range.file, all.end - 1).into_iter();
        let mut behind = from
            .flat_map(|it| (0..=it).rev())
            .map_while(|it| within(it, &back));
        let first = ahead.find(own).map(|(_, it)| it.first.max(all.start));
        let last = behind.find(own).map(|(_, it)| it.end().min(all.end));
        first.unwrap_or(all.start)..last.unwrap_or(all.end)
    }

    /// A range, trimmed of unread pages at its beginning and at its end; `None` if no group reads any of it.
    #[must_use]
    pub(crate) fn expected_in(&self, range: &Extent) -> Option<Extent> {
        let last = self.up_to_page(range.file, range.end().checked_sub(1)?)?;
        let end = self.extent(last)?.end().min(range.end());
        let first = self.extent(self.beyond(range.file, range.first)?)?;
        let first = first.first.max(range.first);
        (first < end).then(|| Extent {
            file: range.file,
            first,
            pages: end - first,
        })
    }

    /// The first page of a file that any group reads; 0 if there is none.
    #[must_use]
    pub(crate) fn first(&self, file: u32) -> u32 {
        let piece = self.beyond(file, 0).and_then(|it| self.extent(it));
        piece.map_or(0, |it| it.first)
    }

    /// The first piece of a file that reaches beyond a page.
    fn beyond(&self, file: u32, page: u32) -> Option<Piece> {
        let piece = match self.up_to_page(file, page) {
            Some(piece) if self.extent(piece)?.end() > page => piece,
            Some(piece) => piece + 1,
            None => *self.files.get(file as usize)?,
        };
        let of = self.extent(piece)?.file;
        (of == file).then_some(piece)
    }

    /// The last piece of a file that begins at or before a page.
    fn up_to_page(&self, file: u32, page: u32) -> Option<Piece> {
        let file = file as usize;
        let (start, end) = (*self.files.get(file)?, *self.files.get(file + 1)?);
        let firsts = &self.first[start as usize..end as usize];
        let before = firsts.partition_point(|&first| first <= page);
        Some(start + u32::try_from(before.checked_sub(1)?).ok()?)
    }

    /// Cuts all ranges where one of a group begins or ends, and where a piece would be too long.
    fn cut(&mut self, groups: &[Vec<Extent>]) {
        let all = || groups.iter().flatten().filter(|it| it.pages > 0);
        let pages: u64 = all().map(|extent| u64::from(extent.pages)).sum();
        let most = u32::try_from((pages / PIECES).next_power_of_two()).unwrap_or(LARGE);
        let most = most.clamp(SMALL, LARGE);
        // Of each file: where the number of ranges changes, and by how much.
        let mut changes: Vec<(u32, u32, i32)> = Vec::with_capacity(2 * all().count());
        for extent in all() {
            changes.push((extent.file, extent.first, 1));
            changes.push((extent.file, extent.end(), -1));
        }
        changes.sort_unstable();
        let (mut file, mut from, mut covered) = (0, 0, 0);
        let mut pages = Vec::new();
        self.files.push(0);
        for (of, at, change) in changes {
            if of != file {
                let here = u32::try_from(self.first.len()).unwrap_or(u32::MAX);
                self.files.resize(of as usize + 1, here);
                (file, covered) = (of, 0);
            } else if covered > 0 {
                for first in split(from..at, most) {
                    self.first.push(first.start);
                    pages.push(u16::try_from(first.end - first.start).unwrap_or(u16::MAX));
                }
            }
            from = at;
            covered += change;
        }
        let end = u32::try_from(self.first.len()).unwrap_or(u32::MAX);
        self.files.push(end);
        pages.shrink_to_fit();
        self.first.shrink_to_fit();
        self.pages = Arc::new(pages);
    }

    fn put_in_order(&self, group: &[Extent]) -> ReadOrder {
        let mut seen = vec![false; self.len()];
        let mut order = Vec::new();
        for extent in group {
            let mut at = extent.first;
            while at < extent.end()
                && let Some(piece) = self.at(extent.file, at)
            {
                at = self.first[piece as usize] + u32::from(self.pages[piece as usize]);
                if !std::mem::replace(&mut seen[piece as usize], true) {
                    order.push(piece);
                }
            }
        }
        order.shrink_to_fit();
        ReadOrder::new(order, Arc::clone(&self.pages))
    }
}

/// The ranges without overlaps, in the order of files and places and in runs as long as possible.
pub(crate) fn runs(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_unstable_by_key(|it| (it.file, it.first));
    let mut runs: Vec<Extent> = Vec::new();
    for extent in extents {
        match runs.last_mut() {
            Some(last) if last.file == extent.file && last.end() == extent.first => {
                last.pages += extent.pages;
            }
            _ => runs.push(extent),
        }
    }
    runs
}

/// A range in parts that end at multiples of `most`.
fn split(range: Range<u32>, most: u32) -> impl Iterator<Item = Range<u32>> {
    let mut from = range.start;
    std::iter::from_fn(move || {
        let next = (from / most + 1).saturating_mul(most).min(range.end);
        let part = from..next;
        from = next;
        (!part.is_empty()).then_some(part)
    })
}

/// A large model has tens of thousands of tensors that do not begin at a page, and as many of a few
/// KiB. Where parts of two workers meet in a page, it goes with the first one; small ranges are rounded
/// out to blocks, which hold many of them.
fn simplified(groups: &[Vec<Extent>]) -> Vec<Vec<Extent>> {
    let large = |extent: &&Extent| extent.pages >= SMALL_RANGE;
    let large_ones = groups.iter().flatten().filter(large);
    let lasts: HashSet<(u32, u32)> = large_ones.map(|it| (it.file, it.end() - 1)).collect();
    let simple = |extent: &Extent| {
        let mut extent = *extent;
        if extent.pages < SMALL_RANGE {
            let end = extent.end().next_multiple_of(SMALL_RANGE);
            extent.first -= extent.first % SMALL_RANGE;
            extent.pages = end - extent.first;
        } else if lasts.contains(&(extent.file, extent.first)) {
            extent.first += 1;
            extent.pages -= 1;
        }
        extent
    };
    let group = |group: &Vec<Extent>| {
        let mut extents: Vec<_> = group.iter().map(simple).collect();
        extents.dedup();
        extents
    };
    groups.iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(file: u32, first: u32, pages: u32) -> Extent {
        Extent { file, first, pages }
    }

    fn extents(pieces: &Pieces, group: usize) -> Vec<(u32, u32, u32)> {
        let order = pieces.order(group).expect("a group");
        let extents = (0..order.len()).map(|place| {
            let piece = order.piece(place).expect("a piece");
            assert_eq!(order.place(piece), Some(place));
            pieces.extent(piece).expect("an extent")
        });
        extents.map(|it| (it.file, it.first, it.pages)).collect()
    }

    #[test]
    fn ranges_are_cut_where_another_group_begins_or_ends() {
        let one = vec![extent(2, 100, 10), extent(0, 0, 600)];
        let other = vec![extent(2, 105, 10)];
        let pieces = Pieces::new(&[one, other]);
        let expected = [(2, 100, 5), (2, 105, 5), (0, 0, 512), (0, 512, 88)];
        assert_eq!(extents(&pieces, 0), expected);
        assert_eq!(extents(&pieces, 1), [(2, 105, 5), (2, 110, 5)]);
        assert_eq!(pieces.total(), 615);
        let shared = pieces.at(2, 109).expect("a piece");
        assert_eq!(pieces.pages(shared), 5);
        assert_eq!(pieces.at(2, 110), Some(shared + 1));
        assert_eq!(pieces.at(2, 115), None);
        assert_eq!(pieces.at(1, 0), None);
        assert_eq!(pieces.at(3, 0), None);
    }

    #[test]
    fn a_group_reaches_from_the_beginning_to_the_end_of_its_part_if_these_are_near() {
        let one = vec![extent(0, 2, 98), extent(0, 103, 2), extent(0, 180, 40)];
        let other = vec![extent(0, 99, 100)];
        let pieces = Pieces::new(&[one, other]);
        let reach = |first, pages| pieces.reach(0, &extent(0, first, pages), 16);
        assert_eq!(reach(96, 16), 96..105);
        assert_eq!(reach(80, 23), 80..100);
        assert_eq!(reach(90, 8), 90..98, "it reads all of it");
        assert_eq!(reach(90, 40), 90..130, "it ends too far before");
        assert_eq!(reach(105, 5), 105..110, "it reads no part of it");
        assert_eq!(reach(176, 16), 180..192);
        assert_eq!(reach(102, 16), 103..105);
        assert_eq!(reach(160, 40), 160..200, "it begins too far behind");
        assert_eq!(reach(216, 16), 216..220, "it ends with the file");
        assert_eq!(pieces.reach(2, &extent(0, 90, 16), 16), 90..106, "no group");
    }

    #[test]
    fn the_first_part_of_a_file_may_begin_behind_a_header() {
        let parts = [
            vec![extent(0, 2, 98), extent(1, 7, 4)],
            vec![extent(1, 3, 8)],
        ];
        let pieces = Pieces::new(&parts);
        assert_eq!([0, 1, 2].map(|file| pieces.first(file)), [2, 3, 0]);
    }

    #[test]
    fn range_is_clipped_to_the_expected_pages() {
        let pieces = Pieces::new(&[vec![extent(1, 10, 10), extent(1, 40, 5), extent(3, 0, 1)]]);
        let cut = |file, first, pages_of| {
            let part = pieces.expected_in(&extent(file, first, pages_of));
            part.map(|it| (it.first, it.pages))
        };
        assert_eq!(cut(1, 12, 3), Some((12, 3)));
        assert_eq!(cut(1, 0, 15), Some((10, 5)));
        assert_eq!(cut(1, 15, 20), Some((15, 5)));
        assert_eq!(cut(1, 0, 100), Some((10, 35)));
        assert_eq!(cut(1, 25, 20), Some((40, 5)));
        for (file, first) in [(1, 0), (1, 20), (1, 45), (0, 0), (2, 0), (3, 1), (4, 0)] {
            assert_eq!(cut(file, first, 10), None, "{file} {first}");
        }
    }

    #[test]
    fn repeated_pages_are_ordered_by_their_first_read() {
        let group = vec![extent(0, 10, 10), extent(0, 0, 30), extent(0, 12, 1)];
        let pieces = Pieces::new(&[group]);
        let expected = [(0, 10, 2), (0, 12, 1), (0, 13, 7), (0, 0, 10), (0, 20, 10)];
        assert_eq!(extents(&pieces, 0), expected);
        let order = pieces.order(0).expect("a group");
        assert_eq!(
            (order.before(0), order.before(2), order.before(9)),
            (0, 3, 30)
        );
        assert_eq!(
            [0, 1, 2, 3, 29, 30].map(|pages| order.place_after(pages)),
            [0, 0, 1, 2, 4, 5]
        );
    }

    #[test]
    fn groups_that_read_alike_share_an_order_and_there_may_be_none() {
        let group = vec![extent(0, 0, 3000)];
        let pieces = Pieces::new(&[group.clone(), group]);
        assert_eq!(pieces.len(), 6);
        let (one, other) = (pieces.order(0), pieces.order(1));
        assert!(
            one.zip(other)
                .is_some_and(|(one, other)| Arc::ptr_eq(one, other))
        );
        let none = Pieces::new(&[vec![], vec![extent(0, 0, 0)]]);
        assert_eq!((none.len(), none.groups()), (0, 2));
        assert_eq!(none.at(0, 0), None);
    }

    #[test]
    fn piece_count_stays_bounded_for_very_many_ranges() {
        let count = 70_000;
        let one: Vec<_> = (0..count).map(|at| extent(0, at * 100, 51)).collect();
        let other: Vec<_> = (0..count).map(|at| extent(0, at * 100 + 50, 51)).collect();
        let pieces = Pieces::new(&[one, other]);
        // Some ranges are cut where a piece ends anyway.
        assert!(pieces.len() < 2 * count as usize * 6 / 5);
        assert_eq!(pieces.total(), 100 * u64::from(count) + 1);
        let small: Vec<_> = (0..2 * count).map(|at| extent(0, at * 2, 1)).collect();
        let pieces = Pieces::new(&[small]);
        assert_eq!(
            pieces.total(),
            u64::from((4 * count).next_multiple_of(SMALL_RANGE))
        );
        assert_eq!(pieces.order(0).map(|order| order.len()), Some(pieces.len()));
        assert!(pieces.len() <= 4 * count as usize / SMALL_RANGE as usize);
    }

    #[test]
    fn large_model_is_cut_into_at_most_65536_pieces() {
        let group: Vec<_> = (0..160).map(|file| extent(file, 0, 1 << 20)).collect();
        let pieces = Pieces::new(&[group]);
        assert!(pieces.len() <= 1 << 16, "{}", pieces.len());
        assert_eq!(pieces.total(), 160 << 20);
    }
}
