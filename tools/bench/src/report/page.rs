//! The page around the charts.

use super::chart;
use super::svg::escape;
use crate::bars;
use crate::case::Regime;
use crate::result::{CaseResult, Check, Results};
use crate::table;
use crate::units::{MB, float};

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #222; --soft: #777; --grid: #ddd; --paper: #fff;
  --ours: #1668b0; --theirs: #9aa5b1; --cache: #d98d1e; --phase: #f1f1ee; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --soft: #999; --grid: #444; --paper: #1b1b1b;
  --ours: #5aa9e6; --theirs: #667; --cache: #d9a04a; --phase: #262624; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
svg { width: 100%; height: auto; } pre { overflow-x: auto; font-size: .8rem; line-height: 1.35; }
p.say { color: var(--soft); } dt { font-weight: 600; }
text { font: 11px system-ui, sans-serif; fill: var(--soft); } text.name, text.value { fill: var(--ink); }
text.end { text-anchor: end; } text.tick { text-anchor: middle; }
.ours { fill: var(--ours); } .theirs { fill: var(--theirs); } .dot { fill: var(--ink); opacity: .6; }
.area { fill: var(--ours); opacity: .75; } .cache { fill: var(--cache); opacity: .75; }
.grid { stroke: var(--grid); } .ground { stroke: var(--soft); } .phase { fill: var(--phase); }
.floor, .limit { stroke: var(--ink); stroke-dasharray: 4 3; } .done { stroke: var(--ink); }
";

/// All of it.
pub(super) fn page(results: &Results) -> String {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<title>ppc-bench: {0}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style>\n\
         <h1>How long a model takes to load</h1>\n",
        escape(&results.profile)
    );
    text += &introduction(results);
    for cell in cells(results) {
        text += &section(results, &cell);
    }
    text += "<h2>All numbers</h2>\n";
    text += TERMS;
    text += &pre(&table::table(results));
    text += "<h2>What was to be shown</h2>\n<p class=\"say\">Measured, what it may be at most, what is \
             compared, where. Those that were missed are at the end.</p>\n";
    text += &pre(&bars::list(&results.bars));
    text += &checks(results);
    text + "</html>\n"
}

const TERMS: &str = "<dl>
<dt>load s, +-</dt><dd>median of the load times, and how far the farthest run is from it</dd>
<dt>/native, /F</dt><dd>as a part of what the kernel takes by itself, and of what the device takes for all
bytes at its full bandwidth</dd>
<dt>device</dt><dd>bytes that were read from the device for each byte of the model: 1 is each once</dd>
<dt>busy</dt><dd>the part of the device's bandwidth that was used during the load</dd>
<dt>faults</dt><dd>page faults of all workers that had to wait</dd>
<dt>CPU s/GB, RSS MB</dt><dd>what the policy and what runs it took</dd>
<dt>cache MB</dt><dd>the most page cache that readers, and who prefetched for them, had at once</dd></dl>
";

fn introduction(results: &Results) -> String {
    let testbed = &results.testbed;
    let gb = |bytes: u64| float(bytes) / 1e9;
    format!(
        "<p>Processes load a model of {:.2} GB in {} files, as the workers of an inference service do. The \
         model is on a simulated SSD: {} us for each request, {} of them at once, and {} MB/s. That is about \
         ten times slower than a fast one, and so are the copies to accelerators and the start of the \
         framework, so that the ratios are those of a machine ten times as fast. At full bandwidth the \
         device takes {:.2} s for all bytes (<b>F</b>).</p>\n\
         <p>Blue is MAIO: <b>maio-first</b> has never seen the model and goes by its headers, \
         <b>maio-replay</b> knows from an earlier load what is read. Grey is what else there is: \
         <b>native</b>, the kernel with its readahead of 128 KiB; <b>native-4096k</b>, the same with 4 MiB; \
         <b>eager</b>, a policy that loads every file from end to end at the first event; \
         <b>framework</b>, eight threads of the framework that read ahead 16 MiB at a time; \
         <b>precache</b>, everything loaded before the load begins, as far as there is room for it. Readers \
         touch every byte (full) or their share (tp); they keep mappings until the end (kept) or drop \
         them file by file (dropped). Where memory is limited, readers and who reads ahead for them have \
         {:.2} GB together. Nothing was cached before, unless it says so, and every byte was checked.</p>\n\
         <p>The dashed line in charts of load times is what the device takes at least; where memory is \
         limited, with as much of the model there as may be when workers begin. In charts over time the \
         shaded part is the start of the framework, in which nobody reads weights; the upright line is the \
         end of the load, and the dashed one what the device can do, or the limit of memory.</p>\n\
         <p class=\"say\">Linux {}, {} processors, {:.0} GB of memory; misses heard of by {}; ppc-bench {}.{}</p>\n",
        gb(testbed.model),
        testbed.files,
        testbed.timing.latency_us,
        testbed.timing.slots,
        testbed.timing.bandwidth / MB,
        testbed.device,
        gb(testbed.limit),
        escape(&results.machine.kernel),
        results.machine.processors,
        gb(results.machine.memory),
        escape(&results.backend),
        escape(&results.machine.version),
        disturbed(results),
    )
}

/// Text as it is.
fn pre(text: &str) -> String {
    format!("<pre>{}</pre>\n", escape(text))
}

fn disturbed(results: &Results) -> String {
    let runs = || results.cases.iter().flat_map(|case| &case.runs);
    match runs().filter(|run| run.disturbed).count() {
        0 => String::new(),
        some => format!(
            " <b>{some} of {} runs were disturbed by other processes</b>: trust counts more than times.",
            runs().count()
        ),
    }
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
        Regime::Limited => (results.testbed.limited_floor(), "the limited floor"),
        Regime::Cached => (results.testbed.warm, "if nothing is waited for"),
        _ => (
            table::device_time(results, first).max(results.testbed.warm),
            "the least that the device takes",
        ),
    };
    let title = match first.regime {
        Regime::Ample => "memory for all",
        Regime::Limited => "memory for less than half of it",
        Regime::Cached => "cached already",
        Regime::Slow => "a device of 20 MB/s",
    };
    format!(
        "<h2>{}: {title}</h2>\n{}<h3>Used bandwidth of the device</h3>\n{}<h3>Page cache of the readers</h3>\n{}",
        escape(&first.reader.to_string()),
        chart::loads(cell, floor, name),
        chart::device(results, cell),
        chart::memory(results, cell),
    )
}

fn checks(results: &Results) -> String {
    let line = |check: &Check| {
        let (measured, expected) = (check.measured / 1e6, check.expected / 1e6);
        format!("{:<32} {measured:7.1} of {expected:7.1}\n", check.what)
    };
    let lines: String = results.checks.iter().map(line).collect();
    "<h2>Is the device what it says?</h2>\n<p class=\"say\">Measured through the whole stack, and by the \
     model, in MB/s.</p>\n"
        .to_owned()
        + &pre(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Policy;
    use crate::reader::Profile;
    use crate::result::samples::results;

    #[test]
    fn a_page_has_all_it_takes_and_loads_nothing() {
        let loads = [(Policy::Native, 9.0), (Policy::MaioReplay, 3.0)];
        let mut results = results(Profile::tp(), Regime::Ample, &loads);
        results.profile = "<x>".to_owned();
        let page = page(&results);
        assert_eq!(page.matches("<svg").count(), 3);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(page.contains("&lt;x&gt;") && !page.contains("<x>"));
        assert!(!page.contains("http"), "it needs nothing from elsewhere");
    }
}
