//! The three kinds of charts: load times, the device over time, memory over time.

use super::svg::{Svg, step};
use crate::case::{Policy, Regime};
use crate::result::{CaseResult, Results, Run};
use crate::table::of_runs;
use crate::units::{MB, float};

const WIDTH: f64 = 760.0;
/// Room for names.
const LEFT: f64 = 110.0;
const RIGHT: f64 = 60.0;
/// Of a line in a chart of load times, and of one over time.
const ROW: f64 = 24.0;
const BAND: f64 = 58.0;
const AXIS: f64 = 26.0;

/// Where a number of an axis is.
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

/// A run to show: the one nearest to the median.
fn typical(case: &CaseResult) -> Option<&Run> {
    let middle = of_runs(case, |run| run.load)?;
    let far = |run: &&Run| (run.load - middle).abs();
    case.runs
        .iter()
        .min_by(|one, other| far(one).total_cmp(&far(other)))
}

fn class(policy: Policy) -> &'static str {
    if policy.is_maio() { "ours" } else { "theirs" }
}

fn axis(svg: &mut Svg, scale: Scale, top: f64, bottom: f64) {
    let step = step(scale.most);
    let mut at = 0.0;
    while at <= scale.most {
        let x = scale.at(at);
        svg.line("grid", (x, top), (x, bottom));
        svg.text("tick", (x, bottom + 14.0), &format!("{at}"));
        at += step;
    }
    svg.text("tick", (WIDTH - RIGHT + 24.0, bottom + 14.0), "seconds");
}

/// How long loads took: the median as a bar, each run as a dot.
pub(super) fn loads(cell: &[&CaseResult], floor: f64, floor_name: &str) -> String {
    let loads = cell.iter().flat_map(|case| &case.runs).map(|run| run.load);
    let most = loads.fold(floor, f64::max) * 1.02;
    let scale = Scale::across(0.0, most);
    let bottom = ROW * float(cell.len() as u64) + 18.0;
    let mut svg = Svg::new(WIDTH, bottom + AXIS);
    axis(&mut svg, scale, 14.0, bottom);
    for (number, case) in cell.iter().enumerate() {
        let y = 18.0 + ROW * float(number as u64);
        let median = of_runs(case, |run| run.load).unwrap_or(0.0);
        svg.text("name end", (LEFT - 8.0, y + 15.0), &case.policy.to_string());
        svg.rect(
            class(case.policy),
            (LEFT, y + 3.0),
            (scale.at(median) - LEFT, ROW - 6.0),
        );
        for run in &case.runs {
            svg.dot("dot", (scale.at(run.load), y + ROW / 2.0));
        }
        svg.text(
            "value",
            (scale.at(median) + 8.0, y + 16.0),
            &format!("{median:.2}"),
        );
    }
    let x = scale.at(floor);
    svg.line("floor", (x, 12.0), (x, bottom));
    svg.text("note", (x + 3.0, 10.0), floor_name);
    svg.finish("load times")
}

/// What the device delivered over time, one band for each policy.
pub(super) fn device(results: &Results, cell: &[&CaseResult]) -> String {
    let bandwidth = match cell.first().map(|case| case.regime) {
        Some(Regime::Slow) => float(crate::rig::SLOW),
        _ => float(results.testbed.timing.bandwidth),
    };
    over_time(
        results,
        cell,
        "the device over time",
        |svg, run, scale, bottom| {
            let height = BAND - 16.0;
            svg.line(
                "limit",
                (LEFT, bottom - height),
                (WIDTH - RIGHT, bottom - height),
            );
            let mut points = vec![(scale.at(0.0), bottom)];
            for (number, bytes) in run.timeline.device.iter().enumerate() {
                let from = run.timeline.device_from + float(number as u64) / 10.0;
                let y = bottom - height * (float(*bytes) * 10.0 / bandwidth).min(1.1);
                if from + 0.1 > 0.0 && from < run.load {
                    points.push((scale.at(from.max(0.0)), y));
                    points.push((scale.at((from + 0.1).min(run.load)), y));
                }
            }
            points.push((scale.at(run.load), bottom));
            svg.path("area", &points);
            let busy = format!("{:.0} %", run.utilisation * 100.0);
            svg.text("value", (WIDTH - RIGHT + 6.0, bottom - 4.0), &busy);
        },
    )
}

/// What was charged to the readers' cgroup over time, one band for each policy.
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
        |svg, run, scale, bottom| {
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
                .map(|sample| (scale.at(sample.at), at(sample.cache)))
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
    draw: impl Fn(&mut Svg, &Run, Scale, f64),
) -> String {
    let runs: Vec<_> = cell
        .iter()
        .filter_map(|case| Some((case, typical(case)?)))
        .collect();
    let most = runs.iter().map(|(_, run)| run.load).fold(0.0, f64::max) * 1.02;
    let scale = Scale::across(0.0, most);
    let end = BAND * float(runs.len() as u64) + 16.0;
    let mut svg = Svg::new(WIDTH, end + AXIS);
    let start = scale.at(results.testbed.start);
    svg.rect("phase", (LEFT, 14.0), (start - LEFT, end - 14.0));
    svg.text("note", (start + 4.0, 11.0), "workers begin");
    axis(&mut svg, scale, 14.0, end);
    for (number, (case, run)) in runs.iter().enumerate() {
        let bottom = 14.0 + BAND * float(number as u64 + 1);
        svg.text(
            "name end",
            (LEFT - 8.0, bottom - 18.0),
            &case.policy.to_string(),
        );
        draw(&mut svg, run, scale, bottom);
        svg.line("ground", (LEFT, bottom), (WIDTH - RIGHT, bottom));
        // Where the last worker was done.
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
    fn each_policy_has_its_line_in_each_chart() {
        let loads = [(Policy::Native, 9.0), (Policy::MaioReplay, 3.0)];
        let mut results = results(Profile::full(), Regime::Limited, &loads);
        results.cases[1].runs[0].timeline.device = vec![10_000_000; 40];
        let cell: Vec<_> = results.cases.iter().collect();
        let charts = [
            super::loads(&cell, 4.0, "floor"),
            device(&results, &cell),
            memory(&results, &cell),
        ];
        for chart in &charts {
            assert!(
                chart.contains(">native<") && chart.contains(">maio-replay<"),
                "{chart}"
            );
            assert!(!chart.contains("NaN") && !chart.contains("inf"), "{chart}");
        }
        assert_eq!(charts[0].matches("class=\"ours\"").count(), 1);
        assert_eq!(charts[1].matches("class=\"area\"").count(), 2);
    }
}
