//! Results as a table of text.

use std::fmt::Write as _;

use crate::case::Policy;
use crate::median::median;
use crate::result::{Bystander, CaseResult, Results, Run};
use crate::units::{MB, float};

pub(crate) const TITLES: [&str; 12] = [
    "load s", "+-", "whole s", "/native", "/F", "device", "busy", "faults", "CPU s/GB", "cache MB",
    "RSS MB", "",
];

/// The median over all runs; disturbed runs count only if all were disturbed.
pub(crate) fn of_runs(case: &CaseResult, of: impl Fn(&Run) -> f64) -> Option<f64> {
    quiet(case, of).map(|it| it.value)
}

fn quiet(case: &CaseResult, of: impl Fn(&Run) -> f64) -> Option<crate::median::Median> {
    let calm = case.runs.iter().filter(|run| !run.disturbed);
    median(calm.map(&of)).or_else(|| median(case.runs.iter().map(&of)))
}

/// The case that differs from this one only in the policy.
pub(crate) fn beside<'r>(
    results: &'r Results,
    case: &CaseResult,
    policy: Policy,
) -> Option<&'r CaseResult> {
    results
        .cases
        .iter()
        .find(|it| it.policy == policy && it.reader == case.reader && it.regime == case.regime)
}

/// A table with a line for each case, grouped by cells.
pub(crate) fn table(results: &Results) -> String {
    let mut cells: Vec<String> = Vec::new();
    for case in &results.cases {
        let cell = cell(case);
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    let mut text = format!("{:<14}", "");
    text += &TITLES.map(|title| format!(" {title:>8}")).concat();
    text.push('\n');
    for name in cells {
        text += &name;
        text.push('\n');
        for case in results.cases.iter().filter(|case| cell(case) == name) {
            text += &row(results, case);
        }
    }
    text
}

/// A table of the cost to unrelated programs.
pub(crate) fn of_bystanders(bystanders: &[Bystander]) -> String {
    let Some(first) = bystanders.first() else {
        return String::new();
    };
    let mut text = format!(
        "{:<14} {:>8} {:>8} {:>8}\n",
        "bystanders", "ms", "/without", "+-"
    );
    // Writing into a string cannot fail.
    let _ = writeln!(text, "  {:<12} {:8.1}", "without", first.without_ms);
    for it in bystanders {
        let (state, spread) = (&it.state, it.spread * 100.0);
        let (ms, ratio) = (it.with_ms, it.ratio);
        let _ = writeln!(text, "  {state:<12} {ms:8.1} {ratio:8.3} {spread:7.1}%");
    }
    text
}

const OF_MAIO: [&str; 9] = [
    "disk MB", "readers", "late", "loaded", "dropped", "kept", "longest", "calls ms", "CPU ms",
];

/// A table of what readers had to read themselves, and what the policy and its worker did: medians, in MB
/// except for the times.
pub(crate) fn of_maio(results: &Results) -> String {
    let mut text = format!("{:<36}", "");
    text += &OF_MAIO.map(|title| format!(" {title:>8}")).concat();
    text.push('\n');
    for case in results.cases.iter().filter(|case| !case.runs.is_empty()) {
        let value = |of: &dyn Fn(&Run) -> Option<f64>| {
            let told = case.runs.iter().all(|run| of(run).is_some());
            let value = of_runs(case, |run| of(run).unwrap_or(0.0)).filter(|_| told);
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"))
        };
        let megabytes = |bytes: u64| float(bytes) / float(MB);
        let stat = |run: &Run, name: &str| run.stats.get(name).copied();
        let bytes = |name| value(&|run| stat(run, name).map(megabytes));
        let ms = |name| value(&|run| stat(run, name).map(|ns| float(ns) / 1e6));
        let columns = [
            value(&|run| Some(megabytes(run.device_bytes))),
            value(&|run| run.readers_bytes.map(megabytes)),
            value(&|run| run.late_bytes.map(megabytes)),
            bytes("loaded_bytes"),
            bytes("evicted_bytes"),
            bytes("kept_bytes"),
            ms("policy_max_ns"),
            ms("policy_ns"),
            value(&|run| stat(run, "worker_cpu_ms").map(float)),
        ];
        let columns = columns.map(|column| format!(" {column:>8}")).concat();
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{:<36}{columns}", case.name);
    }
    text
}

fn cell(case: &CaseResult) -> String {
    format!("{}, {}", case.reader, case.regime)
}

fn row(results: &Results, case: &CaseResult) -> String {
    let name = format!("  {:<12}", case.policy.to_string());
    match columns(results, case) {
        None => format!("{name} {}\n", case.left_out),
        Some(columns) => {
            let columns = columns.map(|column| format!(" {column:>8}")).concat();
            (name + &columns).trim_end().to_owned() + "\n"
        }
    }
}

/// The columns of a case, in the order of the titles; `None` if it was not run.
pub(crate) fn columns(results: &Results, case: &CaseResult) -> Option<[String; 12]> {
    let load = quiet(case, |run| run.load)?;
    let model = float(results.testbed.model);
    let value = |of: fn(&Run) -> f64| of_runs(case, of).unwrap_or(0.0);
    let ratio = of_native(results, case).map_or_else(|| "-".to_owned(), |it| format!("{it:.2}"));
    let floor = device_time(results, case);
    let megabytes = |bytes: f64| format!("{:.0}", bytes / float(MB));
    let known = |number: f64| {
        if number > 0.0 && number.is_finite() {
            format!("{number:.2}")
        } else {
            "-".to_owned()
        }
    };
    let marks = [
        (case.runs.iter().any(|run| run.disturbed), "disturbed"),
        (case.runs.iter().any(|run| run.wrong > 0), "WRONG BYTES"),
        (case.runs.iter().any(|run| run.dirty > 0), "NOT COLD"),
    ];
    let marks = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark);
    Some([
        format!("{:.2}", load.value),
        format!("{:.0}%", load.spread * 100.0),
        known(value(|run| run.whole)),
        ratio,
        known(load.value / floor),
        format!("{:.3}", value(|run| float(run.device_bytes)) / model),
        format!("{:.0}%", value(|run| run.utilisation) * 100.0),
        format!("{:.0}", value(|run| float(run.major_faults))),
        format!("{:.2}", value(|run| run.runtime_cpu) / (model / 1e9)),
        megabytes(value(|run| float(run.peak_cache))),
        megabytes(value(|run| float(run.runtime_memory))),
        marks.collect::<Vec<_>>().join(", "),
    ])
}

