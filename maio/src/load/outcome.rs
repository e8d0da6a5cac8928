//! The outcome of a load.

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

/// The outcome of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// What was recorded, or why that is not to be trusted.
    pub(crate) parts: Result<Vec<Part>, &'static str>,
    /// Pages known to be read, expected pages, and unexpected pages.
    pub(crate) read: u64,
    pub(crate) expected: u64,
    pub(crate) unknown: u64,
    /// Readers of the weights bypassed the page cache; the parts are everything else that was recorded.
    pub(crate) direct: bool,
    /// Pages that were another worker's, by the ranks of both.
    pub(crate) off_course: u64,
}

impl Load {
    /// Ends the load.
    pub(crate) fn end(self) -> Outcome {
        let (read, expected) = (self.read(), self.pieces.total());
        let (unknown, off_course) = (self.window.unknown(), self.off_course);
        let parts = if self.lost {
            Err("some events were lost")
        } else if self.bypass.is_likely() && self.records.is_some() {
            Ok(self.parts().unwrap_or_default())
        } else if self.midway.is_some() {
            Err("it began before it was recorded")
        } else if self.cut_short {
            Err("a reader ended midway")
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

    /// The worker of each process: by the parts' numbers if the load was `recorded` from its beginning, otherwise by
    /// the expected ones.
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
