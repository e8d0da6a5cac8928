//! What differs between two templates.
//!
//! For tools: `ppcctl template diff` shows it, and the fuzzer compares its own templates with it. The policy
//! does not use it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::Serialize;

use super::{Identity, Sameness, Template, TemplateError};
use crate::ranges::Ranges;
use crate::{Extent, PAGE};

/// What differs between `a` and `b`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// All workers of both, by their numbers.
    pub workers: Vec<WorkerDiff>,
    /// The files that are not the same, by their paths.
    pub files: Vec<FileDiff>,
}

/// What a worker reads in each, each page once. In bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerDiff {
    /// The worker.
    pub worker: u32,
    /// What it reads in `a` only.
    pub only_a: u64,
    /// What it reads in `b` only.
    pub only_b: u64,
    /// What it reads in both.
    pub both: u64,
    /// The largest fraction of that which comes in the same order in `a` and in `b`, 0 to 1, by
    /// bytes. 1 where nothing is read in both.
    pub order: f64,
}

/// A file that is not the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileDiff {
    /// From the model's directory.
    pub path: String,
    /// What happened to it.
    pub change: Change,
}

/// What happened to a file from `a` to `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Only `b` has it.
    Added,
    /// Only `a` has it.
    Removed,
    /// [`Sameness::Moved`].
    Moved,
    /// [`Sameness::Changed`].
    Changed,
}

impl Diff {
    /// How far the one is from the other, 0 to 1: the part of all bytes read that are not read in
    /// both, or not in the same order.
    #[must_use]
    pub fn drift(&self) -> f64 {
        let (mut kept, mut all) = (0.0, 0.0);
        for worker in &self.workers {
            kept += float(worker.both) * worker.order;
            all += float(worker.both + worker.only_a + worker.only_b);
        }
        if all > 0.0 { 1.0 - kept / all } else { 0.0 }
    }
}

/// Compares two templates. Files are matched by their paths, whatever they contain.
///
/// # Errors
/// [`TemplateError::Inconsistent`] if ranges of either are impossible.
pub fn diff(a: &Template, b: &Template) -> Result<Diff, TemplateError> {
    let mut paths = HashMap::new();
    let mut reads = BTreeMap::<u32, [Vec<Extent>; 2]>::new();
    for (side, template) in [a, b].into_iter().enumerate() {
        let places = places(&template.files, &mut paths);
        for group in &template.groups {
            let extents = &mut reads.entry(group.worker).or_default()[side];
            for extent in group.extents()? {
                let place = places.get(extent.file as usize);
                let &file =
                    place.ok_or(TemplateError::Inconsistent("a range belongs to no file"))?;
                extents.push(Extent { file, ..extent });
            }
        }
    }
    let worker = |(worker, [a, b]): (u32, [Vec<Extent>; 2])| worker_diff(worker, &a, &b);
    Ok(Diff {
        workers: reads.into_iter().map(worker).collect(),
        files: files(&a.files, &b.files),
    })
}

/// For each file, the number that its path has in both templates.
fn places<'a>(files: &'a [Identity], paths: &mut HashMap<&'a str, u32>) -> Vec<u32> {
    let place = |file: &'a Identity| {
        let next = u32::try_from(paths.len()).unwrap_or(u32::MAX);
        *paths.entry(file.path.as_str()).or_insert(next)
    };
    files.iter().map(place).collect()
}

fn files(a: &[Identity], b: &[Identity]) -> Vec<FileDiff> {
    let by_path = |files: &'_ [Identity]| -> BTreeMap<String, Identity> {
        let entry = |file: &Identity| (file.path.clone(), file.clone());
        files.iter().map(entry).collect()
    };
    let mut left = by_path(b);
    let mut changes = BTreeMap::new();
    for (path, was) in by_path(a) {
        let change = match left.remove(&path).map(|now| was.same(&now)) {
            None => Change::Removed,
            Some(Sameness::Same) => continue,
            Some(Sameness::Moved) => Change::Moved,
            Some(Sameness::Changed) => Change::Changed,
        };
        changes.insert(path, change);
    }
    changes.extend(left.into_keys().map(|path| (path, Change::Added)));
    let file = |(path, change)| FileDiff { path, change };
    changes.into_iter().map(file).collect()
}

