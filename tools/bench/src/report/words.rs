//! The texts of the page.

use super::svg::escape;
use crate::case::{Policy, Regime};
use crate::reader::{Access, Mode};
use crate::result::{CaseResult, Results};
use crate::table;
use crate::units::{MB, float};

pub(super) const TERMS: &str = "<dl>
<dt>load s, +-</dt><dd>seconds to load: the median, and the distance of the farthest load from it. Loads that other
processes disturbed count only if all were disturbed.</dd>
<dt>whole s</dt><dd>the same with the start and the end of all processes and of the policy: how long a user waits</dd>
<dt>/native, /F</dt><dd>as a fraction of the time of the kernel alone; and of the disk's best time for all bytes</dd>
<dt>device</dt><dd>bytes read from the disk for each byte of the model: 1 means each once</dd>
<dt>busy</dt><dd>the share of the disk's bandwidth that was used during the load</dd>
<dt>faults</dt><dd>page faults of the workers that had to wait for the disk</dd>
<dt>CPU s/GB, RSS MB</dt><dd>processor time for each GB of the model, and memory, of the policy and its worker</dd>
<dt>cache MB</dt><dd>the peak size of the page cache</dd></dl>
";

/// The main result, the setting, and the policies.
pub(super) fn introduction(results: &Results) -> String {
    let setting = if results.real.is_some() {
        real(results)
    } else {
        simulated(results)
    };
    format!(
        "{}<h2>What was measured</h2>\n{setting}{}<h2>What reads ahead</h2>\n{}",
        lead(results),
        machine(results),
        policies(results)
    )
}

/// The main result of the first cell.
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
        (Policy::Native4096, "The kernel, set to read 4 MiB ahead"),
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
            MAIO is a cache policy for Linux that makes this faster without any change to the service: it loads data \
            just before it is read, and where memory is short drops it just after.</p>\n"
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", float(bytes) / 1e9)
}

fn simulated(results: &Results) -> String {
    let testbed = &results.testbed;
    format!(
        "<p>Worker processes load a generated model of {} in {} files, as those of an inference service do: a \
         service reads the model's configuration, its framework starts for {:.1} s, then the workers read the \
         weights and copy them to their accelerators. Nothing of the model was in memory before, unless stated \
         otherwise, and every byte was checked.</p>\n\
         <p>The disk is simulated, because disks of small machines hide the possible gain: each request takes \
         {:.1} ms, {} may be in flight at once, and all of them together get {} MB/s. That is about ten times \
         slower than a fast SSD; the copies to accelerators and the framework's start are slower by the same factor. \
         So the seconds mean little, and the <b>ratios</b> are those of a machine ten times as fast. At its best this \
         disk takes {:.2} s for the model, which is called <b>F</b>.</p>\n",
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
        "One process maps every file and reads every byte; the bytes were the same each time"
            .to_owned()
    } else {
        format!("It was loaded by <code>{}</code>", escape(&real.command))
    };
    let best = if testbed.device > 0.0 {
        format!(
            "At its best, for many readers at once or in one of the loads, this disk delivers {} MB/s, and takes \
             {:.2} s for the model, which is called <b>F</b>.",
            testbed.timing.bandwidth / MB,
            testbed.device
        )
    } else {
        "The best speed of this disk is not known.".to_owned()
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
             more than times.</p>\n",
            runs().count()
        ),
    };
    format!(
        "<p class=\"say\">Linux {}, {} processors, {:.0} GB of memory; the backend {} reported reads; \
         ppc-bench {}.</p>\n{disturbed}",
        escape(&machine.kernel),
        machine.processors,
        float(machine.memory) / 1e9,
        escape(&results.backend),
        escape(&machine.version),
    )
}

/// The policies, in the order in which they were run.
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

/// The title of a cell: its readers and its memory.
pub(super) fn title(results: &Results, case: &CaseResult) -> String {
    if results.real.is_some() {
        return "The loads".to_owned();
    }
    if case.regime == Regime::OwnDisk {
        return "One process reads everything; this machine's own disk".to_owned();
    }
    let readers = match (case.reader.mode, case.reader.workers) {
        (Mode::Full, 1) => "One worker reads everything".to_owned(),
        (Mode::Full, many) => format!("{many} workers, each reads everything"),
        (Mode::Tp, many) => format!("{many} workers, each reads its share"),
        (Mode::Stages, many) => format!("{many} workers in two stages, each reads its share"),
        (Mode::Replicas, many) => format!("{many} workers in two replicas, each reads its share"),
        (Mode::Experts, many) => format!("{many} workers, each reads its experts"),
    };
    let how = match case.reader.access {
        Access::Kept => "",
        Access::Dropped => ", file by file",
        Access::Pread => ", by read",
        Access::Direct => ", bypassing the page cache",
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

/// The description of a cell's readers.
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
            " The workers and the process that reads ahead for them share ",
            &limit,
            " of memory.",
        ]);
    }
    text + "</p>\n"
}

/// The meaning of the dashed line in the chart of load times.
pub(super) fn floor(results: &Results, case: &CaseResult) -> &'static str {
    match case.regime {
        _ if results.testbed.timing.bandwidth == 0 => "",
        Regime::Limited => {
            "Dashed: the least possible with so little memory, which can be filled while the framework \
             starts; the rest has to be loaded while workers read."
        }
        Regime::Cached => "Dashed: the time of starting and copying, without any waiting.",
        Regime::OwnDisk if table::device_time(results, case) <= 0.0 => "",
        Regime::Ample | Regime::Slow | Regime::OwnDisk => {
            "Dashed: the disk's best time for the whole model. Only a load that was cached in advance can be faster."
        }
    }
}

/// Whether nothing was simulated.
pub(super) fn is_real(results: &Results, case: &CaseResult) -> bool {
    results.real.is_some() || case.regime == Regime::OwnDisk
}

/// The meaning of the marks in charts over time.
pub(super) fn phases(results: &Results, case: &CaseResult) -> &'static str {
    if is_real(results, case) {
        "The vertical line is the end of the load, the dashed one the disk at its best."
    } else {
        "Shaded: the framework starts, and no worker reads weights yet. The vertical line is the end of the load, \
         the dashed one the disk at its best."
    }
}

/// The description of the memory chart.
pub(super) fn memory(results: &Results, case: &CaseResult) -> &'static str {
    match case.regime {
        _ if is_real(results, case) => {
            "The growth of the whole machine's page cache since the beginning of the load. At the right: the peak."
        }
        Regime::Limited => {
            "The part of the model that the workers and the process reading ahead for them have in memory. Dashed: \
             the limit; below it, how far MAIO goes. At the right: the peak."
        }
        _ => {
            "The part of the model that the workers and the process reading ahead for them have in memory. At the \
             right: the peak."
        }
    }
}
