//! Measures what the command line asks for, and writes the results.

use std::fs;
use std::path::{Path, PathBuf};

use cprt::control::kind::BackendKind;

use crate::args::{By, Wanted};
use crate::case::{self, Case, Regime};
use crate::error::{Failure, Result, file};
use crate::model::{Model, SMALL, STANDARD, Shape};
use crate::place::Place;
use crate::reader::{Access, Mode, Profile};
use crate::result::{Check, Results, Testbed};
use crate::rig::{Rig, Takes};
use crate::ssd::{TIMING, Timing};
use crate::units::{MB, MIB, float};
use crate::{backend_cost, bars, machine, report, rounds, selfcheck, signals, table, tour};

/// The times of frameworks, for the standard model.
pub(crate) const TAKES: Takes = Takes {
    start_ms: 2000,
    tensor_us: 5000,
    copy: 600 * MB,
    piece: 16 * MIB,
};
/// The times for the small model: shorter, in proportion to its size.
pub(crate) const SMALL_TAKES: Takes = Takes {
    start_ms: 460,
    tensor_us: 1150,
    copy: 600 * MB,
    piece: 4 * MIB,
};

/// Makes the wanted measurements; false if bytes were wrong or a cold run was not cold.
pub(crate) fn measure(wanted: &Wanted) -> Result<bool> {
    let cases = cases(wanted);
    let bystanders = with_bystanders(wanted);
    if wanted.list {
        for case in &cases {
            println!("{case}");
        }
        if bystanders {
            println!("{BYSTANDER}");
        }
        return Ok(true);
    }
    if cases.is_empty() && !bystanders {
        let all = "no case has this in its name; '--list' shows all cases".to_owned();
        return Err(Failure::Said(all));
    }
    let once = wanted.quick || wanted.maio;
    let rounds = wanted.rounds.unwrap_or(if once { 1 } else { 3 });
    let (mut rig, mut results) = set_up(wanted)?;
    let ended = rounds::all(&mut rig, &cases, rounds as usize, &mut results.cases);
    let model = rig.model.clone();
    drop(rig);
    let ended = ended.and_then(|()| own_disk(wanted, &model, rounds as usize, &mut results));
    let ended = match ended {
        Ok(()) if bystanders => beside(wanted, rounds, &mut results),
        ended => ended,
    };
    // Partial results are kept.
    results
        .cases
        .retain(|case| !case.runs.is_empty() || !case.left_out.is_empty());
    results.bars = bars::bars(&results);
    print!("\n{}\n", table::table(&results));
    if wanted.maio {
        println!("{}", table::of_maio(&results));
    }
    if !results.bystanders.is_empty() {
        println!("{}", table::of_bystanders(&results.bystanders));
    }
    print!("{}", bars::list(&results.bars));
    let name = wanted
        .name
        .clone()
        .unwrap_or_else(|| results.profile.clone());
    let [path, page] = write(&results, &wanted.output, &name)?;
    println!("\n{}\n{}", path.display(), page.display());
    ended?;
    Ok(is_sound(&results))
}

/// Sets up the wanted testbed, compares it with its model, and prepares empty results.
fn set_up(wanted: &Wanted) -> Result<(Rig, Results)> {
    let (shape, takes) = match wanted.mib {
        _ if wanted.quick || wanted.small => (SMALL, SMALL_TAKES),
        None => (STANDARD, TAKES),
        Some(mib) if mib * MIB < STANDARD.bytes() / 2 => (SMALL.of_mib(mib), SMALL_TAKES),
        Some(mib) => (STANDARD.of_mib(mib), TAKES),
    };
    let timing = wanted.device.timing().slower(wanted.slower);
    let mut rig = stand(shape, takes.slower(wanted.slower), wanted.backend, timing)?;
    rig.read_ahead = wanted.read_ahead;
    rig.worker = wanted.worker.unwrap_or_default();
    let checks = check(&mut rig)?;
    let results = Results {
        format: 1,
        profile: profile(wanted),
        backend: wanted.backend.to_string(),
        machine: machine::machine(),
        testbed: testbed(&rig),
        real: None,
        whole_starts: Vec::new(),
        own_disk: None,
        bystanders: Vec::new(),
        checks,
        cases: Vec::new(),
        bars: Vec::new(),
    };
    Ok((rig, results))
}

/// Runs the cases that load from this machine's own disk.
fn own_disk(wanted: &Wanted, model: &Model, rounds: usize, results: &mut Results) -> Result<()> {
    let cases = results.cases.iter_mut();
    let mut own: Vec<_> = cases.filter(|it| it.regime == Regime::OwnDisk).collect();
    results.own_disk = tour::measure_own_disk(model, &wanted.output, rounds, &mut own)?;
    Ok(())
}

/// The name of the case of unrelated programs.
const BYSTANDER: &str = "bystander";
/// Number of their rounds: the differences are small, so medians take more.
const BYSTANDER_ROUNDS: [u32; 2] = [3, 9];

