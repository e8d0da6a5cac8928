//! The block devices below a mount, and the kernel's readahead there.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Roots, chosen, flag, number, read};
use crate::doctor::facts::{Device, Layer};
use cprt::machine::mountinfo::Mount;

/// Upper bound on the number of devices looked at; no real stack has that many.
const MOST: usize = 64;

pub(super) fn of(roots: &Roots, mount: &Mount) -> Device {
    let top = block(roots, mount);
    let layers = top.as_deref().map(layers).unwrap_or_default();
    Device {
        readahead: readahead(roots, mount, top.as_deref()),
        layers,
    }
}

/// The directory of the device with the file system, or of the disk if that is a partition.
fn block(roots: &Roots, mount: &Mount) -> Option<PathBuf> {
    let directory = if mount.major == 0 {
        // btrfs, for one, has an anonymous number; its source may be a link, /dev/mapper/NAME.
        let name = mount.source.strip_prefix("/dev").ok()?;
        let device = roots.dev.join(name).canonicalize().ok()?;
        roots.sys.join("class/block").join(device.file_name()?)
    } else {
        let number = format!("{}:{}", mount.major, mount.minor);
        roots.sys.join("dev/block").join(number)
    };
    disk(&directory)
}

fn disk(directory: &Path) -> Option<PathBuf> {
    let directory = directory.canonicalize().ok()?;
    if directory.join("partition").exists() {
        directory.parent().map(Path::to_owned)
    } else {
        Some(directory)
    }
}

/// The device and those it is made of, each once.
fn layers(top: &Path) -> Vec<Layer> {
    let mut found = vec![top.to_owned()];
    let mut at = 0;
    while let Some(directory) = found.get(at).filter(|_| at < MOST) {
        let names = fs::read_dir(directory.join("slaves"));
        let mut below: Vec<_> = names
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|name| disk(&name.path()))
            .collect();
        below.sort();
        for directory in below {
            if !found.contains(&directory) {
                found.push(directory);
            }
        }
        at += 1;
    }
    found.iter().map(|directory| layer(directory)).collect()
}

fn layer(directory: &Path) -> Layer {
    let name = directory.file_name().unwrap_or_default();
    Layer {
        name: name.display().to_string(),
        made: made(directory),
        rotational: flag(&directory.join("queue/rotational")),
        scheduler: read(&directory.join("queue/scheduler"))
            .map(|text| chosen(&text).unwrap_or(text)),
        direct: flag(&directory.join("loop/dio")),
    }
}

fn made(directory: &Path) -> Option<String> {
    if directory.join("dm").is_dir() {
        let id = read(&directory.join("dm/uuid")).unwrap_or_default();
        // The subsystem that owns it, followed by an ID that only the subsystem understands.
        let (whose, _) = id.split_once('-').unwrap_or_default();
        return Some(format!("dm {whose}").trim_end().to_owned());
    }
    if let Some(level) = read(&directory.join("md/level")) {
        return Some(format!("md {level}"));
    }
    directory.join("loop").is_dir().then(|| "loop".to_owned())
}

fn readahead(roots: &Roots, mount: &Mount, top: Option<&Path>) -> Option<(PathBuf, u64)> {
    let number = format!("{}:{}", mount.major, mount.minor);
    let own = roots.sys.join("class/bdi").join(number);
    let name = top.and_then(Path::file_name);
    let queue = name.map(|name| roots.sys.join("block").join(name).join("queue"));
    let places = if mount.major == 0 {
        [Some(own), btrfs(roots, name)]
    } else {
        [queue, None]
    };
    places.into_iter().flatten().find_map(|directory| {
        let path = directory.join("read_ahead_kb");
        let kib = self::number(&path)?;
        Some((path, kib))
    })
}

/// btrfs has one setting for all of its devices.
fn btrfs(roots: &Roots, device: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    let device = device?;
    let all = fs::read_dir(roots.sys.join("fs/btrfs")).ok()?;
    all.flatten()
        .map(|one| one.path())
        .find(|one| one.join("devices").join(device).exists())
        .map(|one| one.join("bdi"))
}
