//! The three kinds of charts: load times, the device over time, memory over time.

use super::svg::{Svg, step};
use crate::case::{Policy, Regime};
use crate::result::{CaseResult, Results, Run};
use crate::table::{of_native, of_runs};
use crate::units::{MB, float};

const WIDTH: f64 = 760.0;
/// Width reserved for names.
const LEFT: f64 = 130.0;
const RIGHT: f64 = 92.0;
/// Height of a row in a chart of load times, and of a band in one over time.
const ROW: f64 = 24.0;
const BAND: f64 = 58.0;
const AXIS: f64 = 26.0;

/// The position of a number on an axis.
#[derive(Clone, Copy)]
struct Scale {
    from: f64,
    most: f64,
    length: f64,
}

impl Scale {
    fn across(from: f64, most: f64) -> Self {
        Self {
            from,
            most: most.max(1e-6),
            length: WIDTH - LEFT - RIGHT,
        }
    }

    fn at(self, value: f64) -> f64 {
        let part = (value - self.from) / (self.most - self.from);
        LEFT + self.length * part.clamp(0.0, 1.0)
    }
}

/// The run to show: the one nearest to the median.
fn typical(case: &CaseResult) -> Option<&Run> {
    let middle = of_runs(case, |run| run.load)?;
    let far = |run: &&Run| (run.load - middle).abs();
    case.runs
        .iter()
        .min_by(|one, other| far(one).total_cmp(&far(other)))
}

pub(super) fn class(policy: Policy) -> &'static str {
    if policy.is_maio() { "ours" } else { "theirs" }
}

