//! A file as a worker accesses it: mapped, or read into a buffer.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::profile::Access;
use crate::sys::{Anonymous, Mapped};
use crate::units::{MIB, PAGE, index};

/// The size of the pieces in which a worker reads.
pub(super) const PIECE: u64 = 4 * MIB;

#[derive(Debug)]
pub(super) enum Source {
    Mapped(Mapped),
    Read { file: File, buffer: Anonymous },
}

impl Source {
    pub(super) fn open(path: &Path, access: Access) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true);
        if access == Access::Direct {
            options.custom_flags(libc::O_DIRECT);
        }
        let file = options.open(path)?;
        Ok(match access {
            Access::Kept | Access::Dropped => Self::Mapped(Mapped::new(&file)?),
            Access::Pread | Access::Direct => Self::Read {
                file,
                // With room for the rest of the pages around a piece.
                buffer: Anonymous::new(PIECE + 2 * PAGE)?,
            },
        })
    }

    /// The bytes of a piece.
    pub(super) fn piece(&mut self, range: &Range<u64>) -> io::Result<&[u8]> {
        match self {
            Self::Mapped(mapped) => {
                let bytes = mapped.bytes().get(index(range.start)..index(range.end));
                bytes.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
            }
            Self::Read { file, buffer } => {
                // O_DIRECT reads only whole pages.
                let from = range.start / PAGE * PAGE;
                let wanted = range.end.next_multiple_of(PAGE) - from;
                let skip = index(range.start - from);
                let needed = index(range.end - from);
                let bytes = &mut buffer.bytes_mut()[..index(wanted)];
                let mut read = 0;
                while read < needed {
                    match file.read_at(&mut bytes[read..], from + read as u64)? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        more => read += more,
                    }
                }
                Ok(&bytes[skip..needed])
            }
        }
    }
}
