//! Rows of a larger measurement on this machine's own disk: nothing is simulated there, and MAIO's loads use
//! `ppcctl run`, whose start and end are part of the whole command.

use std::path::Path;

use nix::sys::statvfs::statvfs;

use super::disk::{self, DiskCounters};
use super::real::Tester;
use super::scratch::Folder;
use crate::case::Policy;
use crate::error::{Failure, Result, file};
use crate::host_memory::HostMemory;
use crate::model::{self, Model};
use crate::result::{CaseResult, OwnDisk};
use crate::units::float;
use crate::{machine, rounds, signals};

/// Generates a model below a folder and loads it in each round; if that is not possible, the results say why.
pub(crate) fn measure(
    model: &Model,
    base: &Path,
    rounds: usize,
    results: &mut [&mut CaseResult],
) -> Result<Option<OwnDisk>> {
    if results.is_empty() {
        return Ok(None);
    }
    let folder = Folder::make(base)?;
    if let Some(why) = no_room(&folder.0, model.bytes())? {
        for result in results {
            result.left_out.clone_from(&why);
        }
        return Ok(None);
    }
    eprintln!("making a model on this machine's own disk");
    model::write(model, &folder.0)?;
    let mut tester = Tester::new(&folder.0, None)?;
    // As much as the cached model takes, before and after it is dropped.
    let _kept = HostMemory::keep(2 * model.bytes());
    let best = disk::best(&tester.files);
    for round in 0..rounds {
        for result in results.iter_mut() {
            eprint!("[own disk, round {}] {} ", round + 1, result.name);
            if result.policy == Policy::MaioReplay && !rounds::has_template(&tester.store())? {
                eprint!("(recording) ");
                tester.load(Policy::MaioFirst)?;
            }
            let (mut run, _) = tester.load(result.policy)?;
            run.round = round + 1;
            eprintln!("{:.2} s, whole command {:.2} s", run.load, run.whole);
            result.runs.push(run);
            if signals::came() {
                return Err(Failure::Interrupted);
            }
        }
    }
    Ok(Some(know(tester.disk.name.clone(), best, results)))
}

/// Why the model cannot be loaded from there, if so.
fn no_room(folder: &Path, bytes: u64) -> Result<Option<String>> {
    let disk = DiskCounters::of(folder);
    if disk.is_memory() {
        return Ok(Some(format!(
            "{} is memory: --output has to be on a disk",
            disk.file_system
        )));
    }
    let room = statvfs(folder).map_err(file("Looking at", folder))?;
    let room = room.blocks_available() * room.fragment_size();
    let enough = room > bytes * 2 && machine::available() > bytes * 2;
    Ok((!enough).then(|| "too little room, on the disk or in memory".to_owned()))
}

/// Sets the best bandwidth, which is at least the highest that a load got, and what loads used of it.
fn know(name: String, best: f64, results: &mut [&mut CaseResult]) -> OwnDisk {
    let runs = results.iter().flat_map(|case| &case.runs);
    let most = runs.map(|run| float(run.device_bytes) / run.load);
    let best = if best > 0.0 {
        most.fold(best, f64::max)
    } else {
        0.0
    };
    if best > 0.0 {
        for run in results.iter_mut().flat_map(|case| &mut case.runs) {
            run.utilisation = float(run.device_bytes) / run.load / best;
        }
    }
    OwnDisk { name, best }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Regime;
    use crate::reader::Profile;
    use crate::result::samples::results;

    #[test]
    fn a_load_that_was_faster_is_what_the_disk_can_give() {
        let loads = [(Policy::Native, 4.0), (Policy::MaioReplay, 2.0)];
        let mut results = results(Profile::full().with(1), Regime::OwnDisk, &loads);
        let mut cases: Vec<&mut CaseResult> = results.cases.iter_mut().collect();
        let disk = know("vda".to_owned(), 1e8, &mut cases);
        assert!((disk.best - 5e8).abs() < 1.0);
        assert!((cases[0].runs[0].utilisation - 0.5).abs() < 1e-9);
        assert!(know("vda".to_owned(), 0.0, &mut cases).best <= 0.0);
    }

    #[test]
    fn memory_and_full_disks_are_no_place_for_it() {
        let why = no_room(Path::new("/proc"), 1).expect("to look");
        assert!(why.is_some(), "nothing can be written there");
        let here = std::env::current_exe().expect("it runs");
        let folder = here.parent().expect("a folder");
        assert_eq!(no_room(folder, 1).expect("to look"), None);
        assert!(no_room(folder, 1 << 60).expect("to look").is_some());
    }
}
