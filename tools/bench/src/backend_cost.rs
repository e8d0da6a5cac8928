//! `ppc-bench cost`: what a backend without the module costs a reader, against the bare directory.
//!
//! ```text
//! round ─ case ─┬─ bare: reader ─ file
//!               └─ for each --want: reader ─ file, or its mirror
//!                                    worker (cprt) ─ policy (listener)
//! ```
//!
//! Reader and worker are processes of their own. The worker is the product's, started as by `ppcctl run`, so
//! that what is measured is what serves readers there; its policy wants the kinds of events that it is told
//! to want, and advises nothing. Both sides take turns within each round, each round begins with another
//! side, and before each run the page cache is made what the case says and looked at. What the worker heard
//! is counted: a run with a policy that wants misses, of which it heard none, measures nothing and is an
//! error.

mod case;
mod file;
mod reader;
mod report;
mod side;

use self::case::CASES;
use self::report::{CaseCost, Report};
use self::side::{RunCost, Served};
use crate::args::cost::{Cost, Want};
use crate::error::{Failure, Result};
use crate::place::Place;
use crate::{machine, signals};

pub(crate) use reader::read;

/// A warm run of which pages have gone meanwhile is made again, so often at most.
const TRIES: u32 = 20;

/// Measures it and prints what it came to.
pub(crate) fn measure(wanted: &Cost) -> Result<()> {
    let cases: Vec<_> = CASES
        .into_iter()
        .filter(|case| {
            wanted.cases.is_empty() || wanted.cases.iter().any(|word| case.name.contains(word))
        })
        .collect();
    if cases.is_empty() {
        let names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        return Err(Failure::Said(format!(
            "no case has that in its name; there are: {}",
            names.join(", ")
        )));
    }
    signals::take()?;
    let place = Place::take()?;
    let served = Served::new(&place, wanted)?;
    let mut report = Report {
        backend: wanted.backend.name(),
        kernel: machine::machine().kernel,
        mib: wanted.mib,
        rounds: wanted.rounds,
        cases: Vec::new(),
    };
    if !wanted.json {
        print!("{}", report.title(&wanted.want));
    }
    for case in cases {
        let sides = sides(&served, &case, wanted)?;
        let cost = CaseCost::of(case.name, &wanted.want, &sides, wanted.mib);
        if !wanted.json {
            print!("{}", cost.rows());
        }
        report.cases.push(cost);
    }
    if wanted.json {
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(())
}

/// All rounds of a case: what was measured bare, then with each want.
fn sides(served: &Served<'_>, case: &case::CostCase, wanted: &Cost) -> Result<Vec<Vec<RunCost>>> {
    let all: Vec<Option<Want>> = std::iter::once(None)
        .chain(wanted.want.iter().copied().map(Some))
        .collect();
    let mut sides = vec![Vec::new(); all.len()];
    for round in 0..wanted.rounds as usize {
        eprint!("\r{}: round {} of {} ", case.name, round + 1, wanted.rounds);
        for turn in 0..all.len() {
            let at = (round + turn) % all.len();
            sides[at].push(sound(served, case, all[at])?);
        }
    }
    eprint!("\r\x1b[K");
    Ok(sides)
}

/// One run, made again while pages go that should stay.
fn sound(served: &Served<'_>, case: &case::CostCase, want: Option<Want>) -> Result<RunCost> {
    for _ in 0..TRIES {
        if signals::came() {
            return Err(Failure::Interrupted);
        }
        if let Some(sample) = served.run(case, want)? {
            return Ok(sample);
        }
    }
    Err(Failure::Said(format!(
        "{}: the file does not stay in the page cache; there is too little memory for {} MiB",
        case.name, served.mib
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_hits_wants_misses_as_well() {
        for want in [Want::Miss, Want::Replay, Want::Record] {
            assert!(want.kinds().contains("miss"));
            let hits = want.kinds().contains("progress") || want.kinds().contains("touch");
            assert_eq!(want.hears_hits(), hits, "{want:?}");
        }
        assert_eq!(Want::None.kinds(), "");
    }
}
