//! Which process is which worker. Pure: what is known of a process is handed in.
//!
//! A worker is a process. Which group of a template it is, is told by its rank, or by the accelerator
//! it works on, or by what it reads first; a process that reads what another group does is taken for
//! that one. Processes beyond those that were expected read some group's course as well.

use std::collections::BTreeMap;

use ppc::Xpu;

/// What is known of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) rank: Option<u32>,
    pub(crate) xpu: Option<Xpu>,
}

/// A group that is expected to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) worker: u32,
    pub(crate) xpu: Option<Xpu>,
}

/// A process that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) facts: Facts,
    /// The group it reads like, and who it is among the readers.
    pub(crate) place: Option<(usize, usize)>,
    /// When it was heard last.
    pub(crate) heard_ns: u64,
    pub(crate) gone: bool,
}

/// Who takes part in a load.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    expected: Vec<Expected>,
    /// Which of them somebody is.
    taken: Vec<bool>,
    members: BTreeMap<u32, Member>,
    order: Vec<u32>,
}

/// Where a process belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// It is the one that was expected.
    Expected(usize),
    /// One more that reads what this group does.
    Extra(usize),
}

impl Crew {
    pub(crate) fn new(expected: Vec<Expected>) -> Self {
        Self {
            taken: vec![false; expected.len()],
            expected,
            ..Self::default()
        }
    }

