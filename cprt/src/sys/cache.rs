//! System calls for the page cache that no safe crate makes: finding what is cached, bringing it in by large folios,
//! and dropping pages that a process maps.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::resource::{UsageWho, getrusage};

use super::made;

/// The same number on all architectures; the C library may not know it.
const SYS_CACHESTAT: libc::c_long = 451;

/// The number of cached pages of a range, by cachestat(2): from Linux 6.5 on, and not for a file of
/// overlayfs, which has no pages itself.
pub(crate) fn cachestat(file: impl AsFd, range: &Range<u64>) -> io::Result<u64> {
    let asked = [range.start, range.end.saturating_sub(range.start)];
    // nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted.
    let mut told = [0_u64; 5];
    // SAFETY: the kernel reads two numbers and writes five, of 64 bits each, as these arrays have them.
    let rc = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_fd().as_raw_fd(),
            asked.as_ptr(),
            told.as_mut_ptr(),
            0,
        )
    };
    if rc == 0 {
        Ok(told[0])
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The same on any kernel, through a mapping that is never touched. `range` begins at a page.
pub(crate) fn mincore(file: &File, range: &Range<u64>, page: u64) -> io::Result<u64> {
    /// Bytes mapped at a time, so that the answer takes no more than 64 KiB with the smallest pages.
    const WINDOW: u64 = 256 << 20;

    let mut cached = 0;
    let mut pages = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at + WINDOW);
        let mapping = OwnMapping::new(file, &(at..end))?;
        pages.clear();
        pages.resize(usize::try_from((end - at).div_ceil(page)).unwrap_or(0), 0);
        mapping.told(&mut pages)?;
        cached += pages.iter().filter(|&&page| page & 1 != 0).count() as u64;
        at = end;
    }
    Ok(cached)
}

/// Brings a range of a file into the page cache by a page fault, in one large folio if the file system makes those.
/// `range` begins at a multiple of the size of a huge page and is no longer than one. Returns whether all of it has
/// arrived in one folio; otherwise more or less of it may be on its way.
///
/// Only a fault in a mapping that asks for huge pages gets them at once: reads begin with the smallest folios, and
/// arrive at large ones after many MiB.
pub(crate) fn fault_in(file: &File, range: &Range<u64>, page: u64) -> io::Result<bool> {
    let mapping = OwnMapping::new(file, range)?;
    mapping.advise(MmapAdvise::MADV_HUGEPAGE)?;
    // Without this, the kernel reads the next huge page as well.
    mapping.advise(MmapAdvise::MADV_RANDOM)?;
    let page = usize::try_from(page).unwrap_or(mapping.length.get());
    mapping.populate(0, page)?;
    // The fault has mapped the whole folio. If that has the last page, too, there is no second fault.
    let before = faults()?;
    mapping.populate((mapping.length.get() - 1) / page * page, page)?;
    Ok(faults()? == before)
}

/// How many page faults the calling thread has had.
fn faults() -> io::Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    Ok(usage.minor_page_faults() + usage.major_page_faults())
}

/// A mapping of a part of a file that this process does not read.
struct OwnMapping {
    start: NonNull<libc::c_void>,
    length: NonZeroUsize,
}

impl OwnMapping {
    /// Maps a range that begins at a page and is not empty.
    fn new(file: &File, range: &Range<u64>) -> io::Result<Self> {
        let wrong = || io::Error::from_raw_os_error(libc::EINVAL);
        let length = usize::try_from(range.end.saturating_sub(range.start)).ok();
        let length = length.and_then(NonZeroUsize::new).ok_or_else(wrong)?;
        let offset = libc::off_t::try_from(range.start).map_err(|_| wrong())?;
        let (read, shared) = (ProtFlags::PROT_READ, MapFlags::MAP_SHARED);
        // SAFETY: the kernel places the new mapping where nothing of ours is.
        let start = unsafe { mmap(None, length, read, shared, file, offset) }?;
        Ok(Self { start, length })
    }

    fn advise(&self, advice: MmapAdvise) -> io::Result<()> {
        // SAFETY: the range is this mapping, and the advice changes no contents.
        Ok(unsafe { madvise(self.start, self.length.get(), advice) }?)
    }

    /// Maps the pages of `length` bytes from `at` on, which are in the mapping, and waits until they have arrived.
    fn populate(&self, at: usize, length: usize) -> io::Result<()> {
        let start = self.start.as_ptr().wrapping_byte_add(at);
        // SAFETY: the pages are those of this mapping, and stay what they are; a page that cannot be read is an error
        // here and no signal.
        match unsafe { libc::madvise(start, length, libc::MADV_POPULATE_READ) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// `pages` has one entry for each page of the mapping.
    fn told(&self, pages: &mut [u8]) -> io::Result<()> {
        let (start, length) = (self.start.as_ptr(), self.length.get());
        // SAFETY: the kernel writes a byte for each page of the mapping, and `pages` has as many.
        match unsafe { libc::mincore(start, length, pages.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for OwnMapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing refers to it.
        let _ = unsafe { munmap(self.start, self.length.get()) };
    }
}

/// Opens a descriptor of a process, which never comes to refer to another process.
pub(crate) fn pidfd(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: it takes no address.
    made(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })
}

/// Has the kernel drop those pages at these addresses of a process that no other process maps.
pub(crate) fn page_out(process: &OwnedFd, addresses: &Range<u64>) -> io::Result<()> {
    let too_long = |_| io::Error::from_raw_os_error(libc::EFBIG);
    let mut start = usize::try_from(addresses.start).map_err(too_long)?;
    let end = usize::try_from(addresses.end).map_err(too_long)?;
    while start < end {
        let range = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(start),
            iov_len: end - start,
        };
        // SAFETY: the kernel reads one iovec. The addresses in it belong to the other process, whose
        // memory keeps its contents: what is dropped is read again when it is touched.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                process.as_raw_fd(),
                &raw const range,
                1,
                libc::MADV_PAGEOUT,
                0,
            )
        };
        match usize::try_from(done) {
            Ok(0) => break,
            Ok(done) => start += done,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}
