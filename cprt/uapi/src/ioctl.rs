//! The system calls, made safe to call.
//!
//! All that matters for memory safety is decided here: which structure belongs to which
//! command, where the kernel may write, which value owns a new descriptor.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::bindings as c;

/// The argument of a command; it contains no address.
///
/// # Safety
///
/// `NUMBER` is the command whose argument `Self` is in `rfs.h`, and the kernel takes no field of it
/// for an address.
pub(crate) unsafe trait Plain {
    const NUMBER: u32;
    const NAME: &'static str;
}

macro_rules! plain {
    ($($argument:ident = $number:ident, $name:literal;)*) => { $(
        // SAFETY: rfs.h pairs the two so, which tests::numbers_encode_their_structures compares by
        // size, and none of its fields is an __aligned_u64.
        unsafe impl Plain for c::$argument {
            const NUMBER: u32 = c::$number;
            const NAME: &'static str = $name;
        }
    )* };
}

plain! {
    rfs_hello = RFS_IOC_HELLO, "HELLO";
    rfs_mask = RFS_IOC_MASK, "MASK";
    rfs_load = RFS_IOC_LOAD, "LOAD";
    rfs_stop = RFS_IOC_STOP, "STOP";
    rfs_evict = RFS_IOC_EVICT, "EVICT";
    rfs_stats = RFS_IOC_STATS, "STATS";
    rfs_file_info = RFS_IOC_FILE, "FILE";
}

/// The `size` that every argument begins with.
#[allow(
    clippy::cast_possible_truncation,
    reason = "structures of the protocol are small"
)]
pub(crate) const fn size_of_argument<T>() -> u32 {
    size_of::<T>() as u32
}

/// Gives `argument` to the kernel, which may change it.
pub(crate) fn command<T: Plain>(fd: BorrowedFd<'_>, argument: &mut T) -> io::Result<()> {
    // SAFETY: Plain promises that T is what the command takes and that no address is in it.
    unsafe { ioctl(fd, T::NUMBER, argument) }
}

/// A descriptor of the file in the lower file system.
pub(crate) fn lower_fd(fd: BorrowedFd<'_>, file: u64, flags: u32) -> io::Result<OwnedFd> {
    let mut argument = c::rfs_lower_fd {
        size: size_of_argument::<c::rfs_lower_fd>(),
        flags,
        file,
        fd: -1,
        reserved: 0,
    };
    // SAFETY: rfs_lower_fd is what LOWER_FD takes; no field of it is an address.
    unsafe { ioctl(fd, c::RFS_IOC_LOWER_FD, &mut argument)? };
    if argument.fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the kernel has just installed this descriptor for us and no other code knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(argument.fd) })
}

/// Writes the path of `file` to `buf` and returns its length, the NUL included.
pub(crate) fn path(fd: BorrowedFd<'_>, file: u64, buf: &mut [u8]) -> io::Result<usize> {
    let mut argument = c::rfs_path {
        size: size_of_argument::<c::rfs_path>(),
        buf_len: u32::try_from(buf.len()).unwrap_or(u32::MAX),
        file,
        buf: address(buf),
        ..Default::default()
    };
    // SAFETY: rfs_path is what PATH takes; the kernel writes at most buf_len bytes at buf, which we
    // borrow mutably for the call.
    unsafe { ioctl(fd, c::RFS_IOC_PATH, &mut argument)? };
    Ok(argument.path_len as usize)
}

/// How much of the range is cached, and in `bitmap`, if not empty, which pages.
pub(crate) fn resident(
    fd: BorrowedFd<'_>,
    file: u64,
    (offset, length): (u64, u64),
    bitmap: &mut [u8],
) -> io::Result<c::rfs_resident> {
    let mut argument = c::rfs_resident {
        size: size_of_argument::<c::rfs_resident>(),
        file,
        offset,
        length,
        bitmap: if bitmap.is_empty() {
            0
        } else {
            address(bitmap)
        },
        bitmap_len: u32::try_from(bitmap.len()).unwrap_or(u32::MAX),
        ..Default::default()
    };
    // SAFETY: rfs_resident is what RESIDENT takes; the kernel writes at most bitmap_len bytes at
    // bitmap, which we borrow mutably for the call, and nothing if it is 0.
    unsafe { ioctl(fd, c::RFS_IOC_RESIDENT, &mut argument)? };
    Ok(argument)
}

