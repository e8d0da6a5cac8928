//! The pieces of a window: which are held, how many readers have yet to read each, and which go first. Pure.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::extent::Extent;
use crate::order::{Piece, Pieces};
use crate::peers::Claims;

/// Upper bound on the counted readers of a piece.
pub(super) const MOST_READERS: usize = 63;
/// Upper bound on a folio, in pages; folios are dropped as a whole.
const FOLIO: u32 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceState {
    Absent,
    /// Issued, or read in by a reader.
    Held,
    Dropped,
}

/// Set in [`Slot`] for a held piece of which a reader has brought in a part, and the rest has not been issued.
const BEGUN: u8 = 0b1100_0000;

/// The state of a piece, and how many readers have yet to pass it: a byte, as a large model's node has half a million.
#[derive(Clone, Copy, Debug)]
struct Slot(u8);

impl Slot {
    const fn state(self) -> PieceState {
        match self.0 >> 6 {
            0 => PieceState::Absent,
            1 | 3 => PieceState::Held,
            _ => PieceState::Dropped,
        }
    }

    const fn is_begun(self) -> bool {
        self.0 & BEGUN == BEGUN
    }

    const fn left(self) -> u8 {
        self.0 & 63
    }

    const fn set(&mut self, state: PieceState) {
        self.0 = self.left() | (state as u8) << 6;
    }

    const fn begin(&mut self) {
        self.0 |= BEGUN;
    }

    const fn count(&mut self, left: u8) {
        self.0 = self.0 & !63 | left;
    }
}

/// How much of a dropped piece is still cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    Nothing,
    /// Some pages, which may be dropped once more.
    Part,
    /// So many pages that a process must map them, so drops are in vain: the kernel has to reclaim them.
    Mapped,
}

#[derive(Debug)]
pub(super) struct Cache {
    pieces: Arc<Pieces>,
    slots: Vec<Slot>,
    /// Held, and passed by all: the oldest first.
    droppable: VecDeque<Piece>,
    /// The same, but other services have yet to read them: these go when nothing else may.
    claimed: VecDeque<Piece>,
    claims: Claims,
    held: u64,
    /// How many of these pages are about to be dropped: their room is free the next time.
    going: u64,
    drops: Vec<Extent>,
    /// Pieces believed to be dropped; and whether they have been seen since.
    gone: Vec<(Piece, bool)>,
    /// Dropped in vain, as processes map them, and other droppable pieces of their files. They are held until
    /// those files are closed; or, if they are too many, left to the kernel.
    stuck: Vec<Piece>,
    mapped: BTreeSet<u32>,
    leaves: bool,
}

impl Cache {
    pub(super) fn new(pieces: Arc<Pieces>) -> Self {
        Self {
            slots: vec![Slot(0); pieces.len()],
            pieces,
            droppable: VecDeque::new(),
            claimed: VecDeque::new(),
            claims: Claims::default(),
            held: 0,
            going: 0,
            drops: Vec::new(),
            gone: Vec::new(),
            stuck: Vec::new(),
            mapped: BTreeSet::new(),
            leaves: false,
        }
    }

    fn slot(&mut self, piece: Piece) -> &mut Slot {
        &mut self.slots[piece as usize]
    }

    pub(super) fn state(&self, piece: Piece) -> PieceState {
        self.slots[piece as usize].state()
    }

    /// Whether any reader has yet to come past a piece.
    pub(super) fn is_needed(&self, piece: Piece) -> bool {
        self.slots[piece as usize].left() > 0
    }

    /// How many pages are held, without those that are about to go.
    pub(super) const fn held(&self) -> u64 {
        self.held.saturating_sub(self.going)
    }

    /// The pages that were about to go are gone.
    pub(super) fn settle(&mut self) {
        self.held -= std::mem::take(&mut self.going).min(self.held);
    }

    /// One more reader will pass these pieces; dropped ones are to be loaded again.
    pub(super) fn need(&mut self, pieces: impl Iterator<Item = Piece>) {
        for piece in pieces {
            let slot = self.slot(piece);
            slot.count((slot.left() + 1).min(63));
            if slot.state() == PieceState::Dropped {
                slot.set(PieceState::Absent);
            }
        }
        let slots = &self.slots;
        let waits = |piece: &Piece| slots[*piece as usize].left() == 0;
        self.droppable.retain(waits);
        self.claimed.retain(waits);
        self.stuck.retain(waits);
    }

