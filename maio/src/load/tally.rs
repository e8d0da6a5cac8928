//! What a load comes to: its pages by source, and its time by phases.

use std::collections::BTreeMap;
use std::ops::Range;

use ppc::Memory;

use super::Load;
use super::phases::{Activity, Phases};
use super::sources::Figures;
use crate::extent::Extent;
use crate::ranges::Ranges;
use crate::record::Record;
use crate::workers::Worker;

/// What became of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) figures: Figures,
    pub(crate) phases: Phases,
}

impl Load {
    /// Time has passed: finds out what the load does now. `absent` says whether an issued range has not arrived yet.
    pub(crate) fn pass(
        &mut self,
        now_ns: u64,
        memory: Memory,
        mut absent: impl FnMut(&Extent) -> bool,
    ) {
        self.activity = self.activity_now(memory, &mut absent);
        if self.activity == Activity::Loading {
            self.loading_ns = now_ns;
            let waiting = self.window.waiting(absent);
            let waits = |member: &Worker| member.place.is_some_and(|it| waiting.contains(&it.1));
            let members = self.workers.members_mut();
            for (_, member) in members.filter(|(_, it)| !it.gone && waits(it)) {
                // It is silent because the device is.
                member.heard_ns = member.heard_ns.max(now_ns);
            }
        }
        self.phases.pass(self.activity, self.heard_ns, now_ns);
    }

    fn activity_now(
        &mut self,
        memory: Memory,
        mut absent: impl FnMut(&Extent) -> bool,
    ) -> Activity {
        if self.early {
            return Activity::Waiting;
        }
        // A range is loaded from its beginning to its end. What readers have come past has come, and may have gone.
        while let Some(extent) = self.awaited.front() {
            let last = Extent {
                first: extent.end().saturating_sub(1),
                pages: 1,
                ..*extent
            };
            if self.window.is_due(&last) && absent(&last) {
                let is_short = memory.available == 0;
                return if is_short {
                    Activity::Held
                } else {
                    Activity::Loading
                };
            }
            self.awaited.pop_front();
        }
        if !self.quiet && !self.is_in_vain() && self.window.has_more() {
            return Activity::Held;
        }
        Activity::Done
    }

    /// These ranges have been asked for.
    pub(super) fn asked(&mut self, extents: impl Iterator<Item = Extent>) {
        for extent in extents {
            self.sources.ask(&extent);
            self.awaited.push_back(extent);
        }
    }

    /// What the load comes to, as it ends; `None` if nothing was asked for, and nothing read.
    pub(crate) fn tally(&mut self, now_ns: u64) -> Option<Tally> {
        self.phases.pass(self.activity, self.heard_ns, now_ns);
        let read = self.read_ranges();
        (self.sources.has_any() || !read.is_empty()).then(|| Tally {
            figures: self.sources.figures(read.into_iter()),
            phases: self.phases,
        })
    }

    /// The pages that are known to have been read.
    pub(super) fn read_ranges(&self) -> Vec<(u32, Range<u32>)> {
        let mut files: BTreeMap<u32, Ranges> = BTreeMap::new();
        match &self.records {
            None => {
                for extent in self.window.passed_extents() {
                    let file = files.entry(extent.file).or_default();
                    file.insert(&(extent.first..extent.end()), |_| {});
                }
            }
            Some(records) => {
                for (file, set) in records.values().flat_map(Record::files) {
                    files.entry(file).or_default().extend(set);
                }
            }
        }
        let ranges = |(file, ranges): (u32, Ranges)| {
            let ranges: Vec<_> = ranges.iter().collect();
            ranges.into_iter().map(move |range| (file, range))
        };
        files.into_iter().flat_map(ranges).collect()
    }
}
