//! The disk that a folder is on: its name, its counters, its best speed.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use nix::sys::stat::{major, minor};

use super::files::Files;
use crate::signals;
use crate::sys::Anonymous;
use crate::units::{MIB, float};

/// Number of readers that keep a fast disk busy.
const READERS: usize = 16;
const SECTOR: u64 = 512;

/// What is known about a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DiskCounters {
    /// The device and its file system.
    pub(super) name: String,
    pub(super) file_system: String,
    /// The file in which the kernel counts reads.
    counters: Option<PathBuf>,
}

impl DiskCounters {
    pub(super) fn of(path: &Path) -> Self {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let list = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let (file_system, source) = mounted(&list, &path).unwrap_or_default();
        let of_source = fs::metadata(&source)
            .ok()
            .filter(|_| source.starts_with("/dev"));
        let number = of_source.map(|it| it.rdev());
        let number = number.or_else(|| Some(fs::metadata(&path).ok()?.dev()));
        let counters = number.map(|it| {
            let folder = format!("/sys/dev/block/{}:{}", major(it), minor(it));
            PathBuf::from(folder)
        });
        let counters = counters.filter(|folder| folder.exists());
        let device = counters
            .as_ref()
            .and_then(|folder| folder.canonicalize().ok());
        let device = device.and_then(|it| Some(it.file_name()?.to_string_lossy().into_owned()));
        Self {
            name: match device {
                Some(device) => format!("{device}, {file_system}"),
                None => file_system.clone(),
            },
            file_system,
            counters: counters.map(|folder| folder.join("stat")),
        }
    }

    /// Bytes read from it by all processes since the machine started.
    pub(super) fn read_so_far(&self) -> Option<u64> {
        let text = fs::read_to_string(self.counters.as_ref()?).ok()?;
        let sectors: u64 = text.split_whitespace().nth(2)?.parse().ok()?;
        Some(sectors * SECTOR)
    }

    /// Whether it is memory, not a disk.
    pub(super) fn is_memory(&self) -> bool {
        matches!(self.file_system.as_str(), "tmpfs" | "ramfs")
    }
}

/// The file system and source of the mount that a path is in.
fn mounted(list: &[u8], path: &Path) -> Option<(String, PathBuf)> {
    let mounts = list.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut words = line.split(|&byte| byte == b' ');
        let at = PathBuf::from(std::ffi::OsString::from_vec(unescape(words.nth(4)?)));
        let mut rest = words.skip_while(|word| *word != b"-").skip(1);
        let kind = String::from_utf8_lossy(rest.next()?).into_owned();
        let source = PathBuf::from(OsStr::from_bytes(rest.next()?));
        path.starts_with(&at).then_some((at, kind, source))
    });
    // Of several mounts at one place, the last is on top.
    let (_, kind, source) = mounts.max_by_key(|(at, ..)| at.as_os_str().len())?;
    Some((kind, source))
}

/// Decodes a path as the kernel writes it, with blanks as `\040`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\');
        let number = digits.and_then(|it| u8::from_str_radix(str::from_utf8(it).ok()?, 8).ok());
        plain.push(number.unwrap_or(byte));
        rest = if number.is_some() { &after[3..] } else { after };
    }
    plain
}

/// Reads all files once, with `O_DIRECT` and many pieces at a time; returns the bytes per second, or 0 if
/// that is not possible. Afterwards any caches behind the disk are warm, for all loads.
pub(super) fn best(files: &Files) -> f64 {
    let pieces = files.sizes.iter().enumerate();
    let pieces: Vec<(usize, u64)> = pieces
        .flat_map(|(file, size)| (0..size.div_ceil(MIB)).map(move |number| (file, number * MIB)))
        .collect();
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    let all = std::thread::scope(|scope| {
        let readers = [(); READERS].map(|()| scope.spawn(|| read(files, &pieces, &next)));
        let all = readers.map(|it| it.join().ok().and_then(Result::ok).unwrap_or(false));
        all.into_iter().all(|done| done)
    });
    if all {
        float(files.bytes()) / began.elapsed().as_secs_f64().max(1e-9)
    } else {
        0.0
    }
}

/// Reads pieces until none is left; returns false if it was interrupted.
fn read(files: &Files, pieces: &[(usize, u64)], next: &AtomicUsize) -> std::io::Result<bool> {
    let mut buffer = Anonymous::new(MIB)?;
    let mut open: Option<(usize, File)> = None;
    while let Some(&(number, offset)) = pieces.get(next.fetch_add(1, Relaxed)) {
        if signals::came() {
            return Ok(false);
        }
        if open.as_ref().is_none_or(|(open, _)| *open != number) {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(libc::O_DIRECT);
            open = Some((number, options.open(&files.paths[number])?));
        }
        if let Some((_, file)) = &open {
            file.read_at(buffer.bytes_mut(), offset)?;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[u8] = b"20 1 254:1 / / rw - ext4 /dev/root rw\n\
        30 20 0:30 / /srv/my\\040models ro shared:7 master:2 - btrfs /dev/nvme0n1p2 ro\n\
        31 20 0:31 / /srv rw - tmpfs none rw\n";

    #[test]
    fn a_folder_is_on_the_mount_nearest_to_it() {
        let of = |path: &str| {
            let (kind, source) = mounted(LIST, Path::new(path)).expect("a mount");
            format!("{kind} {}", source.display())
        };
        assert_eq!(of("/home/m"), "ext4 /dev/root");
        assert_eq!(of("/srv/m"), "tmpfs none");
        assert_eq!(of("/srv/my models/llama"), "btrfs /dev/nvme0n1p2");
        assert_eq!(mounted(b"", Path::new("/")), None);
        assert_eq!(unescape(b"a\\0"), b"a\\0");
    }

    #[test]
    fn program_disk_is_named_and_proc_has_no_counters() {
        let program = std::env::current_exe().expect("it runs");
        let disk = DiskCounters::of(&program);
        assert!(!disk.name.is_empty() && !disk.is_memory());
        assert!(DiskCounters::of(Path::new("/proc")).read_so_far().is_none());
    }
}
