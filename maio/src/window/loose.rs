//! A reader that keeps to no order: what it has yet to read is loaded in the order of the device. Pure.

use std::collections::HashMap;

use super::cache::PieceState;
use super::{Prefetch, Window, add};
use crate::extent::Extent;
use crate::order::Piece;

/// The state of such a reader.
#[derive(Debug)]
pub(super) struct Loose {
    /// The pieces it had not read when it left its order, by place.
    left: Vec<Piece>,
    /// The first one that has not been issued.
    next: usize,
    /// How many pages of a piece it has read since; `None` when it needs the piece no more.
    read: HashMap<Piece, Option<u64>>,
}

impl Loose {
    pub(super) fn new(mut left: Vec<Piece>) -> Self {
        left.sort_unstable();
        Self {
            left,
            next: 0,
            read: HashMap::new(),
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
        self.next < self.left.len()
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
    }

    /// The issued pieces, the last first; they are issued again.
    pub(super) fn take_back(&mut self) -> impl Iterator<Item = Piece> {
        let issued = std::mem::take(&mut self.next);
        self.left[..issued].iter().rev().copied()
    }
}

impl Window {
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

    /// Issues the next piece of a reader without an order, where there is room.
    pub(super) fn load_loosely(&mut self, number: usize, loads: &mut Vec<Prefetch>) -> bool {
        let room = self.room();
        let Some(loose) = &mut self.readers[number].loose else {
            return false;
        };
        let Some(piece) = loose.next() else {
            return true;
        };
        // Pieces that seem passed may not have been read, and are not dropped for this one.
        let fits = self.cache.held() + self.pieces.pages(piece) <= room;
        let state = self.cache.state(piece);
        if state == PieceState::Absent && !(fits && self.cache.hold_within(piece, room, true)) {
            return false;
        }
        // Earlier jumps may have taken held pieces out of the loader's queue, and cached ones cost
        // nothing.
        if state != PieceState::Dropped
            && let Some(extent) = self.pieces.extent(piece)
        {
            let instead = &mut self.readers[number].instead;
            add(loads, number, extent, instead, self.cache.leaves());
        }
        if let Some(loose) = &mut self.readers[number].loose {
            loose.step();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_pieces_are_issued_in_order_and_once() {
        let mut loose = Loose::new(vec![7, 3, 5, 1]);
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