fn axis(svg: &mut Svg, scale: Scale, top: f64, bottom: f64) {
    let step = step(scale.most);
    for number in 0_u32.. {
        let at = f64::from(number) * step;
        if at > scale.most {
            break;
        }
        let x = scale.at(at);
        svg.line("grid", (x, top), (x, bottom));
        // In floating point, 0.6 is not quite three times 0.2.
        let text = format!("{at:.3}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        svg.text("tick", (x, bottom + 14.0), text);
    }
    svg.text("tick", (WIDTH - RIGHT + 24.0, bottom + 14.0), "seconds");
}

/// Load times: the median as a bar, each run as a dot.
pub(super) fn loads(
    results: &Results,
    cell: &[&CaseResult],
    floor: f64,
    floor_name: &str,
) -> String {
    let loads = cell.iter().flat_map(|case| &case.runs).map(|run| run.load);
    let most = loads.fold(floor, f64::max) * 1.02;
    let scale = Scale::across(0.0, most);
    let bottom = ROW * float(cell.len() as u64) + 18.0;
    let mut svg = Svg::new(WIDTH, bottom + AXIS);
    axis(&mut svg, scale, 14.0, bottom);
    for (number, case) in cell.iter().enumerate() {
        let y = 18.0 + ROW * float(number as u64);
        let median = of_runs(case, |run| run.load).unwrap_or(0.0);
        svg.text("name end", (LEFT - 8.0, y + 15.0), case.policy.title());
        svg.rect(
            class(case.policy),
            (LEFT, y + 3.0),
            (scale.at(median) - LEFT, ROW - 6.0),
        );
        for run in &case.runs {
            let class = if run.disturbed { "dot bad" } else { "dot" };
            svg.dot(class, (scale.at(run.load), y + ROW / 2.0));
        }
        let part = of_native(results, case).map(|part| format!(" = {part:.2}"));
        let label = format!("{median:.2} s{}", part.unwrap_or_default());
        svg.text("value", (scale.at(median) + 8.0, y + 16.0), &label);
    }
    if floor > 0.0 {
        let x = scale.at(floor);
        svg.line("floor", (x, 12.0), (x, bottom));
        svg.text("note", (x + 3.0, 10.0), floor_name);
    }
    svg.finish("load times")
}

/// What the device delivered over time, one band for each policy.
pub(super) fn device(results: &Results, cell: &[&CaseResult]) -> String {
    let timing = results.testbed.timing;
    let bandwidth = match cell.first().map(|case| case.regime) {
        Some(Regime::Slow) => float(timing.of_a_slow_device().bandwidth),
        Some(Regime::OwnDisk) => results.own_disk.as_ref().map_or(0.0, |disk| disk.best),
        _ => float(timing.bandwidth),
    };
    // The bandwidth of a real disk may not be known.
    let bins = cell.iter().flat_map(|case| &case.runs);
    let most = bins.flat_map(|run| &run.timeline.device).max();
    let known = bandwidth > 0.0;
    let full = if known {
        bandwidth
    } else {
        float(most.copied().unwrap_or(1)) * 10.0
    };
    let mut first = true;
    over_time(
        results,
        cell,
        "the device over time",
        |svg, case, run, scale, bottom| {
            let height = BAND - 16.0;
            if known {
                let y = bottom - height;
                svg.line("limit", (LEFT, y), (WIDTH - RIGHT, y));
            }
            if std::mem::take(&mut first) {
                let text = format!("{:.0} MB/s", full / 1e6);
                svg.text("note", (WIDTH - RIGHT + 6.0, bottom - height + 4.0), &text);
            }
            let mut points = vec![(scale.at(0.0), bottom)];
            for (number, bytes) in run.timeline.device.iter().enumerate() {
                let from = run.timeline.device_from + float(number as u64) / 10.0;
                let y = bottom - height * (float(*bytes) * 10.0 / full).min(1.1);
                if from + 0.1 > 0.0 && from < run.load {
                    points.push((scale.at(from.max(0.0)), y));
                    points.push((scale.at((from + 0.1).min(run.load)), y));
                }
            }
            points.push((scale.at(run.load), bottom));
            svg.path(&format!("area {}", class(case.policy)), &points);
            if known {
                let busy = format!("{:.0} % used", run.utilisation * 100.0);
                svg.text("value", (WIDTH - RIGHT + 6.0, bottom - 4.0), &busy);
            }
        },
    )
}

/// The memory charged to the readers' cgroup over time, one band for each policy.
pub(super) fn memory(results: &Results, cell: &[&CaseResult]) -> String {
    let limited = cell
        .first()
        .is_some_and(|case| case.regime == Regime::Limited);
    let testbed = &results.testbed;
    let most = if limited {
        float(testbed.limit)
    } else {
        float(testbed.model)
    } * 1.05;
    over_time(
        results,
        cell,
        "memory over time",
        |svg, _, run, scale, bottom| {
            let height = BAND - 16.0;
            let at = |bytes: u64| bottom - height * (float(bytes) / most).min(1.0);
            if limited {
                svg.line(
                    "limit",
                    (LEFT, at(testbed.limit)),
                    (WIDTH - RIGHT, at(testbed.limit)),
                );
                svg.line(
                    "grid",
                    (LEFT, at(testbed.window)),
                    (WIDTH - RIGHT, at(testbed.window)),
                );
            }
            let samples = run
                .timeline
                .samples
                .iter()
                .filter(|sample| sample.at <= run.load + 0.05);
            let points: Vec<_> = samples
                .map(|sample| (scale.at(sample.at.min(run.load)), at(sample.cache)))
                .collect();
            let ends = [points.first(), points.last()].map(|point| point.map_or(LEFT, |it| it.0));
            let ground = [vec![(ends[0], bottom)], points, vec![(ends[1], bottom)]].concat();
            svg.path("cache", &ground);
            let peak = format!("{} MB", run.peak_cache / MB);
            svg.text("value", (WIDTH - RIGHT + 6.0, bottom - 4.0), &peak);
        },
    )
}

/// Bands with one time axis, on which the phases of the load are marked.
fn over_time(
    results: &Results,
    cell: &[&CaseResult],
    what: &str,
    mut draw: impl FnMut(&mut Svg, &CaseResult, &Run, Scale, f64),
) -> String {
    let runs: Vec<_> = cell
        .iter()
        .filter_map(|case| Some((case, typical(case)?)))
        .collect();
    let most = runs.iter().map(|(_, run)| run.load).fold(0.0, f64::max) * 1.02;
    let scale = Scale::across(0.0, most);
    let end = BAND * float(runs.len() as u64) + 16.0;
    let mut svg = Svg::new(WIDTH, end + AXIS);
    let real = cell.iter().any(|case| super::words::is_real(results, case));
    if results.testbed.start > 0.0 && !real {
        let start = scale.at(results.testbed.start);
        svg.rect("phase", (LEFT, 14.0), (start - LEFT, end - 14.0));
        svg.text("note end", (start - 4.0, 11.0), "start");
        svg.text("note", (start + 4.0, 11.0), "workers load");
    }
    axis(&mut svg, scale, 14.0, end);
    for (number, (case, run)) in runs.iter().enumerate() {
        let bottom = 14.0 + BAND * float(number as u64 + 1);
        svg.text("name end", (LEFT - 8.0, bottom - 18.0), case.policy.title());
        if run.disturbed {
            svg.text("bad end", (LEFT - 8.0, bottom - 5.0), "disturbed");
        }
        draw(&mut svg, case, run, scale, bottom);
        svg.line("ground", (LEFT, bottom), (WIDTH - RIGHT, bottom));
        // The end of the last worker.
        let x = scale.at(run.load);
        svg.line("done", (x, bottom - BAND + 8.0), (x, bottom));
    }
    svg.finish(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Profile;
    use crate::result::samples::results;

    #[test]
    fn every_policy_appears_in_every_chart() {
        let loads = [(Policy::Native, 9.0), (Policy::MaioReplay, 3.0)];
        let mut results = results(Profile::full(), Regime::Limited, &loads);
        results.cases[1].runs[0].timeline.device = vec![10_000_000; 40];
        let cell: Vec<_> = results.cases.iter().collect();
        let charts = [
            super::loads(&results, &cell, 4.0, "floor"),
            device(&results, &cell),
            memory(&results, &cell),
        ];
        for chart in &charts {
            assert!(
                chart.contains(">the kernel alone<") && chart.contains(">MAIO, second load<"),
                "{chart}"
            );
            assert!(!chart.contains("NaN") && !chart.contains("inf"), "{chart}");
        }
        assert_eq!(charts[0].matches("class=\"ours\"").count(), 1);
        assert_eq!(charts[1].matches("class=\"area ours\"").count(), 1);
        assert_eq!(charts[1].matches("class=\"area theirs\"").count(), 1);
    }
}
