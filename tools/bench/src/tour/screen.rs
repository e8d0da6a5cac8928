//! What a tour prints.

use crate::case::{Policy, Regime};
use crate::result::{CaseResult, Results, Run, StartTimes, Starts};
use crate::table::{of_native, of_runs};
use crate::units::{MB, float};

/// The heading of loads with little memory.
pub(super) const LITTLE_MEMORY: &str = "with memory for 45 % of it";

pub(super) fn seconds(run: &Run) -> String {
    let disturbed = if run.disturbed {
        "  (disturbed by other processes)"
    } else {
        ""
    };
    format!("{:6.2} s{disturbed}", run.load)
}

/// The best speed of the disk.
pub(super) fn best(results: &Results) -> String {
    let testbed = &results.testbed;
    if testbed.device > 0.0 {
        let bandwidth = testbed.timing.bandwidth / MB;
        format!("{:6.2} s, {bandwidth} MB/s with O_DIRECT", testbed.device)
    } else {
        "unknown: it cannot be read with O_DIRECT".to_owned()
    }
}

/// The model, its disk, and the loader.
pub(super) fn introduction(results: &Results) -> String {
    let testbed = &results.testbed;
    let model = format!(
        "{:.2} GB in {} files",
        float(testbed.model) / 1e9,
        testbed.files
    );
    let Some(real) = &results.real else {
        let timing = &testbed.timing;
        return format!(
            "Four workers load a generated model of {model}, as an inference service does; each reads\n\
             every byte. The disk is simulated, since disks of small machines hide the possible gain:\n\
             {:.1} ms for a request, {} at once, {} MB/s in all. That is ten times slower than a fast SSD,\n\
             and so are the start of the framework and the copies to accelerators: what counts is the\n\
             ratios. At its full speed the disk takes {:.2} s for the model.",
            float(timing.latency_us) / 1e3,
            timing.slots,
            timing.bandwidth / MB,
            testbed.device,
        );
    };
    let how = if real.command.is_empty() {
        "one process maps every file and reads every byte; CMD=\"...\" uses your own loader instead"
            .to_owned()
    } else {
        format!("sh -c {:?}", real.command)
    };
    format!(
        "Model: {model}, in {}\nDisk:  {}, as it is\nBy:    {how}",
        real.folder, real.disk
    )
}

/// A table of times from exec to exit, with a column for each disk; the main result comes last.
pub(super) fn starts(starts: &[Starts]) -> String {
    let wide = starts.iter().map(|it| it.disk.len()).max().unwrap_or(0) + 2;
    let line = |title: &str, word: &dyn Fn(&Starts) -> String| {
        let columns = starts.iter().map(|it| format!("{:>wide$}", word(it)));
        format!("  {title:<22}{}\n", columns.collect::<String>())
    };
    let mut text = line("whole starts", &|it| it.disk.clone());
    let turns = starts.first().map_or(&[][..], |it| &it.times);
    text.extend(turns.iter().enumerate().map(|(turn, times)| {
        line(&times.title, &|it| {
            let seconds = it.times.get(turn).map_or(0.0, StartTimes::median);
            format!("{seconds:.2} s")
        })
    }));
    text += &line("cold penalty removed", &|it| {
        let part = it.removed().map(|part| format!("{:.0} %", part * 100.0));
        part.unwrap_or_else(|| "-".to_owned())
    });
    text += "\nTimes are from exec to exit, including start and end of MAIO; medians. Before all but the last, no file was\n\
             in memory. 'removed' is the share of the cold disk's cost that the second start saves.\n";
    let nothing = starts
        .iter()
        .filter(|it| it.removed().is_none_or(|part| part <= 0.0));
    text.extend(nothing.map(|it| {
        let disk = &it.disk;
        format!("Nothing was gained on {disk}: a cold start there costs next to nothing.\n")
    }));
    text
}

/// The table, and notes on how it was measured.
pub(super) fn outcome(results: &Results) -> String {
    let mut text = format!(
        "  {:<22} {:>8} {:>8} {:>10} {:>10} {:>10} {:>11}\n",
        "", "seconds", "command", "of native", "from disk", "disk busy", "MAIO's CPU"
    );
    let mut before = Regime::Ample;
    for case in &results.cases {
        if std::mem::replace(&mut before, case.regime) != case.regime {
            text.extend([LITTLE_MEMORY, "\n"]);
        }
        text += &row(case, of_native(results, case));
    }
    let rounds = results.cases.iter().map(|case| case.runs.len()).max();
    text += "\n";
    if rounds > Some(1) {
        text += "Medians of all rounds. ";
    }
    text += "'command' includes the start and the end of all processes, MAIO's too. Before each load,\n\
             nothing of the model was in memory.";
    if results
        .real
        .as_ref()
        .is_none_or(|real| real.command.is_empty())
    {
        text += " Every byte was checked.";
    }
    text += "\n";
    let disturbed = results.cases.iter().flat_map(|case| &case.runs);
    if disturbed.clone().any(|run| run.disturbed) {
        text += "* Other processes used much of the machine's CPU time: repeat it on a quiet machine.\n";
    }
    text + &hint(results)
}

