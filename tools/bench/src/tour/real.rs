//! A model on a disk of this machine, loaded without MAIO and by `ppcctl run`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use cprt::backend::select::{self, Candidate, Verdict};
use cprt::control::stats::Stats;
use serde::Deserialize;

use super::disk::{self, DiskCounters};
use super::files::Files;
use super::loader;
use super::process::{self, ProcessEnd};
use super::progress::Progress;
use super::scratch::{Folder, Scratch};
use super::screen;
use crate::args::Tour;
use crate::case::{Case, Policy, Regime};
use crate::error::{Failure, Result, file, system};
use crate::model::{self, Model, SMALL, STANDARD};
use crate::reader::Profile;
use crate::result::{Real, Results, Run, Sample, Testbed, Timeline};
use crate::ssd::Timing;
use crate::units::float;
use crate::{cold, machine, rounds, signals, ssd};

const POLICIES: [Policy; 3] = [Policy::Native, Policy::MaioFirst, Policy::MaioReplay];

/// The state that is common to all loads.
pub(super) struct Tester<'a> {
    folder: PathBuf,
    pub(super) files: Files,
    pub(super) disk: DiskCounters,
    command: Option<&'a str>,
    scratch: Scratch,
    library: PathBuf,
    /// The sum that the reader printed at its first load, and has to print at all others.
    sum: Option<String>,
}

/// The summary of `ppcctl run --json`, without the fields that are not used here.
#[derive(Debug, Deserialize)]
pub(super) struct Summary {
    pub(super) backend: Option<String>,
    seconds: f64,
    pub(super) fault: Option<String>,
    stats: Option<Stats>,
}

/// Measures loads of the model in a folder.
pub(super) fn measure(wanted: &Tour, folder: &Path, instead: String) -> Result<Results> {
    let mut tester = Tester::new(folder, wanted.command.as_deref())?;
    let mut results = tester.describe(instead);
    eprintln!("{}", screen::introduction(&results));
    let progress = Progress::begin("the disk, at its best");
    let best = disk::best(&tester.files);
    if signals::came() {
        return Err(Failure::Interrupted);
    }
    know(&mut results, best);
    progress.end(&screen::best(&results));
    for round in 1..=wanted.rounds {
        for (number, policy) in POLICIES.into_iter().enumerate() {
            let progress = Progress::begin(policy.title());
            let (mut run, backend) = tester.load(policy)?;
            run.round = round as usize;
            progress.end(&screen::seconds(&run));
            for note in &run.notes {
                eprintln!("    {note}");
            }
            results.cases[number].runs.push(run);
            results.backend = backend.unwrap_or(results.backend);
        }
    }
    // The disk is at least as fast as the fastest load.
    let runs = || results.cases.iter().flat_map(|case| &case.runs);
    let most = runs().map(|run| float(run.device_bytes) / run.load);
    let best = if best > 0.0 {
        most.fold(best, f64::max)
    } else {
        0.0
    };
    know(&mut results, best);
    Ok(results)
}

/// Sets the disk's best bandwidth in bytes per second, if it is known.
fn know(results: &mut Results, best: f64) {
    let testbed = &mut results.testbed;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "no disk is as fast"
    )]
    let bandwidth = best as u64;
    testbed.timing.bandwidth = bandwidth;
    if best > 0.0 {
        testbed.device = float(testbed.model) / best;
        for run in results.cases.iter_mut().flat_map(|case| &mut case.runs) {
            run.utilisation = float(run.device_bytes) / run.load / best;
        }
    }
}

/// Measures loads of a model generated on the disk where results are written.
pub(super) fn made_up(wanted: &Tour, instead: String) -> Result<Results> {
    let folder = Folder::make(&wanted.output)?;
    let room = nix::sys::statvfs::statvfs(&folder.0).map_err(file("Looking at", &folder.0))?;
    let room = room.blocks_available() * room.fragment_size();
    let large = Model::new(&STANDARD);
    let model = if room > large.bytes() * 2 && machine::available() > large.bytes() * 2 {
        large
    } else {
        Model::new(&SMALL)
    };
    let progress = Progress::begin("making a model");
    model::write(&model, &folder.0)?;
    progress.end("done");
    measure(wanted, &folder.0, instead)
}

