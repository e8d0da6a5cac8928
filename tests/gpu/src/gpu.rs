//! A GPU, and the copying of files to it. The only module with unsafe code here, for buffers that are not
//! filled yet.
#![allow(unsafe_code, reason = "pinned buffers are handed out unfilled")]

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, PinnedHostSlice, result, sys};

/// Bytes that are copied at a time.
const CHUNK: usize = 16 << 20;

/// Why the tests cannot run here, if they cannot.
#[must_use]
pub fn why_not() -> Option<String> {
    // cudarc panics at the first call without its library.
    // SAFETY: loading the driver's library runs nothing but its own initialisers.
    if !unsafe { sys::is_culib_present() } {
        return Some("no CUDA driver (libcuda.so.1)".to_owned());
    }
    if let Err(error) = result::init() {
        return Some(format!("the CUDA driver does not start: {error:?}"));
    }
    match CudaContext::device_count() {
        Ok(0) => Some("CUDA shows no GPU".to_owned()),
        Ok(_) => None,
        Err(error) => Some(format!(
            "CUDA does not say how many GPUs there are: {error:?}"
        )),
    }
}

/// A GPU that this process uses, with two pinned buffers that take turns.
#[derive(Debug)]
pub struct Gpu {
    stream: Arc<CudaStream>,
    buffers: [PinnedHostSlice<u8>; 2],
}

impl Gpu {
    /// Opens the GPU with this CUDA ordinal. The buffers are on the calling thread's node.
    ///
    /// # Errors
    ///
    /// CUDA fails; [`why_not`] gives the reason beforehand.
    pub fn open(ordinal: usize) -> Result<Self, Box<dyn Error>> {
        let context = CudaContext::new(ordinal)?;
        let stream = context.default_stream();
        // The buffers are only for the device to read.
        let pinned = || -> Result<PinnedHostSlice<u8>, Box<dyn Error>> {
            // SAFETY: any contents are valid bytes, and each is written before it is copied.
            Ok(unsafe { context.alloc_pinned_with_flags(CHUNK, 0) }?)
        };
        let buffers = [pinned()?, pinned()?];
        Ok(Self { stream, buffers })
    }

    /// Copies a file to the GPU, through the page cache.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or the GPU has no room.
    pub fn load(&mut self, path: &Path) -> Result<CudaSlice<u8>, Box<dyn Error>> {
        let file = File::open(path)?;
        let size = usize::try_from(file.metadata()?.len())?;
        let mut there = self.stream.alloc_zeros::<u8>(size.max(1))?;
        for (number, range) in chunks(size).enumerate() {
            // Writing to a buffer waits until it has been copied; meanwhile the other one is being copied.
            let buffer = &mut self.buffers[number % 2];
            let part = range.len();
            file.read_exact_at(&mut buffer.as_mut_slice()?[..part], range.start as u64)?;
            let mut place = there.slice_mut(range);
            if part == CHUNK {
                self.stream.memcpy_htod(buffer, &mut place)?;
            } else {
                self.stream
                    .memcpy_htod(&buffer.as_slice()?[..part], &mut place)?;
                self.stream.synchronize()?;
            }
        }
        self.stream.synchronize()?;
        Ok(there)
    }

    /// Copies the bytes on the GPU back.
    ///
    /// # Errors
    ///
    /// The GPU has failed.
    pub fn bytes(&self, there: &CudaSlice<u8>) -> Result<Vec<u8>, Box<dyn Error>> {
        let back = self.stream.clone_dtoh(there)?;
        self.stream.synchronize()?;
        Ok(back)
    }
}

/// Pieces of a fixed size in bytes, the last of which may be smaller.
fn chunks(size: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..size)
        .step_by(CHUNK)
        .map(move |start| start..size.min(start + CHUNK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_all_of_a_file() {
        assert_eq!(chunks(0).count(), 0);
        assert_eq!((chunks(5).count(), chunks(5).next()), (1, Some(0..5)));
        let of_two: Vec<_> = chunks(2 * CHUNK).collect();
        assert_eq!(of_two, [0..CHUNK, CHUNK..2 * CHUNK]);
        assert_eq!(chunks(CHUNK + 1).last(), Some(CHUNK..CHUNK + 1));
    }

    #[test]
    fn reason_for_a_missing_gpu_mentions_cuda() {
        if let Some(why) = why_not() {
            assert!(why.contains("CUDA"), "{why}");
        }
    }
}
