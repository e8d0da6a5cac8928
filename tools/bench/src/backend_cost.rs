//! `ppc-bench cost`: what a backend without the module costs a reader, against the bare directory.
//!
//! ```text
//! round ─ case ─┬─ bare: reader ─ file
//!               └─ for each --want: reader ─ file, or its mirror
//!                                    worker (cprt) ─ policy (listener)
//! ```
//!
//! Reader and worker are separate processes. The worker is the product's, started as by `ppcctl run`, so
//! that the measured code is the one that serves readers there; its policy wants the kinds of events in its
//! settings, and advises nothing. The sides take turns within each round, each round begins with another
//! side, and before each run the page cache is brought into the state of the case, which is verified. The
//! worker's events are counted: a run whose policy wants misses but got none measures nothing and is an
//! error.

mod case;
mod file;
mod reader;
mod report;
mod side;
mod waiting;

use std::path::Path;

use self::case::CASES;
use self::report::{CaseCost, Report};
use self::side::{RunCost, Served};
use self::waiting::WaitingCommand;
use crate::args::cost::{Backend, Cost, Want};
use crate::error::{Failure, Result};
use crate::median::median;
use crate::place::Place;
use crate::result::Bystander;
use crate::units::float;
use crate::{machine, signals};

pub(crate) use reader::read;

/// Upper bound on the attempts at a warm run, which is repeated if some of its pages were dropped meanwhile.
const TRIES: u32 = 20;

/// Measures the cost and prints the results.
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
            "no case has this in its name; the cases are: {}",
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

/// The name in the results of the state in which a load is recorded.
pub(crate) const RECORDING: &str = "recording";
pub(crate) const STARTING: &str = "starting";
const BESIDE: [(&str, BesideReader); 5] = [
    ("without", BesideReader::Nothing),
    ("idle", BesideReader::Listener(Want::Rest)),
    (RECORDING, BesideReader::Listener(Want::Record)),
    (STARTING, BesideReader::Starting),
    ("ppcctl run", BesideReader::Waiting),
];
/// Size of the file that a bystander reads, in MiB.
const BYSTANDER: u64 = 512;

/// What runs beside a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BesideReader {
    Nothing,
    /// A worker for another folder, whose policy wants these events.
    Listener(Want),
    /// `ppcctl run` for that folder, with a command whose start is being recorded.
    Starting,
    /// The same once the start is over, with a command that waits.
    Waiting,
}

/// The times of warm reads of 4 KiB of another file, beside a worker that wants the events that MAIO wants, while
/// nothing loads and while a load is recorded, and beside everything that `ppcctl run` starts.
pub(crate) fn bystanders(folder: &Path, rounds: u32) -> Result<Vec<Bystander>> {
    let wanted = Cost {
        backend: Backend::Observe,
        want: Vec::new(),
        rounds,
        mib: BYSTANDER,
        dir: folder.to_owned(),
        cases: Vec::new(),
        json: false,
    };
    let place = Place::take()?;
    let served = Served::new(&place, &wanted)?;
    let [.., case] = CASES;
    let sides = take_turns(case.name, rounds, BESIDE.len(), |at| match BESIDE[at].1 {
        BesideReader::Nothing => sound(&served, &case, None),
        BesideReader::Listener(want) => sound(&served, &case, Some(want)),
        BesideReader::Starting => {
            let _beside = WaitingCommand::start(&place, served.folder())?;
            sound(&served, &case, None)
        }
        BesideReader::Waiting => {
            let mut beside = WaitingCommand::start(&place, served.folder())?;
            beside.rest()?;
            sound(&served, &case, None)
        }
    })?;
    let (without, with) = sides.split_at(1);
    let states = BESIDE.iter().skip(1).zip(with);
    let costs = states.filter_map(|((state, _), with)| bystander(state, &without.concat(), with));
    Ok(costs.collect())
}

/// Compares round by round, as the machine may change from one round to the next.
fn bystander(state: &str, without: &[RunCost], with: &[RunCost]) -> Option<Bystander> {
    let ms = |side: &[RunCost]| median(side.iter().map(|run| float(run.time) / 1e3));
    let pairs = with.iter().zip(without);
    let ratio = median(pairs.map(|(with, without)| float(with.time) / float(without.time.max(1))))?;
    Some(Bystander {
        state: state.to_owned(),
        with_ms: ms(with)?.value,
        without_ms: ms(without)?.value,
        ratio: ratio.value,
        spread: ratio.spread,
    })
}

/// Runs all rounds of a case: the bare side, then one for each want.
fn sides(served: &Served<'_>, case: &case::CostCase, wanted: &Cost) -> Result<Vec<Vec<RunCost>>> {
    let all: Vec<Option<Want>> = std::iter::once(None)
        .chain(wanted.want.iter().copied().map(Some))
        .collect();
    take_turns(case.name, wanted.rounds, all.len(), |at| {
        sound(served, case, all[at])
    })
}

/// Runs `count` sides, each once in each round; each round begins with another one.
fn take_turns(
    name: &str,
    rounds: u32,
    count: usize,
    mut run: impl FnMut(usize) -> Result<RunCost>,
) -> Result<Vec<Vec<RunCost>>> {
    let mut sides = vec![Vec::new(); count];
    for round in 0..rounds as usize {
        eprint!("\r{name}: round {} of {rounds} ", round + 1);
        for turn in 0..count {
            let at = (round + turn) % count;
            sides[at].push(run(at)?);
        }
    }
    eprint!("\r\x1b[K");
    Ok(sides)
}

/// One run, repeated while pages are dropped that should stay.
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
    fn each_round_runs_every_side_once_in_rotated_order() {
        let mut order = Vec::new();
        let sides = take_turns("it", 2, 3, |at| {
            order.push(at);
            Ok(RunCost {
                time: at as u64,
                cpu: 0,
                worker_cpu: 0,
                events: 0,
            })
        });
        let sides = sides.expect("they run");
        assert_eq!(order, [0, 1, 2, 1, 2, 0]);
        for (at, side) in sides.iter().enumerate() {
            assert!(side.len() == 2 && side.iter().all(|run| run.time == at as u64));
        }
        assert_eq!(BESIDE[0].1, BesideReader::Nothing);
    }

    #[test]
    fn bystanders_are_compared_within_a_round() {
        let side = |times: [u64; 3]| {
            times.map(|time| RunCost {
                time,
                cpu: 0,
                worker_cpu: 0,
                events: 0,
            })
        };
        // The second round is slow for all.
        let (without, with) = (side([1000, 9000, 1000]), side([1010, 9090, 2000]));
        let found = bystander("idle", &without, &with).expect("runs");
        assert!(
            (found.ratio - 1.01).abs() < 1e-9 && found.spread > 0.9,
            "{found:?}"
        );
        assert!((found.with_ms - 2.0).abs() < 1e-9 && (found.without_ms - 1.0).abs() < 1e-9);
        assert_eq!(bystander("idle", &[], &[]), None);
    }

    #[test]
    fn the_case_of_bystanders_is_the_last() {
        let [.., case] = CASES;
        assert!(case.beside && !case.cold, "{case:?}");
    }

    #[test]
    fn wanted_kinds_include_misses_and_match_hears_hits() {
        for want in [Want::Miss, Want::Replay, Want::Record] {
            assert!(want.kinds().contains("miss"));
            let hits = want.kinds().contains("progress") || want.kinds().contains("touch");
            assert_eq!(want.hears_hits(), hits, "{want:?}");
        }
        assert_eq!(Want::None.kinds(), "");
    }
}