    /// One reader fewer will pass this piece.
    pub(super) fn release(&mut self, piece: Piece) {
        let slot = self.slot(piece);
        slot.count(slot.left().saturating_sub(1));
        if slot.left() == 0 && slot.state() == PieceState::Held {
            self.may_go(piece);
        }
    }

    /// Holds a piece that has come in, or is about to. False if there is no room for it even after dropping others;
    /// `spares` excludes claimed ones from that.
    pub(super) fn hold_within(&mut self, piece: Piece, budget: u64, spares: bool) -> bool {
        let pages = self.pieces.pages(piece);
        while self.held() + pages > budget {
            let none = spares && self.droppable.is_empty();
            if none || !self.drop_next() {
                return false;
            }
        }
        if self.held + pages > budget {
            return false;
        }
        self.held += pages;
        self.slot(piece).set(PieceState::Held);
        true
    }

    /// Takes a needed piece to be issued that a reader has begun, and so has its room; false if this is none.
    pub(super) fn take_begun(&mut self, piece: Piece) -> bool {
        let takes = self.slots[piece as usize].is_begun() && self.is_needed(piece);
        if takes {
            self.slot(piece).set(PieceState::Held);
        }
        takes
    }

    /// A piece has been issued, but will no longer come.
    pub(super) fn give_up(&mut self, piece: Piece) {
        let pages = self.pieces.pages(piece);
        self.held = self.held.saturating_sub(pages);
        self.slot(piece).set(PieceState::Absent);
    }

    /// Whether a piece is held, and just one reader has yet to come past it.
    pub(super) fn is_held_for_one(&self, piece: Piece) -> bool {
        let slot = self.slots[piece as usize];
        slot.state() == PieceState::Held && slot.left() == 1
    }

    /// Drops a piece that is held although it is needed: there is no room for others that are needed before it.
    pub(super) fn take_out(&mut self, piece: Piece) {
        self.going += self.pieces.pages(piece);
        self.ask_for(piece);
        self.slot(piece).set(PieceState::Absent);
    }

    /// A reader has brought a part of a piece in, whether there was room or not. Room is now taken for all of it.
    pub(super) fn came_in(&mut self, piece: Piece) {
        if self.state(piece) == PieceState::Held {
            return;
        }
        self.slot(piece).begin();
        self.held += self.pieces.pages(piece);
        if !self.is_needed(piece) {
            // The piece was dropped too early, or is read again.
            self.may_go(piece);
        }
    }

    fn may_go(&mut self, piece: Piece) {
        if !self.leaves && self.is_of_mapped(piece) {
            self.stuck.push(piece);
            return;
        }
        let claimed = self.is_claimed(piece);
        let queue = if claimed {
            &mut self.claimed
        } else {
            &mut self.droppable
        };
        queue.push_back(piece);
    }

    fn is_claimed(&self, piece: Piece) -> bool {
        !self.claims.is_empty() && self.extent(piece).is_some_and(|it| self.claims.has(&it))
    }

    fn extent(&self, piece: Piece) -> Option<Extent> {
        self.pieces.extent(piece)
    }

    /// Sets what other services have yet to read.
    pub(super) fn set_claims(&mut self, claims: Claims) {
        if self.claims == claims {
            return;
        }
        self.claims = claims;
        let claimed = std::mem::take(&mut self.claimed);
        let droppable = std::mem::take(&mut self.droppable);
        for piece in claimed.into_iter().chain(droppable) {
            self.may_go(piece);
        }
    }

    fn is_of_mapped(&self, piece: Piece) -> bool {
        let file = self.extent(piece).map(|it| it.file);
        file.is_some_and(|file| self.mapped.contains(&file))
    }

