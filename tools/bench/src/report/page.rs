//! The page around the charts, written for readers who do not know the project.

use super::chart;
use super::svg::escape;
use super::words;
use crate::bars;
use crate::case::Regime;
use crate::result::{CaseResult, Check, Results, Starts};
use crate::table;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #222; --soft: #666; --grid: #ddd; --paper: #fff;
  --ours: #1668b0; --theirs: #9aa5b1; --cache: #d98d1e; --phase: #ececdf; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --soft: #a5a5a5; --grid: #444; --paper: #1b1b1b;
  --ours: #5aa9e6; --theirs: #7d8894; --cache: #d9a04a; --phase: #33332c; --bad: #ff8a80; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 3rem; } h3 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
p.lead { font-size: 1.15rem; } p.say, li.say { color: var(--soft); margin: .2rem 0; } dt { font-weight: 600; margin-top: .5rem; }
dd { margin-left: 1.2rem; } code { font-size: .85em; color: var(--soft); }
.wide { overflow-x: auto; } .wide > svg { width: 100%; min-width: 38rem; height: auto; display: block; }
pre { overflow-x: auto; font-size: .8rem; line-height: 1.35; }
table { border-collapse: collapse; font-size: .85rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
td, th { padding: .15rem .55rem; text-align: right; } td:first-child, th:first-child { text-align: left; padding-left: 0; }
th { color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--grid); } tr.cell td { padding-top: .8rem; color: var(--soft); }
.swatch { display: inline-block; width: .75em; height: .75em; margin-right: .45em; }
.swatch.ours { background: var(--ours); } .swatch.theirs { background: var(--theirs); } .bad { color: var(--bad); }
text { font: 11px system-ui, sans-serif; fill: var(--soft); } text.name, text.value { fill: var(--ink); }
text.value { paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
text.end { text-anchor: end; } text.tick { text-anchor: middle; } text.bad { fill: var(--bad); }
.ours { fill: var(--ours); } .theirs { fill: var(--theirs); } .dot { fill: var(--ink); opacity: .6; }
.dot.bad { fill: var(--bad); opacity: 1; } .area { opacity: .8; } .cache { fill: var(--cache); opacity: .75; }
.grid { stroke: var(--grid); } .ground { stroke: var(--soft); } .phase { fill: var(--phase); }
.floor, .limit { stroke: var(--ink); stroke-dasharray: 4 3; } .done { stroke: var(--ink); }
";

/// The whole page.
pub(super) fn page(results: &Results) -> String {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<title>How long a model takes to load: {0}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style>\n\
         <h1>How long a model takes to load</h1>\n",
        escape(&results.profile)
    );
    text += &words::introduction(results);
    for cell in cells(results) {
        text += &section(results, &cell);
    }
    if !results.whole_starts.is_empty() {
        text += "<h2>Whole starts</h2>\n";
        text.extend(results.whole_starts.iter().map(whole_starts));
    }
    text += "<h2>All numbers</h2>\n";
    text += &numbers(results);
    text += words::TERMS;
    if !results.bystanders.is_empty() {
        text += "<h2>The cost to other programs</h2>\n<p class=\"say\">An unrelated program reads a cached file of another \
                 folder, 4 KiB at a time: without a policy on the machine, beside one that waits, beside one that \
                 records a load, and beside <code>ppcctl run</code> while it records a start and once its command \
                 waits.</p>\n";
        text += &pre(&table::of_bystanders(&results.bystanders));
    }
    if !results.bars.is_empty() {
        text += "<h2>Goals</h2>\n<p class=\"say\">The goals for MAIO were written down before measuring. Each line \
                 shows whether it was reached, the measured value and its limit, what is compared, and in which \
                 case. Missed goals are at the end.</p>\n";
        text += &pre(&bars::list(&results.bars));
    }
    if !results.checks.is_empty() {
        text += &checks(results);
    }
    text + "</html>\n"
}

/// Preformatted text.
fn pre(text: &str) -> String {
    format!("<pre>{}</pre>\n", escape(text))
}

fn cells(results: &Results) -> Vec<Vec<&CaseResult>> {
    let mut cells: Vec<Vec<&CaseResult>> = Vec::new();
    for case in &results.cases {
        let same = |cell: &&mut Vec<&CaseResult>| {
            cell.first()
                .is_some_and(|it| it.reader == case.reader && it.regime == case.regime)
        };
        match cells.iter_mut().find(same) {
            Some(cell) => cell.push(case),
            None => cells.push(vec![case]),
        }
    }
    cells
}

