//! The running input, in a file that outlives the process: its length in 8 bytes, lowest first, then its
//! bytes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The file, in the process that runs inputs.
#[derive(Debug)]
pub struct Slate {
    file: File,
    bytes: Vec<u8>,
}

impl Slate {
    /// Creates the file.
    ///
    /// # Errors
    ///
    /// Those of [`File::create`].
    pub fn create(path: &Path) -> io::Result<Self> {
        let (file, bytes) = (File::create(path)?, Vec::new());
        Ok(Self { file, bytes })
    }

    /// Replaces the previous input with this one.
    ///
    /// # Errors
    ///
    /// Those of a write.
    pub fn write(&mut self, input: &[u8]) -> io::Result<()> {
        self.bytes.clear();
        self.bytes.extend((input.len() as u64).to_le_bytes());
        self.bytes.extend(input);
        self.file.write_all_at(&self.bytes, 0)
    }
}

/// The last input that was written; `None` if none was.
#[must_use]
pub fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(path).ok()?;
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    Some(rest.get(..length)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_input_is_read_back_though_one_before_it_was_longer() {
        let path = std::env::temp_dir().join(format!("fuzz-slate-{}", std::process::id()));
        let mut slate = Slate::create(&path).expect("a file");
        assert_eq!(read(&path), None);
        for input in [&b"a longer input"[..], b"short", b""] {
            slate.write(input).expect("a write");
            assert_eq!(read(&path).as_deref(), Some(input));
        }
        fs::remove_file(path).expect("the file");
    }
}
