//! Extended attributes, which none of the safe crates in use reads.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

fn terminated(bytes: &OsStr) -> io::Result<CString> {
    CString::new(bytes.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn length(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Reads an attribute of the file at a path and returns its length; an empty buffer asks only for that.
pub(crate) fn getxattr(path: &Path, name: &OsStr, into: &mut [u8]) -> io::Result<usize> {
    let (path, name) = (terminated(path.as_os_str())?, terminated(name)?);
    // SAFETY: both strings are terminated, and the kernel writes no more than the buffer's length.
    length(unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            into.as_mut_ptr().cast(),
            into.len(),
        )
    })
}

/// Reads the names of all attributes, each with a zero at its end, and returns their length; an empty buffer
/// asks only for that.
pub(crate) fn listxattr(path: &Path, into: &mut [u8]) -> io::Result<usize> {
    let path = terminated(path.as_os_str())?;
    // SAFETY: the string is terminated, and the kernel writes no more than the buffer's length.
    length(unsafe { libc::listxattr(path.as_ptr(), into.as_mut_ptr().cast(), into.len()) })
}

/// Sets an attribute of the file at a path; for tests.
#[cfg(test)]
pub(crate) fn setxattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (terminated(path.as_os_str())?, terminated(OsStr::new(name))?);
    // SAFETY: both strings are terminated, and the kernel reads no more than the value's length.
    let result = unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    length(libc::ssize_t::try_from(result).unwrap_or(-1)).map(drop)
}
