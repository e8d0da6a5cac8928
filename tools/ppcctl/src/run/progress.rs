//! The progress of a policy, in a line that is rewritten; and a summary of its work, in one that stays.

use std::io::{self, Write as _};
use std::time::Duration;

use cprt::control::config::{Bytes, TimeSpan};
use cprt::control::stats::Stats;

use super::Summary;
use crate::screen::age;

/// The escape sequence that returns to the beginning of the line and erases it.
const CLEAR: &str = "\r\x1b[K";

/// The line that is rewritten.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    shown: bool,
    before: Option<u64>,
}

impl Progress {
    pub(crate) fn show(&mut self, stats: &Stats) {
        // Once all loads are done, the terminal line belongs to the command again.
        let still = self.before.replace(stats.load_bytes) == Some(stats.load_bytes);
        if still && stats.queued_bytes + stats.in_flight_bytes == 0 {
            return self.clear();
        }
        self.say(&line(stats));
    }

    /// Replaces the line.
    pub(crate) fn say(&mut self, text: &str) {
        let _ = write!(io::stderr(), "{CLEAR}ppcctl: {text}");
        self.shown = true;
    }

    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "{CLEAR}");
        }
    }
}

/// Bytes loaded, rate, distance ahead of the reader, and time left.
fn line(stats: &Stats) -> String {
    let left = stats.queued_bytes + stats.in_flight_bytes;
    let mut parts = vec![format!(
        "{} of {} loaded",
        Bytes(stats.load_bytes),
        Bytes(stats.load_bytes + left)
    )];
    if stats.load_rate > 0 {
        parts.push(format!("{}/s", Bytes(stats.load_rate)));
    }
    if stats.reader_bytes > 0 {
        let ahead = stats.load_bytes.saturating_sub(stats.reader_bytes);
        parts.push(format!("{} ahead of the reader", Bytes(ahead)));
    }
    if let Some(seconds) = left.checked_div(stats.load_rate)
        && left > 0
    {
        parts.push(format!("{} left", age(seconds.max(1))));
    }
    parts.join(", ")
}

/// What was done; `None` if there was no policy.
pub(super) fn summary(summary: &Summary) -> Option<String> {
    let (backend, policy) = (summary.backend.as_ref()?, summary.policy.as_ref()?);
    let took = TimeSpan(Duration::from_millis(millis(summary.seconds)));
    let Some(stats) = &summary.stats else {
        return Some(format!(
            "{policy} on {backend}: no counters; the command took {took}"
        ));
    };
    let mut parts = vec![format!("{} loaded", Bytes(stats.loaded_bytes))];
    let cached = stats.load_bytes.saturating_sub(stats.loaded_bytes);
    if cached > 0 {
        parts.push(format!("{} of the plan already cached", Bytes(cached)));
    }
    for (n, what) in [
        (stats.evicted_bytes, "evicted"),
        (stats.kept_bytes, "to be evicted but in use"),
    ] {
        if n > 0 {
            parts.push(format!("{} {what}", Bytes(n)));
        }
    }
    for (n, what) in [
        (stats.load_errors, "loads failed"),
        (stats.lost, "events lost"),
    ] {
        if n > 0 {
            parts.push(format!("{n} {what}"));
        }
    }
    Some(format!(
        "{policy} on {backend}: {}; the command took {took}",
        parts.join(", ")
    ))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time that has passed"
)]
pub(crate) fn millis(seconds: f64) -> u64 {
    (seconds * 1000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_shows_only_known_values() {
        let mut stats = Stats {
            load_bytes: 1 << 30,
            queued_bytes: 3 << 30,
            ..Stats::default()
        };
        assert_eq!(line(&stats), "1 GiB of 4 GiB loaded");
        stats.load_rate = 512 << 20;
        stats.reader_bytes = 256 << 20;
        assert_eq!(
            line(&stats),
            "1 GiB of 4 GiB loaded, 512 MiB/s, 768 MiB ahead of the reader, 6 s left"
        );
        stats.queued_bytes = 0;
        assert!(line(&stats).ends_with("reader"), "{}", line(&stats));
    }

    #[test]
    fn the_summary_leaves_out_what_was_not() {
        let mut known = Summary {
            directory: Some("/m".into()),
            start: None,
            backend: Some("observe".into()),
            policy: Some("eager".into()),
            version: None,
            limits: Vec::new(),
            passed_over: Vec::new(),
            seconds: 2.5,
            exit: 0,
            major_faults: 0,
            fault: None,
            stats: Some(Stats {
                load_bytes: 4 << 30,
                loaded_bytes: 3 << 30,
                lost: 2,
                ..Stats::default()
            }),
            start_stats: None,
        };
        assert_eq!(
            summary(&known).as_deref(),
            Some(
                "eager on observe: 3 GiB loaded, 1 GiB of the plan already cached, 2 events lost; the \
                 command took 2.5 s"
            )
        );
        known.stats = None;
        assert!(summary(&known).is_some_and(|text| text.contains("no counters")));
        known.backend = None;
        assert_eq!(summary(&known), None);
    }
}
