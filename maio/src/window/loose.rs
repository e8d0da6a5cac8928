//! A reader that keeps to no order: what it has yet to read is loaded in the order of the device. Pure.
//!
//! Where memory is too small for that, most of what is loaded so would be far from the reader. Then what comes next on
//! the device is loaded where it misses two ranges in a row: readers without an order mostly read whole tensors.

use std::collections::HashMap;
use std::sync::Arc;

use super::cache::PieceState;
use super::{Prefetch, Window, add};
use crate::extent::{Extent, PAGE};
use crate::order::{Piece, Pieces};

/// How many pages are loaded where a reader reads on.
const NEAR: u64 = (16 << 20) / PAGE;
/// Upper bound on the stretches in which a reader reads at once: parts of a layer may be in several files.
const MOST_STRETCHES: usize = 4;
/// How many pages may lie between two misses of a reader that reads on.
const GAP: u32 = 16;
/// The fraction of the room that is loaded elsewhere meanwhile.
const ELSEWHERE_PART: u64 = 2;
/// The fraction of the budget in unread pages elsewhere that are dropped for those near the reader.
const SPARED_PART: u64 = 8;

/// Successive unread pieces near a place of the reader: indices into those.
#[derive(Clone, Debug)]
struct Stretch {
    start: usize,
    /// The first one that has not been issued.
    next: usize,
    end: usize,
}

/// The state of such a reader.
#[derive(Debug)]
pub(super) struct Loose {
    /// The pieces it had not read when it left its order, by place.
    left: Vec<Piece>,
    /// The first one that has not been issued.
    next: usize,
    /// How many pages of a piece it has read since; `None` when it needs the piece no more.
    read: HashMap<Piece, Option<u64>>,
    /// They need more pages than may be held.
    scarce: bool,
    /// How many more unread pages may be dropped then, and the piece before which to look for them.
    sparing: u64,
    spared: usize,
    /// Where the reader reads then, the latest last.
    near: Vec<Stretch>,
    /// Where its latest misses ended: file and page.
    missed: Vec<(u32, u32)>,
}

impl Loose {
    /// For pieces that take `pages`, of which `budget` may be held.
    pub(super) fn new(mut left: Vec<Piece>, pages: u64, budget: u64) -> Self {
        left.sort_unstable();
        Self {
            spared: left.len(),
            left,
            next: 0,
            read: HashMap::new(),
            scarce: pages > budget,
            sparing: budget / SPARED_PART,
            near: Vec::new(),
            missed: Vec::new(),
        }
    }

    /// Whether a miss continues an earlier one: the reader reads on there.
    fn reads_on(&mut self, miss: &Extent) -> bool {
        let continues = |&(file, end): &(u32, u32)| {
            file == miss.file && end <= miss.first && miss.first - end <= GAP
        };
        let before = self.missed.iter().position(continues);
        if let Some(before) = before {
            self.missed.remove(before);
        } else if self.missed.len() >= MOST_STRETCHES {
            self.missed.remove(0);
        }
        self.missed.push((miss.file, miss.end()));
        before.is_some()
    }

    /// It has come to this piece, or misses this range of it.
    fn comes_to(&mut self, piece: Piece, miss: Option<&Extent>, pieces: &Pieces) {
        if !self.scarce {
            return;
        }
        let reads_on = miss.is_some_and(|miss| self.reads_on(miss));
        let at = self.left.partition_point(|&it| it < piece);
        let mut come = 0;
        let within = |&&piece: &&Piece| {
            let near = come < NEAR;
            come += pieces.pages(piece);
            near
        };
        let end = at + self.left[at..].iter().take_while(within).count();
        let known = self
            .near
            .iter()
            .position(|it| (it.start..=it.end).contains(&at));
        let stretch = match known {
            Some(known) => {
                let it = self.near.remove(known);
                Stretch {
                    start: it.start,
                    next: it.next.max(at),
                    end: it.end.max(end),
                }
            }
            // Events of mappings may come late; a reader that waits for a page is at that page.
            None if !reads_on => return,
            None => Stretch {
                start: at,
                next: at,
                end,
            },
        };
        if self.near.len() >= MOST_STRETCHES {
            self.near.remove(0);
        }
        self.near.push(stretch);
    }

