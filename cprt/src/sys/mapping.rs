//! A file, or a part of one, in this process's memory.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping, unmapped when dropped. How its memory may be used depends on who else uses it.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<libc::c_void>,
    length: usize,
}

impl Mapping {
    /// Maps this many bytes from a page of the file on; none is an error.
    pub(super) fn new(
        file: impl AsFd,
        offset: u64,
        length: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Self> {
        let size = NonZeroUsize::new(length).ok_or(io::ErrorKind::InvalidInput)?;
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel places the new mapping where this process has none.
        let start = unsafe { mmap(None, size, protection, flags, file, offset) }?;
        Ok(Self { start, length })
    }

    pub(super) const fn start(&self) -> NonNull<libc::c_void> {
        self.start
    }

    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// Which of its pages are cached: an entry for each, of which the lowest bit counts.
    pub(super) fn resident(&self, page: u64, pages: &mut Vec<u8>) -> io::Result<()> {
        let count = (self.length as u64).div_ceil(page);
        pages.clear();
        pages.resize(usize::try_from(count).unwrap_or(0), 0);
        // SAFETY: the kernel writes a byte for each page of the mapping, and `pages` has as many.
        match unsafe { libc::mincore(self.start.as_ptr(), self.length, pages.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and what refers to it does not outlive `self`.
        let _ = unsafe { munmap(self.start, self.length) };
    }
}
