//! Which process is which worker. Pure: the facts of processes are passed in.
//!
//! A worker is a process. Its group in a template follows from its rank, or from the accelerator
//! it works on, or from its first reads; a process that reads another group's part is taken for
//! that group. Processes beyond the expected ones follow some group's order, too.

use std::collections::{BTreeMap, BTreeSet};

use ppc::Xpu;
use ppc::ranks::Ranks;

/// What is known of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessFacts {
    pub(crate) rank: Option<u32>,
    pub(crate) xpu: Option<Xpu>,
}

/// A group that is expected to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedWorker {
    pub(crate) worker: u32,
    pub(crate) xpu: Option<Xpu>,
}

/// A process that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Worker {
    pub(crate) facts: ProcessFacts,
    /// The group whose order it follows, and its number among the readers.
    pub(crate) place: Option<(usize, usize)>,
    /// When its last event was.
    pub(crate) heard_ns: u64,
    pub(crate) gone: bool,
    /// How many pages of other courses it has read, less those of its own since.
    pub(crate) strayed: u64,
    /// It reads another course than its rank's.
    pub(crate) by_course: bool,
}

/// The processes that take part in a load.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    expected: Vec<ExpectedWorker>,
    /// Whether a process has been assigned to each of them.
    taken: Vec<bool>,
    members: BTreeMap<u32, Worker>,
    order: Vec<u32>,
}

/// Where a process belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assignment {
    /// The expected worker of this group.
    Expected(usize),
    /// An additional reader of this group's order.
    Extra(usize),
}

impl Workers {
    pub(crate) fn new(expected: Vec<ExpectedWorker>) -> Self {
        Self {
            taken: vec![false; expected.len()],
            expected,
            ..Self::default()
        }
    }

