//! What `ppcctl run` adds to a short command whose files are all cached: before it runs, and after it has ended.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::scratch::{Folder, Scratch};
use crate::args::Wrapped;
use crate::error::{Failure, Result, system};
use crate::median::median;
use crate::model::{self, Model, SMALL};
use crate::signals;
use crate::units::MIB;

/// Before each run: the kernel lets go of one process's tracepoints after another's, and a worker does so after its
/// command has ended.
const PAUSE: Duration = Duration::from_millis(500);
/// Size of the model, in MiB.
const SIZE: u64 = 64;
/// What may be added before the command and behind it, in milliseconds.
const BARS: [f64; 2] = [30.0, 20.0];

/// How the command is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Alone,
    Start,
    Observe,
    Fuse,
    NoPolicy,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::Alone,
        Self::NoPolicy,
        Self::Start,
        Self::Observe,
        Self::Fuse,
    ];

    const fn title(self) -> &'static str {
        match self {
            Self::Alone => "the command alone",
            Self::NoPolicy => "a policy that does nothing",
            Self::Start => "a start",
            Self::Observe => "a start and a model",
            Self::Fuse => "the same, through FUSE",
        }
    }
}

/// The times of a way: medians, in milliseconds, and the distance of the farthest round from them.
#[derive(Debug, PartialEq, Serialize)]
struct Times {
    way: &'static str,
    before: f64,
    before_spread: f64,
    after: f64,
    after_spread: f64,
}

/// What the runs have in common.
struct Wrapping {
    ppcctl: PathBuf,
    library: PathBuf,
    folder: Folder,
    scratch: Scratch,
}

/// Measures the wanted number of rounds and prints their times.
pub(crate) fn measure(wanted: &Wrapped) -> Result<()> {
    signals::take()?;
    let us = std::env::current_exe().map_err(system("Looking for this program"))?;
    let scratch = Scratch::take()?;
    let wrapping = Wrapping {
        ppcctl: us.with_file_name("ppcctl"),
        library: scratch.library()?,
        folder: Folder::make(&wanted.output)?,
        scratch,
    };
    model::write(&Model::new(&SMALL.of_mib(SIZE)), &wrapping.folder.0)?;
    let times = wrapping.all(wanted.rounds)?;
    if wanted.json {
        println!("{}", serde_json::to_string_pretty(&times)?);
    } else {
        print!("{}", table(wanted.rounds, &times));
    }
    Ok(())
}

impl Wrapping {
    /// The times of each way that is possible here, in turn.
    fn all(&self, rounds: u32) -> Result<Vec<Times>> {
        let mut found = Vec::new();
        for way in Way::ALL {
            // Its first run finds its files and records them.
            match self.time(way) {
                Ok(_) => found.push((way, Vec::new(), Vec::new())),
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
                Err(failure) => eprintln!("{} is left out: {failure}", way.title()),
            }
        }
        for _ in 0..rounds {
            for (way, before, after) in &mut found {
                let [one, other] = self.time(*way)?;
                before.push(one);
                after.push(other);
            }
        }
        Ok(found.into_iter().filter_map(times).collect())
    }

    /// How long it takes until the command runs, and from then on until its end has been reported, in milliseconds.
    fn time(&self, way: Way) -> Result<[f64; 2]> {
        sleep(PAUSE);
        if signals::came() {
            return Err(Failure::Interrupted);
        }
        let mut command = self.command(way);
        let began = SystemTime::now();
        let output = command
            .stdin(Stdio::null())
            .output()
            .map_err(system("Starting a command"))?;
        let ended = SystemTime::now();
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Failure::Said(format!("{}: {why}", output.status)));
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let ran = said.trim().parse().map(Duration::from_nanos);
        let ran = ran.map_err(|_| Failure::Said(format!("date printed {said:?}")))?;
        let between = |from: SystemTime, to: SystemTime| {
            let took = to.duration_since(from).unwrap_or_default();
            took.as_secs_f64() * 1e3
        };
        let ran = UNIX_EPOCH + ran;
        Ok([between(began, ran), between(ran, ended)])
    }

    fn command(&self, way: Way) -> Command {
        let date = ["date", "+%s%N"];
        if way == Way::Alone {
            let mut command = Command::new(date[0]);
            command.args(&date[1..]);
            return command;
        }
        let mut command = Command::new(&self.ppcctl);
        command.args(["run", "--quiet"]);
        if way == Way::NoPolicy {
            command.args(["--policy", "null"]);
        } else {
            command.arg("--policy").arg(&self.library);
            let set = |key: &str, at: &Path| format!("--set={key}={}", at.display());
            command.arg(set("store", &self.scratch.path.join("store")));
            command.arg(set("leases", &self.scratch.path.join("leases")));
        }
        if way != Way::Start {
            let backend = if way == Way::Fuse { "fuse" } else { "observe" };
            command.args(["--backend", backend]).arg(&self.folder.0);
        }
        command.arg("--").args(date);
        command
    }
}

fn times((way, before, after): (Way, Vec<f64>, Vec<f64>)) -> Option<Times> {
    let (before, after) = (median(before)?, median(after)?);
    Some(Times {
        way: way.title(),
        before: before.value,
        before_spread: before.spread,
        after: after.value,
        after_spread: after.spread,
    })
}

fn table(rounds: u32, times: &[Times]) -> String {
    let mut text = format!(
        "\n'ppcctl run' around 'date', a model of {} MB; medians of {rounds} rounds\n\n{:27}{:>14} {:>5}  {:>13} {:>5}\n",
        SIZE * MIB / 1_000_000,
        "",
        "until it runs",
        "+-",
        "after its end",
        "+-"
    );
    let alone = times.first().map_or([0.0; 2], |it| [it.before, it.after]);
    for it in times {
        let added = [it.before - alone[0], it.after - alone[1]];
        let verdict = if added[0] <= BARS[0] && added[1] <= BARS[1] {
            "PASS"
        } else {
            "MISS"
        };
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "{:27}{:>11.1} ms {:>4.0}%  {:>10.1} ms {:>4.0}%  {verdict}",
            it.way,
            it.before,
            100.0 * it.before_spread,
            it.after,
            100.0 * it.after_spread
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_may_add_30_ms_before_and_20_ms_after_a_command() {
        let of = |way, before, after| times((way, vec![before], vec![after])).expect("a round");
        let all = [
            of(Way::Alone, 1.0, 0.5),
            of(Way::Start, 31.0, 20.5),
            of(Way::Observe, 31.1, 1.0),
            of(Way::Fuse, 2.0, 20.6),
        ];
        let text = table(1, &all);
        let lines: Vec<_> = text.lines().filter(|line| line.contains(" ms ")).collect();
        let ends = |line: &&str| line.ends_with("PASS");
        assert_eq!(
            lines.iter().map(ends).collect::<Vec<_>>(),
            [true, true, false, false],
            "{text}"
        );
        assert_eq!(times((Way::Start, Vec::new(), Vec::new())), None);
    }
}
