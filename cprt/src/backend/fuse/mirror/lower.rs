//! The lower file system below one directory, without mounts within it.
//!
//! Names are looked up one at a time below directories that are held open, so that a mount over the
//! directory itself changes nothing here. Mounts within it do not show.
//!
//! Data is read past the lower page cache (`O_DIRECT`), so that it is cached only once, in the mount. Where
//! the file system refuses that, data is read through the cache and dropped there afterwards, unless it
//! was cached before.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirEntryExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, PosixFadviseAdvice, ResolveFlag, openat2, posix_fadvise};

use super::identity::FileIdentity;
use crate::sys::cache::cachestat;
use crate::sys::huge::HugeBuffer;

/// The alignment of offsets, lengths and memory for `O_DIRECT`: no device asks for more.
pub(crate) const ALIGN: u64 = 4096;

/// A directory that is held open.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
}

/// The file at a name.
#[derive(Debug)]
pub(crate) struct LowerFile {
    fd: OwnedFd,
    pub(crate) metadata: Metadata,
}

/// A name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: OsString,
    pub(crate) inode: u64,
    pub(crate) kind: fuser::FileType,
}

fn magic(fd: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

impl Directory {
    /// The root: the directory that is mirrored.
    pub(crate) fn root(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty())?;
        Ok(Self { fd })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn metadata(&self) -> io::Result<Metadata> {
        File::from(self.fd.try_clone()?).metadata()
    }

    /// The file at a name; a link is not followed.
    pub(crate) fn find(&self, name: &OsStr) -> io::Result<LowerFile> {
        let bytes = name.as_bytes();
        if matches!(bytes, b"" | b"." | b"..") || bytes.contains(&b'/') || bytes.contains(&0) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let within = ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_XDEV
            | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(within);
        let fd = openat2(&self.fd, name, how).map_err(|error| match error {
            // Another file system is mounted there: it does not show.
            nix::errno::Errno::EXDEV => nix::errno::Errno::ENOENT,
            error => error,
        })?;
        let file = File::from(fd);
        let metadata = file.metadata()?;
        let fd = file.into();
        Ok(LowerFile { fd, metadata })
    }

    /// All names in it except `.` and `..`.
    pub(crate) fn list(&self) -> io::Result<Vec<Entry>> {
        let names = std::fs::read_dir(magic(self.fd()))?;
        names
            .map(|entry| {
                let entry = entry?;
                let kind = entry.file_type()?;
                Ok(Entry {
                    name: entry.file_name(),
                    inode: entry.ino(),
                    kind: fuser::FileType::from_std(kind).unwrap_or(fuser::FileType::RegularFile),
                })
            })
            .collect()
    }

    /// Its current path, in the view of this process.
    pub(crate) fn path(&self) -> io::Result<PathBuf> {
        std::fs::read_link(magic(self.fd()))
    }

    pub(crate) fn magic(&self) -> PathBuf {
        magic(self.fd())
    }
}

impl LowerFile {
    pub(crate) fn identity(&self) -> FileIdentity {
        FileIdentity::of(&self.metadata)
    }

    pub(crate) fn into_directory(self) -> Directory {
        Directory { fd: self.fd }
    }

    /// The target of a symbolic link.
    pub(crate) fn target(&self) -> io::Result<OsString> {
        Ok(nix::fcntl::readlinkat(&self.fd, "")?)
    }

    /// A path to exactly this file, valid while `self` lives.
    pub(crate) fn magic(&self) -> PathBuf {
        magic(self.fd.as_fd())
    }
}

/// A regular file, open for reading.
#[derive(Debug)]
pub(crate) struct Lower {
    file: File,
    /// Opened with `O_DIRECT`, where the file system allows it.
    direct: Option<File>,
    /// The passthrough id, by which the kernel reads it without asking us.
    pub(crate) backing: std::sync::OnceLock<Option<fuser::BackingId>>,
}

impl Lower {
    pub(crate) fn open(found: &LowerFile) -> io::Result<Self> {
        if !found.metadata.is_file() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Self::open_path(&found.magic())
    }

    pub(super) fn open_path(path: &Path) -> io::Result<Self> {
        let direct = open_quietly(path, libc::O_DIRECT);
        Ok(Self {
            file: open_quietly(path, 0)?,
            direct: direct.ok(),
            backing: std::sync::OnceLock::new(),
        })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Reads up to `length` bytes, fewer only at the end of the file.
    pub(crate) fn read<'s>(
        &self,
        scratch: &'s mut Scratch,
        offset: u64,
        length: usize,
    ) -> io::Result<&'s [u8]> {
        let (start, whole) = aligned(offset, length);
        let into = scratch.room(whole)?;
        let got = match &self.direct {
            Some(direct) => match fill(direct, start, into) {
                // The file system opens with O_DIRECT and yet refuses to read.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.through_the_cache(start, into)?
                }
                done => done?,
            },
            None => self.through_the_cache(start, into)?,
        };
        let skip = usize::try_from(offset - start).unwrap_or(0).min(got);
        let end = got.min(skip + length);
        Ok(&into[skip..end])
    }

    fn through_the_cache(&self, start: u64, into: &mut [u8]) -> io::Result<usize> {
        let whole = into.len() as u64;
        let before = cachestat(&self.file, &(start..start + whole)).unwrap_or(0);
        let got = fill(&self.file, start, into)?;
        if before == 0 {
            let range = (start.cast_signed(), whole.cast_signed());
            let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
            // This is advice; pages that stay are cached twice.
            let _ = posix_fadvise(&self.file, range.0, range.1, advice);
        }
        Ok(got)
    }
}