/// The load time as a fraction of that of the kernel alone.
pub(crate) fn of_native(results: &Results, case: &CaseResult) -> Option<f64> {
    let native = of_runs(beside(results, case, Policy::Native)?, |run| run.load)?;
    let load = of_runs(case, |run| run.load)?;
    (native > 0.0).then(|| load / native)
}

/// The least time that the device takes for the model in this case.
pub(crate) fn device_time(results: &Results, case: &CaseResult) -> f64 {
    let model = float(results.testbed.model);
    let timing = results.testbed.timing;
    match case.regime {
        crate::case::Regime::Slow => model / float(timing.of_a_slow_device().bandwidth),
        crate::case::Regime::OwnDisk => {
            let best = results.own_disk.as_ref().map_or(0.0, |disk| disk.best);
            if best > 0.0 { model / best } else { 0.0 }
        }
        // The bandwidth of a real disk may not be known.
        _ => match timing.bandwidth {
            0 => 0.0,
            bandwidth => model / float(bandwidth),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Regime;
    use crate::reader::Profile;
    use crate::result::{OwnDisk, samples::results};

    #[test]
    fn a_load_is_shown_beside_the_whole_command_and_by_its_own_disk() {
        let loads = [(Policy::Native, 4.0), (Policy::MaioReplay, 2.0)];
        let mut results = results(Profile::full().with(1), Regime::OwnDisk, &loads);
        results.cases[1].runs[0].whole = 2.25;
        let of = |results: &Results, case: usize| columns(results, &results.cases[case]);
        let columns = of(&results, 1).expect("it was run");
        assert_eq!(columns[..5], ["2.00", "0%", "2.25", "0.50", "-"]);
        // 1 GB takes it 1 s.
        results.own_disk = Some(OwnDisk {
            name: "vda".to_owned(),
            best: 1e9,
        });
        assert_eq!(of(&results, 0).expect("it")[2..5], ["-", "1.00", "4.00"]);
    }

    #[test]
    fn bystanders_are_held_against_none() {
        let bystander = Bystander {
            state: "idle".to_owned(),
            with_ms: 202.0,
            without_ms: 200.0,
            ratio: 1.012,
            spread: 0.02,
        };
        let text = of_bystanders(&[bystander]);
        assert!(text.contains("without         200.0\n"), "{text}");
        assert!(
            text.contains("idle            202.0    1.012     2.0%"),
            "{text}"
        );
        assert_eq!(of_bystanders(&[]), "");
    }
}
