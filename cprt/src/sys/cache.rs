//! System calls for the page cache that no safe crate makes: finding what is cached, and dropping pages
//! that a process maps.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

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
        let too_long = |_| io::Error::from_raw_os_error(libc::EFBIG);
        let length = usize::try_from(end - at).map_err(too_long)?;
        let Some(size) = NonZeroUsize::new(length) else {
            break;
        };
        let offset = libc::off_t::try_from(at).map_err(too_long)?;
        // SAFETY: the kernel places the new mapping where nothing of ours is.
        let start = unsafe {
            mmap(
                None,
                size,
                ProtFlags::PROT_READ,
                MapFlags::MAP_SHARED,
                file,
                offset,
            )
        }?;
        pages.clear();
        pages.resize(usize::try_from((end - at).div_ceil(page)).unwrap_or(0), 0);
        let told = told_of(start, length, &mut pages);
        // SAFETY: it was mapped above with this length, and nothing refers to it.
        unsafe { munmap(start, length) }?;
        told?;
        cached += pages.iter().filter(|&&page| page & 1 != 0).count() as u64;
        at = end;
    }
    Ok(cached)
}

/// `pages` has one entry for each page of the mapping.
fn told_of(start: NonNull<libc::c_void>, length: usize, pages: &mut [u8]) -> io::Result<()> {
    // SAFETY: the kernel writes a byte for each page of the mapping, and `pages` has as many.
    match unsafe { libc::mincore(start.as_ptr(), length, pages.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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
