//! What the system is asked for that no safe crate asks for; the one room of unsafe code here.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::units::{PAGE, index};

/// Zeros that become memory when they are written to, and are no page cache of any kind: a memfd
/// would be.
#[derive(Debug)]
pub(crate) struct Anonymous(Mapping);

/// A file that can be read as memory, of which nothing is written while it is.
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
        // SAFETY: mapped for reading, all of it, as long as `self` is there; who writes to it has
        // `self` alone (`Anonymous::bytes_mut`), and nobody writes to files that are mapped here.
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
    /// So many bytes, on a page.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        let length = length(bytes)?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping wherever the kernel likes; nothing of ours is there.
        let start = unsafe { mmap_anonymous(None, length, both, flags) }?;
        // SAFETY: of the mapping that was just made; it is advice and changes no contents.
        let _ = unsafe { madvise(start, length.get(), MmapAdvise::MADV_HUGEPAGE) };
        Ok(Self(Mapping { start, length }))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped for reading and writing as long as `self` is there, which the caller has
        // alone.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr().cast(), self.0.length.get()) }
    }
}

impl Mapped {
    /// All of a file.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        let length = length(file.metadata()?.len())?;
        // SAFETY: a new mapping wherever the kernel likes; nothing of ours is there.
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

    /// How many of its pages are in the page cache.
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

/// Has this thread, and those it starts, run before all others, as a device would; says whether that
/// is so now.
pub(crate) fn run_first() -> bool {
    let one = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure is there for the call, which reads it.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const one) == 0 }
}

/// Has this thread sleep as long as it is told to, and not up to 50 us longer.
pub(crate) fn sleep_exactly() {
    // SAFETY: it sets a number.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0, 0, 0) };
}

/// Has this process be killed when whoever started it ends.
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
