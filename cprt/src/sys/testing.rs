//! System calls and helpers for tests.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::mman::{MapFlags, ProtFlags};

use super::mapping::Mapping;

pub(crate) use test_support::{skip, skip_part};

/// Whether the page cache can drop files of this directory, which it cannot on tmpfs.
pub(crate) fn lets_go(directory: &Path) -> bool {
    static NAMES: AtomicU64 = AtomicU64::new(0);

    let number = NAMES.fetch_add(1, Relaxed);
    let path = directory.join(format!("cprt-lets-go-{}-{number}", std::process::id()));
    let cached = || -> io::Result<u64> {
        let page = super::page_size();
        fs::write(&path, vec![1; usize::try_from(page).unwrap_or(4096)])?;
        let file = File::open(&path)?;
        file.sync_all()?;
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        super::cache::mincore(&file, &(0..page), page)
    };
    let lets_go = cached().is_ok_and(|pages| pages == 0);
    let _ = fs::remove_file(&path);
    lets_go
}

/// Whether `got` is nearly all, in pages or bytes: a host may take back some memory that is not in use.
pub(crate) fn all_but_few(got: u64, all: u64) -> bool {
    got <= all && got + all / 20 + 1 >= all
}

/// Reads a file until all of it is cached, because the host may reclaim some. Right after this, it still is.
pub(crate) fn warm(path: &Path) {
    for _ in 0..100 {
        let length = fs::read(path).expect("to read").len() as u64;
        let file = File::open(path).expect("the file");
        let page = super::page_size();
        let pages = super::cache::mincore(&file, &(0..length), page).expect("to look");
        if pages == length.div_ceil(page) {
            return;
        }
    }
    panic!("{} does not stay cached", path.display());
}

/// A whole file, mapped.
pub(crate) struct Mapped(Mapping);

impl Mapped {
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let (protection, flags) = (ProtFlags::PROT_READ, MapFlags::MAP_SHARED);
        Ok(Self(Mapping::new(file, 0, length, protection, flags)?))
    }

    pub(crate) const fn length(&self) -> usize {
        self.0.length()
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.start().addr().get() as u64
    }

    pub(crate) const fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for reading as long as `self` lives; tests change no mapped file.
        unsafe { std::slice::from_raw_parts(self.0.start().as_ptr().cast(), self.length()) }
    }

    /// The number of its pages in the page cache.
    pub(crate) fn resident(&self) -> io::Result<usize> {
        let mut pages = Vec::new();
        self.0.resident(super::page_size(), &mut pages)?;
        Ok(pages.iter().filter(|&&page| page & 1 != 0).count())
    }

    /// Touches each page of a range.
    pub(crate) fn sum(&self, range: Range<usize>) -> u64 {
        assert!(range.end <= self.length());
        let start: NonNull<u8> = self.0.start().cast();
        range
            .step_by(4096)
            // SAFETY: it is within the mapping, by the assertion above, and tests do not truncate
            // their files.
            .map(|at| u64::from(unsafe { start.add(at).read_volatile() }))
            .sum()
    }
}

/// Reads the first byte of a file if that needs no waiting.
pub(crate) fn read_now(file: &File) -> io::Result<usize> {
    let mut byte = [0_u8];
    let part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: byte.len(),
    };
    // SAFETY: one part, of a byte that lives until the call returns.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, 0, libc::RWF_NOWAIT) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Asks for the size of a terminal; for tests.
pub(crate) fn window_size(fd: std::os::fd::RawFd) -> io::Result<()> {
    nix::ioctl_read_bad!(ask, libc::TIOCGWINSZ, libc::winsize);

    // SAFETY: a plain structure of numbers.
    let mut size = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is the one that this request fills.
    unsafe { ask(fd, &raw mut size) }?;
    Ok(())
}

/// The next names of a directory, each with the position after it; none at the end. For tests.
pub(crate) fn names(directory: &std::fs::File) -> io::Result<Vec<(Vec<u8>, i64)>> {
    let mut buf = vec![0u8; 32 << 10];
    let fd = directory.as_raw_fd();
    // SAFETY: the kernel writes no more than the buffer's length.
    let got = unsafe { libc::syscall(libc::SYS_getdents64, fd, buf.as_mut_ptr(), buf.len()) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    let mut rest = &buf[..got];
    let mut names = Vec::new();
    // In each record: inode and position of 8 bytes each, length of 2, type of 1, name.
    while let (Some(position), Some(&[low, high])) = (rest.get(8..16), rest.get(16..18)) {
        let whole = usize::from(u16::from_ne_bytes([low, high]));
        let name = rest[19..whole].split(|&byte| byte == 0).next();
        let position = position.try_into().map(i64::from_ne_bytes);
        names.push((name.unwrap_or_default().to_vec(), position.unwrap_or(0)));
        rest = &rest[whole..];
    }
    Ok(names)
}