    pub(crate) fn member(&mut self, process: u32) -> Option<&mut Member> {
        self.members.get_mut(&process)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = (u32, &Member)> {
        self.members
            .iter()
            .map(|(&process, member)| (process, member))
    }

    pub(crate) fn members_mut(&mut self) -> impl Iterator<Item = (u32, &mut Member)> {
        self.members
            .iter_mut()
            .map(|(&process, member)| (process, member))
    }

    fn of_rank(&self, rank: Option<u32>) -> Option<usize> {
        let mut groups = self.expected.iter();
        groups.position(|group| rank == Some(group.worker))
    }

    /// The group of a rank that nobody has been yet.
    pub(crate) fn ranked(&self, rank: Option<u32>) -> Option<usize> {
        self.of_rank(rank).filter(|&group| !self.taken[group])
    }

    /// The groups that nobody has turned out to be.
    pub(crate) fn missing(&self) -> impl Iterator<Item = usize> {
        let taken = self.taken.iter().enumerate();
        taken.filter(|&(_, taken)| !taken).map(|(group, _)| group)
    }

    /// The process that a reader is, and the accelerator it is near.
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

    /// A process is heard for the first time.
    pub(crate) fn add(&mut self, process: u32, facts: Facts, now_ns: u64) {
        self.order.push(process);
        let member = Member {
            facts,
            place: None,
            heard_ns: now_ns,
            gone: false,
        };
        self.members.insert(process, member);
    }

    /// Where a process belongs that reads something on the courses of the groups that `fits` is true
    /// for; `None` if it is on none.
    pub(crate) fn seat(&self, process: u32, fits: impl Fn(usize) -> bool) -> Option<Seat> {
        let facts = self
            .members
            .get(&process)
            .map(|it| it.facts)
            .unwrap_or_default();
        let all = || (0..self.expected.len()).filter(|&group| fits(group));
        // Who has a rank knows better than what it looks at first, which may be a header.
        let by_rank = self.of_rank(facts.rank);
        let xpu = |it: &usize| facts.xpu.is_some() && facts.xpu == self.expected[*it].xpu;
        let known = by_rank.or_else(|| all().find(xpu));
        let free = || all().find(|&it| !self.taken[it]);
        let group = known.or_else(free).or_else(|| all().next())?;
        Some(if self.taken[group] {
            Seat::Extra(group)
        } else {
            Seat::Expected(group)
        })
    }

    /// It is there now.
    pub(crate) fn sit(&mut self, process: u32, group: usize, reader: usize) {
        if let Some(taken) = self.taken.get_mut(reader) {
            *taken = true;
        }
        if let Some(member) = self.members.get_mut(&process) {
            member.place = Some((group, reader));
        }
    }

    /// It was not there, as it turns out; returns the reader it was thought to be.
    pub(crate) fn stand_up(&mut self, process: u32) -> Option<usize> {
        let (_, reader) = self.members.get_mut(&process)?.place.take()?;
        if let Some(taken) = self.taken.get_mut(reader) {
            *taken = false;
        }
        Some(reader)
    }

    /// Numbers for processes, from 0, those of which no two are the same kept: by rank, then by
    /// accelerator, then by who came first.
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
        let all = all.into_iter().zip(ranks).zip(0..);
        all.map(|((process, rank), place)| {
            (
                process,
                if distinct && rank != u32::MAX {
                    rank
                } else {
                    place
                },
            )
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crew() -> Crew {
        let expected = |worker: u32| Expected {
            worker,
            xpu: Some(Xpu(u16::try_from(worker).expect("small") + 4)),
        };
        Crew::new((0..3).map(expected).collect())
    }

    fn ranked(rank: u32) -> Facts {
        Facts {
            rank: Some(rank),
            xpu: None,
        }
    }

    #[test]
    fn ranks_go_before_accelerators_and_those_before_who_comes_first() {
        let mut crew = crew();
        crew.add(10, ranked(2), 0);
        crew.add(
            11,
            Facts {
                rank: None,
                xpu: Some(Xpu(5)),
            },
            0,
        );
        crew.add(12, Facts::default(), 0);
        assert_eq!(crew.seat(10, |_| true), Some(Seat::Expected(2)));
        assert_eq!(crew.seat(11, |_| true), Some(Seat::Expected(1)));
        crew.sit(10, 2, 2);
        crew.sit(11, 1, 1);
        assert_eq!(crew.seat(12, |_| true), Some(Seat::Expected(0)));
        crew.sit(12, 0, 0);
        crew.add(13, Facts::default(), 0);
        assert_eq!(crew.seat(13, |_| true), Some(Seat::Extra(0)));
        assert_eq!(crew.missing().count(), 0);
        assert_eq!(crew.reader(1), (Some(11), Some(Xpu(5))));
        assert_eq!(
            crew.reader(2),
            (Some(10), Some(Xpu(6))),
            "where it was last time"
        );
    }

    #[test]
    fn what_it_reads_decides_where_nothing_else_does() {
        let mut crew = crew();
        crew.add(10, Facts::default(), 0);
        assert_eq!(crew.seat(10, |group| group == 1), Some(Seat::Expected(1)));
        assert_eq!(crew.seat(10, |_| false), None);
        crew.sit(10, 1, 1);
        assert_eq!(crew.stand_up(10), Some(1));
        assert_eq!(crew.missing().collect::<Vec<_>>(), [0, 1, 2]);
        // But who knows its rank may look at whatever it likes first.
        crew.add(11, ranked(0), 0);
        assert_eq!(crew.seat(11, |group| group == 2), Some(Seat::Expected(0)));
        crew.add(12, ranked(7), 0);
        assert_eq!(crew.seat(12, |group| group == 2), Some(Seat::Expected(2)));
    }

    #[test]
    fn workers_are_numbered_by_rank_where_all_have_one() {
        let mut crew = Crew::new(vec![]);
        crew.add(30, ranked(9), 0);
        crew.add(20, ranked(8), 0);
        crew.add(5, Facts::default(), 0);
        let numbers = crew.numbers(|process| process != 5);
        assert_eq!(numbers.into_iter().collect::<Vec<_>>(), [(20, 8), (30, 9)]);
        let numbers = crew.numbers(|_| true);
        assert_eq!(
            numbers.into_iter().collect::<Vec<_>>(),
            [(5, 2), (20, 8), (30, 9)]
        );
        crew.add(40, ranked(9), 0);
        let numbers = crew.numbers(|_| true);
        let expected = [(5, 3), (20, 0), (30, 1), (40, 2)];
        assert_eq!(numbers.into_iter().collect::<Vec<_>>(), expected);
    }
}