    /// The piece to issue next near the reader.
    fn next_near(&mut self) -> Option<Piece> {
        let (left, read) = (&self.left, &self.read);
        self.near.iter_mut().rev().find_map(|it| {
            let needs = |at: &usize| !matches!(read.get(&left[*at]), Some(None));
            it.next = (it.next..it.end).find(needs).unwrap_or(it.end);
            (it.next < it.end).then(|| left[it.next])
        })
    }

    /// An unread piece to drop, the last one that is held for this reader alone (`is_own`); `None` if enough have been
    /// dropped.
    fn spare(&mut self, pages: &Pieces, is_own: impl Fn(Piece) -> bool) -> Option<Piece> {
        let near = &self.near;
        let is_near = |at: usize| near.iter().any(|it| (it.start..it.end).contains(&at));
        let mut elsewhere = (0..self.spared).rev().filter(|&at| !is_near(at));
        let at = elsewhere.find(|&at| is_own(self.left[at]) && self.needs(self.left[at]))?;
        let piece = self.left[at];
        self.sparing = self.sparing.checked_sub(pages.pages(piece))?;
        self.spared = at;
        Some(piece)
    }

    /// That piece has been issued, or is there.
    fn step_near(&mut self) {
        let mut stretches = self.near.iter_mut().rev();
        if let Some(stretch) = stretches.find(|it| it.next < it.end) {
            stretch.next += 1;
        }
    }

    /// It has read `pages` of a piece of `all` pages. Returns whether that completes the piece.
    pub(super) fn reads(&mut self, piece: Piece, pages: u64, all: u64) -> bool {
        if self.left.binary_search(&piece).is_err() {
            return false;
        }
        let Some(read) = self.read.entry(piece).or_insert(Some(0)) else {
            return false;
        };
        *read += pages;
        if *read < all {
            return false;
        }
        self.read.insert(piece, None);
        true
    }

    fn needs(&self, piece: Piece) -> bool {
        !matches!(self.read.get(&piece), Some(None))
    }

    /// The pieces it has yet to read.
    pub(super) fn needed(&self) -> impl Iterator<Item = Piece> {
        self.left.iter().copied().filter(|it| self.needs(*it))
    }

    /// Whether there may be more pieces to issue.
    pub(super) fn has_more(&self) -> bool {
        self.next < self.left.len() || self.near.iter().any(|it| it.next < it.end)
    }

    /// The piece to issue next.
    pub(super) fn next(&mut self) -> Option<Piece> {
        while let Some(&piece) = self.left.get(self.next) {
            if self.needs(piece) {
                return Some(piece);
            }
            self.next += 1;
        }
        None
    }

    /// That piece has been issued, or is there.
    pub(super) fn step(&mut self) {
        self.next += 1;
    }

    /// Issues all pieces again.
    pub(super) fn restart(&mut self) {
        self.next = 0;
        self.near.clear();
    }

    /// The issued pieces, the last first; they are issued again.
    pub(super) fn take_back(&mut self) -> impl Iterator<Item = Piece> {
        let near = std::mem::take(&mut self.near);
        let near = near.iter().map(|it| it.next).max().unwrap_or(0);
        let issued = std::mem::take(&mut self.next).max(near);
        self.left[..issued].iter().rev().copied()
    }
}

impl Window {
    /// A reader keeps to no order any more. What it seemed to have left out for good is loaded as well, except for what
    /// has been dropped, as it may have read that.
    pub(super) fn loosen(&mut self, number: usize) {
        self.leave_return(number);
        let reader = &mut self.readers[number];
        let order = Arc::clone(&reader.order);
        let let_go = std::mem::take(&mut reader.let_go).into_iter().flatten();
        let let_go = let_go.filter_map(|place| order.piece(place));
        let let_go: Vec<_> = let_go
            .filter(|&it| self.cache.state(it) != PieceState::Dropped)
            .collect();
        self.cache.need(let_go.iter().copied());
        let left: Vec<_> = reader.left().chain(let_go).collect();
        let pages = left.iter().map(|&it| self.pieces.pages(it)).sum();
        reader.loose = Some(Loose::new(left, pages, self.budget));
        reader.left_out.up_to(order.len());
        reader.instead = true;
    }

