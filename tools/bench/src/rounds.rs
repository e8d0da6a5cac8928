//! Runs all cases round after round, so that changes on the machine affect all of them.

use std::fs;
use std::path::{Path, PathBuf};

use maio::template::Store;

use crate::case::{Case, Policy, Regime};
use crate::error::{Result, file};
use crate::reader::{Access, Order, Profile};
use crate::recorded;
use crate::result::{CaseResult, Run};
use crate::rig::Rig;
use crate::run::run;
use crate::ssd::Timing;

/// A run counts as late if one reply in a hundred is late by more than 1/`LATE` of the latency.
const LATE: u64 = 3;
/// Number of attempts at a recording, which is not kept if events were lost.
const RECORDINGS: usize = 3;
/// The share of CPU time used by others above which a run counts as disturbed.
const OTHERS: f64 = 0.35;

/// Runs all cases on the simulated SSD; those on the slow device once, as only the device counts there. The results
/// include all runs made, even after a failure.
pub(crate) fn all(
    rig: &mut Rig,
    cases: &[Case],
    rounds: usize,
    results: &mut Vec<CaseResult>,
) -> Result<()> {
    *results = cases.iter().map(empty).collect();
    let simulated = |case: &Case| case.regime != Regime::OwnDisk;
    let count = rounds * cases.iter().filter(|case| simulated(case)).count();
    let mut done = 0;
    for round in 0..rounds {
        for (case, result) in cases.iter().zip(results.iter_mut()) {
            if !simulated(case) {
                continue;
            }
            done += 1;
            if case.regime == Regime::Slow && round > 0 {
                continue;
            }
            eprint!("[{done}/{count}] {case} ");
            let Some(mut run) = once(rig, case)? else {
                eprintln!("left out");
                "no recorded load could be replayed".clone_into(&mut result.left_out);
                continue;
            };
            if is_late(&run, rig.usual) {
                eprint!("the device was late, repeating ");
                run = once(rig, case)?.unwrap_or(run);
            }
            // A repetition would not help: other users of CPU time are still there.
            run.disturbed = is_disturbed(&run, rig.usual);
            run.round = round + 1;
            let disturbed = if run.disturbed { ", disturbed" } else { "" };
            eprintln!("{:.2} s{disturbed}", run.load);
            result.runs.push(run);
        }
    }
    Ok(())
}

pub(crate) fn empty(case: &Case) -> CaseResult {
    CaseResult {
        name: case.to_string(),
        policy: case.policy,
        reader: case.reader,
        regime: case.regime,
        left_out: String::new(),
        runs: Vec::new(),
    }
}

pub(crate) fn is_disturbed(run: &Run, timing: Timing) -> bool {
    is_late(run, timing) || run.others > OTHERS
}

pub(crate) fn is_late(run: &Run, timing: Timing) -> bool {
    u64::from(run.lateness.p99) > timing.latency_us / LATE
}

/// `None` if there is nothing to replay.
fn once(rig: &mut Rig, case: &Case) -> Result<Option<Run>> {
    let Some(store) = store(rig, case)? else {
        return Ok(None);
    };
    let mut run = run(rig, case, &store)?;
    if case.policy == Policy::MaioFirst {
        run.recorded = recorded::check(&store, &rig.model, case.reader)?;
        if run.recorded.is_none() {
            run.notes.push("no template was kept".to_owned());
        } else if case.regime == Regime::Ample {
            // Later loads replay what a first load has recorded.
            let base = base(rig, case.reader);
            let _ = fs::remove_dir_all(&base);
            copy(&store, &base)?;
        }
    }
    Ok(Some(run))
}

/// The store for a run of MAIO: a copy of what was recorded, as a run may change it. `None` if nothing was
/// recorded.
fn store(rig: &mut Rig, case: &Case) -> Result<Option<PathBuf>> {
    let recorded = match case.policy {
        Policy::MaioReplay => Some(case.reader),
        Policy::MaioWrong => Some(case.reader.in_order(Order::Backwards)),
        Policy::MaioStale => Some(case.reader.in_order(Order::Natural)),
        _ => None,
    };
    let store = rig.place.path.join("store");
    let _ = fs::remove_dir_all(&store);
    let Some(reader) = recorded else {
        make(&store)?;
        return Ok(Some(store));
    };
    let base = base(rig, reader);
    if !base.exists() && !record(rig, reader, &base)? {
        let _ = fs::remove_dir_all(&base);
        return Ok(None);
    }
    copy(&base, &store)?;
    Ok(Some(store))
}

/// The store for recordings of readers of this kind.
fn base(rig: &Rig, reader: Profile) -> PathBuf {
    rig.place.path.join(format!("recorded-{reader}"))
}

/// Records a load, which is not part of the results; returns whether the recording was kept.
fn record(rig: &mut Rig, reader: Profile, base: &Path) -> Result<bool> {
    make(base)?;
    let recording = Case {
        policy: Policy::MaioFirst,
        reader,
        regime: Regime::Ample,
    };
    for _ in 0..RECORDINGS {
        eprint!("(recording) ");
        let run = run(rig, &recording, base)?;
        // Readers that bypass the cache leave no template, and nothing is replayed for them.
        if has_template(base)? || reader.access == Access::Direct {
            return Ok(true);
        }
        let lost = run.stats.get("lost").copied().unwrap_or(0);
        eprintln!(
            "it was not kept, with {lost} events lost: {}",
            run.notes.join("; ")
        );
    }
    Ok(false)
}

pub(crate) fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(file("Making", folder))
}

pub(crate) fn has_template(store: &Path) -> Result<bool> {
    Ok(!Store::at(store).list()?.is_empty())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    make(to)?;
    let entries = fs::read_dir(from).map_err(file("Listing", from))?;
    for entry in entries.flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to)?;
        } else {
            fs::copy(&from, &to).map_err(file("Copying", &from))?;
        }
    }
    Ok(())
}
