//! Memory in huge pages, to read files into.

use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// The size of a huge page on most machines; on others any size would do.
const HUGE: usize = 2 << 20;

/// Memory, in huge pages if the system has some: a device then writes to few pieces, and the kernel pins
/// few meanwhile.
#[derive(Debug)]
pub(crate) struct HugeBuffer {
    /// The whole mapping, and where in it the memory begins.
    start: NonNull<libc::c_void>,
    mapped: NonZeroUsize,
    skip: usize,
    length: usize,
}

impl HugeBuffer {
    /// Allocates at least `length` bytes, all zero, aligned to a huge page.
    pub(crate) fn new(length: usize) -> io::Result<Self> {
        let short = || io::Error::from_raw_os_error(libc::EINVAL);
        let length = length.max(1).checked_next_multiple_of(HUGE);
        let length = length.ok_or_else(short)?;
        let mapped = length.checked_add(HUGE).and_then(NonZeroUsize::new);
        let mapped = mapped.ok_or_else(short)?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel places the new mapping where this process has none.
        let start = unsafe { mmap_anonymous(None, mapped, both, MapFlags::MAP_PRIVATE) }?;
        // This is only advice, so it may fail.
        // SAFETY: the range is the mapping just made, and the advice changes no contents.
        let _ = unsafe { madvise(start, mapped.get(), MmapAdvise::MADV_HUGEPAGE) };
        Ok(Self {
            start,
            mapped,
            skip: start.cast::<u8>().align_offset(HUGE).min(HUGE),
            length,
        })
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `skip` and `length` together are no more than what is mapped, for reading and
        // writing, as long as `self` lives; it is initialised, and borrowed exclusively with `self`.
        unsafe {
            let start = self.start.cast::<u8>().add(self.skip);
            std::slice::from_raw_parts_mut(start.as_ptr(), self.length)
        }
    }
}

impl Drop for HugeBuffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and no slice of it outlives `self`.
        let _ = unsafe { munmap(self.start, self.mapped.get()) };
    }
}
