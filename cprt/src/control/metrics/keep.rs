//! The metrics of sets of files that are kept in the page cache.

use super::exposition::{Exposition, Family, Kind, Value};
use crate::control::keep::KeepStatus;

const fn of_set(name: &'static str, kind: Kind, help: &'static str) -> Family {
    Family {
        name,
        kind,
        unit: "bytes",
        labels: &["set"],
        help,
    }
}

/// All of them, in the order of the text.
pub(super) const ALL: &[&Family] = &[&CACHED, &WANTED, &BUDGET, &LOADED, &RELEASED, &RECLAIMED];

const CACHED: Family = of_set(
    "ppc_keep_cached_bytes",
    Kind::Gauge,
    "Bytes of the set that are cached, of those that cprtd keeps",
);
const WANTED: Family = of_set(
    "ppc_keep_wanted_bytes",
    Kind::Gauge,
    "Bytes of the set that cprtd keeps if memory allows: within its budget, and not kept by a set of a higher priority",
);
const BUDGET: Family = of_set(
    "ppc_keep_budget_bytes",
    Kind::Gauge,
    "Upper bound on the bytes of the set that are kept; without a budget, all of its bytes",
);
const LOADED: Family = of_set(
    "ppc_keep_loaded_bytes",
    Kind::Counter,
    "Bytes loaded from storage for the set",
);
const RELEASED: Family = of_set(
    "ppc_keep_released_bytes",
    Kind::Counter,
    "Bytes of the set that cprtd dropped to make room for programs and sets of a higher priority",
);
const RECLAIMED: Family = of_set(
    "ppc_keep_reclaimed_bytes",
    Kind::Counter,
    "Bytes of the set that the kernel reclaimed or another program dropped",
);

pub(super) fn of_sets(to: &mut Exposition, kept: &[KeepStatus]) {
    let mut series = |family, of: fn(&KeepStatus) -> u64| {
        let series = kept.iter();
        to.family(
            family,
            series.map(|it| ([it.name.clone()], Value::Whole(of(it)))),
        );
    };
    series(&CACHED, |set| set.cached_bytes);
    series(&WANTED, |set| set.wanted_bytes);
    series(&BUDGET, |set| set.budget_bytes.unwrap_or(set.whole_bytes));
    series(&LOADED, |set| set.loaded_bytes);
    series(&RELEASED, |set| set.released_bytes);
    series(&RECLAIMED, |set| set.reclaimed_bytes);
}
