//! What is being run, written down where it outlives the process that runs it.
//!
//! How many inputs there were, how long this one is, the input; numbers in 8 bytes, lowest first.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// The file, of the one who writes.
#[derive(Debug)]
pub(crate) struct Slate {
    file: File,
    bytes: Vec<u8>,
}

impl Slate {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let (file, bytes) = (File::create(path)?, Vec::new());
        Ok(Self { file, bytes })
    }

    /// Before the input is run. Who reads meanwhile may see parts of two, and their number at least.
    pub(crate) fn write(&mut self, count: u64, input: &[u8]) -> io::Result<()> {
        self.bytes.clear();
        self.bytes.extend(count.to_le_bytes());
        self.bytes.extend((input.len() as u64).to_le_bytes());
        self.bytes.extend(input);
        self.file.write_all_at(&self.bytes, 0)
    }
}

/// How many inputs there were, and the last of them; nothing before there was one.
pub(crate) fn read(path: &PathBuf) -> Option<(u64, Vec<u8>)> {
    let bytes = std::fs::read(path).ok()?;
    let (count, rest) = bytes.split_first_chunk()?;
    let (length, input) = rest.split_first_chunk()?;
    let input = input.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some((u64::from_le_bytes(*count), input.to_vec()))
}
