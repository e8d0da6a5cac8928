//! Reads of a process after its load is over: a tokenizer, a page of the weights that it had no need of
//! before. They begin no load, but are appended to the template. Pure.

use std::collections::{BTreeMap, HashMap};

use crate::extent::Extent;
use crate::ranges::Ranges;

/// Upper bound on remembered processes.
const MOST: usize = 1 << 12;
/// The fraction of the template that late reads may have: with more, a load that ends before them would seem to
/// read too little of it.
const PART: u64 = 100;

/// Processes that have their model, and what they have read since.
#[derive(Debug, Default)]
pub(super) struct LateReads {
    /// The worker of each process; reads of processes that are no worker are not kept.
    served: HashMap<u32, Option<u32>>,
    /// The pages that each worker is known to read.
    known: HashMap<u32, HashMap<u32, Ranges>>,
    new: BTreeMap<u32, Vec<Extent>>,
    heard_ns: u64,
}

impl LateReads {
    /// Notes that these processes have read the model, as these workers.
    pub(super) fn serve(&mut self, processes: impl Iterator<Item = (u32, Option<u32>)>) {
        if self.served.len() >= MOST {
            self.served.clear();
        }
        self.served.extend(processes);
        self.known.clear();
        self.new.clear();
    }

    pub(super) fn is_served(&self, process: u32) -> bool {
        self.served.contains_key(&process)
    }

    /// Adds a read of one of them; `group` returns what its worker is known to read, and is called once.
    pub(super) fn add(
        &mut self,
        process: u32,
        extent: &Extent,
        now_ns: u64,
        group: impl FnOnce(u32) -> Vec<Extent>,
    ) {
        let Some(worker) = self.served.get(&process).copied().flatten() else {
            return;
        };
        let known = self.known.entry(worker).or_insert_with(|| {
            let mut known: HashMap<u32, Ranges> = HashMap::new();
            for extent in group(worker) {
                let file = known.entry(extent.file).or_default();
                file.insert(&(extent.first..extent.end()), |_| {});
            }
            known
        });
        let new = self.new.entry(worker).or_default();
        let file = known.entry(extent.file).or_default();
        file.insert(&(extent.first..extent.end()), |part| {
            new.push(Extent {
                file: extent.file,
                first: part.start,
                pages: part.end - part.start,
            });
            self.heard_ns = now_ns;
        });
    }

    /// Whether any new reads have not been taken.
    pub(super) fn waits(&self) -> bool {
        self.new.values().any(|new| !new.is_empty())
    }

    /// The new reads of each worker, once there has been none for `idle_ns`; `None` if they exceed a small part of
    /// the template's `pages`.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        idle_ns: u64,
        pages: u64,
    ) -> Option<BTreeMap<u32, Vec<Extent>>> {
        if !self.waits() || now_ns < self.heard_ns.saturating_add(idle_ns) {
            return None;
        }
        let new = std::mem::take(&mut self.new);
        let sum: u64 = new.values().flatten().map(|it| u64::from(it.pages)).sum();
        (sum <= pages / PART).then_some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u32, pages: u32) -> Extent {
        Extent {
            file: 0,
            first,
            pages,
        }
    }

    #[test]
    fn new_late_reads_are_kept_once_after_a_quiet_period() {
        let mut late = LateReads::default();
        late.serve([(10, Some(3)), (11, None)].into_iter());
        assert!(late.is_served(11) && !late.is_served(12));
        let group = |worker| {
            assert_eq!(worker, 3);
            vec![extent(0, 100)]
        };
        late.add(10, &extent(50, 20), 5, group);
        late.add(11, &extent(500, 20), 5, group);
        assert!(!late.waits(), "it is known, or no worker's");
        late.add(10, &extent(90, 20), 5, group);
        late.add(10, &extent(95, 20), 6, group);
        assert_eq!(late.take(7, 2, 100_000), None);
        let new = late.take(8, 2, 100_000).expect("new");
        assert_eq!(new[&3], [extent(100, 10), extent(110, 5)]);
        assert_eq!(late.take(9, 2, 100_000), None);
        late.add(10, &extent(1000, 2000), 9, group);
        assert_eq!(late.take(20, 2, 100_000), None, "it is too much");
        assert!(!late.waits());
    }
}