    /// Dropped pieces that are still there are held again. A piece that seems mapped twice in a row is stuck; once
    /// proves nothing, as it may not have been dropped yet.
    pub(super) fn recheck_dropped(&mut self, mut there: impl FnMut(&Extent) -> Leftover) {
        for (piece, before) in std::mem::take(&mut self.gone) {
            let Some(extent) = self.extent(piece) else {
                continue;
            };
            if self.state(piece) != PieceState::Dropped {
                continue;
            }
            if self.leaves && self.mapped.contains(&extent.file) {
                self.stuck.push(piece);
                continue;
            }
            match there(&extent) {
                Leftover::Nothing => {}
                Leftover::Part => self.came_in(piece),
                Leftover::Mapped if !before => self.gone.push((piece, true)),
                Leftover::Mapped => {
                    if self.leaves {
                        self.mapped.insert(extent.file);
                        self.stuck.push(piece);
                        continue;
                    }
                    self.slot(piece).set(PieceState::Held);
                    self.held += self.pieces.pages(piece);
                    self.stuck.push(piece);
                    if self.mapped.insert(extent.file) {
                        for piece in std::mem::take(&mut self.droppable) {
                            self.may_go(piece);
                        }
                    }
                }
            }
        }
    }

    /// Whether mapped pieces are left to the kernel.
    pub(super) const fn leaves(&self) -> bool {
        self.leaves
    }

    /// Leaves mapped pieces to the kernel from now on, if they are more than `most` pages. False if they
    /// were left to it before, or are fewer.
    pub(super) fn leave_more_than(&mut self, most: u64) -> bool {
        let pages = |&piece: &Piece| self.pieces.pages(piece);
        if self.leaves || self.stuck.iter().map(pages).sum::<u64>() <= most {
            return false;
        }
        self.leaves = true;
        let mut stuck = std::mem::take(&mut self.stuck);
        // Sorted, they are few ranges.
        stuck.sort_unstable();
        for &piece in &stuck {
            self.slot(piece).set(PieceState::Dropped);
            self.going += self.pieces.pages(piece);
            self.ask_for(piece);
        }
        self.stuck = stuck;
        true
    }

    /// The stuck pieces of a file may go now.
    pub(super) fn release_file(&mut self, file: u32) {
        if !self.mapped.remove(&file) {
            return;
        }
        let stuck = std::mem::take(&mut self.stuck);
        let goes = |piece: &Piece| self.extent(*piece).is_some_and(|it| it.file == file);
        let (mut go, stay): (Vec<Piece>, _) = stuck.into_iter().partition(goes);
        self.stuck = stay;
        go.sort_unstable();
        for piece in go {
            match self.state(piece) {
                PieceState::Dropped => self.ask_for(piece),
                PieceState::Held => self.may_go(piece),
                PieceState::Absent => {}
            }
        }
        self.leaves &= !self.mapped.is_empty();
    }

    /// What our readers have yet to read.
    pub(super) fn claims(&self) -> Claims {
        let mut claims = Claims::default();
        for (piece, _) in (0..).zip(&self.slots).filter(|(_, slot)| slot.left() > 0) {
            if let Some(extent) = self.extent(piece) {
                claims.add(&extent);
            }
        }
        claims
    }

    /// Drops all pieces that may go; claimed ones only if there are no others.
    pub(super) fn drop_all(&mut self) {
        let claimed = self.droppable.is_empty();
        while (claimed || !self.droppable.is_empty()) && self.drop_next() {}
    }

    /// Drops one piece; false if none may go.
    fn drop_next(&mut self) -> bool {
        let piece = loop {
            let next = self
                .droppable
                .pop_front()
                .or_else(|| self.claimed.pop_front());
            let Some(piece) = next else {
                return false;
            };
            // The piece may have been given up since.
            if self.state(piece) == PieceState::Held {
                break piece;
            }
        };
        self.slot(piece).set(PieceState::Dropped);
        self.gone.push((piece, false));
        self.going += self.pieces.pages(piece);
        self.ask_for(piece);
        true
    }

    /// Asks for a piece to be dropped.
    fn ask_for(&mut self, piece: Piece) {
        let Some(extent) = self.around(piece) else {
            return;
        };
        match self.drops.last_mut() {
            Some(last)
                if last.file == extent.file
                    && last.end() >= extent.first
                    && last.first <= extent.first =>
            {
                last.pages = last.end().max(extent.end()) - last.first;
            }
            _ => self.drops.push(extent),
        }
    }