    pub(crate) fn member(&mut self, process: u32) -> Option<&mut Worker> {
        self.members.get_mut(&process)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = (u32, &Worker)> {
        self.members
            .iter()
            .map(|(&process, member)| (process, member))
    }

    pub(crate) fn members_mut(&mut self) -> impl Iterator<Item = (u32, &mut Worker)> {
        self.members
            .iter_mut()
            .map(|(&process, member)| (process, member))
    }

    /// The group of a rank. If all groups are known by their tensor rank alone, a replica or a pipeline stage is
    /// taken to read as the worker of its tensor rank does.
    fn of_rank(&self, rank: Option<u32>) -> Option<usize> {
        let rank = rank?;
        let group = |worker| {
            let mut groups = self.expected.iter();
            groups.position(|group| group.worker == worker)
        };
        let told = |worker: u32| Ranks::of_number(worker);
        let of_tensor = |it: &ExpectedWorker| told(it.worker).tensor == Some(it.worker);
        let tensor = told(rank)
            .tensor
            .filter(|_| self.expected.iter().all(of_tensor));
        group(rank).or_else(|| group(tensor?))
    }

    /// Whether another reading process has the same rank: then it counts for neither.
    fn shares_rank(&self, process: u32, rank: Option<u32>) -> bool {
        let mut others = self.members.iter().filter(|(other, _)| **other != process);
        let same = |it: &Worker| it.facts.rank == rank && it.place.is_some() && !it.gone;
        rank.is_some() && others.any(|(_, it)| same(it))
    }

    /// The group of a process by its rank, if that identifies one.
    pub(crate) fn ranked(&self, process: u32) -> Option<usize> {
        let member = self.members.get(&process)?;
        let rank = member.facts.rank;
        self.of_rank(rank)
            .filter(|_| !self.shares_rank(process, rank))
    }

    /// The group of a rank, if no process has been assigned to it.
    pub(crate) fn unassigned_of_rank(&self, rank: Option<u32>) -> Option<usize> {
        self.of_rank(rank).filter(|&group| !self.taken[group])
    }

    /// The number of a group's worker.
    pub(crate) fn expected(&self, group: usize) -> Option<u32> {
        self.expected.get(group).map(|group| group.worker)
    }

    /// The number of groups that are expected.
    pub(crate) fn groups(&self) -> usize {
        self.expected.len()
    }

    /// The groups without a process.
    pub(crate) fn missing(&self) -> impl Iterator<Item = usize> {
        let taken = self.taken.iter().enumerate();
        taken.filter(|&(_, taken)| !taken).map(|(group, _)| group)
    }

    /// The process of a reader, and the accelerator it is near.
    pub(crate) fn reader(&self, reader: usize) -> (Option<u32>, Option<Xpu>) {
        let found = self
            .members
            .iter()
            .find(|(_, member)| member.place.is_some_and(|(_, it)| it == reader));
        let planned = self.expected.get(reader).and_then(|group| group.xpu);
        match found {
            Some((&process, member)) => (Some(process), member.facts.xpu.or(planned)),
            None => (None, planned),
        }
    }

    /// Adds a process at its first event.
    pub(crate) fn add(&mut self, process: u32, facts: ProcessFacts, now_ns: u64) {
        self.order.push(process);
        let member = Worker {
            facts,
            place: None,
            heard_ns: now_ns,
            gone: false,
            strayed: 0,
            by_course: false,
        };
        self.members.insert(process, member);
    }

    /// The assignment of a process whose read is in the orders of the groups that `fits` accepts;
    /// `None` if it is in none.
    pub(crate) fn choose(&self, process: u32, fits: impl Fn(usize) -> bool) -> Option<Assignment> {
        let facts = self
            .members
            .get(&process)
            .map(|it| it.facts)
            .unwrap_or_default();
        let all = || (0..self.expected.len()).filter(|&group| fits(group));
        // A rank says more than the first read, which may be of a header.
        let by_course = self.members.get(&process).is_some_and(|it| it.by_course);
        let by_rank = self.ranked(process).filter(|_| !by_course);
        let xpu = |it: &usize| facts.xpu.is_some() && facts.xpu == self.expected[*it].xpu;
        let known = by_rank.or_else(|| all().find(xpu));
        let free = || all().find(|&it| !self.taken[it]);
        let group = known.or_else(free).or_else(|| all().next())?;
        Some(if self.taken[group] {
            Assignment::Extra(group)
        } else {
            Assignment::Expected(group)
        })
    }

    /// Assigns a process to a group, as this reader.
    pub(crate) fn assign(&mut self, process: u32, group: usize, reader: usize) {
        if let Some(taken) = self.taken.get_mut(reader) {
            *taken = true;
        }
        if let Some(member) = self.members.get_mut(&process) {
            member.place = Some((group, reader));
        }
    }

    /// Takes an assignment back that was wrong; returns the reader the process was taken for.
    pub(crate) fn unassign(&mut self, process: u32) -> Option<usize> {
        let (_, reader) = self.members.get_mut(&process)?.place.take()?;
        if let Some(taken) = self.taken.get_mut(reader) {
            *taken = false;
        }
        Some(reader)
    }

    /// Unique numbers for processes, from 0: unambiguous ranks are kept; the rest go by accelerator, then by
    /// order of arrival.
    pub(crate) fn numbers(&self, of: impl Fn(u32) -> bool) -> BTreeMap<u32, u32> {
        let mut all: Vec<_> = self
            .order
            .iter()
            .copied()
            .filter(|&process| of(process))
            .collect();
        all.dedup();
        let key = |process: &u32| {
            let facts = self
                .members
                .get(process)
                .map(|it| it.facts)
                .unwrap_or_default();
            (
                facts.rank.unwrap_or(u32::MAX),
                facts.xpu.map_or(u16::MAX, |xpu| xpu.0),
            )
        };
        all.sort_by_key(key);
        let ranks: Vec<_> = all.iter().map(key).map(|(rank, _)| rank).collect();
        let distinct = ranks.windows(2).all(|pair| pair[0] < pair[1]);
        let mut taken: BTreeSet<u32> = if distinct {
            ranks.iter().copied().collect()
        } else {
            BTreeSet::new()
        };
        let all = all.into_iter().zip(ranks).zip(0..);
        all.map(|((process, rank), place)| {
            if distinct && rank != u32::MAX {
                return (process, rank);
            }
            // A process of unknown rank gets its place as a number, unless that is another one's rank.
            let number = (place..=u32::MAX).find(|&number| taken.insert(number));
            (process, number.unwrap_or(place))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers() -> Workers {
        let expected = |worker: u32| ExpectedWorker {
            worker,
            xpu: Some(Xpu(u16::try_from(worker).expect("small") + 4)),
        };
        Workers::new((0..3).map(expected).collect())
    }

    fn unassigned_of_rank(rank: u32) -> ProcessFacts {
        ProcessFacts {
            rank: Some(rank),
            xpu: None,
        }
    }

    #[test]
    fn rank_beats_accelerator_and_both_beat_arrival_order() {
        let mut workers = workers();
        workers.add(10, unassigned_of_rank(2), 0);
        workers.add(
            11,
            ProcessFacts {
                rank: None,
                xpu: Some(Xpu(5)),
            },
            0,
        );
        workers.add(12, ProcessFacts::default(), 0);
        assert_eq!(workers.choose(10, |_| true), Some(Assignment::Expected(2)));
        assert_eq!(workers.choose(11, |_| true), Some(Assignment::Expected(1)));
        workers.assign(10, 2, 2);
        workers.assign(11, 1, 1);
        assert_eq!(workers.choose(12, |_| true), Some(Assignment::Expected(0)));
        workers.assign(12, 0, 0);
        workers.add(13, ProcessFacts::default(), 0);
        assert_eq!(workers.choose(13, |_| true), Some(Assignment::Extra(0)));
        assert_eq!(workers.missing().count(), 0);
        assert_eq!(workers.reader(1), (Some(11), Some(Xpu(5))));
        assert_eq!(
            workers.reader(2),
            (Some(10), Some(Xpu(6))),
            "where it was last time"
        );
    }

    #[test]
    fn reads_decide_the_group_when_the_rank_does_not() {
        let mut workers = workers();
        workers.add(10, ProcessFacts::default(), 0);
        assert_eq!(
            workers.choose(10, |group| group == 1),
            Some(Assignment::Expected(1))
        );
        assert_eq!(workers.choose(10, |_| false), None);
        workers.assign(10, 1, 1);
        assert_eq!(workers.unassign(10), Some(1));
        assert_eq!(workers.missing().collect::<Vec<_>>(), [0, 1, 2]);
        // A process with a known rank may look at anything first.
        workers.add(11, unassigned_of_rank(0), 0);
        assert_eq!(
            workers.choose(11, |group| group == 2),
            Some(Assignment::Expected(0))
        );
        workers.add(12, unassigned_of_rank(7), 0);
        assert_eq!(
            workers.choose(12, |group| group == 2),
            Some(Assignment::Expected(2))
        );
    }

    #[test]
    fn stages_and_replicas_have_seats_of_their_own_where_these_are_known() {
        let number = |title: &str| {
            let ranks = Ranks::in_title(title).expect("a worker");
            ranks.number().expect("a number")
        };
        let expected = |worker| ExpectedWorker { worker, xpu: None };
        let titles = ["PP0_TP0", "PP0_TP1", "PP1_TP0", "PP1_TP1"];
        let numbers = titles.map(|title| number(&format!("VLLM::Worker_{title}")));
        for (groups, seats) in [(4, [0, 1, 2, 3]), (2, [0, 1, 0, 1])] {
            let known = numbers.iter().take(groups);
            let mut workers = Workers::new(known.map(|&it| expected(it)).collect());
            for (process, rank) in (10..).zip(numbers) {
                workers.add(process, unassigned_of_rank(rank), 0);
            }
            let seat = |process| workers.ranked(process).expect("a seat");
            assert_eq!([10, 11, 12, 13].map(seat), seats);
        }
    }

    #[test]
    fn workers_are_numbered_by_rank_where_all_have_one() {
        let mut workers = Workers::new(vec![]);
        workers.add(30, unassigned_of_rank(9), 0);
        workers.add(20, unassigned_of_rank(8), 0);
        workers.add(5, ProcessFacts::default(), 0);
        let numbers = workers.numbers(|process| process != 5);
        assert_eq!(numbers.into_iter().collect::<Vec<_>>(), [(20, 8), (30, 9)]);
        let numbers = workers.numbers(|_| true);
        assert_eq!(
            numbers.into_iter().collect::<Vec<_>>(),
            [(5, 2), (20, 8), (30, 9)]
        );
        workers.add(4, unassigned_of_rank(2), 0);
        let numbers = workers.numbers(|_| true);
        assert_eq!(
            numbers.into_iter().collect::<Vec<_>>(),
            [(4, 2), (5, 3), (20, 8), (30, 9)]
        );
        workers.add(40, unassigned_of_rank(9), 0);
        let numbers = workers.numbers(|_| true);
        let expected = [(4, 0), (5, 4), (20, 1), (30, 2), (40, 3)];
        assert_eq!(numbers.into_iter().collect::<Vec<_>>(), expected);
    }
}
