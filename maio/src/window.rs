//! What to load and what to drop next, for readers that each follow an order. Pure.
//!
//! ```text
//!           dropped        kept          prefetched, unread        to come
//!  order   ─────────┬──────────────┬──────────────────────────┬──────────────▶
//!                 passed         front                      issued
//! ```
//!
//! Each reader has a front, its position; pieces at least the distance behind it have been passed. A
//! piece that all its readers have passed may be dropped, and is as soon as room is needed. Held
//! pieces, prefetched or kept, stay within the budget. Readers get pieces in turn, the one with the
//! least ahead first, so that none waits for pieces that another does not need yet.
//!
//! A reader that misses an issued piece has overtaken the loader, unless the loader is about to reach it;
//! the loader then continues from the reader's position. A reader that jumps somewhere else counts as
//! being there once it has read on for a while: a look into the last file, as some readers have before
//! they begin, is not a jump. One that jumps again and again has no order: what it has yet to read is
//! loaded in the order of the device.

use std::ops::Range;
use std::sync::Arc;

use crate::extent::{Extent, PAGE};
use crate::order::{Piece, Pieces, ReadOrder};
use crate::peers::Claims;

pub(crate) use cache::Leftover;
use cache::{Cache, PieceState};
use loose::Loose;
use overtaken::LeftOut;
use returns::Returns;

/// Upper bound on the pages kept behind a reader,
const DISTANCE: u64 = (1 << 30) / PAGE;
/// and the fraction of the budget that bounds them, too.
const DISTANCE_PART: u64 = 10;
/// Lower bound on the pages kept behind a reader, unless that is half of all.
const TABLES: u64 = (4 << 20) / PAGE;
/// How many pages are mapped at once.
pub(crate) const TABLE: u32 = 512;
/// The fraction of the budget that bounds the steps in which readers advance.
const STEPS: u64 = 32;
/// How many pages a reader has to read elsewhere before its jump counts.
const BELIEVED: u64 = (1 << 20) / PAGE;
/// How many pages a reader has to read after a jump before it will no longer come back for what it skipped.
const SETTLED: u64 = (64 << 20) / PAGE;
/// How many pages further on a reader may again be taken to have overtaken the loader.
const OVERTAKEN_AGAIN: u64 = (64 << 20) / PAGE;
/// The fraction of the budget ahead of a reader below which it displaces pages that other services need.
const AHEAD_PART: u64 = 16;
/// The fraction of the budget that is held at most where the kernel has to make room.
const HELD_PART: u64 = 2;
/// The mapped fraction of the budget above which the kernel has to: pages that go file by file are mostly fewer.
const STUCK: (u64, u64) = (5, 8);
/// Upper bound on the ranges planned at once: the next ones follow before these are loaded.
const MOST_ISSUES: usize = 4096;
/// How many changes of place show that a reader does not follow its order.
const STRAYS: u32 = 16;

/// What an event shows of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It waits for this page.
    Miss,
    /// It has read through this page.
    Read,
    /// The same, or it has got the whole page table that this page is in.
    Beacon,
}

/// The result of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// The page is in the order of this reader.
    Own,
    /// Only in other readers' orders.
    Others,
    /// No reader was expected to read it.
    Unexpected,
}

/// A range to load for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefetch {
    /// The reader's number: first one for each group, in their order, then the readers that joined.
    pub(crate) reader: usize,
    /// The range.
    pub(crate) extent: Extent,
    /// It replaces the waiting loads of this reader.
    pub(crate) instead: bool,
    /// The kernel shall reclaim other cache first, as it has to make room by itself.
    pub(crate) hold: bool,
}