/// The failure without any backend: why MAIO cannot work here, and how to fix it.
pub(super) fn no_backend(candidates: &[Candidate]) -> Failure {
    let mut text = "No backend here can report reads to MAIO".to_owned();
    for Candidate { kind, verdict } in candidates {
        if let Verdict::Unusable { why, remedy } = verdict {
            let remedy = remedy.as_deref().map(|it| format!(": {it}"));
            text.extend([
                "\n  ",
                kind.name(),
                ", as ",
                why,
                &remedy.unwrap_or_default(),
            ]);
        }
    }
    Failure::Said(text)
}

impl<'a> Tester<'a> {
    pub(super) fn new(folder: &Path, command: Option<&'a str>) -> Result<Self> {
        let folder = folder.canonicalize().map_err(file("Looking for", folder))?;
        let files = Files::below(&folder)?;
        let disk = DiskCounters::of(files.largest());
        if disk.is_memory() {
            return Err(Failure::Said(format!(
                "{} is on {}, which is memory: there is no disk to load from",
                folder.display(),
                disk.file_system
            )));
        }
        let candidates = select::candidates(&folder);
        if !candidates.iter().any(|it| it.verdict.is_usable()) {
            return Err(no_backend(&candidates));
        }
        let scratch = Scratch::take()?;
        let library = scratch.library()?;
        Ok(Self {
            folder,
            files,
            disk,
            command,
            scratch,
            library,
            sum: None,
        })
    }

    fn describe(&self, instead: String) -> Results {
        let case = |policy| Case {
            policy,
            reader: Profile::full().with(1),
            regime: Regime::Ample,
        };
        Results {
            format: 1,
            profile: super::NAME.to_owned(),
            backend: "none".to_owned(),
            machine: machine::machine(),
            testbed: Testbed {
                timing: Timing {
                    latency_us: 0,
                    bandwidth: 0,
                    slots: 0,
                    crowd: 0,
                },
                model: self.files.bytes(),
                files: self.files.paths.len(),
                limit: 0,
                window: 0,
                device: 0.0,
                start: 0.0,
                warm: 0.0,
                warm_replicas: 0.0,
                own_orders: 0.0,
                runs_first: false,
            },
            real: Some(Real {
                folder: self.folder.display().to_string(),
                command: self.command.unwrap_or_default().to_owned(),
                disk: self.disk.name.clone(),
                instead,
            }),
            whole_starts: Vec::new(),
            own_disk: None,
            bystanders: Vec::new(),
            checks: Vec::new(),
            cases: POLICIES.map(|policy| rounds::empty(&case(policy))).into(),
            bars: Vec::new(),
        }
    }

    /// The directory of MAIO's templates.
    pub(super) fn store(&self) -> PathBuf {
        self.scratch.path.join("store")
    }

    /// Makes one load; returns the run and MAIO's backend.
    pub(super) fn load(&mut self, policy: Policy) -> Result<(Run, Option<String>)> {
        let store = self.store();
        if policy == Policy::MaioFirst {
            let _ = fs::remove_dir_all(&store);
            rounds::make(&store)?;
        }
        cold::drop_files(&self.files.paths)?;
        let path = self.scratch.path.join("log");
        let log = File::create(&path).map_err(file("Making", &path))?;
        let both = log
            .try_clone()
            .and_then(|other| Ok((other, log.try_clone()?)));
        let (output, errors) = both.map_err(file("Opening", &path))?;
        let mut command = self.command(policy, &store)?;
        command.stdout(output).stderr(errors);
        let ticks = machine::ticks();
        let ended = process::watch(command, &self.disk)?;
        let others = machine::others(ticks, machine::ticks(), ended.used.cpu);
        let said = fs::read(&path).map_err(file("Reading", &path))?;
        let said = String::from_utf8_lossy(&said);
        if !ended.status.success() {
            return Err(loader::failed(
                &format!("failed, with {}", ended.status),
                &said,
            ));
        }
        let mut run = self.tell(&ended);
        run.others = others;
        run.disturbed = rounds::is_disturbed(&run, ssd::TIMING);
        self.compare(&mut run, &said);
        let backend = if policy.is_maio() {
            let summary =
                summary(&said).ok_or_else(|| loader::failed("ended without a summary", &said))?;
            let backend = fill(&mut run, summary, &said);
            run.device_bytes = with_loaded(&run, counted(&ended));
            backend
        } else {
            None
        };
        if policy == Policy::MaioFirst && !rounds::has_template(&store)? {
            let text =
                "no template was kept, so the second load goes by the files' headers as well";
            run.notes.push(text.to_owned());
        }
        Ok((run, backend))
    }

