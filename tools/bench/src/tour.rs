//! The first look, by `make run`: one model, loaded without and with MAIO, side by side.
//!
//! By default it uses a [`simulated`] SSD, as the disks of small machines hide the possible gain; or the
//! user's model on its own disk, loaded by the user's command, which is [`real`]. If no SSD can be simulated,
//! it uses a generated model on the real disk, and says so.

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
mod together;
mod wrapped;

use crate::args::Tour;
use crate::error::{Failure, Result};
use crate::result::Starts;
use crate::{measure, signals};

pub(crate) use loader::load;
pub(crate) use own::measure as measure_own_disk;
pub(crate) use scratch::Folder;
pub(crate) use together::measure as measure_together;
pub(crate) use wrapped::measure as measure_wrapped;

/// The name of the results.
const NAME: &str = "run";

/// Measures whole starts, unless the user named a model or a loader, on the disks where this machine allows it.
fn starts(wanted: &Tour) -> Result<Vec<Starts>> {
    if wanted.model.is_some() || wanted.command.is_some() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    // Where the first is not possible, neither is the second.
    for (measure, else_shown) in [
        (
            start::own as fn(&Tour) -> Result<Starts>,
            "Only loads are shown",
        ),
        (start::far, "Starts from remote storage are left out"),
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

/// Runs the tour.
pub(crate) fn run(wanted: &Tour) -> Result<()> {
    signals::take()?;
    let starts = starts(wanted)?;
    let mut results = match &wanted.model {
        Some(folder) => real::measure(wanted, folder, String::new()),
        None if wanted.real => real::made_up(wanted, String::new()),
        None if wanted.command.is_some() => {
            return Err(Failure::Said(
                "The command needs a model: set MODEL to its directory".to_owned(),
            ));
        }
        None => match simulated::measure(wanted) {
            Err(failure @ Failure::Unavailable { .. }) => {
                let why = cprt::error::chain(&failure);
                eprintln!(
                    "{why}.\nInstead, a generated model on this machine's own disk is loaded.\n"
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
    println!("\nDetails over time, as a page: {}", page.display());
    if measure::is_sound(&results) {
        return Ok(());
    }
    Err(Failure::Said(
        "Bytes were wrong, or the model was in memory before: this proves nothing".to_owned(),
    ))
}