#[derive(Debug)]
struct Reader {
    order: Arc<ReadOrder>,
    /// Everything before this place has been read, or will not be.
    front: usize,
    issued: usize,
    passed: usize,
    gone: bool,
    /// How many pages of its order have been read, or are coming in.
    seen: u64,
    /// The pages that it has read since an apparent jump, and where that led.
    elsewhere: Option<(u64, u64)>,
    /// Places that it skipped, which stay until its progress reaches `settled`, as it may come
    /// back.
    skipped: Vec<Range<usize>>,
    settled: u64,
    /// Places that it skipped, and did not come back for in time.
    let_go: Vec<Range<usize>>,
    /// Where it waits for an issued piece, and may have overtaken the loader: the place, and the page after, in pages of
    /// its order.
    waits: Option<(usize, u64)>,
    /// The rest of that piece, to be issued once more.
    rest: Option<Extent>,
    /// Where it did so last, in pages.
    overtaken: Option<u64>,
    /// Pieces up to this place are issued once more: cached ones cost nothing.
    again: usize,
    /// The next issue replaces the waiting ones.
    instead: bool,
    strays: u32,
    /// Set if it does not follow its order.
    loose: Option<Loose>,
    left_out: LeftOut,
    returns: Returns,
}

impl Reader {
    fn new(order: Arc<ReadOrder>) -> Self {
        Self {
            order,
            front: 0,
            issued: 0,
            passed: 0,
            gone: false,
            seen: 0,
            elsewhere: None,
            skipped: Vec::new(),
            settled: 0,
            let_go: Vec::new(),
            waits: None,
            rest: None,
            overtaken: None,
            again: 0,
            instead: true,
            strays: 0,
            loose: None,
            left_out: LeftOut::new(),
            returns: Returns::default(),
        }
    }

    fn ahead(&self) -> u64 {
        self.order.before(self.issued) - self.order.before(self.front.min(self.issued))
    }

    const fn follows(&self) -> bool {
        self.loose.is_none()
    }

    /// The pieces it has not come past.
    fn left(&self) -> impl Iterator<Item = Piece> {
        let skipped = self.skipped.iter().cloned().flatten();
        let places = skipped.chain(self.passed..self.order.len());
        places.filter_map(|place| self.order.piece(place))
    }
}

/// The position of a reader by an event: in pages of its order, read or coming in.
#[derive(Clone, Copy, Debug)]
struct Position {
    place: usize,
    at: u64,
    to: u64,
    /// How many pages it has read since the last event.
    read: u64,
    misses: bool,
}

/// The state of a load.
#[derive(Debug)]
pub(crate) struct Window {
    pieces: Arc<Pieces>,
    cache: Cache,
    readers: Vec<Reader>,
    budget: u64,
    unknown: u64,
}

impl Window {
    /// A window in which nothing has been read; `budget` is how many pages may be held.
    #[must_use]
    pub(crate) fn new(pieces: Arc<Pieces>, budget: u64) -> Self {
        let readers = (0..pieces.groups()).filter_map(|number| pieces.order(number));
        let readers = readers.map(|order| Reader::new(Arc::clone(order)));
        let mut window = Self {
            readers: readers.collect(),
            cache: Cache::new(Arc::clone(&pieces)),
            pieces,
            budget,
            unknown: 0,
        };
        for number in 0..window.readers.len() {
            window.wait_for(number, 0);
        }
        window
    }

    /// Pages that are held.
    #[must_use]
    pub(crate) const fn held(&self) -> u64 {
        self.cache.held()
    }

    /// How many unexpected pages have been read.
    #[must_use]
    pub(crate) const fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Counts the read of a range that no reader was expected to read.
    pub(crate) fn count_unexpected(&mut self, extent: &Extent) {
        self.unknown += u64::from(extent.pages);
    }

    /// How many readers there are, or have been.
    #[must_use]
    pub(crate) fn readers(&self) -> usize {
        self.readers.len()
    }

    /// How many pages readers have come past, each once.
    #[must_use]
    pub(crate) fn passed(&self) -> u64 {
        self.passed_extents().map(|it| u64::from(it.pages)).sum()
    }

