//! A made-up model on a simulated SSD.

use std::fs;

use cprt::backend::select::{self, Candidate};
use cprt::control::kind::BackendKind;

use super::progress::Progress;
use super::screen;
use crate::args::Tour;
use crate::case::{Case, Policy, Regime};
use crate::error::Result;
use crate::model::{SMALL, STANDARD};
use crate::reader::Profile;
use crate::result::{Results, Run};
use crate::rig::Rig;
use crate::run::run;
use crate::units::MIB;
use crate::{machine, measure, rounds, ssd};

/// Memory for the image of the disk, for the page cache and for all else; with less, the model is smaller.
const ENOUGH: u64 = 4096 * MIB;
/// A recording that has lost events is not kept; so often it is tried.
const TRIES: u32 = 3;

const POLICIES: [Policy; 4] = [
    Policy::Native,
    Policy::Native4096,
    Policy::MaioFirst,
    Policy::MaioReplay,
];

pub(super) fn measure(wanted: &Tour) -> Result<Results> {
    let kind = backend()?;
    let (shape, takes) = if machine::available() < ENOUGH {
        (SMALL, measure::SMALL_TAKES)
    } else {
        (STANDARD, measure::TAKES)
    };
    let mut rig = measure::stand(shape, takes, kind, ssd::TIMING)?;
    eprintln!("measuring the disk: is it what it should be?");
    let checks = measure::check(&mut rig)?;
    let mut results = Results {
        format: 1,
        profile: super::NAME.to_owned(),
        backend: kind.to_string(),
        machine: machine::machine(),
        testbed: measure::testbed(&rig),
        real: None,
        starts: None,
        checks,
        cases: POLICIES.map(|policy| rounds::empty(&case(policy))).into(),
        bars: Vec::new(),
    };
    eprintln!("\n{}", screen::introduction(&results));
    let store = rig.place.path.join("store");
    for round in 1..=wanted.rounds {
        for (policy, result) in POLICIES.into_iter().zip(&mut results.cases) {
            let progress = Progress::begin(policy.title());
            let mut run = load(&mut rig, policy, &store)?;
            run.round = round as usize;
            run.disturbed = rounds::is_disturbed(&run, rig.usual);
            progress.end(&screen::seconds(&run));
            result.runs.push(run);
        }
    }
    Ok(results)
}

/// The better one of those that work on the disk as it is.
fn backend() -> Result<BackendKind> {
    let candidates = select::candidates("/".as_ref());
    let usable = |it: &&Candidate| it.kind != BackendKind::Module && it.verdict.is_usable();
    let best = candidates.iter().find(usable);
    best.map(|it| it.kind)
        .ok_or_else(|| super::real::nobody_hears(&candidates))
}

fn case(policy: Policy) -> Case {
    Case {
        policy,
        reader: Profile::full(),
        regime: Regime::Ample,
    }
}

/// One load; what MAIO learns at the first it has at the second.
fn load(rig: &mut Rig, policy: Policy, store: &std::path::Path) -> Result<Run> {
    let mut tries = 1;
    loop {
        if policy != Policy::MaioReplay {
            let _ = fs::remove_dir_all(store);
            rounds::make(store)?;
        }
        let run = run(rig, &case(policy), store)?;
        let lost = policy == Policy::MaioFirst && !rounds::has_template(store)?;
        if tries == TRIES || !(lost || rounds::is_late(&run, rig.usual)) {
            return Ok(run);
        }
        tries += 1;
    }
}
