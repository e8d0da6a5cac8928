//! Ranges that were issued and are withdrawn: readers do not want them now, or they are to be loaded differently. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::cache::{Cache, PieceState};
use super::{Loose, Window};
use crate::extent::Extent;
use crate::order::{Piece, Pieces, runs};

/// How many pieces in a row have to be there for those before them to be there, too. Readers look at the headers of
/// files far ahead, so single pieces come in before their turn.
const COME_IN: usize = 64;

impl Window {
    /// Stops loading for now. Returns the issued ranges that are still `absent`, whose waiting loads are to be
    /// cancelled. They are issued anew once readers come back, those behind a reader last.
    pub(crate) fn hold_back(&mut self, mut absent: impl FnMut(&Extent) -> bool) -> Vec<Extent> {
        let mut given_up = Vec::new();
        for reader in &mut self.readers {
            let order = Arc::clone(&reader.order);
            // Not only what is ahead: a reader that has looked at the headers of all files seems to be at the last one.
            let all = 0..order.len();
            let parts = reader.skipped.iter().cloned().chain([all]);
            let parts: Vec<_> = parts.collect();
            let loose = reader.loose.iter_mut().flat_map(Loose::take_back);
            withdraw(
                &mut self.cache,
                &self.pieces,
                loose,
                &mut absent,
                &mut given_up,
            );
            for part in parts {
                let pieces = part.rev().filter_map(|place| order.piece(place));
                withdraw(
                    &mut self.cache,
                    &self.pieces,
                    pieces,
                    &mut absent,
                    &mut given_up,
                );
            }
            reader.left_out.up_to(reader.front.min(reader.issued));
            reader.issued = reader.front.min(reader.issued);
            reader.instead = true;
        }
        runs(given_up)
    }

    /// Gives up what was issued for earlier passes of readers that make another one, and is still `absent`: it would take
    /// the room of what is needed now. Returns it, so that its waiting loads are cancelled.
    pub(crate) fn withdraw_earlier(
        &mut self,
        mut absent: impl FnMut(&Extent) -> bool,
    ) -> Vec<Extent> {
        let mut given_up = Vec::new();
        for reader in &mut self.readers {
            if !std::mem::take(&mut reader.returns.withdraws) {
                continue;
            }
            let order = reader.returns.earlier_order().into_iter();
            let pieces = order.flat_map(|it| (0..it.len()).rev().filter_map(|at| it.piece(at)));
            withdraw(
                &mut self.cache,
                &self.pieces,
                pieces,
                &mut absent,
                &mut given_up,
            );
        }
        runs(given_up)
    }

    /// Issues all issued and unread pieces once more: cached ones cost nothing. Returns them, so that their waiting
    /// loads are cancelled.
    pub(crate) fn issue_again(&mut self) -> Vec<Extent> {
        let mut issued = BTreeSet::new();
        for reader in &mut self.readers {
            let places = reader.passed.min(reader.issued)..reader.issued;
            issued.extend(places.filter_map(|place| reader.order.piece(place)));
            reader.again = reader.again.max(reader.issued);
            reader.left_out.up_to(reader.front.min(reader.issued));
            reader.issued = reader.front.min(reader.issued);
            reader.instead = true;
        }
        let extents = issued.into_iter().filter_map(|it| self.pieces.extent(it));
        runs(extents.collect())
    }
}

/// Gives up those of these pieces that are held and still absent. They begin with the one that was issued last.
fn withdraw(
    cache: &mut Cache,
    all: &Pieces,
    pieces: impl Iterator<Item = Piece>,
    absent: &mut impl FnMut(&Extent) -> bool,
    given_up: &mut Vec<Extent>,
) {
    let mut there = 0;
    let held = pieces.filter_map(|piece| Some((piece, all.extent(piece)?)));
    for (piece, extent) in held {
        if cache.state(piece) != PieceState::Held {
            continue;
        }
        if absent(&extent) {
            there = 0;
            cache.give_up(piece);
            given_up.push(extent);
            continue;
        }
        there += 1;
        if there == COME_IN {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Access;
    use super::*;

    const fn extent(file: u32, first: u32, pages: u32) -> Extent {
        Extent { file, first, pages }
    }

    /// A reader looks at the headers of all files, in the order of their names, before it reads any.
    fn after_headers(budget: u64) -> Window {
        let files: Vec<_> = (0..3).map(|file| extent(file, 0, 40 * 512)).collect();
        let mut window = Window::new(Arc::new(Pieces::new(std::slice::from_ref(&files))), budget);
        assert_eq!(window.loads().len(), 3);
        for file in files {
            let header = Extent { pages: 256, ..file };
            window.hear(0, &header, Access::Miss, 256);
        }
        window
    }

    #[test]
    fn held_back_loads_behind_a_reader_are_reissued() {
        // It has jumped, or, where there is much memory, seems to have passed by.
        for (budget, jumped) in [(120 * 512, true), (1 << 24, false)] {
            let mut window = after_headers(budget);
            assert_eq!(!window.readers[0].skipped.is_empty(), jumped);
            let absent = |extent: &Extent| extent.first >= 512;
            let waits: Vec<_> = (0..3).map(|file| extent(file, 512, 39 * 512)).collect();
            assert_eq!(window.hold_back(absent), waits);
            assert_eq!(issued(&mut window, absent), waits, "readers have come back");
        }
    }

    #[test]
    fn issue_again_includes_loads_behind_a_reader() {
        let mut window = after_headers(1 << 24);
        let all: Vec<_> = (0..3).map(|file| extent(file, 0, 40 * 512)).collect();
        assert_eq!(window.issue_again(), all);
        let absent = |extent: &Extent| extent.file < 2;
        // The header of the last file has come.
        let rest = [all[0], all[1], extent(2, 512, 39 * 512)];
        assert_eq!(issued(&mut window, absent), rest);
    }

    /// Everything that is issued from now on.
    fn issued(window: &mut Window, absent: impl Fn(&Extent) -> bool) -> Vec<Extent> {
        let mut all = Vec::new();
        loop {
            window.reissue_overtaken(&absent);
            let loads = window.loads();
            if loads.is_empty() {
                return runs(all);
            }
            all.extend(loads.into_iter().map(|it| it.extent));
        }
    }

    #[test]
    fn a_piece_that_came_before_its_turn_hides_none_that_wait() {
        let order = (0..200).map(|at| extent(0, at * 512, 512)).collect();
        let mut window = Window::new(Arc::new(Pieces::new(&[order])), 200 * 512);
        window.loads();
        // The first 100 have come, and a header behind them.
        let absent = |extent: &Extent| extent.first >= 100 * 512 && extent.first != 180 * 512;
        let waits = [
            extent(0, 100 * 512, 80 * 512),
            extent(0, 181 * 512, 19 * 512),
        ];
        assert_eq!(window.hold_back(absent), waits);
        let mut asked = 0;
        let looks = |_: &Extent| {
            asked += 1;
            false
        };
        assert_eq!(window.hold_back(looks), []);
        assert_eq!(asked, COME_IN, "those before have come, too");
    }
}
