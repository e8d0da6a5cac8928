//! Tests that hold whatever is behind the mount, as nothing of what they ask for is beyond any backend.

use crate::case::Case;
use crate::way::Way;

/// By the names that they have with the module.
const EVERYWHERE: &[&str] = &[
    "cprt_crash_of_a_worker",
    "cprt_crash_of_the_daemon",
    "cprt_crash_term_drains",
    "cprt_fault_of_one_range",
    "cprt_misbehave_beyond",
    "cprt_misbehave_hang",
    "cprt_misbehave_segv",
    "cprt_register_evicts",
    "cprt_register_follows_the_mount",
    "cprt_register_frozen_policy_runs",
    "cprt_register_hears_what_faults_miss",
    "cprt_register_hears_what_it_wants",
    "cprt_register_hears_what_reads_miss",
    "cprt_register_loads",
    "cprt_register_log_and_events_are_told",
    "cprt_register_null_is_the_kernels",
    "cprt_register_settings_change",
    "cprt_register_tells_readers_apart",
    "cprt_swap_under_load",
];

/// Those among these.
pub(crate) fn of(all: &[Case]) -> Vec<Case> {
    let same = |way| {
        let those = all.iter().filter(|case| EVERYWHERE.contains(&case.name));
        those.map(move |case| case.on(way))
    };
    Way::OTHERS.into_iter().flat_map(same).collect()
}