/// Whether something can be read, or never will be, before the time is up or a signal comes.
pub(crate) fn poll_in(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    // Rounded up: 1 ns must not become a busy loop.
    let millis = timeout.map_or(-1, |timeout| {
        i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    });
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: entry is one pollfd and we say it is one.
    let ready = unsafe { libc::poll(&raw mut entry, 1, millis) };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        error => Err(error),
    }
}

fn address(buf: &mut [u8]) -> u64 {
    buf.as_mut_ptr().expose_provenance() as u64
}

/// # Safety
///
/// `T` is the structure that `number` takes, and every address in it is valid for what the command
/// does there.
unsafe fn ioctl<T>(fd: BorrowedFd<'_>, number: u32, argument: &mut T) -> io::Result<()> {
    // The type of a command's number is the C library's choice.
    #[allow(
        clippy::cast_possible_wrap,
        clippy::cast_lossless,
        reason = "bits, not a number"
    )]
    let number = number as libc::Ioctl;
    // SAFETY: argument is a live, exclusive T; the rest is this function's own condition.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), number, std::ptr::from_mut(argument)) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const WRITE: u32 = 1;
    const READ_WRITE: u32 = 3;

    /// `_IOC` of asm-generic/ioctl.h, written down a second time; `bindings` has clang's.
    const fn ioc<T>(direction: u32, nr: u32) -> u32 {
        direction << 30 | size_of_argument::<T>() << 16 | c::RFS_IOC_MAGIC << 8 | nr
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn numbers_encode_their_structures() {
        assert_eq!(c::rfs_hello::NUMBER, ioc::<c::rfs_hello>(READ_WRITE, 0x00));
        assert_eq!(c::rfs_mask::NUMBER, ioc::<c::rfs_mask>(WRITE, 0x01));
        assert_eq!(
            c::RFS_IOC_LOWER_FD,
            ioc::<c::rfs_lower_fd>(READ_WRITE, 0x02)
        );
        assert_eq!(c::RFS_IOC_PATH, ioc::<c::rfs_path>(READ_WRITE, 0x03));
        assert_eq!(c::rfs_load::NUMBER, ioc::<c::rfs_load>(READ_WRITE, 0x04));
        assert_eq!(c::rfs_stop::NUMBER, ioc::<c::rfs_stop>(READ_WRITE, 0x05));
        assert_eq!(c::rfs_evict::NUMBER, ioc::<c::rfs_evict>(READ_WRITE, 0x06));
        assert_eq!(
            c::RFS_IOC_RESIDENT,
            ioc::<c::rfs_resident>(READ_WRITE, 0x07)
        );
        assert_eq!(c::rfs_stats::NUMBER, ioc::<c::rfs_stats>(READ_WRITE, 0x08));
        assert_eq!(
            c::rfs_file_info::NUMBER,
            ioc::<c::rfs_file_info>(READ_WRITE, 0x10)
        );
    }

    #[test]
    fn waiting_ends_with_the_time_with_data_and_with_the_other_side() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let tick = Some(Duration::from_nanos(1));
        assert!(
            !poll_in(reader.as_fd(), tick).expect("poll"),
            "nothing there"
        );
        io::Write::write_all(&mut writer, b"x").expect("write");
        assert!(poll_in(reader.as_fd(), None).expect("poll"), "a byte");
        drop(writer);
        assert!(poll_in(reader.as_fd(), None).expect("poll"), "hung up");
    }
}
