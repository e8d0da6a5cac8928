//! A generated model on a simulated SSD.

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

/// Least memory for the standard model: enough for the image of the disk, the page cache and everything else; with
/// less, the model is smaller.
const ENOUGH: u64 = 4096 * MIB;
/// Number of attempts at a recording, which is not kept if events were lost.
const TRIES: u32 = 3;
/// Upper bound, in seconds, on a load that is repeated because the device was late: the user should not wait for
/// long.
const SHORT: f64 = 10.0;

/// The policies that run with memory for the whole model. Both of MAIO's second loads, this one and the one with little
/// memory, replay the record of its first load.
const AMPLE: [Policy; 6] = [
    Policy::Native,
    Policy::Native4096,
    Policy::Framework,
    Policy::Eager,
    Policy::MaioFirst,
    Policy::MaioReplay,
];
/// The policies with little memory: the default, the best of the others there, and MAIO.
const LIMITED: [Policy; 3] = [Policy::Native, Policy::Native4096, Policy::MaioReplay];

pub(super) fn measure(wanted: &Tour) -> Result<Results> {
    let kind = backend()?;
    let (shape, takes) = if machine::available() < ENOUGH {
        (SMALL, measure::SMALL_TAKES)
    } else {
        (STANDARD, measure::TAKES)
    };
    let mut rig = measure::stand(shape, takes, kind, ssd::TIMING)?;
    eprintln!("measuring the disk against its model");
    let checks = measure::check(&mut rig)?;
    let cases = cases();
    let mut results = Results {
        format: 1,
        profile: super::NAME.to_owned(),
        backend: kind.to_string(),
        machine: machine::machine(),
        testbed: measure::testbed(&rig),
        real: None,
        whole_starts: Vec::new(),
        own_disk: None,
        bystanders: Vec::new(),
        checks,
        cases: cases.iter().map(rounds::empty).collect(),
        bars: Vec::new(),
    };
    eprintln!("\n{}", screen::introduction(&results));
    let store = rig.place.path.join("store");
    for round in 1..=wanted.rounds {
        let mut before = Regime::Ample;
        for (case, result) in cases.iter().zip(&mut results.cases) {
            if std::mem::replace(&mut before, case.regime) != case.regime {
                eprintln!("{}", screen::LITTLE_MEMORY);
            }
            let progress = Progress::begin(case.policy.title());
            let mut run = load(&mut rig, case, &store)?;
            run.round = round as usize;
            run.disturbed = rounds::is_disturbed(&run, rig.usual);
            progress.end(&screen::seconds(&run));
            result.runs.push(run);
        }
    }
    Ok(results)
}

/// The best backend, apart from the module.
fn backend() -> Result<BackendKind> {
    let candidates = select::candidates("/".as_ref());
    let usable = |it: &&Candidate| it.kind != BackendKind::Module && it.verdict.is_usable();
    let best = candidates.iter().find(usable);
    best.map(|it| it.kind)
        .ok_or_else(|| super::real::no_backend(&candidates))
}

fn cases() -> Vec<Case> {
    let cell = |regime| {
        move |policy| Case {
            policy,
            reader: Profile::full(),
            regime,
        }
    };
    let ample = AMPLE.into_iter().map(cell(Regime::Ample));
    ample
        .chain(LIMITED.into_iter().map(cell(Regime::Limited)))
        .collect()
}

/// Makes one load; MAIO's second load uses what its first one recorded.
fn load(rig: &mut Rig, case: &Case, store: &std::path::Path) -> Result<Run> {
    let mut tries = 1;
    loop {
        if case.policy == Policy::MaioFirst {
            let _ = fs::remove_dir_all(store);
            rounds::make(store)?;
        }
        let run = run(rig, case, store)?;
        let lost = case.policy == Policy::MaioFirst && !rounds::has_template(store)?;
        let late = tries == 1 && run.load < SHORT && rounds::is_late(&run, rig.usual);
        if tries == TRIES || !(lost || late) {
            return Ok(run);
        }
        tries += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maio_learns_before_it_is_to_know_and_is_beside_the_kernel() {
        let cases = cases();
        let at = |wanted: Policy| cases.iter().position(|case| case.policy == wanted);
        assert!(at(Policy::MaioFirst) < at(Policy::MaioReplay));
        for case in cases.iter().filter(|case| case.policy.is_maio()) {
            for policy in [Policy::Native, Policy::Native4096] {
                assert!(cases.contains(&Case { policy, ..*case }), "{case}");
            }
        }
        // A heading is printed where the memory changes.
        assert!(cases.is_sorted_by_key(|case| case.regime));
    }
}
