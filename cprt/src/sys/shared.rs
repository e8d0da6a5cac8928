//! Mapped files: of the kernel, or of several processes.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::sys::mman::{MapFlags, ProtFlags};

use super::mapping::Mapping;

/// A mapping shared with the kernel or with other processes.
#[derive(Debug)]
pub(crate) struct Shared(Mapping);

// SAFETY: the memory is valid in every thread until it is unmapped on drop.
unsafe impl Send for Shared {}
// SAFETY: the memory is read and written by atomic operations, or copied as raw bytes.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: usize,
        length: usize,
        protection: ProtFlags,
    ) -> io::Result<Self> {
        Self::map(fd, offset, length, protection, MapFlags::MAP_SHARED)
    }

    fn map(
        fd: BorrowedFd<'_>,
        offset: usize,
        length: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Self> {
        let mapping = Mapping::new(fd, offset as u64, length, protection, flags)?;
        Ok(Self(mapping))
    }

    const fn start(&self) -> NonNull<u8> {
        self.0.start().cast()
    }

    /// A number that both sides read and write.
    pub(crate) fn number(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.0.length());
        // SAFETY: it is within the mapping and aligned, by the assertion and because mappings begin
        // at a page; it lives as long as `self`, and is only ever used as an atomic number.
        unsafe { self.start().add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Appends a copy of bytes that the other side has written and does not change meanwhile.
    pub(crate) fn copy(&self, at: usize, length: usize, into: &mut Vec<u8>) {
        let whole = self.0.length();
        assert!(at.checked_add(length).is_some_and(|end| end <= whole));
        into.reserve(length);
        let end = into.len();
        // SAFETY: the bytes are within the mapping, by the assertion; the vector has room for them,
        // and they are initialised when its length says so.
        unsafe {
            let room = into.as_mut_ptr().add(end);
            std::ptr::copy_nonoverlapping(self.start().add(at).as_ptr(), room, length);
            into.set_len(end + length);
        }
    }
}

/// A mapped file of the kernel that does not change while the kernel runs.
#[derive(Debug)]
pub(crate) struct Constant(Shared);

impl Constant {
    /// Maps this many bytes.
    pub(crate) fn new(fd: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE);
        Ok(Self(Shared::map(fd, 0, length, protection, flags)?))
    }

    pub(crate) const fn bytes(&self) -> &[u8] {
        let (start, length) = (self.0.start(), self.0.0.length());
        // SAFETY: `length` bytes are mapped for reading until `self` is dropped, and nothing changes them.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }
    }
}
