//! Lends the simulated SSD to other programs, such as the frameworks of `tests/clients`.
//!
//! It prints its path in a line of JSON, and then answers each line of input: `reset` restarts its counters,
//! `read` returns them, and `be DEVICE` turns it into another device.

use std::fs;
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum as _;
use serde::Serialize;

use crate::args::{Device, Lend};
use crate::command;
use crate::disk::Disk;
use crate::error::{Failure, Result, file, system};
use crate::place::Place;
use crate::signals;
use crate::ssd::{Readings, Timing};
use crate::units::MIB;

/// The path of the device, and its speed.
#[derive(Debug, Serialize)]
struct Lent<'a> {
    path: &'a Path,
    node: &'a Path,
    timing: Timing,
    /// Whether it runs before all other processes, and so is late as rarely as possible.
    runs_first: bool,
}

/// A disk with this timing, with copies of everything in a folder.
pub(crate) fn disk_of(place: &Place, folder: &Path, timing: Timing) -> Result<Disk> {
    let files = entries(folder)?;
    let mut disk = Disk::make(place, room(&files), files.len(), |onto| {
        archive(folder, onto)
    })?;
    disk.be(timing)?;
    Ok(disk)
}

/// Block size of the file system.
const BLOCK: u64 = 4096;

/// Extra room on a writable disk.
const WRITTEN: u64 = 512 * MIB;

/// Lends a disk until standard input ends.
pub(crate) fn lend(wanted: &Lend) -> Result<()> {
    signals::take()?;
    let (folder, timing) = (&wanted.folder, wanted.device.timing());
    let files = if wanted.archive {
        entries(folder)?
    } else {
        files(folder)?
    };
    let place = Place::take()?;
    let written = if wanted.archive { WRITTEN } else { 0 };
    let mut disk = Disk::make(&place, room(&files) + written, files.len(), |onto| {
        if wanted.archive {
            archive(folder, onto)
        } else {
            copy(&files, folder, onto)
        }
    })?;
    if wanted.archive {
        disk.be_writable()?;
    }
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
        answer(&mut disk, &line)?;
    }
    Ok(())
}

/// The size of a file system for these files, including its own needs.
fn room(files: &[(PathBuf, u64)]) -> u64 {
    let bytes: u64 = files
        .iter()
        .map(|(_, bytes)| bytes.next_multiple_of(BLOCK))
        .sum();
    (bytes + bytes / 20 + 32 * MIB).next_multiple_of(MIB)
}

fn answer(disk: &mut Disk, order: &str) -> Result<()> {
    match order.split_once(' ').unwrap_or((order, "")) {
        ("reset", "") => disk.reset().and_then(|()| say(&Readings::default())),
        ("read", "") => say(&disk.read()?),
        ("be", name) => {
            let timing = device(name)?.timing();
            disk.be(timing).and_then(|()| say(&timing))
        }
        _ => Err(Failure::Said(format!(
            "unknown order '{order}': use reset, read or be DEVICE"
        ))),
    }
}

fn device(name: &str) -> Result<Device> {
    Device::from_str(name, false).map_err(|_| {
        Failure::Said(format!(
            "'{name}' is not a device; ssd and network are, among others"
        ))
    })
}

/// All files below a folder, by their paths in it, and their sizes.
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

/// All entries below a folder, with their sizes; links are not followed.
fn entries(folder: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).map_err(file("Listing", &at))? {
            let path = entry.map_err(file("Listing", &at))?.path();
            let about = path.symlink_metadata().map_err(file("Looking at", &path))?;
            if about.is_dir() {
                folders.push(path.clone());
            }
            found.push((path, about.len()));
        }
    }
    Ok(found)
}

/// Copies everything as it is.
fn archive(from: &Path, onto: &Path) -> Result<()> {
    let all = from.join(".");
    let words = ["--archive".as_ref(), all.as_os_str(), onto.as_os_str()];
    command::run("cp", &words).map(|_| ())
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
    said.map_err(system("Printing an answer"))
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

    #[test]
    fn an_archive_keeps_links_modes_and_empty_folders() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};

        let folder = std::env::temp_dir().join(format!("ppc-bench-keep-{}", std::process::id()));
        let (from, onto) = (folder.join("from"), folder.join("onto"));
        fs::create_dir_all(from.join("empty")).expect("a folder");
        fs::create_dir_all(&onto).expect("a folder");
        fs::write(from.join("a"), b"abc").expect("a file");
        symlink("nowhere", from.join("link")).expect("a link");
        let closed = fs::Permissions::from_mode(0o700);
        fs::set_permissions(from.join("empty"), closed).expect("it is ours");
        assert_eq!(entries(&from).expect("it is listed").len(), 3);
        archive(&from, &onto).expect("it is copied");
        assert_eq!(fs::read(onto.join("a")).expect("it is there"), b"abc");
        let link = fs::read_link(onto.join("link")).expect("a link");
        assert_eq!(link, Path::new("nowhere"));
        let mode = onto.join("empty").metadata().expect("a folder");
        assert_eq!(mode.permissions().mode() & 0o777, 0o700);
        fs::remove_dir_all(&folder).expect("it goes");
    }

    #[test]
    fn room_is_by_whole_blocks() {
        let small: Vec<_> = (0..100_000).map(|at| (at.to_string().into(), 1)).collect();
        assert!(room(&small) > 100_000 * BLOCK);
        assert_eq!(room(&[]), 32 * MIB);
    }

    #[test]
    fn device_names_are_parsed_and_unknown_ones_rejected() {
        assert_eq!(device("network").expect("it is one"), Device::Network);
        assert!(device("floppy").is_err());
    }
}
