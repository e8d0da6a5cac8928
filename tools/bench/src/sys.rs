//! System calls that no safe crate offers; the only module of unsafe code here.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::units::{PAGE, index};

/// Zeroed memory that is allocated when written to, and is not page cache, as a memfd would be.
#[derive(Debug)]
pub(crate) struct Anonymous(Mapping);

/// A file mapped for reading, which is not written to meanwhile.
#[derive(Debug)]
pub(crate) struct Mapped(Mapping);

#[derive(Debug)]
struct Mapping {
    start: NonNull<libc::c_void>,
    length: NonZeroUsize,
}

// SAFETY: memory that is mapped into a process belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn bytes(&self) -> &[u8] {
        // SAFETY: all of it is mapped for reading as long as `self` exists; a writer has exclusive
        // access to `self` (`Anonymous::bytes_mut`), and files that are mapped here are not written to.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.length.get()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no slice of it outlives `self`.
        let _ = unsafe { munmap(self.start, self.length.get()) };
    }
}

fn length(bytes: u64) -> io::Result<NonZeroUsize> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
    NonZeroUsize::new(usize::try_from(bytes).map_err(|_| wrong())?).ok_or_else(wrong)
}

impl Anonymous {
    /// This many bytes, aligned to a page.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        let length = length(bytes)?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at a place that the kernel chooses, so it replaces none of ours.
        let start = unsafe { mmap_anonymous(None, length, both, flags) }?;
        // SAFETY: for the mapping that was just made; it is advice and changes no contents.
        let _ = unsafe { madvise(start, length.get(), MmapAdvise::MADV_HUGEPAGE) };
        Ok(Self(Mapping { start, length }))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped for reading and writing as long as `self` exists, to which the caller has
        // exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr().cast(), self.0.length.get()) }
    }
}

impl Mapped {
    /// Maps a whole file.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        let length = length(file.metadata()?.len())?;
        // SAFETY: a new mapping at a place that the kernel chooses, so it replaces none of ours.
        let start = unsafe {
            mmap(
                None,
                length,
                ProtFlags::PROT_READ,
                MapFlags::MAP_PRIVATE,
                file,
                0,
            )
        }?;
        Ok(Self(Mapping { start, length }))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The number of its pages in the page cache.
    pub(crate) fn resident(&self) -> io::Result<u64> {
        let length = self.0.length.get();
        let mut pages = vec![0_u8; length.div_ceil(index(PAGE))];
        // SAFETY: the vector has a byte for each page of the mapping.
        match unsafe { libc::mincore(self.0.start.as_ptr(), length, pages.as_mut_ptr()) } {
            0 => Ok(pages.iter().map(|page| u64::from(page & 1)).sum()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Gives this thread, and those it starts, priority over all others, as a device has; returns whether
/// that succeeded.
pub(crate) fn run_first() -> bool {
    let one = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure lives during the call, which reads it.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const one) == 0 }
}

/// Makes this thread's sleeps exact, not up to 50 us too long.
pub(crate) fn sleep_exactly() {
    // SAFETY: it sets a number.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0, 0, 0) };
}

/// Makes the kernel kill this process when its parent ends.
pub(crate) fn end_with_parent() {
    // SAFETY: it sets a number.
    let _ = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn memory_is_zeros_until_written_to() {
        let mut memory = Anonymous::new(3 * PAGE).expect("memory");
        assert!(memory.bytes().iter().all(|&byte| byte == 0));
        memory.bytes_mut()[5000] = 7;
        assert_eq!(memory.bytes()[5000], 7);
        assert!(Anonymous::new(0).is_err());
    }

    #[test]
    fn a_file_that_was_just_written_is_resident() {
        let path = std::env::temp_dir().join(format!("ppc-bench-{}-mapped", std::process::id()));
        let mut file = File::create_new(&path).expect("a file");
        file.write_all(&[3; 10_000]).expect("to write");
        let mapped = Mapped::new(&File::open(&path).expect("the file")).expect("to map");
        let _ = std::fs::remove_file(&path);
        assert_eq!(mapped.bytes(), [3; 10_000]);
        assert_eq!(mapped.resident().expect("to look"), 3);
    }
}
