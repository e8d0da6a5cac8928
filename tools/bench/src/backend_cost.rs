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

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use cprt::control::kind::BackendKind;

use self::case::CASES;
use self::report::{CaseCost, Report};
use self::side::{Sample, Served};
use crate::error::{Failure, Result};
use crate::place::Place;
use crate::{machine, signals};

pub(crate) use reader::read;

/// A warm run of which pages have gone meanwhile is made again, so often at most.
const TRIES: u32 = 20;

/// What is to be measured.
#[derive(Debug, Args)]
pub(crate) struct Cost {
    /// Which backend serves the directory
    #[arg(long, value_enum)]
    pub(crate) backend: Backend,
    /// Which events the policy wants; each has a column of its own
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values = ["none", "replay", "record"]
    )]
    pub(crate) want: Vec<Want>,
    /// How often the sides take turns
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// How long the file is, in MiB
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) mib: u64,
    /// Where the file is made: on a file system of a disk
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub(crate) dir: PathBuf,
    /// Only cases with this in their names; may be given several times
    #[arg(long = "case", value_name = "TEXT")]
    pub(crate) cases: Vec<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// A backend that needs no module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// The kernel's tracepoints, with nothing mounted
    Observe,
    /// A FUSE mount whose worker answers each read
    Fuse,
    /// A FUSE mount whose files the kernel reads from below, where they are observed
    Passthrough,
}

impl Backend {
    pub(crate) const fn kind(self) -> BackendKind {
        match self {
            Self::Observe => BackendKind::Observe,
            Self::Fuse | Self::Passthrough => BackendKind::Fuse,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Fuse => "fuse",
            Self::Passthrough => "passthrough",
        }
    }
}

/// What a policy wants to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Want {
    /// Nothing: how far this column is from 1 is noise, and what the mount itself costs
    None,
    /// MISS only
    Miss,
    /// What MAIO wants while it replays a load: MISS, OPEN, CLOSE and PROGRESS
    Replay,
    /// What MAIO wants while it records a load: MISS, OPEN, CLOSE and TOUCH
    Record,
}

impl Want {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Miss => "miss",
            Self::Replay => "replay",
            Self::Record => "record",
        }
    }

    /// For the policy.
    pub(crate) const fn kinds(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Miss => "miss",
            Self::Replay => "miss open close progress",
            Self::Record => "miss open close touch",
        }
    }

    /// Whether the worker hears something even if all is cached.
    pub(crate) const fn hears_hits(self) -> bool {
        matches!(self, Self::Replay | Self::Record)
    }
}

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
fn sides(served: &Served<'_>, case: &case::Case, wanted: &Cost) -> Result<Vec<Vec<Sample>>> {
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
fn sound(served: &Served<'_>, case: &case::Case, want: Option<Want>) -> Result<Sample> {
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