    fn command(&self, policy: Policy, store: &Path) -> Result<Command> {
        let us = std::env::current_exe().map_err(system("Looking for this program"))?;
        let mut command = if policy.is_maio() {
            let mut command = Command::new(us.with_file_name("ppcctl"));
            command
                .args(["--json", "run", "--policy"])
                .arg(&self.library);
            command.args(["--set", &format!("store={}", store.display())]);
            command
                .args(["--set", "leases=none"])
                .arg(&self.folder)
                .arg("--")
                .arg(us);
            command
        } else {
            Command::new(us)
        };
        command.arg("load").arg("--model").arg(&self.folder);
        if let Some(text) = self.command {
            command.args(["--command", text]);
        }
        Ok(command)
    }

    fn tell(&self, ended: &ProcessEnd) -> Run {
        // The counts of our processes are preferred, as the disk's include other processes.
        let counted = counted(ended);
        let first = ended.looks.first().map_or(0, |look| look.cached);
        let cached = |now: u64| now.saturating_sub(first);
        let samples = ended.looks.iter().map(|look| Sample {
            at: look.at,
            cache: cached(look.cached),
            ..Sample::default()
        });
        Run {
            load: ended.took,
            whole: ended.took,
            device_bytes: match ended.used.read {
                0 => counted,
                read => read,
            },
            major_faults: ended.used.major_faults,
            minor_faults: ended.used.minor_faults,
            reader_cpu: ended.used.cpu,
            peak_cache: ended
                .looks
                .iter()
                .map(|look| cached(look.cached))
                .max()
                .unwrap_or(0),
            touched: self.files.bytes(),
            timeline: Timeline {
                device: bins(ended),
                samples: samples.collect(),
                ..Timeline::default()
            },
            ..Run::default()
        }
    }

    /// Checks that the reader read the same bytes as before.
    fn compare(&mut self, run: &mut Run, said: &str) {
        let sum = said.lines().find_map(|line| line.strip_prefix(loader::SUM));
        let Some(sum) = sum.filter(|_| self.command.is_none()) else {
            return;
        };
        let first = self.sum.get_or_insert_with(|| sum.to_owned());
        run.wrong = u64::from(first != sum);
    }
}

/// Bytes that all processes read from the disk meanwhile; 0 if that is not counted.
fn counted(ended: &ProcessEnd) -> u64 {
    ended.looks.last().map_or(0, |look| look.read)
}

/// Bytes read by the processes, and by MAIO, which is added as `ppcctl` does not wait for its workers, so their
/// reads are not in its counts. If workers had ended before, their reads count twice, but the disk's count is an
/// upper bound.
fn with_loaded(run: &Run, counted: u64) -> u64 {
    let loaded = run.stats.get("loaded_bytes").copied().unwrap_or(0);
    match counted {
        0 => run.device_bytes.max(loaded),
        _ => (run.device_bytes + loaded)
            .min(counted)
            .max(run.device_bytes),
    }
}

/// The last line that is a summary.
pub(super) fn summary(said: &str) -> Option<Summary> {
    said.lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
}

