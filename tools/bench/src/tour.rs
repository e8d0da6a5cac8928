//! What a stranger sees first, by `make run`: one model, loaded as ever and with MAIO, side by side.
//!
//! On a [`simulated`] SSD if nothing is said, as the disks of small machines hide what there is to gain;
//! or a model on a disk that is there, by a command that is there, which is [`real`]. Where a simulated
//! SSD cannot be had, a made-up model on the real disk has to do, and that is said.

mod application;
mod disk;
mod files;
mod loader;
mod own;
mod process;
mod progress;
mod real;
mod scratch;
mod screen;
mod simulated;
mod start;

use crate::args::Tour;
use crate::error::{Failure, Result};
use crate::result::Starts;
use crate::{measure, signals};

pub(crate) use loader::load;
pub(crate) use own::measure as measure_own_disk;
pub(crate) use scratch::Folder;

/// What the results are called.
const NAME: &str = "run";

/// Whole starts, unless the user named a model or a loader; of those disks on which this machine tells of them.
fn starts(wanted: &Tour) -> Result<Vec<Starts>> {
    if wanted.model.is_some() || wanted.command.is_some() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    // Who may not have the first has no second either.
    for (measure, else_shown) in [
        (
            start::own as fn(&Tour) -> Result<Starts>,
            "Only loads are shown",
        ),
        (start::far, "Starts from far away are left out"),
    ] {
        match measure(wanted) {
            Ok(starts) => all.push(starts),
            Err(failure @ Failure::Unavailable { .. }) => {
                eprintln!("{}.\n{else_shown}.\n", cprt::error::chain(&failure));
                break;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(all)
}

/// Shows it.
pub(crate) fn run(wanted: &Tour) -> Result<()> {
    signals::take()?;
    let starts = starts(wanted)?;
    let mut results = match &wanted.model {
        Some(folder) => real::measure(wanted, folder, String::new()),
        None if wanted.real => real::made_up(wanted, String::new()),
        None if wanted.command.is_some() => {
            return Err(Failure::Said(
                "What is to be loaded by that command? MODEL is to be a directory".to_owned(),
            ));
        }
        None => match simulated::measure(wanted) {
            Err(failure @ Failure::Unavailable { .. }) => {
                let why = cprt::error::chain(&failure);
                eprintln!(
                    "{why}.\nInstead, a made-up model on this machine's own disk is loaded.\n"
                );
                real::made_up(wanted, why)
            }
            done => done,
        },
    }?;
    results.whole_starts = starts;
    if !results.whole_starts.is_empty() {
        println!("\n{}", screen::starts(&results.whole_starts));
    }
    print!("\n{}", screen::outcome(&results));
    let [_, page] = measure::write(&results, &wanted.output, NAME)?;
    println!("\nWhat happened when, as a page: {}", page.display());
    if measure::is_sound(&results) {
        return Ok(());
    }
    Err(Failure::Said(
        "Bytes were wrong, or the model was in memory before: this proves nothing".to_owned(),
    ))
}