fn row(case: &CaseResult, of_native: Option<f64>) -> String {
    let value = |of: fn(&Run) -> f64| of_runs(case, of).unwrap_or(0.0);
    let load = value(|run| run.load);
    let whole = value(|run| run.whole);
    let bytes = value(|run| float(run.device_bytes));
    let busy = value(|run| run.utilisation);
    let known = |known: bool, text: String| if known { text } else { "-".to_owned() };
    let mark = if case.runs.iter().any(|run| run.disturbed) {
        "*"
    } else {
        ""
    };
    format!(
        "  {:<22} {load:8.2} {:>8} {:>10} {:>10} {:>10} {:>11}\n",
        format!("{}{mark}", case.policy.title()),
        known(whole > 0.0, format!("{whole:.2}")),
        of_native.map_or_else(|| "-".to_owned(), |part| format!("{part:.2}")),
        known(bytes > 0.0, format!("{:.2} GB", bytes / 1e9)),
        known(busy > 0.0, format!("{:.0} %", busy * 100.0)),
        known(
            case.policy.is_maio(),
            format!("{:.2} s", value(|run| run.runtime_cpu))
        ),
    )
}

/// Why there was little to gain on a real disk, if so.
fn hint(results: &Results) -> String {
    let Some(real) = &results.real else {
        return String::new();
    };
    let load = |policy| {
        let case = results.cases.iter().find(|case| case.policy == policy)?;
        of_runs(case, |run| run.load)
    };
    let mut text = String::new();
    if let (Some(native), Some(replay)) = (load(Policy::Native), load(Policy::MaioReplay)) {
        if replay > native {
            text += "Nothing was gained here: this loader keeps this disk busy by itself, or something else is \
                     slower\nthan the disk, and MAIO itself takes CPU time.\n";
        } else if results.testbed.device > native * 0.8 {
            text +=
                "This loader keeps this disk busy by itself, so there is little to gain here.\n";
        }
    }
    if !real.instead.is_empty() {
        text.extend([
            &real.instead,
            ".\nOn a simulated SSD, the possible gain shows more clearly.\n",
        ]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Profile;
    use crate::result::{Real, samples};

    const LOADS: [(Policy, f64); 3] = [
        (Policy::Native, 20.0),
        (Policy::MaioFirst, 5.0),
        (Policy::MaioReplay, 4.0),
    ];

    #[test]
    fn the_kernel_alone_is_one() {
        let mut results = samples::results(Profile::full(), Regime::Ample, &LOADS);
        results.cases[0].runs[0].whole = 20.5;
        let text = outcome(&results);
        assert!(
            text.contains("the kernel alone          20.00    20.50       1.00    1.00 GB"),
            "{text}"
        );
        assert!(
            text.contains("MAIO, second load          4.00        -       0.20"),
            "{text}"
        );
        assert!(text.contains("Every byte was checked") && !text.contains('*'));
        assert!(introduction(&results).contains("ten times slower"));
    }

    #[test]
    fn low_memory_loads_are_compared_with_each_other() {
        let mut results = samples::results(Profile::full(), Regime::Ample, &LOADS);
        let limited = [(Policy::Native, 40.0), (Policy::MaioReplay, 10.0)];
        let limited = samples::results(Profile::full(), Regime::Limited, &limited);
        results.cases.extend(limited.cases);
        let text = outcome(&results);
        let (_, below) = text.split_once(LITTLE_MEMORY).expect("a heading");
        assert!(
            below.contains("MAIO, second load         10.00        -       0.25"),
            "{text}"
        );
        assert_eq!(text.matches(LITTLE_MEMORY).count(), 1);
    }

    #[test]
    fn starts_report_the_share_of_cold_penalty_removed() {
        let times = |title: &str, seconds: &[f64]| StartTimes {
            title: title.to_owned(),
            seconds: seconds.to_vec(),
        };
        let of = |disk: &str, later| Starts {
            what: "an application".to_owned(),
            disk: disk.to_owned(),
            times: vec![
                times("cold", &[2.0, 9.0, 2.0]),
                times("MAIO, first start", &[2.0]),
                times("MAIO, second start", &[later]),
                times("all cached", &[1.0]),
            ],
        };
        let text = starts(&[of("vda, ext4", 1.25), of("20 ms away", 1.05)]);
        assert!(
            text.contains("MAIO, second start          1.25 s      1.05 s"),
            "{text}"
        );
        assert!(
            text.contains("cold penalty removed          75 %        95 %"),
            "{text}"
        );
        assert!(!text.contains("Nothing was gained"), "{text}");
        assert!(starts(&[of("vda, ext4", 2.5)]).contains("gained on vda, ext4"));
    }

    #[test]
    fn outcome_explains_small_gains_and_the_choice_of_disk() {
        let mut results = samples::results(Profile::full(), Regime::Ample, &LOADS);
        results.testbed.device = 19.0;
        results.cases[1].runs[0].disturbed = true;
        results.real = Some(Real {
            folder: "/m".into(),
            command: "cat {}/* > /dev/null".into(),
            disk: "vda, ext4".into(),
            instead: "of the weather".into(),
        });
        let text = outcome(&results);
        assert!(
            text.contains("little to gain") && text.contains("of the weather"),
            "{text}"
        );
        assert!(
            text.contains("first load*") && !text.contains("Every byte"),
            "{text}"
        );
        assert!(introduction(&results).contains("vda, ext4"));
        results.testbed.device = 0.0;
        assert!(best(&results).contains("unknown"));
    }
}
