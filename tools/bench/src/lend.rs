//! The simulated SSD for programs of others, such as the frameworks of `tests/clients`.
//!
//! It says where it is in a line of JSON, and then answers each line of input: `reset` has it count from
//! there on, `read` gives what it has counted.

use std::fs;
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::disk::Disk;
use crate::error::{Failure, Result, file, system};
use crate::place::Place;
use crate::signals;
use crate::ssd::{Readings, Timing};
use crate::units::MIB;

/// Where it is, and how fast.
#[derive(Debug, Serialize)]
struct Lent<'a> {
    path: &'a Path,
    node: &'a Path,
    timing: Timing,
    /// Whether it runs before all others, and so is late as little as can be.
    runs_first: bool,
}

/// Lends one until nobody asks any more.
pub(crate) fn lend(folder: &Path, timing: Timing) -> Result<()> {
    signals::take()?;
    let files = files(folder)?;
    let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    let place = Place::take()?;
    // A file system needs a little for itself.
    let size = (bytes + bytes / 20 + 32 * MIB).next_multiple_of(MIB);
    let mut disk = Disk::make(&place, size, files.len(), |onto| copy(&files, folder, onto))?;
    disk.be(timing)?;
    say(&Lent {
        path: &disk.path,
        node: disk.node(),
        timing,
        runs_first: disk.simulator.runs_first,
    })?;
    for line in io::stdin().lock().lines() {
        let line = line.map_err(system("Reading orders"))?;
        if signals::came() {
            return Err(Failure::Interrupted);
        }
        say(&answer(&mut disk, &line)?)?;
    }
    Ok(())
}

fn answer(disk: &mut Disk, order: &str) -> Result<Readings> {
    match order {
        "reset" => disk.reset().map(|()| Readings::default()),
        "read" => disk.read(),
        _ => Err(Failure::Said(format!(
            "'{order}' is neither reset nor read"
        ))),
    }
}

/// All below a folder, by their paths in it, and how large they are.
fn files(folder: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(inner) = folders.pop() {
        let at = folder.join(&inner);
        for entry in fs::read_dir(&at).map_err(file("Listing", &at))? {
            let path = inner.join(entry.map_err(file("Listing", &at))?.file_name());
            let full = folder.join(&path);
            let about = full.metadata().map_err(file("Looking at", &full))?;
            if about.is_dir() {
                folders.push(path);
            } else if about.is_file() {
                files.push((path, about.len()));
            } else {
                let text = format!("{} is neither a file nor a folder", full.display());
                return Err(Failure::Said(text));
            }
        }
    }
    Ok(files)
}

fn copy(files: &[(PathBuf, u64)], from: &Path, onto: &Path) -> Result<()> {
    for (path, _) in files {
        let to = onto.join(path);
        let folder = to.parent().unwrap_or(onto);
        fs::create_dir_all(folder).map_err(file("Making", folder))?;
        fs::copy(from.join(path), &to).map_err(file("Copying", path))?;
    }
    Ok(())
}

fn say(what: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec(what)?;
    text.push(b'\n');
    let mut output = io::stdout().lock();
    let said = output.write_all(&text).and_then(|()| output.flush());
    said.map_err(system("Saying where the simulated SSD is"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_wherever_they_are_and_nothing_else_is_taken() {
        let folder = std::env::temp_dir().join(format!("ppc-bench-lend-{}", std::process::id()));
        let (from, onto) = (folder.join("from"), folder.join("onto"));
        fs::create_dir_all(from.join("b/c")).expect("a folder");
        fs::write(from.join("a"), b"abc").expect("a file");
        fs::write(from.join("b/c/d"), b"d").expect("a file");
        let mut found = files(&from).expect("it is listed");
        found.sort();
        assert_eq!(found, [("a".into(), 3), ("b/c/d".into(), 1)]);
        copy(&found, &from, &onto).expect("it is copied");
        assert_eq!(fs::read(onto.join("b/c/d")).expect("it is there"), b"d");
        std::os::unix::fs::symlink("/dev/null", from.join("e")).expect("a link");
        let refused = files(&from).expect_err("there is a device");
        assert!(refused.to_string().contains("/e is neither"), "{refused}");
        fs::remove_dir_all(&folder).expect("it goes");
        assert!(files(&from).is_err());
    }
}
