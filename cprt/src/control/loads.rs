//! What became of the loads of models, as policies report it, added up by service.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Upper bound on services that are counted separately.
const MOST: usize = 256;
/// The service that stands for all further ones.
const OTHERS: &str = "others";

/// The loads of a service that are over. `ppc.h` describes bytes and phases; the five phases follow each other without
/// a gap, so that their sum is the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadTotals {
    /// The name that the policy gives the service, or that of the daemon's configuration.
    pub service: String,
    /// How many loads.
    pub loads: u64,
    /// Bytes asked for ahead of readers.
    pub asked_bytes: u64,
    /// Of these, read after they had come.
    pub used_bytes: u64,
    /// Of these, missed by a reader anyway.
    pub late_bytes: u64,
    /// Of these, never read.
    pub unread_bytes: u64,
    /// Bytes that readers missed and that were not asked for.
    pub own_bytes: u64,
    /// Until the first reader came.
    pub waiting_us: u64,
    /// While something was being loaded.
    pub loading_us: u64,
    /// While the rest waited for readers or for memory.
    pub held_us: u64,
    /// While all was loaded, and readers read.
    pub reading_us: u64,
    /// While all was loaded, and none read.
    pub resting_us: u64,
    /// All of it.
    pub whole_us: u64,
}

impl From<&ppc::Report> for LoadTotals {
    fn from(report: &ppc::Report) -> Self {
        Self {
            service: report.service.clone(),
            loads: 1,
            asked_bytes: report.asked,
            used_bytes: report.used,
            late_bytes: report.late,
            unread_bytes: report.unread,
            own_bytes: report.own,
            waiting_us: report.waiting_ns / 1_000,
            loading_us: report.loading_ns / 1_000,
            held_us: report.held_ns / 1_000,
            reading_us: report.reading_ns / 1_000,
            resting_us: report.resting_ns / 1_000,
            whole_us: report.whole_ns / 1_000,
        }
    }
}

impl LoadTotals {
    /// The phases, by their names.
    #[must_use]
    pub fn phases(&self) -> [(&'static str, u64); 5] {
        [
            ("waiting", self.waiting_us),
            ("loading", self.loading_us),
            ("held", self.held_us),
            ("reading", self.reading_us),
            ("resting", self.resting_us),
        ]
    }

    /// The bytes by where readers had them from, and those that none had.
    #[must_use]
    pub fn sources(&self) -> [(&'static str, u64); 4] {
        [
            ("in-time", self.used_bytes),
            ("late", self.late_bytes),
            ("reader", self.own_bytes),
            ("never-read", self.unread_bytes),
        ]
    }

    fn add(&mut self, other: &Self) {
        let mut sum = |to: fn(&mut Self) -> &mut u64, number: u64| {
            let to = to(self);
            *to = to.saturating_add(number);
        };
        sum(|it| &mut it.loads, other.loads);
        sum(|it| &mut it.asked_bytes, other.asked_bytes);
        sum(|it| &mut it.used_bytes, other.used_bytes);
        sum(|it| &mut it.late_bytes, other.late_bytes);
        sum(|it| &mut it.unread_bytes, other.unread_bytes);
        sum(|it| &mut it.own_bytes, other.own_bytes);
        sum(|it| &mut it.waiting_us, other.waiting_us);
        sum(|it| &mut it.loading_us, other.loading_us);
        sum(|it| &mut it.held_us, other.held_us);
        sum(|it| &mut it.reading_us, other.reading_us);
        sum(|it| &mut it.resting_us, other.resting_us);
        sum(|it| &mut it.whole_us, other.whole_us);
    }
}

/// The loads of all services, since the daemon started.
#[derive(Debug, Default)]
pub(crate) struct LoadTable(Mutex<BTreeMap<String, LoadTotals>>);

impl LoadTable {
    /// Adds a load that is over.
    pub(crate) fn add(&self, load: &LoadTotals) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_one_more = !all.contains_key(&load.service) && all.len() >= MOST;
        let service = if is_one_more { OTHERS } else { &load.service };
        let totals = all.entry(service.to_owned()).or_default();
        service.clone_into(&mut totals.service);
        totals.add(load);
    }

    /// The totals, in order of the services.
    pub(crate) fn all(&self) -> Vec<LoadTotals> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(service: &str) -> LoadTotals {
        let report = ppc::Report {
            service: service.to_owned(),
            asked: 60,
            used: 30,
            late: 20,
            unread: 10,
            own: 70,
            waiting_ns: 1_000,
            loading_ns: 2_000,
            held_ns: 3_000,
            reading_ns: 4_000,
            resting_ns: 5_000,
            whole_ns: 15_000,
        };
        LoadTotals::from(&report)
    }

    #[test]
    fn loads_are_added_up_by_service_and_parts_stay_the_whole() {
        let table = LoadTable::default();
        for service in ["b", "a", "b"] {
            table.add(&load(service));
        }
        let all = table.all();
        let names: Vec<_> = all
            .iter()
            .map(|it| (it.service.as_str(), it.loads))
            .collect();
        assert_eq!(names, [("a", 1), ("b", 2)]);
        let two = &all[1];
        let phases: u64 = two.phases().iter().map(|(_, us)| us).sum();
        assert_eq!((phases, two.whole_us), (30, 30));
        let sources = two.sources().map(|(_, bytes)| bytes);
        assert_eq!(sources, [60, 40, 140, 20]);
        assert_eq!(two.asked_bytes, 120);
    }

    #[test]
    fn services_beyond_the_bound_are_one() {
        let table = LoadTable::default();
        for number in 0..MOST + 10 {
            table.add(&load(&number.to_string()));
        }
        let all = table.all();
        assert_eq!(all.len(), MOST + 1);
        let others = all.iter().find(|it| it.service == OTHERS).expect("more");
        assert_eq!(others.loads, 10);
    }
}
