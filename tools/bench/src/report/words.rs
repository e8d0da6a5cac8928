//! What the page says, in words.

use super::svg::escape;
use crate::case::{Policy, Regime};
use crate::reader::{Access, Mode};
use crate::result::{CaseResult, Results};
use crate::table;
use crate::units::{MB, float};

pub(super) const TERMS: &str = "<dl>
<dt>load s, +-</dt><dd>seconds to load: the median, and how far the farthest load is from it. Loads that other
processes disturbed count only if all were.</dd>
<dt>whole s</dt><dd>the same with the start and the end of all processes and of the policy: what a user waits for</dd>
<dt>/native, /F</dt><dd>as a part of what the kernel takes alone; and of what the disk takes for all bytes at its best</dd>
<dt>device</dt><dd>bytes read from the disk for each byte of the model: 1 is each once</dd>
<dt>busy</dt><dd>the part used of what the disk could have given during the load</dd>
<dt>faults</dt><dd>page faults of the workers that had to wait for the disk</dd>
<dt>CPU s/GB, RSS MB</dt><dd>what the policy and what runs it took: processor time for each GB of the model, memory</dd>
<dt>cache MB</dt><dd>the most page cache there was at once</dd></dl>
";

/// What was found, what was measured, who took part.
pub(super) fn introduction(results: &Results) -> String {
    let setting = if results.real.is_some() {
        real(results)
    } else {
        simulated(results)
    };
    format!(
        "{}<h2>What was measured</h2>\n{setting}{}<h2>Who reads ahead</h2>\n{}",
        lead(results),
        machine(results),
        policies(results)
    )
}

/// The gist of the first cell.
fn lead(results: &Results) -> String {
    let of = |policy| {
        let first = results.cases.first()?;
        let case = table::beside(results, first, policy)?;
        let load = table::of_runs(case, |run| run.load)?;
        Some((load, table::of_native(results, case)?))
    };
    let Some((native, _)) = of(Policy::Native) else {
        return String::new();
    };
    let mut text = format!("<p class=\"lead\">The kernel alone: <b>{native:.2} s</b>.");
    for (policy, name) in [
        (Policy::Native4096, "The kernel, told to read 4 MiB ahead"),
        (
            Policy::MaioFirst,
            "MAIO, when it sees the model for the first time",
        ),
        (Policy::MaioReplay, "MAIO, from the second time on"),
    ] {
        if let Some((load, part)) = of(policy) {
            let gist = format!(" {name}: <b>{load:.2} s</b>, {part:.2} of that.");
            text += &gist;
        }
    }
    text + "</p>\n<p>Before a service can use a large language model, its weights have to come from a disk into memory. \
            MAIO is a cache policy for Linux that makes this faster without any change to the service: it brings in \
            what will be read just before it is, and where memory is short drops it just after.</p>\n"
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", float(bytes) / 1e9)
}

fn simulated(results: &Results) -> String {
    let testbed = &results.testbed;
    format!(
        "<p>Worker processes load a made-up model of {} in {} files, as those of an inference service do: a \
         service reads the model's configuration, its framework starts for {:.1} s, then the workers read the \
         weights and copy them to their accelerators. Nothing of the model was in memory before, unless it says \
         so, and every byte was checked.</p>\n\
         <p>The disk is simulated, because those of small machines hide what there is to gain: each request takes \
         {:.1} ms, {} may be under way at once, and all of them together get {} MB/s. That is about ten times \
         slower than a fast SSD; the copies to accelerators and the framework's start are as much slower. So the \
         seconds mean little, and the <b>ratios</b> are those of a machine ten times as fast. At its best this disk \
         takes {:.2} s for the model, which is called <b>F</b>.</p>\n",
        gigabytes(testbed.model),
        testbed.files,
        testbed.start,
        float(testbed.timing.latency_us) / 1e3,
        testbed.timing.slots,
        testbed.timing.bandwidth / MB,
        testbed.device,
    )
}

fn real(results: &Results) -> String {
    let testbed = &results.testbed;
    let Some(real) = &results.real else {
        return String::new();
    };
    let by = if real.command.is_empty() {
        "One process maps every file and looks at every byte; the bytes were the same each time"
            .to_owned()
    } else {
        format!("It was loaded by <code>{}</code>", escape(&real.command))
    };
    let best = if testbed.device > 0.0 {
        format!(
            "At its best this disk gives {} MB/s, by many readers at once or in one of the loads, and takes {:.2} s \
             for the model, which is called <b>F</b>.",
            testbed.timing.bandwidth / MB,
            testbed.device
        )
    } else {
        "How fast this disk can be is not known.".to_owned()
    };
    let mut text = format!(
        "<p>The model in <code>{}</code>, {} in {} files, on this machine's own disk ({}). {by}. Nothing of it was \
         in memory before each load.</p>\n<p>{best}</p>\n",
        escape(&real.folder),
        gigabytes(testbed.model),
        testbed.files,
        escape(&real.disk),
    );
    if !real.instead.is_empty() {
        text.extend(["<p>", &escape(&real.instead), ".</p>\n"]);
    }
    text
}