    /// What readers have come past, each piece once.
    pub(crate) fn passed_extents(&self) -> impl Iterator<Item = Extent> {
        let mut seen = vec![false; self.pieces.len()];
        for reader in &self.readers {
            let now = (0..reader.front).filter_map(|place| reader.order.piece(place));
            for piece in now.chain(reader.returns.passed()) {
                seen[piece as usize] = true;
            }
        }
        let passed = (0..).zip(seen).filter(|(_, seen)| *seen);
        passed.filter_map(|(piece, _)| self.pieces.extent(piece))
    }

    /// Whether anything is left to issue, once there is room.
    #[must_use]
    pub(crate) fn has_more(&self) -> bool {
        self.readers.iter().any(|reader| reader.rest.is_some()) || self.next_reader().is_some()
    }

    /// Whether the piece that a range begins in has been issued, or read in, and not been dropped or given up since;
    /// and a reader has yet to come past it.
    #[must_use]
    pub(crate) fn is_due(&self, extent: &Extent) -> bool {
        let is_due =
            |piece| self.cache.state(piece) == PieceState::Held && self.cache.is_needed(piece);
        self.pieces
            .at(extent.file, extent.first)
            .is_some_and(is_due)
    }

    /// The readers whose next piece has been issued and is still `absent`.
    pub(crate) fn waiting(&self, mut absent: impl FnMut(&Extent) -> bool) -> Vec<usize> {
        let mut waits = |reader: &Reader| {
            let next = reader.order.piece(reader.front);
            let next = next.filter(|_| !reader.gone && reader.follows());
            let next = next.filter(|&it| self.cache.state(it) == PieceState::Held);
            next.and_then(|it| self.pieces.extent(it))
                .is_some_and(|it| absent(&it))
        };
        let readers = self.readers.iter().enumerate();
        let waiting = readers.filter(|(_, reader)| waits(reader));
        waiting.map(|(number, _)| number).collect()
    }

    /// How many pages of its order a reader has come past, and how many the order has.
    #[must_use]
    pub(crate) fn progress(&self, number: usize) -> (u64, u64) {
        let reader = self.readers.get(number);
        reader.map_or((0, 0), |reader| {
            let order = &reader.order;
            (order.before(reader.front), order.before(order.len()))
        })
    }

    /// Sets how many pages may be held from now on.
    pub(crate) fn set_budget(&mut self, pages: u64) {
        self.budget = pages;
    }

    pub(crate) const fn budget(&self) -> u64 {
        self.budget
    }

    /// Checks which of the pieces dropped since the last call are still `there`: mapped ones are, without the
    /// module. If they are too many they are left to the kernel, and the pieces ahead are loaded once more, to
    /// be held.
    pub(crate) fn recheck_dropped(&mut self, there: impl FnMut(&Extent) -> Leftover) {
        self.cache.recheck_dropped(there);
        if self.cache.leave_more_than(self.budget / STUCK.1 * STUCK.0) {
            for reader in self.readers.iter_mut().filter(|reader| !reader.gone) {
                reader.again = reader.again.max(reader.issued);
                reader.issued = reader.front.min(reader.issued);
            }
        }
    }

    /// The pages of a file that have stayed can be dropped now.
    pub(crate) fn release_file(&mut self, file: u32) {
        self.cache.release_file(file);
    }

    /// How many pages may be held. Where the kernel has to make room it takes what has been used last among the
    /// first half of all, so what is read later than that would be gone, or never go.
    fn room(&self) -> u64 {
        if self.cache.leaves() {
            self.budget / HELD_PART
        } else {
            self.budget
        }
    }

    /// Sets what other services of this node have yet to read: it is dropped last.
    pub(crate) fn set_claims(&mut self, claims: Claims) {
        self.cache.set_claims(claims);
    }

    /// What the readers have yet to read.
    pub(crate) fn claims(&self) -> Claims {
        self.cache.claims()
    }