fn worker_diff(worker: u32, a: &[Extent], b: &[Extent]) -> WorkerDiff {
    let (a, b) = (firsts(a), firsts(b));
    let common = common(&a, &b);
    let both = common.iter().map(|piece| piece.pages).sum::<u64>();
    let total = |pieces: &[FirstRead]| pieces.iter().map(FirstRead::pages).sum::<u64>();
    WorkerDiff {
        worker,
        only_a: (total(&a) - both) * PAGE,
        only_b: (total(&b) - both) * PAGE,
        both: both * PAGE,
        order: match both {
            0 => 1.0,
            _ => float(in_order(common)) / float(both),
        },
    }
}

/// Pages that are read for the first time, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FirstRead {
    file: u32,
    first: u32,
    end: u32,
    turn: usize,
}

impl FirstRead {
    fn pages(&self) -> u64 {
        u64::from(self.end - self.first)
    }
}

/// What is read for the first time, by file and place.
fn firsts(extents: &[Extent]) -> Vec<FirstRead> {
    let mut read = HashMap::<u32, Ranges>::new();
    let mut pieces = Vec::with_capacity(extents.len());
    for (turn, extent) in extents.iter().enumerate() {
        let file = extent.file;
        let first_read = |part: Range<u32>| {
            pieces.push(FirstRead {
                file,
                first: part.start,
                end: part.end,
                turn,
            });
        };
        let pages = extent.first..extent.end();
        read.entry(file).or_default().insert(&pages, first_read);
    }
    pieces.sort_unstable();
    pieces
}

/// Pages that are read in both, and when in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CommonPages {
    file: u32,
    first: u32,
    pages: u64,
    turns: [usize; 2],
}

impl CommonPages {
    fn order(&self, other: &Self, side: usize) -> Ordering {
        let key = |it: &Self| (it.turns[side], it.file, it.first);
        key(self).cmp(&key(other))
    }
}

/// Both are sorted, and no piece meets another of its side.
fn common(a: &[FirstRead], b: &[FirstRead]) -> Vec<CommonPages> {
    let (mut common, mut at) = (Vec::new(), [0, 0]);
    while let (Some(one), Some(other)) = (a.get(at[0]), b.get(at[1])) {
        let (first, end) = (one.first.max(other.first), one.end.min(other.end));
        if one.file == other.file && first < end {
            common.push(CommonPages {
                file: one.file,
                first,
                pages: u64::from(end - first),
                turns: [one.turn, other.turn],
            });
        }
        let ends_first = (one.file, one.end) <= (other.file, other.end);
        at[usize::from(!ends_first)] += 1;
    }
    common
}

/// The largest number of pages that follow each other in both: the heaviest rising sequence.
fn in_order(mut common: Vec<CommonPages>) -> u64 {
    common.sort_unstable_by(|a, b| a.order(b, 1));
    let mut ranks: Vec<usize> = (0..common.len()).collect();
    ranks.sort_unstable_by(|&a, &b| common[a].order(&common[b], 0));
    let mut best = Heaviest(vec![0; common.len() + 1]);
    // In the order of a, each with its rank in b.
    for rank in ranks {
        let weight = best.up_to(rank) + common[rank].pages;
        best.raise(rank, weight);
    }
    best.up_to(common.len())
}

/// The heaviest sequence that ends below a rank: a Fenwick tree of maxima.
struct Heaviest(Vec<u64>);

impl Heaviest {
    /// Of those below the rank.
    fn up_to(&self, rank: usize) -> u64 {
        let (mut at, mut most) = (rank, 0);
        while at > 0 {
            most = most.max(self.0[at]);
            at &= at - 1;
        }
        most
    }

    fn raise(&mut self, rank: usize, weight: u64) {
        let mut at = rank + 1;
        while let Some(most) = self.0.get_mut(at) {
            *most = weight.max(*most);
            at += at & at.wrapping_neg();
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a part of 2^53 bytes is near enough"
)]
const fn float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::super::Group;
    use super::super::samples::{Random, extents, identity, small};
    use super::*;

    fn of(ranges: &[(u32, u32, u32)]) -> Vec<Extent> {
        let extent = |&(file, first, pages): &_| Extent { file, first, pages };
        ranges.iter().map(extent).collect()
    }

    fn numbers(a: &[(u32, u32, u32)], b: &[(u32, u32, u32)]) -> (u64, u64, u64, f64) {
        let diff = worker_diff(0, &of(a), &of(b));
        let pages = |bytes| bytes / PAGE;
        (
            pages(diff.only_a),
            pages(diff.only_b),
            pages(diff.both),
            diff.order,
        )
    }

