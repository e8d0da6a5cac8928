//! From a command line to results.

use std::fs;
use std::path::Path;

use cprt::choice::Kind;

use crate::args::Wanted;
use crate::case::{self, Case, Regime};
use crate::error::{Failure, Result, file};
use crate::model::{SMALL, STANDARD, Shape};
use crate::place::Place;
use crate::result::{Check, Results, Testbed};
use crate::rig::{Pace, Rig};
use crate::ssd::Timing;
use crate::units::MB;
use crate::{machine, rounds, selfcheck, signals, table};

/// What the testbed was made with: at these, the kernel alone uses a sixth of the device, as it was
/// found to on real machines.
const TIMING: Timing = Timing {
    latency_us: 1500,
    bandwidth: 350 * MB,
    slots: 64,
};
/// What frameworks take, for the standard model.
const PACE: Pace = Pace {
    start_ms: 2000,
    tensor_us: 5000,
};
/// For the small one: less, as the model is.
const SMALL_PACE: Pace = Pace {
    start_ms: 460,
    tensor_us: 1150,
};

/// Measures what is wanted; false if something was broken.
pub(crate) fn measure(wanted: &Wanted) -> Result<bool> {
    let cases = cases(wanted);
    if wanted.list {
        cases.iter().for_each(|case| println!("{case}"));
        return Ok(true);
    }
    if cases.is_empty() {
        let all = "no case has that in its name; '--list' shows all there are".to_owned();
        return Err(Failure::Said(all));
    }
    let rounds = wanted.rounds.unwrap_or(if wanted.quick { 1 } else { 3 });
    let (shape, pace) = if wanted.quick {
        (SMALL, SMALL_PACE)
    } else {
        (STANDARD, PACE)
    };
    let mut rig = stand(shape, pace, wanted.backend)?;
    let checks = check(&mut rig)?;
    let results = Results {
        format: 1,
        profile: profile(wanted),
        backend: wanted.backend.to_string(),
        machine: machine::machine(),
        testbed: testbed(&rig),
        checks,
        cases: rounds::all(&mut rig, &cases, rounds as usize)?,
        bars: Vec::new(),
    };
    drop(rig);
    print!("\n{}", table::table(&results));
    let name = wanted
        .name
        .clone()
        .unwrap_or_else(|| results.profile.clone());
    write(&results, &wanted.output, &name)?;
    Ok(is_sound(&results))
}

/// Compares the simulated SSD with its model.
pub(crate) fn selfcheck() -> Result<()> {
    let mut rig = stand(SMALL, SMALL_PACE, Kind::Observe)?;
    check(&mut rig).map(drop)
}

fn cases(wanted: &Wanted) -> Vec<Case> {
    let all = match (wanted.quick, wanted.standard, wanted.more) {
        (true, _, false) => case::quick(),
        (_, false, true) => case::more(),
        (_, true, true) => [case::standard(), case::more()].concat(),
        _ => case::standard(),
    };
    case::matching(all, &wanted.cases)
}

fn profile(wanted: &Wanted) -> String {
    match (wanted.quick, wanted.standard, wanted.more) {
        (true, _, _) => "quick",
        (_, false, true) => "more",
        _ => "standard",
    }
    .to_owned()
}

fn stand(shape: Shape, pace: Pace, kind: Kind) -> Result<Rig> {
    signals::take()?;
    let place = Place::take()?;
    eprintln!("making a disk and a model on it");
    Rig::build(place, shape, TIMING, kind, pace)
}

fn check(rig: &mut Rig) -> Result<Vec<Check>> {
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

fn testbed(rig: &Rig) -> Testbed {
    Testbed {
        timing: rig.usual,
        model: rig.model.bytes(),
        files: rig.model.shards.len(),
        limit: rig.limit(),
        window: rig.window(),
        device: rig.device(Regime::Ample),
        start: f64::from(u32::try_from(rig.pace.start_ms).unwrap_or(0)) / 1e3,
        runs_first: rig.disk.simulator.runs_first,
    }
}

fn write(results: &Results, folder: &Path, name: &str) -> Result<()> {
    fs::create_dir_all(folder).map_err(file("Making", folder))?;
    let path = folder.join(format!("{name}.json"));
    let text = serde_json::to_string(results)?;
    fs::write(&path, text).map_err(file("Writing", &path))?;
    println!("\n{}", path.display());
    Ok(())
}

/// Whether every byte was right, and every cold run was cold.
fn is_sound(results: &Results) -> bool {
    let mut runs = results.cases.iter().flat_map(|case| &case.runs);
    runs.all(|run| run.wrong == 0 && run.dirty == 0)
}