    /// A reader without an order has read a range that ends in this piece.
    pub(super) fn read_loosely(&mut self, number: usize, piece: Piece, extent: &Extent) {
        let first = self.pieces.up_to(piece, extent.first);
        for piece in first {
            let Some(it) = self.pieces.extent(piece) else {
                continue;
            };
            let read = extent
                .end()
                .min(it.end())
                .saturating_sub(extent.first.max(it.first));
            let loose = self.readers[number].loose.as_mut();
            if loose.is_some_and(|loose| loose.reads(piece, read.into(), it.pages.into())) {
                self.cache.release(piece);
            }
        }
    }

    /// A reader without an order reads this range, or misses it.
    pub(super) fn hear_loosely(
        &mut self,
        number: usize,
        extent: &Extent,
        piece: Piece,
        misses: bool,
    ) {
        if !misses {
            self.read_loosely(number, piece, extent);
        }
        if let Some(loose) = &mut self.readers[number].loose {
            loose.comes_to(piece, misses.then_some(extent), &self.pieces);
        }
    }

    /// Issues the next piece of a reader without an order, where there is room.
    pub(super) fn load_loosely(&mut self, number: usize, loads: &mut Vec<Prefetch>) -> bool {
        let room = self.room();
        let Some(loose) = &mut self.readers[number].loose else {
            return false;
        };
        let scarce = loose.scarce;
        if let Some(piece) = loose.next_near() {
            let absent = self.cache.state(piece) == PieceState::Absent;
            if absent && !self.cache.hold_within(piece, room, true) {
                let own = |it| self.cache.is_held_for_one(it);
                if let Some(other) = loose.spare(&self.pieces, own) {
                    self.cache.take_out(other);
                }
                return false;
            }
            self.issue_loosely(number, piece, loads);
            if let Some(loose) = &mut self.readers[number].loose {
                loose.step_near();
            }
            return true;
        }
        let Some(piece) = loose.next() else {
            return true;
        };
        // Pieces that seem passed may not have been read, and are not dropped for this one.
        let room = if scarce { room / ELSEWHERE_PART } else { room };
        let fits = self.cache.held() + self.pieces.pages(piece) <= room;
        let absent = self.cache.state(piece) == PieceState::Absent;
        if absent && !(fits && self.cache.hold_within(piece, room, true)) {
            return false;
        }
        self.issue_loosely(number, piece, loads);
        if let Some(loose) = &mut self.readers[number].loose {
            loose.step();
        }
        true
    }

    /// Issues a piece, unless it has been dropped. Earlier jumps may have taken held pieces out of the loader's queue,
    /// and cached ones cost nothing.
    fn issue_loosely(&mut self, number: usize, piece: Piece, loads: &mut Vec<Prefetch>) {
        if self.cache.state(piece) != PieceState::Dropped
            && let Some(extent) = self.pieces.extent(piece)
        {
            let instead = &mut self.readers[number].instead;
            add(loads, number, extent, instead, self.cache.leaves());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_pieces_are_issued_in_order_and_once() {
        let mut loose = Loose::new(vec![7, 3, 5, 1], 0, 0);
        assert!(!loose.reads(4, 10, 10), "it is none of them");
        assert!(!loose.reads(3, 6, 10) && loose.reads(3, 4, 10));
        assert!(!loose.reads(3, 10, 10), "once");
        assert_eq!(loose.next(), Some(1));
        loose.step();
        assert_eq!(loose.next(), Some(5), "3 has been read");
        loose.step();
        assert_eq!(loose.take_back().collect::<Vec<_>>(), [5, 3, 1]);
        assert_eq!(loose.next(), Some(1));
        assert_eq!(loose.needed().collect::<Vec<_>>(), [1, 5, 7]);
    }
}