/// Whether to measure bystanders: for claims, and for observe, whose tracepoints could cost them something.
fn with_bystanders(wanted: &Wanted) -> bool {
    let claims = !(wanted.maio || wanted.orders || wanted.more && !wanted.standard);
    let words = &wanted.cases;
    let named = words.is_empty() || words.iter().any(|word| BYSTANDER.contains(word.as_str()));
    claims && named && wanted.backend == BackendKind::Observe
}

fn beside(wanted: &Wanted, rounds: u32, results: &mut Results) -> Result<()> {
    let [few, many] = BYSTANDER_ROUNDS;
    let rounds = if rounds == 1 { few } else { many };
    match backend_cost::bystanders(&wanted.output, rounds) {
        Ok(bystanders) => results.bystanders = bystanders,
        Err(Failure::Interrupted) => return Err(Failure::Interrupted),
        // Other measurements are kept all the same.
        Err(failure) => eprintln!("bystanders are left out: {}", cprt::error::chain(&failure)),
    }
    Ok(())
}

/// Compares the simulated SSD with its model.
pub(crate) fn selfcheck() -> Result<()> {
    let mut rig = stand(SMALL, SMALL_TAKES, BackendKind::Observe, TIMING)?;
    check(&mut rig).map(drop)
}

fn cases(wanted: &Wanted) -> Vec<Case> {
    if wanted.maio {
        let access = match wanted.by {
            By::Read => Access::Pread,
            By::Mmap => Access::Kept,
        };
        return case::matching(case::maio(access), &wanted.cases);
    }
    if wanted.orders {
        return case::matching(case::orders(), &wanted.cases);
    }
    let all = match (wanted.quick, wanted.standard, wanted.more) {
        (true, _, false) => case::quick(),
        (_, false, true) => case::more(),
        (_, true, true) => [case::standard(), case::more()].concat(),
        _ => case::standard(),
    };
    let mut all = case::matching(all, &wanted.cases);
    // On the own disk, the runtime is `ppcctl run`'s, which selects the best backend itself.
    all.retain(|case| case.regime != Regime::OwnDisk || wanted.backend == BackendKind::Observe);
    all
}

fn profile(wanted: &Wanted) -> String {
    match (wanted.quick, wanted.standard, wanted.more) {
        _ if wanted.maio => "maio",
        _ if wanted.orders => "orders",
        (true, _, _) => "quick",
        (_, false, true) => "more",
        _ => "standard",
    }
    .to_owned()
}

/// Sets up a model of this shape on a device.
pub(crate) fn stand(shape: Shape, takes: Takes, kind: BackendKind, timing: Timing) -> Result<Rig> {
    signals::take()?;
    let place = Place::take()?;
    eprintln!("making a disk and a model on it");
    Rig::build(place, shape, timing, kind, takes)
}

pub(crate) fn check(rig: &mut Rig) -> Result<Vec<Check>> {
    rig.disk.be(rig.usual)?;
    rig.disk.reset()?;
    let checks = selfcheck::check(rig.disk.node(), rig.model.bytes(), rig.usual)?;
    for Check {
        what,
        expected,
        measured,
    } in &checks
    {
        let (expected, measured) = (expected / 1e6, measured / 1e6);
        let part = measured / expected;
        eprintln!("  {what:<30} {measured:7.1} MB/s of {expected:7.1}, {part:.2}");
    }
    let late = rig.disk.read()?.lateness;
    let first = if rig.disk.simulator.runs_first {
        ""
    } else {
        ", as it may not run first"
    };
    eprintln!(
        "  late by {} us, of 1 in 100 {}, at most {}{first}",
        late.p50, late.p99, late.max
    );
    Ok(checks)
}

pub(crate) fn testbed(rig: &Rig) -> Testbed {
    Testbed {
        timing: rig.usual,
        model: rig.model.bytes(),
        files: rig.model.shards.len(),
        limit: rig.limit(),
        window: rig.window(),
        device: rig.device(Regime::Ample),
        start: float(rig.takes.start_ms) / 1e3,
        warm: rig.warm(Profile::full()),
        warm_replicas: rig.warm(Profile::full().of(Mode::Replicas)),
        own_orders: rig.own_orders(),
        runs_first: rig.disk.simulator.runs_first,
    }
}

/// Writes results and their page; returns their paths.
pub(crate) fn write(results: &Results, folder: &Path, name: &str) -> Result<[PathBuf; 2]> {
    fs::create_dir_all(folder).map_err(file("Making", folder))?;
    let path = folder.join(format!("{name}.json"));
    let text = serde_json::to_string(results)?;
    fs::write(&path, text).map_err(file("Writing", &path))?;
    let page = report::write(&path)?;
    Ok([path, page])
}

/// Whether every byte was right, and every cold run was cold.
pub(crate) fn is_sound(results: &Results) -> bool {
    let mut runs = results.cases.iter().flat_map(|case| &case.runs);
    runs.all(|run| run.wrong == 0 && run.dirty == 0)
}
