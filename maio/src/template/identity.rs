//! Whether a file is still the one that was read.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::extent::PAGE;

/// How much of a file's beginning is hashed: the names, shapes and places of a few hundred tensors.
pub const HEADER: usize = 64 << 10;

/// A file of the model, as it was when it was read, or in a template of a start also a directory that was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// From the model's directory. Files whose path is not UTF-8 are in no template. That of a directory ends with a
    /// slash.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// Last change of its contents, in ns since 1970.
    pub mtime_ns: i64,
    /// Its number on its file system; 0 = unknown.
    pub inode: u64,
    /// The [`header_hash`] of its beginning; 0 = unknown.
    pub header: u64,
}

/// Whether a path is that of a directory that was listed.
pub(crate) fn is_folder(path: &str) -> bool {
    path.ends_with('/')
}

/// How a file compares to what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sameness {
    /// It is the same file.
    Same,
    /// It has the same contents elsewhere: copied, restored, or on another node. What was recorded
    /// of it holds.
    Moved,
    /// It has other contents.
    Changed,
}

impl Identity {
    /// A directory, of one page: its names are whatever they are when it is listed again.
    #[must_use]
    pub const fn folder(path: String) -> Self {
        Self {
            path,
            size: PAGE,
            mtime_ns: 0,
            inode: 0,
            header: 0,
        }
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        is_folder(&self.path)
    }

    /// What a file in a model's directory is, its beginning included. For tools: the policy asks its host.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is not a regular file.
    pub fn read(directory: &Path, path: &str) -> io::Result<Self> {
        let file = File::open(directory.join(path))?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut beginning = Vec::new();
        file.take(u64::try_from(HEADER).unwrap_or(0))
            .read_to_end(&mut beginning)?;
        Ok(Self {
            path: path.to_owned(),
            size: metadata.size(),
            mtime_ns: metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec(),
            inode: metadata.ino(),
            header: header_hash(&beginning),
        })
    }

    /// What became of this file. Paths are not compared.
    #[must_use]
    pub fn same(&self, now: &Self) -> Sameness {
        let headers = self.header != 0 && now.header != 0;
        let time = self.mtime_ns == now.mtime_ns;
        let inode = self.inode == now.inode || self.inode == 0 || now.inode == 0;
        let contents = if headers {
            self.header == now.header
        } else {
            time
        };
        if self.size != now.size || !contents {
            Sameness::Changed
        } else if time && inode {
            Sameness::Same
        } else {
            Sameness::Moved
        }
    }
}

/// The hash of a file's beginning: the first 8 bytes of the SHA-256 of its first [`HEADER`] bytes, or of the whole file
/// if it is shorter. The result is never 0, which stands for no hash.
#[must_use]
pub fn header_hash(beginning: &[u8]) -> u64 {
    let header = &beginning[..beginning.len().min(HEADER)];
    let hash = Sha256::digest(header)
        .iter()
        .take(8)
        .fold(0, |hash, &byte| hash << 8 | u64::from(byte));
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_decide_where_they_are_known_and_times_where_they_are_not() {
        let file = |size, mtime_ns, inode, header| Identity {
            path: "model.safetensors".to_owned(),
            size,
            mtime_ns,
            inode,
            header,
        };
        let was = file(10, 5, 7, 99);
        let table = [
            (file(10, 5, 7, 99), Sameness::Same),
            (file(10, 5, 0, 99), Sameness::Same),
            (file(10, 6, 7, 99), Sameness::Moved),
            (file(10, 5, 8, 99), Sameness::Moved),
            (file(10, 6, 8, 99), Sameness::Moved),
            (file(10, 5, 7, 98), Sameness::Changed),
            (file(11, 5, 7, 99), Sameness::Changed),
            (file(10, 5, 7, 0), Sameness::Same),
            (file(10, 5, 8, 0), Sameness::Moved),
            (file(10, 6, 7, 0), Sameness::Changed),
            (file(11, 5, 7, 0), Sameness::Changed),
        ];
        for (now, expected) in table {
            assert_eq!(was.same(&now), expected, "{now:?}");
            assert_eq!(now.same(&was), expected, "{now:?} the other way round");
        }
    }

    #[test]
    fn the_hash_is_of_the_first_64_kib_and_never_unknown() {
        // printf abc | sha256sum
        assert_eq!(header_hash(b"abc"), 0xba78_16bf_8f01_cfea);
        let mut bytes = vec![1; HEADER];
        let hash = header_hash(&bytes);
        bytes.push(2);
        assert_eq!(header_hash(&bytes), hash);
        bytes[HEADER - 1] = 3;
        assert_ne!(header_hash(&bytes), hash);
        assert_ne!(header_hash(&[]), 0);
    }
}
