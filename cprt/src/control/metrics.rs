//! What a collector such as Prometheus reads: the daemon's status and its workers' counters as text.
//!
//! ```text
//! Status, MountStats ─ families, worker, loads, keep: which metrics ─ exposition: lines ─▶ cprtd's GET /metrics, ppcctl metrics
//! ```
//!
//! Names and units follow the conventions of Prometheus: base units, which the name ends in, and `_total` for counters.
//! The text is complete, whatever paths and names hold: label values are escaped, and no series comes twice.

use std::fmt::Write as _;

use self::exposition::{Exposition, Family};
use super::protocol::{MountStats, Status};

mod accept;
mod exposition;
mod families;
mod keep;
mod loads;
mod worker;

/// The language of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// The text format of Prometheus, 0.0.4, which every collector reads.
    #[default]
    Prometheus,
    /// `OpenMetrics` 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that a client prefers, by the `Accept` header of its request. A client without one, or with one that
    /// names neither format, gets [`Self::Prometheus`].
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        accept::format(accept)
    }

    /// What `Content-Type` says of it.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// All metrics of a daemon. `counted` may lack mounts of the status, whose workers do not run or do not answer.
#[must_use]
pub fn text(status: &Status, counted: &[MountStats], format: Format) -> String {
    let mut to = Exposition::new(format);
    families::of_daemon(&mut to, status);
    families::of_policies(&mut to, status);
    worker::counters(&mut to, counted);
    if let Some(services) = &status.services {
        families::of_services(&mut to, services);
    }
    loads::of_loads(&mut to, &status.loads);
    keep::of_sets(&mut to, &status.kept);
    to.end()
}

/// All metrics, as the Markdown table in `cprt/metrics/README.md`.
#[must_use]
pub fn table() -> String {
    let mut text = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for family in all() {
        let labels = family.labels.iter().map(|label| format!("`{label}`"));
        let labels: Vec<_> = labels.collect();
        // Writing to a String never fails.
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            family.shown(),
            family.kind.name(),
            labels.join(", "),
            family.help
        );
    }
    text
}

/// All families, in the order of the text.
fn all() -> Vec<&'static Family> {
    let of_worker = worker::ALL.iter().map(|counter| &counter.family);
    let (before, after) = families::ALL.split_at(families::BEFORE_WORKERS);
    before
        .iter()
        .copied()
        .chain(of_worker)
        .chain(after.iter().copied())
        .chain(loads::ALL.iter().copied())
        .chain(keep::ALL.iter().copied())
        .collect()
}

#[cfg(test)]
mod tests;
