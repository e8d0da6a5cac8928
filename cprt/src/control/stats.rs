//! What a worker counts, since it started. The counters are in the order in which a miss passes them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident,)*) => {
        /// The counters as they were at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Stats {
            $(#[doc = $doc] pub $name: u64,)*
        }

        /// The counters, counting.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.get(),)* }
            }
        }

        impl Stats {
            /// Name, description and value of each.
            #[must_use]
            pub fn fields(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $doc.trim_ascii(), self.$name)),*]
            }
        }
    };
}

counters! {
    /// events that the backend reported
    events,
    /// events merged into another one in the policy's queue
    merged,
    /// events lost in the kernel, or because the policy was slow
    lost,
    /// bytes that readers were seen to reach, where the policy asks for progress
    reader_bytes,
    /// bytes that readers missed in the page cache
    missed_bytes,
    /// bytes of these that were being loaded, or about to be
    late_bytes,
    /// bytes that readers read without the page cache, by `O_DIRECT`
    direct_bytes,
    /// calls of the policy's prefetch
    prefetch_calls,
    /// calls of the policy's evict
    evict_calls,
    /// calls of the policy that failed
    policy_errors,
    /// ns spent in all calls of the policy
    policy_ns,
    /// ns spent in its longest call
    policy_max_ns,
    /// ranges that the policy asked to load
    load_ranges,
    /// ranges skipped: the file is gone or shorter
    load_refused,
    /// bytes covered by loads
    load_bytes,
    /// bytes of these that were not cached before
    loaded_bytes,
    /// bytes requested but not loaded, because a newer plan replaced them
    superseded_bytes,
    /// times that loads were stopped: for a newer plan, memory or readers
    interruptions,
    /// loads that failed
    load_errors,
    /// bytes of loads in flight now
    in_flight_bytes,
    /// bytes waiting to be loaded now
    queued_bytes,
    /// bytes per second that are being loaded now
    load_rate,
    /// loads that may run at once now
    streams,
    /// ranges that the policy asked to evict
    evict_ranges,
    /// bytes that were dropped from the cache
    evicted_bytes,
    /// bytes that should have been dropped and stayed
    kept_bytes,
    /// evictions that failed
    evict_errors,
    /// bytes of memory that the worker may fill
    memory_limit,
    /// bytes of that in use
    memory_used,
    /// times that memory was over the threshold
    memory_over,
    /// bytes of memory that the worker itself uses
    worker_rss,
    /// ms of CPU time that the worker used
    worker_cpu_ms,
    /// ns that the last interruption of loads took
    last_stop_ns,
    /// ns that the longest one took
    longest_stop_ns,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub(crate) fn at_least(&self, n: u64) {
        self.0.fetch_max(n, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn counters_are_listed_in_order_with_descriptions() {
        let counters = Counters::default();
        counters.events.add(5);
        counters.lost.set(7);
        counters.policy_max_ns.at_least(9);
        counters.policy_max_ns.at_least(8);
        let fields = counters.snapshot().fields();

        let names: Vec<_> = fields.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names[..3], ["events", "merged", "lost"]);
        assert_eq!(names.last(), Some(&"longest_stop_ns"));
        let distinct: BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        for (name, description, value) in &fields {
            let expected = match *name {
                "events" => 5,
                "lost" => 7,
                "policy_max_ns" => 9,
                _ => 0,
            };
            assert_eq!(*value, expected, "{name}");
            assert!(!description.is_empty(), "{name}");
            assert_eq!(*description, description.trim(), "{name}");
        }
        assert_eq!(fields[0].1, "events that the backend reported");
    }

    /// `ppcctl` takes the unit from the first word.
    #[test]
    fn a_name_with_a_unit_has_a_description_with_that_unit() {
        for (name, description, _) in Stats::default().fields() {
            for (suffix, unit) in [("_ns", "ns "), ("_ms", "ms "), ("_bytes", "bytes ")] {
                if name.ends_with(suffix) {
                    assert!(
                        description.starts_with(unit) || description.contains(&format!(" {unit}")),
                        "{name}: {description}"
                    );
                }
            }
        }
    }

    #[test]
    fn stats_json_has_every_field_and_missing_ones_default() {
        let json = serde_json::to_value(Stats::default()).expect("numbers");
        let object = json.as_object().expect("an object");
        let fields = Stats::default().fields();
        assert_eq!(object.len(), fields.len());
        assert!(fields.iter().all(|(name, ..)| object.contains_key(*name)));

        let old: Stats =
            serde_json::from_str(r#"{"events":1,"of_later":2}"#).expect("some of them");
        assert_eq!((old.events, old.lost), (1, 0));
    }
}