fn section(results: &Results, cell: &[&CaseResult]) -> String {
    let Some(first) = cell.first() else {
        return String::new();
    };
    let (floor, name) = match first.regime {
        Regime::Limited => (
            results.testbed.limited_floor(first.reader.mode),
            "the least possible",
        ),
        Regime::Cached => (results.testbed.warm, "nothing to wait for"),
        Regime::OwnDisk => (table::device_time(results, first), "the disk at its best"),
        _ => (
            table::device_time(results, first).max(results.testbed.warm),
            "the disk at its best",
        ),
    };
    let mut text = format!(
        "<h2>{}</h2>\n{}<h3>Load times</h3>\n<p class=\"say\">Shorter is better; in seconds, and as a fraction of \
         the time of the kernel alone. {}</p>\n{}",
        escape(&words::title(results, first)),
        words::reader(results, first),
        words::floor(results, first),
        wide(&chart::loads(results, cell, floor, name)),
    );
    let has_bytes = cell.iter().any(|case| {
        case.runs
            .iter()
            .any(|run| run.timeline.device.iter().any(|it| *it > 0))
    });
    if has_bytes {
        text += "<h3>Disk throughput over time</h3>\n<p class=\"say\">A full band is a disk that is busy all the \
                 time; an empty one is idle. ";
        text += words::phases(results, first);
        text += " At the right: the share of the disk's bandwidth that was used.</p>\n";
        text += &wide(&chart::device(results, cell));
    }
    text += "<h3>Page cache over time</h3>\n<p class=\"say\">";
    text += words::memory(results, first);
    text += "</p>\n";
    text + &wide(&chart::memory(results, cell))
}

/// Makes it scroll sideways on a narrow screen.
fn wide(inner: &str) -> String {
    format!("<div class=\"wide\">{inner}</div>\n")
}

/// The results as an HTML table.
fn numbers(results: &Results) -> String {
    let mut text = "<table><tr><th></th>".to_owned();
    for title in table::TITLES {
        text.extend(["<th>", title, "</th>"]);
    }
    text += "</tr>\n";
    for cell in cells(results) {
        if let Some(first) = cell.first() {
            let title = escape(&words::title(results, first));
            text.extend([
                "<tr class=\"cell\"><td colspan=\"13\">",
                &title,
                "</td></tr>\n",
            ]);
        }
        for case in cell {
            text.extend(["<tr><td>", &escape(case.policy.title()), "</td>"]);
            match table::columns(results, case) {
                Some(columns) => {
                    let (last, numbers) = columns
                        .split_last()
                        .map_or(("", &[][..]), |it| (it.0.as_str(), it.1));
                    for number in numbers {
                        text.extend(["<td>", number, "</td>"]);
                    }
                    text.extend(["<td class=\"bad\">", last, "</td>"]);
                }
                None => text.extend(["<td colspan=\"12\">", &escape(&case.left_out), "</td>"]),
            }
            text += "</tr>\n";
        }
    }
    wide(&(text + "</table>\n"))
}

fn whole_starts(starts: &Starts) -> String {
    let mut text = format!(
        "<p class=\"say\">From exec to exit, including all the time that MAIO takes. The program: {}; the disk: {}. \
         Medians, in seconds.</p>\n<table>",
        escape(&starts.what),
        escape(&starts.disk)
    );
    for times in &starts.times {
        let title = escape(&times.title);
        let seconds = format!("{:.2}", times.median());
        text.extend(["<tr><td>", &title, "</td><td>", &seconds, "</td></tr>\n"]);
    }
    text += "</table>\n";
    if let Some(removed) = starts.removed() {
        let removed = format!("{:.0}", removed * 100.0);
        let tells = [
            "<p>The second start removes ",
            &removed,
            " % of the time that a cold disk costs.</p>\n",
        ];
        text.extend(tells);
    }
    text
}

fn checks(results: &Results) -> String {
    let line = |check: &Check| {
        let (measured, expected) = (check.measured / 1e6, check.expected / 1e6);
        format!("{:<32} {measured:7.1} of {expected:7.1}\n", check.what)
    };
    let lines: String = results.checks.iter().map(line).collect();
    "<h2>Does the disk follow its model?</h2>\n<p class=\"say\">The bandwidth of the simulated disk, measured through \
     all layers between it and a reader, of that of its model, in MB/s. Small requests lose some in the layers.</p>\n"
        .to_owned()
        + &pre(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Policy;
    use crate::reader::Profile;
    use crate::result::{Real, samples::results};

    const LOADS: [(Policy, f64); 2] = [(Policy::Native, 9.0), (Policy::MaioReplay, 3.0)];

    #[test]
    fn a_page_has_all_it_takes_and_loads_nothing() {
        let mut results = results(Profile::tp(), Regime::Ample, &LOADS);
        results.profile = "<x>".to_owned();
        results.cases[1].runs[0].timeline.device = vec![10_000_000; 30];
        results.cases[1].runs[0].disturbed = true;
        let page = page(&results);
        assert_eq!(page.matches("<svg").count(), 3);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(page.contains("&lt;x&gt;") && !page.contains("<x>"));
        assert!(!page.contains("http"), "it needs nothing from elsewhere");
        assert!(page.contains("<b>9.00 s</b>") && page.contains("0.33"));
        assert!(
            page.contains("1 of 2 loads"),
            "that one was disturbed is told"
        );
        assert!(page.contains(Policy::MaioReplay.says()) && !page.contains(Policy::Eager.says()));
    }

    #[test]
    fn real_disk_page_is_escaped_and_not_called_simulated() {
        let mut results = results(Profile::full().with(1), Regime::Ample, &LOADS);
        results.real = Some(Real {
            folder: "/srv/<m>".to_owned(),
            command: "cat {}/* & wait".to_owned(),
            disk: "vda, ext4".to_owned(),
            instead: String::new(),
        });
        results.testbed.timing.bandwidth = 0;
        let page = page(&results);
        assert!(page.contains("/srv/&lt;m&gt;") && page.contains("cat {}/* &amp; wait"));
        assert!(!page.contains("simulated") && !page.contains("NaN") && !page.contains("inf"));
    }
}
