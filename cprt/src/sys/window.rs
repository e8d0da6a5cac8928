//! A part of a file, mapped to ask about its cached pages, to copy them and to bring them in. It is never touched in
//! place: where the file is cut short meanwhile, a call fails instead of ending the process.

use std::fs::File;
use std::io;
use std::ops::Range;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise};

use super::mapping::Mapping;

/// The part.
#[derive(Debug)]
pub(crate) struct Window(Mapping);

impl Window {
    /// Maps a range that begins at a page and is not empty.
    pub(crate) fn of(file: &File, range: &Range<u64>) -> io::Result<Self> {
        let too_long = |_| io::Error::from_raw_os_error(libc::EFBIG);
        let length = usize::try_from(range.end.saturating_sub(range.start)).map_err(too_long)?;
        let (protection, flags) = (ProtFlags::PROT_READ, MapFlags::MAP_SHARED);
        let mapping = Mapping::new(file, range.start, length, protection, flags)?;
        // A copy brings in no page beside those that it copies, and does not make them look used.
        // SAFETY: the advice changes no content of the mapping, which is ours.
        unsafe { madvise(mapping.start(), length, MmapAdvise::MADV_RANDOM) }?;
        Ok(Self(mapping))
    }

    /// Which of its pages are cached: an entry for each, of which the lowest bit counts.
    pub(crate) fn resident(&self, page: u64, pages: &mut Vec<u8>) -> io::Result<()> {
        self.0.resident(page, pages)
    }

    /// Has the kernel bring in huge pages at once.
    pub(crate) fn prefer_huge(&self) -> io::Result<()> {
        // SAFETY: the advice changes no content of the mapping, which is ours.
        Ok(unsafe { madvise(self.0.start(), self.0.length(), MmapAdvise::MADV_HUGEPAGE) }?)
    }

    /// Has the kernel map the pages of a part that begins at a page, and waits until they are there.
    pub(crate) fn populate(&self, part: Range<u64>) -> io::Result<()> {
        let outside = |_| io::ErrorKind::InvalidInput;
        let from = usize::try_from(part.start).map_err(outside)?;
        let to = usize::try_from(part.end).map_err(outside)?;
        if from >= to || to > self.0.length() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = self.0.start().as_ptr().wrapping_byte_add(from);
        // SAFETY: the pages are those of this mapping, whose content stays what it is; a page that cannot be read is
        // an error of the call.
        match unsafe { libc::madvise(start, to - from, libc::MADV_POPULATE_READ) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The NUMA node of its first page, which has to be mapped.
    pub(crate) fn node(&self) -> io::Result<u16> {
        let page = self.0.start().as_ptr();
        let mut node: libc::c_int = -1;
        let nowhere = std::ptr::null::<libc::c_int>();
        // SAFETY: without places to move to, the kernel moves nothing: it reads one address and writes one number.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                1,
                &raw const page,
                nowhere,
                &raw mut node,
                0,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        // Less than 0 is an error.
        u16::try_from(node).map_err(|_| io::Error::from_raw_os_error(-node))
    }

    /// Copies what is there from `at` on, the kernel reading pages that are not cached, and returns how much that is:
    /// less than asked for where the file has become shorter.
    pub(crate) fn copy(&self, at: usize, into: &mut [u8]) -> io::Result<usize> {
        let length = into.len().min(self.0.length().saturating_sub(at));
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: length,
        };
        let remote = libc::iovec {
            iov_base: self.0.start().as_ptr().wrapping_byte_add(at),
            iov_len: length,
        };
        // SAFETY: the kernel writes at most `length` bytes to `into`, which has them, and reads the mapping itself: a
        // page that is not there is an error of the call.
        let copied = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        };
        match usize::try_from(copied) {
            Ok(copied) => Ok(copied),
            Err(_) => match io::Error::last_os_error() {
                // The file is too short for any of it.
                error if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
                error => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn a_window_copies_what_is_there_and_no_more() {
        let path = std::env::temp_dir().join(format!("cprt-window-{}", std::process::id()));
        let page = super::super::page_size();
        let bytes = usize::try_from(page).expect("small");
        std::fs::write(&path, vec![7; 3 * bytes]).expect("a file");
        let file = File::options().read(true).write(true).open(&path);
        let file = file.expect("it is there");
        file.write_all_at(b"here", page).expect("to write");
        let window = Window::of(&file, &(0..3 * page)).expect("a mapping");
        let mut pages = Vec::new();
        window.resident(page, &mut pages).expect("ours");
        assert_eq!(pages.len(), 3);
        let mut four = [0; 4];
        assert_eq!(window.copy(bytes, &mut four).expect("to copy"), 4);
        assert_eq!(&four, b"here");
        // A mapping of what is no longer there would end the process if it were read in place.
        file.set_len(page).expect("to cut it short");
        assert_eq!(window.copy(bytes, &mut four).expect("no error"), 0);
        let mut two = vec![0; 2 * bytes];
        assert_eq!(window.copy(0, &mut two).expect("the rest"), bytes);
        assert_eq!(window.copy(4 * bytes, &mut four).expect("beyond"), 0);
        std::fs::remove_file(&path).expect("ours");
    }
}