/// Opens for reading without updating the access time: the mount is read-only. Where only the owner or root may do
/// that, and we are neither, the lower file system updates it as usual.
fn open_quietly(path: &Path, flags: i32) -> io::Result<File> {
    let open = |more| {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags | more).open(path)
    };
    match open(libc::O_NOATIME) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => open(0),
        done => done,
    }
}

/// The aligned range that `O_DIRECT` has to read for these bytes.
fn aligned(offset: u64, length: usize) -> (u64, usize) {
    let start = offset - offset % ALIGN;
    let before = usize::try_from(offset - start).unwrap_or(0);
    let whole = (before + length).next_multiple_of(usize::try_from(ALIGN).unwrap_or(4096));
    (start, whole)
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &File, start: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < into.len() {
        match file.read_at(&mut into[got..], start + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if !(got as u64).is_multiple_of(ALIGN) {
            // Only the end of the file is not aligned.
            break;
        }
    }
    Ok(got)
}

/// Memory that `O_DIRECT` can read into.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    memory: Option<HugeBuffer>,
}

impl Scratch {
    fn room(&mut self, length: usize) -> io::Result<&mut [u8]> {
        let memory = match self.memory.take() {
            Some(memory) if memory.length() >= length => memory,
            _ => HugeBuffer::new(length)?,
        };
        Ok(&mut self.memory.insert(memory).bytes()[..length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_reads_are_aligned_around_what_is_wanted() {
        assert_eq!(aligned(0, 4096), (0, 4096));
        assert_eq!(aligned(1, 1), (0, 4096));
        assert_eq!(aligned(4095, 2), (0, 8192));
        assert_eq!(aligned(8192, 1 << 20), (8192, 1 << 20));
        assert_eq!(aligned(8193, 1 << 20), (8192, (1 << 20) + 4096));
    }

    #[test]
    fn scratch_is_aligned_and_long_enough() {
        let mut scratch = Scratch::default();
        for length in [4096, 1 << 20, 3 << 20, 8192] {
            let room = scratch.room(length).expect("memory");
            assert_eq!(room.len(), length);
            assert_eq!(room.as_ptr().align_offset(4096), 0);
            room[length - 1] = 1;
        }
    }

    #[test]
    fn lower_reads_any_range_up_to_the_end() {
        let path = std::env::temp_dir().join(format!("cprt-lower-{}", std::process::id()));
        let bytes: Vec<u8> = (0..100_001u32).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &bytes).expect("a file");
        let lower = Lower::open_path(&path).expect("to open it");
        let mut scratch = Scratch::default();
        for (offset, length) in [
            (0, 100_001),
            (1, 5),
            (4090, 10),
            (99_999, 100),
            (100_001, 8),
        ] {
            let end = bytes.len().min(offset + length);
            let got = lower.read(&mut scratch, offset as u64, length);
            assert_eq!(got.expect("to read"), &bytes[offset..end], "{offset}");
        }
        std::fs::remove_file(path).expect("to clean up");
    }

    #[test]
    fn names_that_are_not_direct_children_are_rejected() {
        let root = Directory::root(Path::new("/tmp")).expect("a directory");
        for name in ["", ".", "..", "a/b", "../etc"] {
            let error = root.find(OsStr::new(name)).expect_err(name);
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{name}");
        }
    }
}
