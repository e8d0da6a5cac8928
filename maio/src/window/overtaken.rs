//! Readers that have overtaken the loader: it continues from their position, and comes back for what it left out.

use super::cache::PieceState;
use super::{Prefetch, Window, add};
use crate::extent::{Extent, PAGE};
use crate::order::{Piece, Pieces, ReadOrder};

/// If any of this many pages behind a waiting reader is cached, the loader is about to reach that reader.
pub(super) const AT_ONCE: u64 = (8 << 20) / PAGE;

/// Upper bound on the pieces checked at a time: each check opens a file.
const LOOKS: usize = 512;

/// Pieces that were issued and replaced before they came, or were not issued, as the reader seemed to be past them.
///
/// A reader that is further on has not necessarily read what comes before: readers that take tensors by name go
/// back and forth. Pieces it has read are cached, so absent ones have yet to be read.
#[derive(Debug)]
pub(super) struct LeftOut {
    /// Pieces before this place may have been left out, and have not been checked yet.
    before: usize,
    /// In reverse order, the last one first.
    pieces: Vec<Piece>,
}

impl LeftOut {
    pub(super) const fn new() -> Self {
        Self {
            before: 0,
            pieces: Vec::new(),
        }
    }

    /// Pieces before this place that have not come will not come by themselves.
    pub(super) fn up_to(&mut self, place: usize) {
        self.before = self.before.max(place);
    }

    pub(super) const fn has_more(&self) -> bool {
        !self.pieces.is_empty()
    }
}

/// What a piece has after a position that a reader has come to, in pages of its order.
fn rest_of(pieces: &Pieces, order: &ReadOrder, place: usize, to: u64) -> Option<(Piece, Extent)> {
    let piece = order.piece(place)?;
    let whole = pieces.extent(piece)?;
    let read = u32::try_from(to.saturating_sub(order.before(place))).ok()?;
    let rest = Extent {
        first: whole.first.saturating_add(read),
        pages: whole.pages.saturating_sub(read),
        ..whole
    };
    (rest.pages > 0).then_some((piece, rest))
}

impl Window {
    /// For readers that wait for an issued piece, issues the rest of it and what follows once more, replacing the
    /// earlier loads, if the next [`AT_ONCE`] pages are all `absent`. Absent earlier pieces come at the end.
    pub(crate) fn reissue_overtaken(&mut self, mut absent: impl FnMut(&Extent) -> bool) {
        for reader in &mut self.readers {
            if let Some((place, end)) = reader.waits.take() {
                let next = (place + 1..reader.issued).map_while(|it| reader.order.piece(it));
                let mut left = AT_ONCE;
                let near = next.take_while(|&piece| {
                    let goes_on = left > 0;
                    left = left.saturating_sub(self.pieces.pages(piece));
                    goes_on
                });
                let mut near = near.filter_map(|piece| self.pieces.extent(piece));
                if near.all(|extent| absent(&extent)) {
                    reader.overtaken = Some(reader.order.before(place));
                    reader.again = reader.again.max(reader.issued);
                    reader.issued = place + 1;
                    let rest = || rest_of(&self.pieces, &reader.order, place, end);
                    let held = |piece| self.cache.state(piece) == PieceState::Held;
                    reader.rest = rest()
                        .filter(|(piece, rest)| held(*piece) && absent(rest))
                        .map(|it| it.1);
                    reader.instead = true;
                    reader.left_out.up_to(place);
                }
            }
            // Pieces ahead come first.
            if reader.left_out.before > 0 && reader.issued == reader.order.len() {
                let before = std::mem::take(&mut reader.left_out.before);
                let pieces = (0..before).rev().filter_map(|it| reader.order.piece(it));
                let wanted = |piece: &Piece| match self.cache.state(*piece) {
                    PieceState::Held => true,
                    PieceState::Absent => self.cache.is_needed(*piece),
                    PieceState::Dropped => false,
                };
                let gone = |piece: &Piece| self.pieces.extent(*piece).is_some_and(|it| absent(&it));
                let wanted = pieces.filter(wanted).take(LOOKS);
                reader.left_out.pieces = wanted.filter(gone).collect();
            }
        }
    }

    /// Issues the rests of the pieces in which readers have overtaken the loader.
    pub(super) fn load_rests(&mut self, loads: &mut Vec<Prefetch>) {
        let hold = self.cache.leaves();
        for (number, reader) in self.readers.iter_mut().enumerate() {
            if let Some(rest) = reader.rest.take() {
                add(loads, number, rest, &mut reader.instead, hold);
            }
        }
    }

    /// Issues the next left-out piece that is still needed.
    pub(super) fn load_left_out(&mut self, number: usize, loads: &mut Vec<Prefetch>) -> bool {
        let room = self.room();
        let reader = &mut self.readers[number];
        let Some(piece) = reader.left_out.pieces.pop() else {
            return false;
        };
        let fits = match self.cache.state(piece) {
            PieceState::Held => true,
            PieceState::Absent => self.cache.hold_within(piece, room, true),
            PieceState::Dropped => false,
        };
        if fits && let Some(extent) = self.pieces.extent(piece) {
            add(
                loads,
                number,
                extent,
                &mut reader.instead,
                self.cache.leaves(),
            );
        }
        true
    }
}