    /// A piece with the dropped pages beside it: a folio that lies in both could be dropped with neither
    /// alone.
    fn around(&self, piece: Piece) -> Option<Extent> {
        let mut extent = self.extent(piece)?;
        let gone = |piece: Piece| {
            let dropped = self.slots.get(piece as usize)?.state() == PieceState::Dropped;
            self.extent(piece).filter(|_| dropped)
        };
        let least = extent.first.saturating_sub(FOLIO);
        let most = extent.end().saturating_add(FOLIO);
        for before in (0..piece).rev().map_while(gone) {
            if before.file != extent.file || before.end() != extent.first || extent.first <= least {
                break;
            }
            extent.pages += extent.first - before.first;
            extent.first = before.first;
        }
        for after in (piece + 1..).map_while(gone) {
            if after.file != extent.file || extent.end() != after.first || extent.end() >= most {
                break;
            }
            extent.pages += after.pages;
        }
        // Not all of a long neighbour: as many pages as a folio may have.
        let end = extent.end().min(most);
        let first = extent.first.max(least);
        Some(Extent {
            first,
            pages: end - first,
            ..extent
        })
    }

    /// What is to be dropped, before what is to be loaded is.
    pub(super) fn drops(&mut self) -> Vec<Extent> {
        std::mem::take(&mut self.drops)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Access, Window};
    use super::*;

    fn extent(first: u32, pages: u32) -> Extent {
        Extent {
            file: 0,
            first,
            pages,
        }
    }

    /// A reader of 8 MiB of one file, with a budget of half of that.
    fn small() -> Window {
        let pieces = Pieces::new(&[vec![extent(0, 2048)]]);
        Window::new(Arc::new(pieces), 1024)
    }

    #[test]
    fn pieces_claimed_by_other_services_are_dropped_last() {
        let pieces = Pieces::new(&[(0..6).map(|at| extent(at * 512, 512)).collect()]);
        let mut window = Window::new(Arc::new(pieces), 4 * 512);
        window.loads();
        let mut claims = Claims::default();
        claims.add(&extent(0, 1));
        window.set_claims(claims);
        window.leave(0);
        window.drop_all();
        let dropped: Vec<_> = window
            .drops()
            .iter()
            .map(|it| (it.first, it.pages))
            .collect();
        assert_eq!(dropped, [(512, 3 * 512)]);
        window.drop_all();
        assert_eq!(window.drops().first().map(|it| it.first), Some(0));
        // The same as soon as the others no longer need it.
        let mut window = small();
        let mut claims = Claims::default();
        claims.add(&extent(0, 2048));
        assert!(!claims.is_empty() && claims == window.claims());
        window.loads();
        window.set_claims(claims);
        window.leave(0);
        window.set_claims(Claims::default());
        window.drop_all();
        let pages: u32 = window.drops().iter().map(|it| it.pages).sum();
        assert_eq!(pages, 1024);
    }

    #[test]
    fn only_a_few_pieces_ahead_displace_claimed_ones() {
        let pieces = (0..40).map(|at| extent(at * 512, 512));
        let pieces = Pieces::new(&[pieces.collect()]);
        let mut window = Window::new(Arc::new(pieces), 32 * 512);
        window.loads();
        let mut claims = Claims::default();
        claims.add(&extent(0, 40 * 512));
        window.set_claims(claims);
        // 24 of 40 pieces are read, 8 are ahead, and those behind are claimed.
        for at in 0..24 {
            window.hear(0, &extent(at * 512, 512), Access::Read, 0);
        }
        assert_eq!(window.loads(), [], "8 pieces are a quarter");
        for at in 24..30 {
            window.hear(0, &extent(at * 512, 512), Access::Read, 0);
        }
        window.loads();
        assert_eq!(window.drops().len(), 1);
        let ahead: Vec<_> = window.loads().iter().map(|it| it.extent.pages).collect();
        assert_eq!(ahead, [512], "when that is gone");
    }