    #[test]
    fn templates_are_compared_by_page_and_not_by_range() {
        assert_eq!(numbers(&[], &[]), (0, 0, 0, 1.0));
        let whole = [(0, 0, 100), (1, 0, 50)];
        let parts = [(0, 0, 30), (0, 30, 70), (1, 0, 50)];
        assert_eq!(numbers(&whole, &parts), (0, 0, 150, 1.0));
        assert_eq!(numbers(&whole, &[(0, 90, 20)]), (140, 10, 10, 1.0));
        assert_eq!(numbers(&[(0, 0, 1)], &[(1, 0, 1)]), (1, 1, 0, 1.0));
    }

    #[test]
    fn order_is_the_most_that_both_read_one_after_the_other() {
        let there = [(0, 0, 10), (0, 10, 10), (0, 20, 30)];
        let back = [(0, 20, 30), (0, 10, 10), (0, 0, 10)];
        assert_eq!(numbers(&there, &back), (0, 0, 50, 0.6));
        let swapped = [(0, 10, 10), (0, 0, 10), (0, 20, 30)];
        assert_eq!(numbers(&there, &swapped), (0, 0, 50, 0.8));
        assert_eq!(numbers(&[(0, 0, 50)], &swapped), (0, 0, 50, 0.8));
    }

    #[test]
    fn repeated_reads_are_counted_once() {
        let again = [(0, 0, 10), (0, 5, 10), (0, 0, 30), (0, 0, 1)];
        assert_eq!(numbers(&again, &[(0, 0, 30)]), (0, 0, 30, 1.0));
    }

    /// One page at a time.
    fn slow_firsts(extents: &[Extent]) -> HashMap<(u32, u32), usize> {
        let mut pages = HashMap::new();
        for (turn, extent) in extents.iter().enumerate() {
            for page in extent.first..extent.end() {
                pages.entry((extent.file, page)).or_insert(turn);
            }
        }
        pages
    }

    #[test]
    fn first_reads_are_those_of_counting_pages() {
        let mut random = Random(5);
        let files = [identity("a", 300 << 12), identity("b", 9 << 12)];
        for _ in 0..200 {
            let extents = extents(&mut random, &files);
            let pieces = firsts(&extents);
            let disjoint =
                |pair: &[FirstRead]| (pair[0].file, pair[0].end) <= (pair[1].file, pair[1].first);
            assert!(pieces.windows(2).all(disjoint));
            let mut pages = HashMap::new();
            for piece in pieces {
                for page in piece.first..piece.end {
                    pages.insert((piece.file, page), piece.turn);
                }
            }
            assert_eq!(pages, slow_firsts(&extents));
        }
    }

    #[test]
    fn a_template_does_not_differ_from_itself() {
        let template = small();
        let diff = diff(&template, &template).expect("what differs");
        assert!(diff.files.is_empty());
        assert!(diff.drift() < 1e-12, "{}", diff.drift());
        assert_eq!(diff.workers.len(), 2);
    }

    #[test]
    fn files_are_matched_by_path_and_workers_by_number() {
        let group = |worker, ranges: &[_]| Group::new(worker, None, &of(ranges)).expect("a group");
        let (mut a, mut b) = (small(), small());
        a.files = vec![identity("a", 1 << 20), identity("b", 1 << 20)];
        a.groups = vec![group(0, &[(0, 0, 4), (1, 0, 4)]), group(1, &[(0, 0, 1)])];
        b.files = vec![
            identity("c", 9),
            identity("b", 1 << 20),
            identity("a", 1 << 20),
        ];
        b.groups = vec![group(0, &[(2, 0, 4), (1, 0, 4)]), group(2, &[(0, 0, 1)])];
        b.files[1].mtime_ns += 1;
        b.files[2].size += 1;
        let found = diff(&a, &b).expect("what differs");
        let workers: Vec<_> = found
            .workers
            .iter()
            .map(|it| {
                (
                    it.worker,
                    it.only_a / PAGE,
                    it.only_b / PAGE,
                    it.both / PAGE,
                )
            })
            .collect();
        assert_eq!(workers, [(0, 0, 0, 8), (1, 1, 0, 0), (2, 0, 1, 0)]);
        let files: Vec<_> = found
            .files
            .iter()
            .map(|it| (it.path.as_str(), it.change))
            .collect();
        assert_eq!(
            files,
            [
                ("a", Change::Changed),
                ("b", Change::Moved),
                ("c", Change::Added)
            ]
        );
        assert!((found.drift() - 0.2).abs() < 1e-12);
        let back = diff(&b, &a).expect("what differs");
        assert_eq!(back.files[2].change, Change::Removed);
        b.files.clear();
        assert!(diff(&a, &b).is_err());
    }
}
