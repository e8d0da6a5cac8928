//! Readers that read once more what they have passed: it is loaded once more, in the order of the device. Pure.
//!
//! A framework that maps files may first touch one page of each tensor, and read the tensors after that. Where a fault
//! maps a folio of 2 MiB, the touched folios look as if they had been read, so they are dropped where memory is short.

use std::sync::Arc;

use super::{LeftOut, Window};
use crate::order::{Piece, ReadOrder};

/// How many dropped pieces in a row a reader has to miss for a second pass.
const ENOUGH: u32 = 3;
/// How many pieces further on, in the order of the device, the next one may be.
const NEAR: u32 = 64;

/// The pieces that a reader has missed although it had passed them, and they were dropped.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// The latest of them, which is needed again.
    last: Option<Piece>,
    /// The first one of those in a row, and how many these are.
    first: Piece,
    many: u32,
    /// What it had passed before its latest pass began.
    before: Option<(Arc<ReadOrder>, usize)>,
    /// What was issued for that is to be withdrawn.
    pub(super) withdraws: bool,
}

impl Returns {
    /// Takes in such a piece, and the one before. Returns whether the reader now reads once more, from that piece on.
    fn count(&mut self, before: Option<Piece>, piece: Piece) -> bool {
        let goes_on = |before: Piece| piece > before && piece - before <= NEAR;
        if before.is_some_and(goes_on) {
            self.many += 1;
        } else {
            (self.first, self.many) = (piece, 1);
        }
        self.last = Some(piece);
        self.many >= ENOUGH
    }

    /// The order of the pass before the latest one.
    pub(super) fn earlier_order(&self) -> Option<&Arc<ReadOrder>> {
        self.before.as_ref().map(|(order, _)| order)
    }

    /// The pieces that it had passed before its latest pass began.
    pub(super) fn passed(&self) -> impl Iterator<Item = Piece> {
        let before = self.before.iter();
        before.flat_map(|(order, front)| (0..*front).filter_map(|place| order.piece(place)))
    }
}

impl Window {
    /// A reader misses pages of a piece that it had passed. Returns whether that is explained: the piece was dropped,
    /// and the reader makes another pass, which begins with this piece or has already come to it.
    pub(super) fn returns(&mut self, number: usize, piece: Piece, dropped: bool) -> bool {
        let before = self.readers[number].returns.last;
        if !dropped {
            return before == Some(piece);
        }
        // It stays while the reader is in it.
        self.cache.need(std::iter::once(piece));
        self.leave_return(number);
        let reader = &mut self.readers[number];
        if !reader.returns.count(before, piece) {
            return false;
        }
        let (order, front) = (Arc::clone(&reader.order), reader.front);
        let skipped = std::mem::take(&mut reader.skipped);
        let passed =
            (0..reader.passed).filter(|it| !skipped.iter().any(|range| range.contains(it)));
        let passed = passed.filter_map(|place| order.piece(place));
        self.cache.need(passed.filter(|&it| it != piece));
        reader.order = Arc::new(order.of_device(reader.returns.first));
        let (all, here) = (reader.order.len(), reader.order.place(piece).unwrap_or(0));
        (reader.front, reader.issued, reader.passed) = (here, here, 0);
        (reader.seen, reader.settled) = (reader.order.before(here), 0);
        reader.elsewhere = None;
        (reader.waits, reader.overtaken, reader.strays) = (None, None, 0);
        reader.left_out = LeftOut::new();
        reader.let_go = Vec::new();
        (reader.again, reader.instead) = (all, true);
        reader.returns = Returns {
            before: Some((order, front)),
            withdraws: true,
            ..Returns::default()
        };
        self.advance(number);
        true
    }

    /// A reader is no longer in the piece to which it has returned.
    pub(super) fn leave_return(&mut self, number: usize) {
        if let Some(piece) = self.readers[number].returns.last.take() {
            self.cache.release(piece);
        }
    }
}