    #[test]
    fn withdrawn_pieces_are_not_dropped_or_counted_twice() {
        let mut window = small();
        assert_eq!(window.loads().len(), 1);
        window.leave(0);
        let given_up = window.hold_back(|extent| extent.first >= 512);
        assert_eq!(given_up, [extent(512, 512)]);
        assert_eq!(window.held(), 512);
        window.drop_all();
        assert_eq!(window.drops(), [extent(0, 512)]);
        window.loads();
        assert_eq!(window.held(), 0);
    }

    #[test]
    fn mapped_leftovers_are_held_until_their_file_is_released() {
        let mut window = small();
        window.loads();
        window.leave(0);
        window.drop_all();
        assert_eq!(window.drops().len(), 1);
        window.loads();
        assert_eq!(window.held(), 0);
        let there = |extent: &Extent| {
            if extent.first < 512 {
                Leftover::Nothing
            } else {
                Leftover::Mapped
            }
        };
        window.recheck_dropped(there);
        assert_eq!(window.held(), 0, "it may not have been dropped yet");
        window.recheck_dropped(there);
        assert_eq!(window.held(), 512, "half of what there may be");
        assert!(!window.cache.drop_next(), "it would stay again");
        window.release_file(1);
        assert!(!window.cache.drop_next(), "another file is closed");
        window.release_file(0);
        assert!(window.cache.drop_next());
        let again: Vec<_> = window.drops().iter().map(Extent::end).collect();
        assert_eq!(again, [1024]);
    }

    #[test]
    fn leftovers_are_dropped_again() {
        let mut window = small();
        window.loads();
        window.leave(0);
        window.drop_all();
        window.loads();
        assert_eq!(window.held(), 0);
        window.drops();
        window.recheck_dropped(|_| Leftover::Part);
        assert_eq!(window.held(), 1024);
        window.drop_all();
        assert_eq!(window.drops(), [extent(0, 1024)]);
        window.loads();
        window.recheck_dropped(|_| Leftover::Nothing);
        assert_eq!(window.held(), 0);
    }

    #[test]
    fn mapped_leftovers_over_half_are_left_to_the_kernel() {
        let pieces = (0..40).map(|at| extent(at * 512, 512));
        let pieces = Pieces::new(&[pieces.collect()]);
        let mut window = Window::new(Arc::new(pieces), 16 * 512);
        let ahead = |window: &mut Window| -> Vec<_> {
            let loads = window.loads();
            loads
                .iter()
                .map(|it| (it.extent.first / 512, it.extent.pages / 512, it.hold))
                .collect()
        };
        assert_eq!(ahead(&mut window), [(0, 16, false)]);
        window.hear(0, &extent(7 * 512, 512), Access::Read, 8 * 512);
        window.loads();
        let dropped: u32 = window.drops().iter().map(|it| it.pages / 512).sum();
        assert_eq!(ahead(&mut window), [(16, dropped, false)]);
        window.recheck_dropped(|_| Leftover::Mapped);
        window.recheck_dropped(|_| Leftover::Mapped);
        assert_eq!(ahead(&mut window), [], "it has no place yet");
        for at in 8..15 {
            window.hear(0, &extent(at * 512, 512), Access::Read, 512);
        }
        window.recheck_dropped(|_| Leftover::Mapped);
        // What is there is asked for once more.
        let again = ahead(&mut window);
        assert!(
            matches!(again[..], [(15, pages, true)] if pages > dropped),
            "{again:?}"
        );
        assert!(!window.drops().is_empty());
        for at in 15..18 {
            window.hear(0, &extent(at * 512, 512), Access::Read, 512);
        }
        window.loads();
        let more = ahead(&mut window);
        assert!(window.held() <= 8 * 512, "{}", window.held() / 512);
        assert!(more.iter().any(|&(_, pages, hold)| pages > 0 && hold));
        window.release_file(0);
        assert!(!window.cache.leaves());
    }

    #[test]
    fn drop_includes_adjacent_pages_dropped_before() {
        let pieces = Pieces::new(&[vec![extent(0, 100)], vec![extent(100, 100)]]);
        let mut window = Window::new(Arc::new(pieces), 1024);
        window.loads();
        window.leave(0);
        window.drop_all();
        assert_eq!(window.drops(), [extent(0, 100)]);
        window.leave(1);
        window.drop_all();
        assert_eq!(window.drops(), [extent(0, 200)]);
    }
}
