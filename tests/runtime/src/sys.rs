//! System calls that have no safe wrapper elsewhere: mappings and their pages, extents, fork, priorities, and
//! opening a library.

use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr;

use nix::unistd::{ForkResult, Pid};
use ppc::LoadError;
use ppc::host::Table;

pub(crate) const PAGE: usize = 4096;

/// An anonymous mapping, or one of a file.
#[derive(Debug)]
pub(crate) struct Map {
    at: *mut u8,
    len: usize,
}

impl Map {
    /// Maps all of a file, shared and read-only.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        Self::new(len, protection, flags, file.as_raw_fd())
    }

    /// Maps private memory.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        Self::new(len, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn new(len: usize, protection: i32, flags: i32, fd: i32) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = at.cast();
        Ok(Self { at, len })
    }

    /// Its bytes. No process writes to the files of a running test.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has len readable bytes until it is dropped.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    /// Writes a byte into each page of anonymous memory.
    pub(crate) fn touch(&mut self) {
        for offset in (0..self.len).step_by(PAGE) {
            // SAFETY: within the mapping, which is writable and ours alone.
            unsafe { self.at.add(offset).write_volatile(1) }
        }
    }

    /// Which pages of a file are cached.
    pub(crate) fn residency(&self) -> io::Result<Vec<bool>> {
        let mut pages = vec![0u8; self.len.div_ceil(PAGE)];
        // SAFETY: the mapping is live and the vector has a byte for each of its pages.
        check(unsafe { libc::mincore(self.at.cast(), self.len, pages.as_mut_ptr()) })?;
        Ok(pages.iter().map(|page| page & 1 != 0).collect())
    }

    /// The NUMA node of each page; negative, an errno, where there is none.
    pub(crate) fn nodes(&self) -> io::Result<Vec<i32>> {
        let starts: Vec<*const u8> = (0..self.len)
            .step_by(PAGE)
            .map(|offset| self.at.wrapping_add(offset).cast_const())
            .collect();
        let mut nodes = vec![0i32; starts.len()];
        // SAFETY: without nodes the call moves nothing; both arrays have the given length.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                starts.len(),
                starts.as_ptr(),
                ptr::null::<i32>(),
                nodes.as_mut_ptr(),
                0,
            )
        };
        if answer < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(nodes)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nothing borrowed of it outlives us.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

#[repr(C)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extent: Extent,
}

const FS_IOC_FIEMAP: u32 = 0xc020_660b;
const FIEMAP_FLAG_SYNC: u32 = 1;

/// Offset on the device of a range of a file, if it is in one piece.
pub(crate) fn physical(file: &File, offset: u64, length: u64) -> io::Result<u64> {
    // SAFETY: every field may be zero.
    let mut map: Fiemap = unsafe { zeroed() };
    map.start = offset;
    map.length = length;
    map.flags = FIEMAP_FLAG_SYNC;
    map.count = 1;
    // SAFETY: the structure has room for one extent, as `count` says.
    check(unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP.into(), &raw mut map) })?;
    let extent = &map.extent;
    let inside = extent.logical <= offset && extent.logical + extent.length >= offset + length;
    if map.mapped != 1 || !inside {
        return Err(io::Error::other("the range is not in one piece"));
    }
    Ok(extent.physical + offset - extent.logical)
}

/// Forks: returns the child's process id, and none in the child. Only for a process with one thread.
pub(crate) fn fork() -> nix::Result<Option<Pid>> {
    // SAFETY: there are no other threads whose locks a child could wait for.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// Lets other processes have a processor three times as long as this one, where both want it.
pub(crate) fn lower_priority() -> io::Result<()> {
    // SAFETY: it concerns numbers alone.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) })
}

/// Opens a library of this source tree as a policy.
pub(crate) fn open_policy(library: &Path) -> Result<Table, LoadError> {
    // SAFETY: it was built from this tree, and this process exists to try it.
    unsafe { Table::open(library) }
}

fn check(answer: i32) -> io::Result<()> {
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

const _: () = assert!(size_of::<Extent>() == 56 && size_of::<Fiemap>() == 32 + 56);
