//! The counters of workers, and the gain of each per second.

use std::time::Duration;

use cprt::control::protocol::MountStats;

use crate::screen::{Table, plain, quantity};

/// The fields that are current values, not counters: they have no gain.
const GAUGES: [&str; 9] = [
    "policy_max_ns",
    "in_flight_bytes",
    "queued_bytes",
    "load_rate",
    "streams",
    "memory_limit",
    "memory_used",
    "worker_rss",
    "last_stop_ns",
];

/// A table for each mount; given the counters from a while `ago`, with a column of gains.
pub(crate) fn stats(now: &[MountStats], before: Option<(&[MountStats], Duration)>) -> String {
    let mut text = String::new();
    for mount in now {
        if !text.is_empty() {
            text.push('\n');
        }
        let path = plain(&mount.path.display().to_string());
        text.extend([path.as_str(), ", ", &plain(&mount.policy), "\n"]);
        let mut headings = vec!["NAME", "VALUE", "MEANING"];
        if before.is_some() {
            headings.insert(2, "GAIN");
        }
        let right: &[_] = if before.is_some() { &[1, 2] } else { &[1] };
        let mut table = Table::new(&headings).right(right);
        for (at, (name, description, value)) in mount.stats.fields().into_iter().enumerate() {
            let description = description.replace('`', "");
            let mut row = vec![name.to_owned(), quantity(&description, value)];
            if let Some((before, ago)) = before {
                let old = before.iter().find(|old| old.path == mount.path);
                let old = old.map_or(0, |old| old.stats.fields()[at].2);
                let gain = value.saturating_sub(old);
                row.push(if gain == 0 || GAUGES.contains(&name) {
                    String::new()
                } else {
                    format!("{}/s", quantity(&description, per_second(gain, ago)))
                });
            }
            row.push(description);
            table.row(row);
        }
        text += &table.render();
    }
    text
}

/// Rounded up, so that a counter that moves is never shown as standing still.
pub(crate) fn per_second(gain: u64, ago: Duration) -> u64 {
    let gain = u128::from(gain) * 1_000_000_000;
    let rate = gain.div_ceil(ago.as_nanos().max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use cprt::control::stats::Stats;

    use super::*;

    fn counted(events: u64, load_bytes: u64, memory_used: u64) -> Vec<MountStats> {
        let stats = Stats {
            events,
            load_bytes,
            memory_used,
            ..Stats::default()
        };
        vec![MountStats {
            path: "/mnt".into(),
            policy: "shift".into(),
            stats,
        }]
    }

    fn line<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let line = text.lines().find(|line| line.starts_with(name));
        line.expect(name)
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect()
    }

    #[test]
    fn every_counter_has_a_row_with_unit_and_meaning() {
        let text = stats(&counted(1234, 3 << 20, 0), None);
        assert!(text.starts_with("/mnt, shift\nNAME"), "{text}");
        assert_eq!(text.lines().count(), 2 + Stats::default().fields().len());
        assert_eq!(
            line(&text, "events"),
            ["events", "1,234", "events that the backend reported"]
        );
        assert_eq!(
            line(&text, "load_bytes"),
            ["load_bytes", "3 MiB", "bytes covered by loads"]
        );
    }

    #[test]
    fn watching_shows_gains_of_counters_alone() {
        let (before, now) = (counted(1000, 0, 0), counted(1500, 4 << 20, 1 << 30));
        let text = stats(&now, Some((&before, Duration::from_secs(2))));
        assert_eq!(line(&text, "events")[..3], ["events", "1,500", "250/s"]);
        assert_eq!(
            line(&text, "load_bytes")[..3],
            ["load_bytes", "4 MiB", "2 MiB/s"]
        );
        assert_eq!(
            line(&text, "memory_used"),
            ["memory_used", "1 GiB", "bytes of that in use"]
        );
        assert_eq!(line(&text, "merged")[..2], ["merged", "0"]);
    }

    #[test]
    fn counters_of_a_new_worker_show_no_rate() {
        let (before, now) = (counted(1000, 0, 0), counted(3, 0, 0));
        let text = stats(&now, Some((&before, Duration::from_secs(1))));
        assert_eq!(
            line(&text, "events")[1..],
            ["3", "events that the backend reported"]
        );
    }

    #[test]
    fn gauges_are_counters_that_there_are() {
        let fields = Stats::default().fields();
        for gauge in GAUGES {
            assert!(fields.iter().any(|(name, ..)| *name == gauge), "{gauge}");
        }
    }
}
