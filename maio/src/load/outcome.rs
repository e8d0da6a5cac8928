//! What a load came to, when it is over.

use std::collections::HashMap;

use ppc::Xpu;

use super::{Load, WORKER};
use crate::extent::Extent;
use crate::record::Record;
use crate::workers::Worker;

/// A worker's part of a load, when it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) worker: u32,
    pub(crate) xpu: Option<Xpu>,
    pub(crate) extents: Vec<Extent>,
}

/// What a load came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// What was recorded, unless it is not to be trusted.
    pub(crate) parts: Result<Vec<Part>, &'static str>,
    /// Pages read, as far as heard, pages that were expected, and pages that nobody expected.
    pub(crate) read: u64,
    pub(crate) expected: u64,
    pub(crate) unknown: u64,
    /// Readers of the weights bypassed the page cache; what else was recorded are the parts.
    pub(crate) direct: bool,
    /// Pages that were another worker's, by the ranks of both.
    pub(crate) off_course: u64,
}

impl Load {
    /// It is over.
    pub(crate) fn end(self) -> Outcome {
        let (read, expected) = (self.read(), self.pieces.total());
        let (unknown, off_course) = (self.window.unknown(), self.off_course);
        let parts = if self.lost {
            Err("some events were lost")
        } else if self.bypass.is_likely() && self.records.is_some() {
            Ok(self.parts().unwrap_or_default())
        } else if self.midway.is_some() {
            Err("it had begun before")
        } else if self.cut_short {
            Err("a reader ended in the midst of it")
        } else {
            self.parts()
        };
        Outcome {
            parts,
            read,
            expected,
            unknown,
            direct: self.bypass.is_likely(),
            off_course,
        }
    }

    fn parts(&self) -> Result<Vec<Part>, &'static str> {
        let records = self.records.as_ref().ok_or("it was not recorded")?;
        let is_worker = |process| {
            let record: Option<&Record> = records.get(&process);
            record.is_some_and(|record| record.pages() >= WORKER)
        };
        let numbers = self.workers.numbers(is_worker);
        if numbers.is_empty() {
            return Err("hardly anything was read");
        }
        let xpus: HashMap<u32, Option<Xpu>> = self
            .workers
            .members()
            .map(|(process, member)| (process, member.facts.xpu))
            .collect();
        let mut parts: Vec<_> = numbers
            .into_iter()
            .map(|(process, worker)| Part {
                worker,
                xpu: xpus.get(&process).copied().flatten(),
                extents: records
                    .get(&process)
                    .map(Record::extents)
                    .unwrap_or_default(),
            })
            .collect();
        parts.sort_by_key(|part| part.worker);
        Ok(parts)
    }

    /// Who was which worker: as the parts number them if it was `recorded` from its beginning, otherwise as
    /// they were expected.
    pub(crate) fn seats(&self, recorded: bool) -> HashMap<u32, Option<u32>> {
        let workers = self.workers();
        let numbers = self.workers.numbers(|process| workers.contains(&process));
        let seat = |(process, member): (u32, &Worker)| {
            let worker = if recorded {
                numbers.get(&process).copied()
            } else {
                member
                    .place
                    .and_then(|(group, _)| self.workers.expected(group))
            };
            (process, worker)
        };
        self.workers.members().map(seat).collect()
    }
}