fn fill(run: &mut Run, summary: Summary, said: &str) -> Option<String> {
    // The time to start and end MAIO is reported separately: with a daemon, it is already running.
    let aside = run.load - summary.seconds;
    run.load = summary.seconds;
    if aside > 1.5 {
        run.notes.push(format!(
            "starting and ending MAIO took another {aside:.1} s"
        ));
    }
    if let Some(stats) = &summary.stats {
        run.runtime_cpu = float(stats.worker_cpu_ms) / 1e3;
        run.reader_cpu = (run.reader_cpu - run.runtime_cpu).max(0.0);
        run.runtime_memory = stats.worker_rss;
        let fields = stats.fields().into_iter();
        run.stats = fields
            .map(|(name, _, value)| (name.to_owned(), value))
            .collect();
    }
    if let Some(fault) = summary.fault {
        run.notes.push(format!(
            "MAIO failed, and the load went on without it: {fault}"
        ));
    }
    if summary.backend.is_none() {
        let ours = said.lines().filter(|line| line.starts_with("ppcctl: "));
        run.notes.extend(ours.map(str::to_owned));
    }
    summary.backend
}

/// Bytes read in each tenth of a second, interpolated between samples at irregular times.
fn bins(ended: &ProcessEnd) -> Vec<u64> {
    let looks = &ended.looks;
    let until = |at: f64| {
        let after = looks.partition_point(|look| look.at <= at);
        let (Some(one), Some(next)) = (looks.get(after.wrapping_sub(1)), looks.get(after)) else {
            return looks.last().map_or(0, |look| look.read);
        };
        let part = (at - one.at) / (next.at - one.at).max(1e-9);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bytes"
        )]
        let more = (float(next.read - one.read) * part) as u64;
        one.read + more
    };
    let mut bins = Vec::new();
    let mut at = 0.0;
    let mut before = 0;
    while at < ended.took {
        at += 0.1;
        let now = until(at);
        bins.push(now - before);
        before = now;
    }
    bins
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;
    use crate::tour::process::{ProcessSample, Used};

    #[test]
    fn bytes_read_are_spread_over_time_bins() {
        let look = |at, read| ProcessSample {
            at,
            read,
            cached: 0,
        };
        let ended = ProcessEnd {
            status: std::process::ExitStatus::from_raw(0),
            took: 0.32,
            looks: vec![
                look(0.0, 0),
                look(0.15, 3000),
                look(0.25, 3000),
                look(0.33, 4000),
            ],
            used: Used::default(),
        };
        let bins = bins(&ended);
        assert_eq!(bins.len(), 4);
        assert_eq!(bins.iter().sum::<u64>(), 4000);
        assert!(
            bins[0].abs_diff(2000) < 2 && bins[1].abs_diff(1000) < 2,
            "{bins:?}"
        );
    }

    #[test]
    fn maio_loads_count_as_disk_reads_up_to_the_disk_total() {
        let run = |device_bytes, loaded| Run {
            device_bytes,
            stats: [("loaded_bytes".to_owned(), loaded)].into(),
            ..Run::default()
        };
        assert_eq!(with_loaded(&run(100, 900), 1000), 1000);
        assert_eq!(with_loaded(&run(100, 900), 1500), 1000, "others read, too");
        assert_eq!(
            with_loaded(&run(1000, 900), 1000),
            1000,
            "it was waited for"
        );
        assert_eq!(with_loaded(&run(100, 900), 0), 900, "nothing is counted");
    }

    #[test]
    fn the_account_of_ppcctl_is_found_behind_what_a_command_prints() {
        let said = "loading\n{\"not\": \"it\"}\n{\"directory\":\"/m\",\"backend\":\"observe\",\"policy\":\"maio\",\
                    \"seconds\":1.5,\"exit\":0,\"fault\":null,\"stats\":null}\n";
        let found = summary(said).expect("the last line");
        let mut run = Run {
            load: 4.5,
            ..Run::default()
        };
        assert_eq!(fill(&mut run, found, said).as_deref(), Some("observe"));
        assert!((run.load - 1.5).abs() < 1e-9);
        assert_eq!(run.notes, ["starting and ending MAIO took another 3.0 s"]);
        assert!(summary("nothing\n").is_none());
    }
}
