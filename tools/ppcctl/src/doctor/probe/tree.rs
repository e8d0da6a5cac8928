//! The contents of the directory: files, links, and what the caller may not access. Of files too small
//! for weights, the beginning is read; of others, nothing.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, eaccess};

use crate::doctor::facts::{Files, common};

/// The beginning of a Git LFS pointer,
const POINTER: [u8; 42] = *b"version https://git-lfs.github.com/spec/v1";
/// and its possible sizes.
const POINTER_SIZES: Range<u64> = POINTER.len() as u64..1024;
/// Extensions of partial downloads: of Hugging Face's tools, of browsers, of aria2.
const PARTS: [&str; 4] = ["incomplete", "part", "crdownload", "aria2"];
/// Upper bound on the entries looked at. No model has that many files; a home directory may.
const MOST: u64 = 200_000;

/// Walks a directory tree, without following links or entering other mounts.
pub(super) fn walk(directory: &Path, mounts: Vec<PathBuf>) -> Files {
    let mut walk = Walk {
        root: directory,
        files: Files {
            mounts,
            ..Files::default()
        },
        seen: HashSet::new(),
        entries: 0,
    };
    let mut todo = vec![directory.to_owned()];
    while let Some(directory) = todo.pop() {
        if walk.entries >= MOST {
            walk.files.cut = true;
            break;
        }
        if !walk.files.mounts.contains(&directory) {
            walk.list(&directory, &mut todo);
        }
    }
    walk.files
}

struct Walk<'d> {
    root: &'d Path,
    files: Files,
    /// Files that have more than one name, by device and inode, and those that links lead to.
    seen: HashSet<(u64, u64)>,
    entries: u64,
}

impl Walk<'_> {
    fn list(&mut self, directory: &Path, todo: &mut Vec<PathBuf>) {
        let names = match fs::read_dir(directory) {
            Ok(names) => names,
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => {
                self.files.closed.add(directory);
                return;
            }
        };
        let mut names: Vec<_> = names.flatten().collect();
        // Sorted by name, so that each run gives the same answer.
        names.sort_by_key(fs::DirEntry::file_name);
        for name in names {
            self.entries += 1;
            let path = name.path();
            match name.metadata() {
                Ok(metadata) if metadata.is_dir() => todo.push(path),
                Ok(metadata) if metadata.is_symlink() => self.link(&path),
                Ok(metadata) if metadata.is_file() => self.file(&path, &metadata),
                // The directory may be listed but not searched.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.files.unreadable.add(&path);
                }
                _ => {}
            }
        }
    }

    fn is_new(&mut self, metadata: &Metadata) -> bool {
        self.seen.insert((metadata.dev(), metadata.ino()))
    }

    fn file(&mut self, path: &Path, metadata: &Metadata) {
        if metadata.nlink() > 1 && !self.is_new(metadata) {
            return;
        }
        let files = &mut self.files;
        files.count += 1;
        files.bytes = files.bytes.saturating_add(metadata.len());
        files.allocated = files.allocated.saturating_add(metadata.blocks() * 512);
        if is_closed(path) {
            files.unreadable.add(path);
            return;
        }
        if files.direct.is_none() && metadata.len() > 0 {
            files.direct = direct(path);
        }
        if is_part(path) {
            files.parts.add(path);
        }
        // Files of /proc have no size, and reading some of them never ends.
        if POINTER_SIZES.contains(&metadata.len()) && is_pointer(path) {
            files.pointers.add(path);
        }
    }

    fn link(&mut self, path: &Path) {
        let links = &mut self.files.links;
        let target = match path.canonicalize() {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.files.unreadable.add(path);
                return;
            }
            Err(_) => {
                links.broken.add(path);
                return;
            }
        };
        if target.starts_with(self.root) {
            if fs::read_link(path).is_ok_and(|target| target.is_absolute()) {
                links.absolute.add(path);
            }
            return;
        }
        links.leaving.add(path);
        let Ok(metadata) = fs::metadata(&target) else {
            return;
        };
        let directory = if metadata.is_dir() {
            Some(target.as_path())
        } else {
            target.parent()
        };
        links.outside = match (links.outside.take(), directory) {
            (Some(known), Some(directory)) => Some(common(&known, directory)),
            (known, directory) => known.or_else(|| directory.map(Path::to_owned)),
        };
        if !metadata.is_file() || !self.is_new(&metadata) {
            return;
        }
        let links = &mut self.files.links;
        links.leaving_bytes = links.leaving_bytes.saturating_add(metadata.len());
        if is_closed(&target) {
            self.files.unreadable.add(&target);
        }
    }
}

/// Whether the caller may not read the file. Checked without opening it, which would send a request to servers.
fn is_closed(path: &Path) -> bool {
    match eaccess(path, AccessFlags::R_OK) {
        Ok(()) | Err(nix::Error::ENOENT) => false,
        Err(_) => true,
    }
}

/// Whether the name is that of a partial download.
fn is_part(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension.is_some_and(|extension| PARTS.contains(&extension))
}

/// Whether the file is a Git LFS pointer.
fn is_pointer(path: &Path) -> bool {
    let mut start = [0; POINTER.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == POINTER
}

/// Whether the file opens with `O_DIRECT`; `None` if it fails to open for another reason.
fn direct(path: &Path) -> Option<bool> {
    let flags = libc::O_DIRECT | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(_) => Some(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Some(false),
        Err(_) => None,
    }
}
