//! Readers that are further on than the loader: it goes on from there, and comes back for what it had left out.

use super::cache::PieceState;
use super::{Prefetch, Window, add};
use crate::extent::{Extent, PAGE};
use crate::order::Piece;

/// The loader is just where a reader waits if anything is there within so many pages behind that, which
/// come in at the same time.
pub(super) const AT_ONCE: u64 = (8 << 20) / PAGE;

/// No more pieces than this are looked for: each look opens a file.
const LOOKS: usize = 512;

/// What has been issued and then replaced before it came, or was not issued, as the reader seemed to be past it.
///
/// That a reader is further on does not mean that it has read what is before: those that take tensors by name go
/// back and forth. What it has read is there, so what is not has yet to be read.
#[derive(Debug)]
pub(super) struct LeftOut {
    /// Before this place there is some, which has not been looked for yet.
    before: usize,
    /// The last one comes first.
    pieces: Vec<Piece>,
}

impl LeftOut {
    pub(super) const fn new() -> Self {
        Self {
            before: 0,
            pieces: Vec::new(),
        }
    }

    /// What has not come of what is before this place will not come by itself.
    pub(super) fn up_to(&mut self, place: usize) {
        self.before = self.before.max(place);
    }

    pub(super) const fn has_more(&self) -> bool {
        !self.pieces.is_empty()
    }
}

impl Window {
    /// For readers that wait for what has been issued, it is issued once more from there on, in place of
    /// what was before, if all behind that is `absent`. What is absent of that comes at the end.
    pub(crate) fn reissue_overtaken(&mut self, mut absent: impl FnMut(&Extent) -> bool) {
        for reader in &mut self.readers {
            if let Some(place) = reader.waits.take() {
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
                    reader.instead = true;
                    reader.left_out.up_to(place);
                }
            }
            // What is ahead comes first.
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

    /// Issues the next piece that has been left out, and is still to be there.
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
