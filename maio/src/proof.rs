//! Whether a template was right: a load is recorded during its replay, and both are compared. Pure.

use std::collections::HashMap;
use std::fmt;

use crate::extent::{Extent, PAGE};
use crate::load::Part;
use crate::order::Pieces;
use crate::ranges::Ranges;

/// Upper bound on the wrong part of a right template, in percent.
const WRONG: u64 = 2;
/// Upper bound on the part read out of order, in percent: threads and processes race.
const OUT_OF_ORDER: u64 = 25;
/// Pages read earlier or later than expected by less than this fraction of all are in order.
const TURN: u64 = 16;

/// What was expected and what was read, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proof {
    /// Read, each page once.
    pub(crate) read: u64,
    /// Of these, not expected: readers had to load them themselves.
    pub(crate) missing: u64,
    /// Expected but not read: loaded in vain.
    pub(crate) unread: u64,
    /// Read much later than they were expected.
    pub(crate) late: u64,
}

impl Proof {
    /// Compares the expected pages with those that each worker has read.
    pub(crate) fn new(expected: &Pieces, read: &[Part]) -> Self {
        let files = union(read.iter().flat_map(|part| &part.extents));
        let all: u64 = files.values().map(Ranges::pages).sum();
        let hits = expected.runs().into_iter().map(|run| {
            let file = files.get(&run.file);
            file.map_or(0, |file| file.pages_in(&(run.first..run.end())))
        });
        let hits: u64 = hits.sum();
        Self {
            read: all,
            missing: all.saturating_sub(hits),
            unread: expected.total().saturating_sub(hits),
            late: read.iter().map(|part| late(expected, part)).sum(),
        }
    }

    /// Whether the next load may replay the same template.
    pub(crate) const fn is_right(&self) -> bool {
        !self.is_incomplete() && self.unread * 100 <= self.read * WRONG
    }

    /// Whether readers had to load pages themselves, or waited for late ones.
    pub(crate) const fn is_incomplete(&self) -> bool {
        self.missing * 100 > self.read * WRONG || self.late * 100 > self.read * OUT_OF_ORDER
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |pages: u64| (pages * PAGE) >> 20;
        let (read, missing, unread) = (mib(self.read), mib(self.missing), mib(self.unread));
        write!(
            f,
            "of {read} MiB that readers read, the template lacked {missing}; {unread} MiB more were never read"
        )?;
        if self.late > 0 {
            write!(f, ", {} came late", mib(self.late))?;
        }
        Ok(())
    }
}

fn union<'a>(extents: impl Iterator<Item = &'a Extent>) -> HashMap<u32, Ranges> {
    let mut files: HashMap<u32, Ranges> = HashMap::new();
    for extent in extents {
        let file = files.entry(extent.file).or_default();
        file.insert(&(extent.first..extent.end()), |_| {});
    }
    files
}

/// How many pages a worker has read long after others that were expected to follow them.
fn late(expected: &Pieces, part: &Part) -> u64 {
    let Some(order) = expected.order(part.worker as usize) else {
        return 0;
    };
    // Pages before each piece; looking each of them up in the order would take seconds for a large model.
    let mut turns: Vec<Option<u64>> = vec![None; expected.len()];
    let mut before = 0;
    for piece in (0..order.len()).filter_map(|place| order.piece(place)) {
        turns[piece as usize] = Some(before);
        before += expected.pages(piece);
    }
    let turn = before / TURN;
    let (mut furthest, mut late) = (0, 0);
    for extent in &part.extents {
        let mut at = extent.first;
        while at < extent.end() {
            // Where it continues in the order, piece by piece.
            let piece = expected.at(extent.file, at);
            let end = piece.and_then(|piece| expected.extent(piece));
            let end = end.map_or(at + 1, |it| it.end()).min(extent.end());
            if let Some(then) = piece.and_then(|piece| turns[piece as usize]) {
                if then + turn < furthest {
                    late += u64::from(end - at);
                }
                furthest = furthest.max(then);
            }
            at = end;
        }
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u32 = 10_000;

    fn extent(first: u32, pages: u32) -> Extent {
        Extent {
            file: 0,
            first,
            pages,
        }
    }

    fn part(extents: Vec<Extent>) -> Part {
        Part {
            worker: 0,
            xpu: None,
            extents,
        }
    }

    fn proof(expected: &[Extent], read: &[Extent]) -> Proof {
        Proof::new(&Pieces::new(&[expected.to_vec()]), &[part(read.to_vec())])
    }

    #[test]
    fn the_same_is_right_and_a_little_makes_no_difference() {
        let all = [extent(0, PAGES)];
        let right = proof(&all, &all);
        assert_eq!((right.read, right.missing, right.unread), (10_000, 0, 0));
        assert!(right.is_right());
        assert!(proof(&all, &[extent(150, PAGES - 150)]).is_right());
        assert!(proof(&all, &[extent(0, PAGES + 150)]).is_right());
    }

    #[test]
    fn missing_and_unread_pages_are_counted() {
        let all = [extent(0, PAGES)];
        let holes: Vec<_> = (0..100).map(|at| extent(at * 100, 90)).collect();
        let short = proof(&holes, &all);
        assert_eq!((short.missing, short.unread), (1000, 0));
        assert!(!short.is_right());
        let large = proof(&all, &holes);
        assert_eq!((large.missing, large.unread), (0, 1000));
        assert!(!large.is_right());
        let text = large.to_string();
        assert!(text.contains("3 MiB more were never read"), "{text}");
        assert!(short.is_incomplete() && !large.is_incomplete());
    }

    #[test]
    fn another_order_is_found_out_and_threads_that_race_are_not() {
        let forwards: Vec<_> = (0..100).map(|at| extent(at * 100, 100)).collect();
        let backwards: Vec<_> = forwards.iter().rev().copied().collect();
        assert!(!proof(&forwards, &backwards).is_right());
        // The second of each pair comes first.
        let pairs = forwards.chunks(2).flat_map(|pair| [pair[1], pair[0]]);
        assert!(proof(&forwards, &pairs.collect::<Vec<_>>()).is_right());
        // An unknown worker has no order.
        let mut stranger = part(forwards.clone());
        stranger.worker = 7;
        let proof = Proof::new(&Pieces::new(&[backwards]), &[stranger]);
        assert!(proof.is_right());
    }
}
