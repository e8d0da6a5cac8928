//! The results of the runs: medians, ratios, a table and JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::side::RunCost;
use crate::args::cost::Want;
use crate::median::median;
use crate::units::float;

/// Number of MiB for which the worker's CPU time is reported.
const PER_MIB: f64 = 4096.0;

/// All results.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) backend: &'static str,
    pub(super) kernel: String,
    pub(super) mib: u64,
    pub(super) rounds: u32,
    pub(super) cases: Vec<CaseCost>,
}

/// The results of a case: of the bare side, and of each want.
#[derive(Debug, Serialize)]
pub(super) struct CaseCost {
    name: &'static str,
    bare_ms: f64,
    /// Distance of the farthest run from the median, as a fraction of it.
    bare_spread: f64,
    by: Vec<SideCost>,
}

/// One side, compared with the bare one. Medians.
#[derive(Debug, Serialize)]
pub(super) struct SideCost {
    want: &'static str,
    ms: f64,
    spread: f64,
    /// Ratios of the times, and of the reader's CPU times.
    ratio: f64,
    cpu_ratio: f64,
    worker_cpu_s_per_4_gib: f64,
    events: f64,
}

impl Report {
    pub(super) fn title(&self, wants: &[Want]) -> String {
        let mut text = format!(
            "{} on Linux {}, {} MiB, medians of {} rounds\n",
            self.backend, self.kernel, self.mib, self.rounds
        );
        let wide = wants.iter().map(|want| want.name().len()).max();
        let _ = writeln!(
            text,
            "{:16}  {:wide$}  {:>9} {:>6}  {:>6}  {:>10}  {:>12}  {:>7}",
            "",
            "want",
            "ms",
            "+-",
            "ratio",
            "reader CPU",
            "worker CPU s",
            "events",
            wide = wide.unwrap_or(0).max(6)
        );
        text
    }
}

impl CaseCost {
    /// Of the runs of the bare side first, then of those of each want.
    pub(super) fn of(name: &'static str, wants: &[Want], sides: &[Vec<RunCost>], mib: u64) -> Self {
        let (bare, by) = sides
            .split_first()
            .map_or((&[][..], &[][..]), |(bare, by)| (bare.as_slice(), by));
        let time = |side: &[RunCost]| of(side, |it| it.time);
        let cpu = |side: &[RunCost]| of(side, |it| it.cpu).0;
        let (bare_us, bare_spread) = time(bare);
        let costs = wants.iter().zip(by).map(|(want, side)| {
            let (us, spread) = time(side);
            SideCost {
                want: want.name(),
                ms: us / 1e3,
                spread,
                ratio: us / bare_us,
                cpu_ratio: cpu(side) / cpu(bare),
                worker_cpu_s_per_4_gib: of(side, |it| it.worker_cpu).0 / 1e3 * PER_MIB / float(mib),
                events: of(side, |it| it.events).0,
            }
        });
        Self {
            name,
            bare_ms: bare_us / 1e3,
            bare_spread,
            by: costs.collect(),
        }
    }

    /// Lines of the table.
    pub(super) fn rows(&self) -> String {
        let spread = |part: f64| format!("{:.0}%", part * 100.0);
        let mut text = format!(
            "{:16}  {:6}  {:9.1} {:>6}\n",
            self.name,
            "bare",
            self.bare_ms,
            spread(self.bare_spread)
        );
        for side in &self.by {
            let _ = writeln!(
                text,
                "{:16}  {:6}  {:9.1} {:>6}  {:6.3}  {:10.3}  {:12.2}  {:7.0}",
                "",
                side.want,
                side.ms,
                spread(side.spread),
                side.ratio,
                side.cpu_ratio,
                side.worker_cpu_s_per_4_gib,
                side.events
            );
        }
        text
    }
}

/// The median of a number, and its spread.
fn of(side: &[RunCost], number: impl Fn(&RunCost) -> u64) -> (f64, f64) {
    let found = median(side.iter().map(|it| float(number(it))));
    found.map_or((0.0, 0.0), |it| (it.value, it.spread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_compared_by_their_medians() {
        let side = |times: [u64; 3], worker_cpu| {
            let sample = |time| RunCost {
                time,
                cpu: time / 2,
                worker_cpu,
                events: 7,
            };
            times.map(sample).to_vec()
        };
        let sides = [side([1000, 9000, 2000], 0), side([2000, 3000, 8000], 10)];
        let cost = CaseCost::of("warm", &[Want::Miss], &sides, 1024);
        let by = &cost.by[0];
        assert!((cost.bare_ms - 2.0).abs() < 1e-9 && (by.ratio - 1.5).abs() < 1e-9);
        assert!((by.cpu_ratio - 1.5).abs() < 1e-9);
        assert!((by.worker_cpu_s_per_4_gib - 0.04).abs() < 1e-9);
        assert!(cost.rows().contains(" 1.500 "), "{}", cost.rows());
        let report = Report {
            backend: "observe",
            kernel: "6.12".to_owned(),
            mib: 1024,
            rounds: 3,
            cases: vec![cost],
        };
        assert!(report.title(&[Want::Miss]).contains("medians of 3"));
        let json = serde_json::to_string(&report).expect("JSON");
        assert!(json.contains(r#""want":"miss""#), "{json}");
    }
}
