//! System calls for the page cache that no safe crate makes: finding what is cached, bringing it in by large folios,
//! and dropping pages that a process maps.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::{AccessFlags, faccessat};

use super::made;
use super::window::Window;

/// The same number on all architectures; the C library may not know it.
const SYS_CACHESTAT: libc::c_long = 451;

/// The number of cached pages of a range, by cachestat(2): from Linux 6.5 on, and not for a file of
/// overlayfs, which has no pages itself.
pub(crate) fn cachestat(file: impl AsFd, range: &Range<u64>) -> io::Result<u64> {
    counted(file, range).map(|[cached, ..]| cached)
}

/// The number of pages of these that are changed or being written, likewise.
pub(crate) fn dirty(file: impl AsFd, range: &Range<u64>) -> io::Result<u64> {
    counted(file, range).map(|[_, dirty, writeback, ..]| dirty + writeback)
}

fn counted(file: impl AsFd, range: &Range<u64>) -> io::Result<[u64; 5]> {
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
        Ok(told)
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
        Window::of(file, &(at..end))?.resident(page, &mut pages)?;
        cached += pages.iter().filter(|&&page| page & 1 != 0).count() as u64;
        at = end;
    }
    Ok(cached)
}

/// Brings a range of a file into the page cache by a page fault, in one large folio if the file system makes those.
/// `range` begins at a multiple of the size of a huge page and is no longer than one. All of it has arrived when this
/// returns; it returns whether that is in one folio.
///
/// Only a fault in a mapping that asks for huge pages gets them at once: reads begin with the smallest folios, and
/// arrive at large ones after many MiB.
pub(crate) fn fault_in(file: &File, range: &Range<u64>, page: u64) -> io::Result<bool> {
    // A window is for random access: otherwise the kernel would read the next huge page as well.
    let window = Window::of(file, range)?;
    window.prefer_huge()?;
    let length = range.end - range.start;
    window.populate(0..page.min(length))?;
    // The fault has mapped the whole folio. If that has the last page, too, there is no second fault.
    let before = faults()?;
    window.populate((length - 1) / page * page..length)?;
    let is_one = faults()? == before;
    if !is_one {
        // No other call waits for the rest without reading further ahead.
        window.populate(0..length)?;
    }
    Ok(is_one)
}

/// How many page faults the calling thread has had.
fn faults() -> io::Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    Ok(usage.minor_page_faults() + usage.major_page_faults())
}

/// Whether the kernel tells the caller what is cached of a file. Where it does not, mincore(2) answers that all is.
pub(crate) fn may_ask(file: &File) -> bool {
    let user = nix::unistd::geteuid();
    if user.is_root() || file.metadata().is_ok_and(|it| it.uid() == user.as_raw()) {
        return true;
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    faccessat(
        AT_FDCWD,
        path.as_str(),
        AccessFlags::W_OK,
        AtFlags::AT_EACCESS,
    )
    .is_ok()
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
