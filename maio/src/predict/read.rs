//! Reads parts of files. Their lengths come from the files themselves, so memory grows only with what has
//! really been read.

use std::io;

use super::Library;
use super::error::Damage;

/// Upper bound on the bytes read at once: few reads, and little memory for a false length.
pub(super) const CHUNK: u64 = 1 << 20;

/// Reads a range of a file, all of it or nothing.
pub(super) fn range(
    library: &dyn Library,
    path: &str,
    offset: u64,
    length: u64,
) -> Result<Vec<u8>, Damage> {
    let mut bytes = Vec::new();
    let mut at = 0;
    while at < length {
        let most = usize::try_from(CHUNK.min(length - at)).map_err(|_| Damage::Long(length))?;
        let start = bytes.len();
        bytes.resize(start + most, 0);
        let read = once(
            library,
            path,
            offset.saturating_add(at),
            &mut bytes[start..],
        )?;
        if read == 0 {
            return Err(Damage::Short);
        }
        bytes.truncate(start + read);
        at += read as u64;
    }
    Ok(bytes)
}

/// Reads once, again if a signal interrupts it, and reports no more bytes than the buffer has room for.
pub(super) fn once(
    library: &dyn Library,
    path: &str,
    offset: u64,
    buffer: &mut [u8],
) -> io::Result<usize> {
    loop {
        match library.read(path, offset, buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(|read| read.min(buffer.len())),
        }
    }
}