    /// Takes in an event of a reader on a range of a file; `read` is how many pages it has read since the last one.
    pub(crate) fn hear(
        &mut self,
        number: usize,
        extent: &Extent,
        step: Access,
        read: u64,
    ) -> Expectation {
        let page = match step {
            Access::Miss => extent.first,
            Access::Read | Access::Beacon => extent.end().saturating_sub(1),
        };
        let Some(piece) = self.pieces.at(extent.file, page) else {
            self.unknown += u64::from(extent.pages);
            return Expectation::Unexpected;
        };
        let Some(reader) = self.readers.get(number) else {
            return Expectation::Others;
        };
        let Some((piece, place)) = self.place_in(reader, piece, extent, step) else {
            return match step {
                Access::Beacon => self.beside(number, piece, (extent.file, page), read),
                Access::Miss | Access::Read => Expectation::Others,
            };
        };
        self.resume(number);
        let dropped = self.cache.state(piece) == PieceState::Dropped;
        if step == Access::Miss {
            self.came_in(piece, extent);
        }
        let (first, last) = self
            .pieces
            .extent(piece)
            .map_or((0, 0), |it| (it.first, it.end()));
        if self.readers[number].loose.is_some() {
            if step != Access::Beacon {
                self.hear_loosely(number, extent, piece, step == Access::Miss);
            }
            return Expectation::Own;
        }
        let passed = step == Access::Miss && place < self.readers[number].passed;
        if passed && self.returns(number, piece, dropped) {
            return Expectation::Own;
        }
        let page = page.min(last.saturating_sub(1));
        let at = self.readers[number].order.before(place) + u64::from(page - first);
        let length = match step {
            Access::Miss => u64::from(extent.pages),
            Access::Read | Access::Beacon => 1,
        };
        let news = Position {
            // A piece is behind it when its last page has been read.
            place: place + usize::from(step != Access::Miss && extent.end() >= last),
            at,
            to: at + length,
            read: read.max(u64::from(extent.pages)),
            misses: step == Access::Miss,
        };
        self.moved(number, &news);
        Expectation::Own
    }

    /// The place of a piece in a reader's order. A fault maps all of a large folio, or what is cached around its page,
    /// and the last page of that may be another reader's: then its own last piece among them counts.
    fn place_in(
        &self,
        reader: &Reader,
        piece: Piece,
        extent: &Extent,
        step: Access,
    ) -> Option<(Piece, usize)> {
        let of = |piece: Piece| Some((piece, reader.order.place(piece)?));
        let within = |piece: &Piece| {
            let it = self.pieces.extent(*piece);
            it.is_some_and(|it| it.file == extent.file && it.end() > extent.first)
        };
        let before = (0..piece).rev().take_while(within);
        let before = (step == Access::Read).then_some(before);
        of(piece).or_else(|| before.into_iter().flatten().find_map(of))
    }

    /// A beacon of a reader stands on the part of another: a reader of a mapping gets a table at
    /// once, and other readers' parts may be in it. It has at least come to its own part before that.
    fn beside(&mut self, number: usize, piece: Piece, at: (u32, u32), read: u64) -> Expectation {
        let reader = &self.readers[number];
        let own = |piece: &Piece| {
            let extent = self.pieces.extent(*piece)?;
            let (file, page) = at;
            let near = extent.file == file && page < extent.end().saturating_add(TABLE);
            let place = reader.order.place(*piece).filter(|_| near)?;
            Some((place, extent))
        };
        let before = (piece.saturating_sub(TABLE)..piece).rev();
        let Some((place, extent)) = before.map(|it| own(&it)).take(64).flatten().next() else {
            return Expectation::Others;
        };
        self.resume(number);
        let at = self.readers[number].order.before(place);
        let news = Position {
            place,
            at,
            to: at + u64::from(extent.pages),
            read,
            misses: false,
        };
        self.moved(number, &news);
        Expectation::Own
    }

