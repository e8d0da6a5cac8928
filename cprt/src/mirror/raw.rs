//! The calls that no safe crate makes: extended attributes, how much of a file is cached, and memory
//! in huge pages.

use std::ffi::{CString, OsStr};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// `cachestat`, the same number on every machine; since 6.5.
const CACHESTAT: libc::c_long = 451;

/// What `cachestat` takes.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// What it gives, in pages.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

fn terminated(bytes: &OsStr) -> io::Result<CString> {
    CString::new(bytes.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn length(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// An attribute of the file at a path; with an empty buffer, its length.
pub(super) fn getxattr(path: &Path, name: &OsStr, into: &mut [u8]) -> io::Result<usize> {
    let (path, name) = (terminated(path.as_os_str())?, terminated(name)?);
    // SAFETY: both strings are terminated, and the kernel writes no more than the buffer's length.
    length(unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            into.as_mut_ptr().cast(),
            into.len(),
        )
    })
}

/// The names of all attributes, each with a zero at its end; with an empty buffer, their length.
pub(super) fn listxattr(path: &Path, into: &mut [u8]) -> io::Result<usize> {
    let path = terminated(path.as_os_str())?;
    // SAFETY: the string is terminated, and the kernel writes no more than the buffer's length.
    length(unsafe { libc::listxattr(path.as_ptr(), into.as_mut_ptr().cast(), into.len()) })
}

/// How many pages of a range are in the page cache; a length of 0 is to the end.
pub(crate) fn cached(file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<u64> {
    let range = Range { offset, length };
    let mut counts = Counts::default();
    // SAFETY: both structures have the kernel's layout and outlive the call.
    let result = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut counts,
            0,
        )
    };
    match result {
        0 => Ok(counts.cached),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What a huge page is long on most machines; on others it is as good as any.
const HUGE: usize = 2 << 20;

/// Memory, in huge pages where the system has some to give: a device that writes there is told of few
/// pieces, and the kernel holds few meanwhile.
#[derive(Debug)]
pub(super) struct Memory {
    /// All that is mapped, and where in it the memory begins.
    start: NonNull<libc::c_void>,
    mapped: NonZeroUsize,
    skip: usize,
    length: usize,
}

impl Memory {
    /// At least so many bytes, zeros, which begin at a huge page.
    pub(super) fn new(length: usize) -> io::Result<Self> {
        let short = || io::Error::from_raw_os_error(libc::EINVAL);
        let length = length.max(1).checked_next_multiple_of(HUGE);
        let length = length.ok_or_else(short)?;
        let mapped = length.checked_add(HUGE).and_then(NonZeroUsize::new);
        let mapped = mapped.ok_or_else(short)?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping wherever the kernel likes; nothing of ours is there.
        let start = unsafe { mmap_anonymous(None, mapped, both, MapFlags::MAP_PRIVATE) }?;
        // It is advice.
        // SAFETY: of the mapping that was just made, and it changes no contents.
        let _ = unsafe { madvise(start, mapped.get(), MmapAdvise::MADV_HUGEPAGE) };
        Ok(Self {
            start,
            mapped,
            skip: start.cast::<u8>().align_offset(HUGE).min(HUGE),
            length,
        })
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `skip` and `length` together are no more than what is mapped, for reading and
        // writing, as long as `self` is there; it is initialised, and who has `self` has it alone.
        unsafe {
            let start = self.start.cast::<u8>().add(self.skip);
            std::slice::from_raw_parts_mut(start.as_ptr(), self.length)
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and no slice of it outlives `self`.
        let _ = unsafe { munmap(self.start, self.mapped.get()) };
    }
}

/// A file of some length, mapped for reading; for tests.
#[cfg(test)]
pub(crate) struct Map {
    at: NonNull<libc::c_void>,
    length: usize,
}

#[cfg(test)]
impl Map {
    pub(crate) fn new(file: &std::fs::File, length: usize) -> io::Result<Self> {
        use nix::sys::mman::mmap;

        let size =
            NonZeroUsize::new(length).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let at = unsafe {
            mmap(
                None,
                size,
                ProtFlags::PROT_READ,
                MapFlags::MAP_SHARED,
                file,
                0,
            )?
        };
        Ok(Self { at, length })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for reading as long as `self` is there; tests change no mapped file.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.length) }
    }

    /// How many of its pages are in the page cache.
    pub(crate) fn resident(&self) -> io::Result<usize> {
        let mut pages = vec![0u8; self.length.div_ceil(4096)];
        // SAFETY: the vector has a byte for each page of the mapping.
        match unsafe { libc::mincore(self.at.as_ptr(), self.length, pages.as_mut_ptr()) } {
            0 => Ok(pages.iter().filter(|&&page| page & 1 != 0).count()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no slice of it outlives `self`.
        let _ = unsafe { munmap(self.at, self.length) };
    }
}

/// Gives the file at a path an attribute; for tests.
#[cfg(test)]
pub(crate) fn setxattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (terminated(path.as_os_str())?, terminated(OsStr::new(name))?);
    // SAFETY: both strings are terminated, and the kernel reads no more than the value's length.
    let result = unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    length(libc::ssize_t::try_from(result).unwrap_or(-1)).map(drop)
}

/// Asks for the size of a terminal; for tests.
#[cfg(test)]
pub(crate) fn window_size(fd: std::os::fd::RawFd) -> io::Result<()> {
    nix::ioctl_read_bad!(ask, libc::TIOCGWINSZ, libc::winsize);

    // SAFETY: a plain structure of numbers.
    let mut size = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is the one that this request fills.
    unsafe { ask(fd, &raw mut size) }?;
    Ok(())
}

/// Some names of a directory, each with the position after it; none at the end. For tests.
#[cfg(test)]
pub(crate) fn names(directory: &std::fs::File) -> io::Result<Vec<(Vec<u8>, i64)>> {
    let mut buf = vec![0u8; 32 << 10];
    let fd = directory.as_raw_fd();
    // SAFETY: the kernel writes no more than the buffer's length.
    let got = unsafe { libc::syscall(libc::SYS_getdents64, fd, buf.as_mut_ptr(), buf.len()) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    let mut rest = &buf[..got];
    let mut names = Vec::new();
    // Inode and position of 8 bytes each, length of 2, type of 1, name.
    while let (Some(position), Some(&[low, high])) = (rest.get(8..16), rest.get(16..18)) {
        let whole = usize::from(u16::from_ne_bytes([low, high]));
        let name = rest[19..whole].split(|&byte| byte == 0).next();
        let position = position.try_into().map(i64::from_ne_bytes);
        names.push((name.unwrap_or_default().to_vec(), position.unwrap_or(0)));
        rest = &rest[whole..];
    }
    Ok(names)
}
