//! Pages of a file that stay in the page cache whatever reclaims.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{FcntlArg, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe;

/// The size of a pipe that any process may have.
const PIPE: usize = 1 << 20;

/// Keeps pages of a file cached until it is dropped: pipes refer to each of them, and the kernel reclaims no page that
/// anything refers to. Some machines page out a few pages of any file that was not accessed for seconds, which is a
/// loss that a test may not have meant.
#[derive(Debug)]
pub struct Held {
    /// The ends that would be read; nothing is.
    pipes: Vec<OwnedFd>,
}

impl Held {
    /// # Errors
    ///
    /// The file cannot be read, or there may be no more pipes.
    pub fn new(file: &File, range: Range<u64>) -> io::Result<Self> {
        let mut at = i64::try_from(range.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut pipes = Vec::new();
        for begin in range.clone().step_by(PIPE) {
            let left =
                usize::try_from(range.end - begin).map_err(|_| io::ErrorKind::FileTooLarge)?;
            pipes.push(filled(file, &mut at, left.min(PIPE))?);
        }
        Ok(Self { pipes })
    }

    /// Lets the kernel reclaim them again, as dropping it does.
    pub fn release(self) {
        drop(self.pipes);
    }
}

/// A pipe with the pages of the file's next bytes.
fn filled(file: &File, at: &mut i64, mut left: usize) -> io::Result<OwnedFd> {
    let (pages, into) = pipe()?;
    let size = i32::try_from(PIPE).unwrap_or(i32::MAX);
    fcntl(&into, FcntlArg::F_SETPIPE_SZ(size))?;
    while left > 0 {
        // Without waiting: a pipe that is full too early is an error, and no test that hangs.
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK;
        let got = splice(file.as_fd(), Some(at), into.as_fd(), None, left, flags)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= got;
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::Folder;

    #[test]
    fn pages_held_are_those_of_the_cache() {
        let folder = Folder::new("test-support-held");
        let path = folder.write("f", vec![7; 3 << 20]);
        let file = File::options().read(true).write(true).open(&path);
        let file = file.expect("to open it");
        let held = Held::new(&file, 0..3 << 20).expect("to hold it");
        file.write_at(&[8], 2 << 20).expect("to write");
        let mut pages = Vec::new();
        for pipe in held.pipes {
            File::from(pipe)
                .read_to_end(&mut pages)
                .expect("to read them");
        }
        let mut expected = vec![7; 3 << 20];
        expected[2 << 20] = 8;
        assert!(pages == expected, "one byte was written after that");
    }
}