    /// The ranges to load now; see also [`Self::drops`].
    pub(crate) fn loads(&mut self) -> Vec<Prefetch> {
        self.cache.settle();
        let mut loads: Vec<Prefetch> = Vec::new();
        self.load_rests(&mut loads);
        while loads.len() < MOST_ISSUES
            && let Some(number) = self.next_reader()
        {
            if !self.load_next(number, &mut loads) {
                break;
            }
        }
        loads
    }

    /// The ranges to drop, before any are loaded.
    pub(crate) fn drops(&mut self) -> Vec<Extent> {
        self.cache.drops()
    }

    /// Drops all droppable pieces, as memory is short.
    pub(crate) fn drop_all(&mut self) {
        self.cache.drop_all();
    }

    fn distance(&self) -> u64 {
        let readers = self.readers.iter().filter(|reader| !reader.gone).count();
        let readers = u64::try_from(readers).unwrap_or(1).max(1);
        let usual = (self.budget / DISTANCE_PART).min(DISTANCE) / readers;
        // A reader of a mapping is somewhere in the last page tables that it has got.
        usual.max(TABLES.min(self.budget / 2 / readers))
    }

    /// A reader has had these pages brought in, the first of them in this piece.
    fn came_in(&mut self, first: Piece, extent: &Extent) {
        let pieces = first..u32::try_from(self.pieces.len()).unwrap_or(u32::MAX);
        let within = |piece: &Piece| {
            let it = self.pieces.extent(*piece);
            it.is_some_and(|it| it.file == extent.file && it.first < extent.end())
        };
        let last = pieces.take_while(within).last();
        for piece in first..=last.unwrap_or(first) {
            self.cache.came_in(piece);
        }
    }

    fn moved(&mut self, number: usize, news: &Position) {
        let far = self.distance().max(self.budget / STEPS).max(BELIEVED);
        // In passing, or by a jump.
        let far = far.max(news.read.saturating_mul(2));
        let reader = &mut self.readers[number];
        // Events of mappings may come late; a reader that waits for a page is at that page.
        if news.misses && news.place < reader.passed {
            reader.strays += 1;
        }
        if reader.strays >= STRAYS {
            return self.loosen(number);
        }
        if news.place < reader.front {
            return;
        }
        if news.at > reader.seen.saturating_add(far) {
            return self.elsewhere(number, news, far);
        }
        reader.elsewhere = None;
        // It may be one of several threads.
        if news.place > reader.issued && news.at > reader.seen + overtaken::AT_ONCE {
            reader.left_out.up_to(news.place);
        }
        reader.front = news.place;
        reader.seen = reader.seen.max(news.to);
        if reader.seen >= reader.settled && !reader.skipped.is_empty() {
            self.let_go_skipped(number);
        }
        let reader = &mut self.readers[number];
        let overtakes = news.misses && news.place < reader.issued && news.place > 0;
        let again = |then| news.at >= then + OVERTAKEN_AGAIN;
        reader.waits =
            (overtakes && reader.overtaken.is_none_or(again)).then_some((news.place, news.to));
        self.advance(number);
    }

    fn elsewhere(&mut self, number: usize, news: &Position, far: u64) {
        let reader = &mut self.readers[number];
        let (come, then) = reader.elsewhere.unwrap_or((0, news.at));
        let come = match news.to.checked_sub(then) {
            Some(way) if way <= far => come + way,
            _ => news.to - news.at,
        };
        if come < BELIEVED {
            reader.elsewhere = Some((come, news.to));
            return;
        }
        reader.elsewhere = None;
        reader.strays += 1;
        reader.skipped.push(reader.passed..news.place);
        reader.passed = news.place;
        reader.front = news.place;
        reader.issued = news.place;
        reader.seen = news.to;
        reader.settled = news.to + (self.budget / 4).max(SETTLED);
        reader.left_out.up_to(news.place);
        reader.instead = true;
        self.advance(number);
    }