fn machine(results: &Results) -> String {
    let machine = &results.machine;
    let runs = || results.cases.iter().flat_map(|case| &case.runs);
    let disturbed = match runs().filter(|run| run.disturbed).count() {
        0 => String::new(),
        some => format!(
            "<p class=\"bad\">{some} of {} loads were disturbed by other processes, and are marked in red: trust counts \
             more than seconds.</p>\n",
            runs().count()
        ),
    };
    format!(
        "<p class=\"say\">Linux {}, {} processors, {:.0} GB of memory; reads were heard of by the backend {}; \
         ppc-bench {}.</p>\n{disturbed}",
        escape(&machine.kernel),
        machine.processors,
        float(machine.memory) / 1e9,
        escape(&results.backend),
        escape(&machine.version),
    )
}

/// Those that took part, in the order in which they did.
fn policies(results: &Results) -> String {
    let mut seen = Vec::new();
    let mut text = "<dl>\n".to_owned();
    for case in &results.cases {
        if seen.contains(&case.policy) {
            continue;
        }
        seen.push(case.policy);
        let class = super::chart::class(case.policy);
        let (title, says) = (escape(case.policy.title()), escape(case.policy.says()));
        let entry = format!(
            "<dt><span class=\"swatch {class}\"></span>{title} <code>{}</code></dt><dd>{says}</dd>\n",
            case.policy
        );
        text += &entry;
    }
    text + "</dl>\n"
}

/// Of a cell: readers, and how much memory there is.
pub(super) fn title(results: &Results, case: &CaseResult) -> String {
    if results.real.is_some() {
        return "The loads".to_owned();
    }
    if case.regime == Regime::OwnDisk {
        return "One process takes all; this machine's own disk".to_owned();
    }
    let readers = match (case.reader.mode, case.reader.workers) {
        (Mode::Full, 1) => "One worker takes all".to_owned(),
        (Mode::Full, many) => format!("{many} workers, each takes all"),
        (Mode::Tp, many) => format!("{many} workers, each takes its share"),
    };
    let how = match case.reader.access {
        Access::Kept => "",
        Access::Dropped => ", file by file",
        Access::Pread => ", by read",
        Access::Direct => ", past the page cache",
    };
    let memory = match case.regime {
        Regime::Ample => "memory for everything",
        Regime::Limited => "memory for less than half",
        Regime::Cached => "everything cached already",
        Regime::Slow => "a disk of 20 MB/s",
        Regime::OwnDisk => "this machine's own disk",
    };
    format!("{readers}{how}; {memory}")
}

/// Of a cell: what its readers do.
pub(super) fn reader(results: &Results, case: &CaseResult) -> String {
    if results.real.is_some() {
        return String::new();
    }
    let mut text = format!(
        "<p class=\"say\"><code>{}, {}</code>: {}.",
        escape(&case.reader.to_string()),
        case.regime,
        escape(&case.reader.says()),
    );
    if let (Regime::OwnDisk, Some(disk)) = (case.regime, &results.own_disk) {
        let disk = escape(&disk.name);
        text.extend([" Nothing is simulated: the disk is ", &disk, "."]);
    }
    if case.regime == Regime::Limited {
        let limit = gigabytes(results.testbed.limit);
        text.extend([
            " The workers, and whoever reads ahead for them, have ",
            &limit,
            " of memory together.",
        ]);
    }
    text + "</p>\n"
}

/// What the dashed line of load times is.
pub(super) fn floor(results: &Results, case: &CaseResult) -> &'static str {
    match case.regime {
        _ if results.testbed.timing.bandwidth == 0 => "",
        Regime::Limited => {
            "Dashed: the least that is possible with so little memory, which can be filled while the framework \
             starts; the rest has to come while workers read."
        }
        Regime::Cached => "Dashed: what starting and copying take if nothing is waited for.",
        Regime::OwnDisk if table::device_time(results, case) <= 0.0 => "",
        Regime::Ample | Regime::Slow | Regime::OwnDisk => {
            "Dashed: what the disk takes for the whole model at its best. Only what was loaded before can be faster."
        }
    }
}

/// Whether nothing of it was simulated.
pub(super) fn is_real(results: &Results, case: &CaseResult) -> bool {
    results.real.is_some() || case.regime == Regime::OwnDisk
}

/// What is marked in charts over time.
pub(super) fn phases(results: &Results, case: &CaseResult) -> &'static str {
    if is_real(results, case) {
        "The upright line is the end of the load, the dashed one the disk at its best."
    } else {
        "Shaded: the framework starts, and nobody reads weights yet. The upright line is the end of the load, the \
         dashed one the disk at its best."
    }
}

/// What is shown of memory.
pub(super) fn memory(results: &Results, case: &CaseResult) -> &'static str {
    match case.regime {
        _ if is_real(results, case) => {
            "How much the page cache of the whole machine has grown since the begin of the load. At the right: \
             the most there was."
        }
        Regime::Limited => {
            "What the workers, and who reads ahead for them, have in memory of the model. Dashed: the limit; below \
             it, how far MAIO goes. At the right: the most there was."
        }
        _ => {
            "What the workers, and who reads ahead for them, have in memory of the model. At the right: the most \
             there was."
        }
    }
}
