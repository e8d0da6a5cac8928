//! Tests that hold whatever is behind the mount, except for what a backend says it cannot do.

use crate::case::Case;
use crate::way::Way;

/// Tests by the names that they have with the module, and the ways on which they cannot hold. Tests that
/// also depend on the kernel check it themselves.
const EVERYWHERE: &[(&str, &[Way])] = &[
    // Opening files through FUSE needs the worker, so it fails while there is none.
    ("cprt_crash_of_a_worker", FUSE),
    ("cprt_crash_of_the_daemon", FUSE),
    ("cprt_misbehave_hang", FUSE),
    ("cprt_misbehave_segv", FUSE),
    // Another policy is another worker, too, with its own mount.
    ("cprt_swap_under_load", FUSE),
    ("cprt_crash_term_drains", &[]),
    // Its file is not in the test's directory, in whose mount cached pages are looked for.
    ("cprt_fault_of_one_range", &[Way::Plain]),
    // Requests show nothing about reads of cached pages, so nothing can be recorded.
    ("cprt_maio_bears_any_order", &[Way::Plain]),
    ("cprt_maio_records_and_replays", &[Way::Plain]),
    ("cprt_maio_slides_a_window", &[Way::Plain]),
    ("cprt_maio_slides_for_replicas", &[Way::Plain]),
    ("cprt_maio_slides_for_stages", &[Way::Plain]),
    ("cprt_misbehave_beyond", &[]),
    ("cprt_models_of_a_folder", &[Way::Plain]),
    ("cprt_models_of_a_hub", &[Way::Plain]),
    ("cprt_record_any_order", &[Way::Plain]),
    ("cprt_record_children", &[Way::Plain]),
    ("cprt_record_closed_mappings", &[Way::Plain]),
    ("cprt_record_heads_first", &[Way::Plain]),
    ("cprt_record_stages", &[Way::Plain]),
    ("cprt_record_threads", &[Way::Plain]),
    ("cprt_record_titles", &[Way::Plain]),
    // Two mirrors of one directory cannot both be where the other one's pages are.
    ("cprt_record_two_services", FUSE),
    // What is mapped before the policy starts is mapped from below the mirror.
    ("cprt_register_evicts", &[Way::Plain]),
    ("cprt_register_follows_the_mount", &[]),
    ("cprt_register_frozen_policy_runs", &[]),
    ("cprt_register_hears_what_faults_miss", &[]),
    // Requests show nothing about reads of cached pages.
    ("cprt_register_hears_what_it_wants", &[Way::Plain]),
    ("cprt_register_hears_what_reads_miss", &[]),
    ("cprt_register_loads", &[]),
    ("cprt_register_log_and_events_are_told", &[]),
    ("cprt_register_null_is_the_kernels", &[]),
    ("cprt_register_settings_change", &[]),
    ("cprt_register_tells_readers_apart", &[]),
    // Nothing is behind a mount: one way is enough.
    ("cprt_residency_comes_and_goes", FUSE),
    ("cprt_residency_ends_with_memory", FUSE),
    // A start covers files of every file system, a mirror's, too.
    ("cprt_start_brings_the_model", FUSE),
    ("cprt_start_outlives_odd_runs", FUSE),
    ("cprt_start_reads_what_is_there", FUSE),
    ("cprt_start_replays", FUSE),
];

const FUSE: &[Way] = &[Way::Fuse, Way::Plain];

/// The tests among `all` that also apply to other backends, once for each.
pub(crate) fn of(all: &[Case]) -> Vec<Case> {
    let same = |way| {
        let holds = move |case: &&Case| {
            let mut entries = EVERYWHERE.iter();
            entries.any(|(name, but)| *name == case.name && !but.contains(&way))
        };
        all.iter().filter(holds).map(move |case| case.on(way))
    };
    Way::OTHERS.into_iter().flat_map(same).collect()
}