    fn advance(&mut self, number: usize) {
        let distance = self.distance();
        let reader = &mut self.readers[number];
        reader.issued = reader.issued.max(reader.front);
        let order = &reader.order;
        let end = reader.front == order.len();
        let behind = order.before(reader.front).saturating_sub(distance);
        let passed = if end {
            usize::MAX
        } else {
            order.place_after(behind)
        };
        self.pass(number, passed);
    }

    /// The reader no longer needs anything before this place; at the end, not even what it has skipped.
    fn pass(&mut self, number: usize, place: usize) {
        let reader = &mut self.readers[number];
        let end = reader.order.len();
        let places = reader.passed..place.min(end);
        reader.passed = reader.passed.max(places.end);
        self.release(number, &[places]);
        if place >= end {
            self.let_go_skipped(number);
        }
    }

    /// The reader is not expected to come back for what it has skipped.
    fn let_go_skipped(&mut self, number: usize) {
        let skipped = std::mem::take(&mut self.readers[number].skipped);
        self.release(number, &skipped);
        self.readers[number].let_go.extend(skipped);
    }

    /// The reader no longer needs the pieces at these places.
    fn release(&mut self, number: usize, places: &[Range<usize>]) {
        let order = Arc::clone(&self.readers[number].order);
        let pieces = places.iter().cloned().flatten();
        for piece in pieces.filter_map(|place| order.piece(place)) {
            self.cache.release(piece);
        }
    }

    /// The reader whose turn it is: of those that follow their order, the one with the least ahead; then those that do
    /// not, and those for which pieces have been left out.
    fn next_reader(&self) -> Option<usize> {
        let wants = |reader: &Reader| {
            !reader.gone && reader.follows() && reader.issued < reader.order.len()
        };
        let readers = self.readers.iter().enumerate();
        let wanting = readers.filter(|(_, reader)| wants(reader));
        let next = wanting.min_by_key(|(_, reader)| reader.ahead());
        if let Some((number, _)) = next {
            return Some(number);
        }
        let wants = |reader: &Reader| {
            let loose = reader.loose.as_ref().is_some_and(Loose::has_more);
            !reader.gone && (loose || reader.left_out.has_more())
        };
        self.readers.iter().position(wants)
    }

    /// Issues the next piece of a reader; false if there is no room for it.
    fn load_next(&mut self, number: usize, loads: &mut Vec<Prefetch>) -> bool {
        let reader = &self.readers[number];
        if reader.loose.as_ref().is_some_and(Loose::has_more) {
            return self.load_loosely(number, loads);
        }
        let next = reader.order.piece(reader.issued);
        let Some(piece) = next.filter(|_| reader.follows()) else {
            return self.load_left_out(number, loads);
        };
        let again = reader.issued < reader.again && self.cache.is_needed(piece);
        if self.cache.state(piece) == PieceState::Absent {
            // Cached pages that another service needs are worth more than pages needed here one day.
            let (room, spares) = (self.room(), reader.ahead() * AHEAD_PART > self.budget);
            if !self.cache.hold_within(piece, room, spares) {
                return false;
            }
        } else if !self.cache.take_begun(piece) && !again {
            self.readers[number].issued += 1;
            return true;
        }
        let reader = &mut self.readers[number];
        reader.issued += 1;
        if let Some(extent) = self.pieces.extent(piece) {
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

/// Adds a piece, merged into the last load of the same reader if it continues that.
fn add(loads: &mut Vec<Prefetch>, number: usize, extent: Extent, instead: &mut bool, hold: bool) {
    if let Some(last) = loads.iter_mut().rev().find(|load| load.reader == number)
        && last.extent.file == extent.file
        && last.extent.end() == extent.first
    {
        last.extent.pages += extent.pages;
        return;
    }
    let instead = std::mem::take(instead);
    loads.push(Prefetch {
        reader: number,
        extent,
        instead,
        hold,
    });
}

mod cache;
mod loose;
mod overtaken;
mod presence;
mod returns;
mod withdrawn;

#[cfg(test)]
mod tests;
