//! What tests need a process to do.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// A whole file, mapped.
pub(crate) struct Mapped {
    start: NonNull<libc::c_void>,
    length: usize,
}

impl Mapped {
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let size = NonZeroUsize::new(length).ok_or(io::ErrorKind::UnexpectedEof)?;
        // SAFETY: a new mapping wherever the kernel likes; nothing of ours is there.
        let start = unsafe {
            mmap(
                None,
                size,
                ProtFlags::PROT_READ,
                MapFlags::MAP_SHARED,
                file,
                0,
            )
        }?;
        Ok(Self { start, length })
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Touches each page of a range.
    pub(crate) fn sum(&self, range: Range<usize>) -> u64 {
        assert!(range.end <= self.length);
        let start: NonNull<u8> = self.start.cast();
        range
            .step_by(4096)
            // SAFETY: it is within the mapping, by the assertion above, and the files of tests are
            // not cut off.
            .map(|at| u64::from(unsafe { start.add(at).read_volatile() }))
            .sum()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and what points there ends here.
        let _ = unsafe { munmap(self.start, self.length) };
    }
}
