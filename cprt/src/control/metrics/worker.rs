//! The counters of workers. A test finds each counter of [`Stats`] here, so that none is forgotten.

use super::exposition::{Exposition, Family, Kind, Value, of_path};
use crate::control::protocol::MountStats;
use crate::control::stats::Stats;

/// A counter of a worker as a metric.
#[derive(Debug)]
pub(super) struct WorkerMetric {
    pub(super) family: Family,
    of: fn(&Stats) -> Value,
}

const LABELS: &[&str] = &["mount", "policy"];

macro_rules! metrics {
    ($($name:literal $kind:ident $unit:literal = $value:ident($field:ident): $help:literal;)*) => {
        /// All of them, in the order of [`Stats`].
        pub(super) const ALL: &[WorkerMetric] = &[$(WorkerMetric {
            family: Family {
                name: $name,
                kind: Kind::$kind,
                unit: $unit,
                labels: LABELS,
                help: $help,
            },
            of: |stats| Value::$value(stats.$field),
        },)*];

        #[cfg(test)]
        const FIELDS: &[&str] = &[$(stringify!($field)),*];
    };
}

metrics! {
    "ppc_events" Counter "" = Whole(events):
        "Events that the backend reported";
    "ppc_events_merged" Counter "" = Whole(merged):
        "Events merged into another one in the policy's queue";
    "ppc_events_lost" Counter "" = Whole(lost):
        "Events lost in the kernel, or because the policy was slow";
    "ppc_reader_bytes" Counter "bytes" = Whole(reader_bytes):
        "Bytes that readers passed, while the policy asks for progress";
    "ppc_missed_bytes" Counter "bytes" = Whole(missed_bytes):
        "Bytes that readers missed in the page cache";
    "ppc_late_bytes" Counter "bytes" = Whole(late_bytes):
        "Bytes that readers missed and that were being loaded, or about to be";
    "ppc_direct_bytes" Counter "bytes" = Whole(direct_bytes):
        "Bytes that readers read without the page cache (O_DIRECT)";
    "ppc_policy_prefetch_calls" Counter "" = Whole(prefetch_calls):
        "Calls of the policy's prefetch";
    "ppc_policy_evict_calls" Counter "" = Whole(evict_calls):
        "Calls of the policy's evict";
    "ppc_policy_errors" Counter "" = Whole(policy_errors):
        "Calls of the policy that failed";
    "ppc_policy_seconds" Counter "seconds" = Nanoseconds(policy_ns):
        "Time spent in calls of the policy";
    "ppc_policy_longest_call_seconds" Gauge "seconds" = Nanoseconds(policy_max_ns):
        "Time spent in the longest call of the policy";
    "ppc_load_ranges" Counter "" = Whole(load_ranges):
        "Ranges that the policy asked to load";
    "ppc_load_ranges_refused" Counter "" = Whole(load_refused):
        "Ranges skipped because the file is gone or shorter";
    "ppc_load_bytes" Counter "bytes" = Whole(load_bytes):
        "Bytes covered by loads, including bytes that were already cached";
    "ppc_loaded_bytes" Counter "bytes" = Whole(loaded_bytes):
        "Bytes that loads brought in from storage";
    "ppc_superseded_bytes" Counter "bytes" = Whole(superseded_bytes):
        "Bytes requested but not loaded, because a newer plan replaced them";
    "ppc_load_interruptions" Counter "" = Whole(interruptions):
        "Times that loads were stopped for a newer plan, memory or readers";
    "ppc_load_errors" Counter "" = Whole(load_errors):
        "Loads that failed";
    "ppc_in_flight_bytes" Gauge "bytes" = Whole(in_flight_bytes):
        "Bytes of loads in flight";
    "ppc_queued_bytes" Gauge "bytes" = Whole(queued_bytes):
        "Bytes waiting to be loaded";
    "ppc_load_rate_bytes_per_second" Gauge "" = Whole(load_rate):
        "Bytes loaded per second now";
    "ppc_load_streams" Gauge "" = Whole(streams):
        "Loads that may run at once";
    "ppc_evict_ranges" Counter "" = Whole(evict_ranges):
        "Ranges that the policy asked to evict";
    "ppc_evicted_bytes" Counter "bytes" = Whole(evicted_bytes):
        "Bytes dropped from the cache";
    "ppc_kept_bytes" Counter "bytes" = Whole(kept_bytes):
        "Bytes that should have been dropped, but stayed";
    "ppc_evict_errors" Counter "" = Whole(evict_errors):
        "Evictions that failed";
    "ppc_memory_limit_bytes" Gauge "bytes" = Whole(memory_limit):
        "Memory that the worker may fill";
    "ppc_memory_used_bytes" Gauge "bytes" = Whole(memory_used):
        "Memory in use, out of that limit";
    "ppc_memory_over" Counter "" = Whole(memory_over):
        "Times that memory was over the threshold";
    "ppc_worker_memory_bytes" Gauge "bytes" = Whole(worker_rss):
        "Memory that the worker itself uses";
    "ppc_worker_cpu_seconds" Counter "seconds" = millis(worker_cpu_ms):
        "CPU time that the worker used";
    "ppc_load_last_stop_seconds" Gauge "seconds" = Nanoseconds(last_stop_ns):
        "Time that the last interruption of loads took";
    "ppc_load_longest_stop_seconds" Gauge "seconds" = Nanoseconds(longest_stop_ns):
        "Time that the longest interruption of loads took";
}

/// Writes the counters of all workers.
pub(super) fn counters(to: &mut Exposition, stats: &[MountStats]) {
    for metric in ALL {
        let series = stats.iter().map(|mount| {
            let labels = [of_path(&mount.path), mount.policy.clone()];
            (labels, (metric.of)(&mount.stats))
        });
        to.family(&metric.family, series);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_a_metric() {
        let fields = Stats::default().fields();
        let names: Vec<_> = fields.iter().map(|(name, ..)| *name).collect();
        assert_eq!(FIELDS, names);
    }
}
