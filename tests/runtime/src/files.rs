//! Files filled with a pattern, checks of their contents, and the state of the page cache.

use std::fs::{self, DirBuilder, File};
use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::os::linux::fs::MetadataExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::stat::{major, minor};

use crate::outcome::{For as _, Outcome, Stop, fail};
use crate::sys::{Map, PAGE};
use crate::way;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// A file below the mount, as it was made.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    /// Its path in the lower file system.
    pub(crate) lower: PathBuf,
    pub(crate) seed: u64,
    pub(crate) size: u64,
    /// Kept open all the time, if that is wanted.
    open: Option<Arc<File>>,
}

impl Pattern {
    /// Makes a file that is on the disk and not in the cache.
    pub(crate) fn make(lower: &Path, seed: u64, size: u64) -> Outcome<Self> {
        if let Some(folder) = lower.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = File::create(lower).of(lower.display())?;
        let mut offset = 0;
        while offset < size {
            let mut chunk = vec![0; usize::try_from((size - offset).min(MIB))?];
            fill(&mut chunk, seed, offset);
            file.write_all(&chunk)?;
            offset += chunk.len() as u64;
        }
        file.sync_all()?;
        let made = Self {
            open: None,
            lower: lower.to_owned(),
            seed,
            size,
        };
        made.make_cold()?;
        Ok(made)
    }

    /// Keeps the file open: a policy without the module receives each open, including the test's own, and may
    /// take it for the beginning of a load. A test's own disk cannot be unmounted meanwhile.
    pub(crate) fn kept_open(mut self) -> Outcome<Self> {
        self.open = Some(Arc::new(File::open(&self.lower)?));
        Ok(self)
    }

    /// Drops it from the page cache. The kernel promises no more than best effort, so this retries.
    pub(crate) fn make_cold(&self) -> Outcome {
        let file = match &self.open {
            Some(open) => Arc::clone(open),
            None => Arc::new(File::open(&self.lower)?),
        };
        for attempt in 0..200 {
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
            if self.cached()? == 0 {
                return Ok(());
            }
            if attempt >= 3 {
                drop_caches()?;
            }
            sleep(Duration::from_millis(10));
        }
        fail!("{} stays cached: {}", self.lower.display(), self.cached()?);
    }

    /// Which of its pages are cached.
    pub(crate) fn residency(&self) -> Outcome<Vec<bool>> {
        let view = way::view(&self.lower);
        match &self.open {
            Some(open) if view == self.lower => Ok(Map::of(open)?.residency()?),
            _ => Ok(Map::of(&File::open(view)?)?.residency()?),
        }
    }

    /// How many bytes of it are cached.
    pub(crate) fn cached(&self) -> Outcome<u64> {
        self.cached_in(0..self.size)
    }

    /// How many bytes of a range are cached, in whole pages.
    pub(crate) fn cached_in(&self, range: Range<u64>) -> Result<u64, Stop> {
        let pages = self.residency()?;
        let first = usize::try_from(range.start)? / PAGE;
        let end = usize::try_from(range.end)?.div_ceil(PAGE).min(pages.len());
        let cached = pages[first.min(end)..end].iter().filter(|&&page| page);
        Ok((cached.count() * PAGE) as u64)
    }

    /// How many of its cached pages are on each NUMA node.
    pub(crate) fn nodes(&self) -> Outcome<[usize; 2]> {
        let mut counts = [0; 2];
        for node in self.node_of_each()?.into_iter().flatten() {
            counts[node.min(1)] += 1;
        }
        Ok(counts)
    }

    /// The NUMA node of each of its pages, if cached.
    fn node_of_each(&self) -> Outcome<Vec<Option<usize>>> {
        let file = File::open(way::view(&self.lower))?;
        let map = Map::of(&file)?;
        let cached = map.residency()?;
        // Touching a cached page maps it without reading anything.
        for (page, bytes) in map.bytes().chunks(PAGE).enumerate() {
            if cached[page] {
                std::hint::black_box(bytes[0]);
            }
        }
        let nodes = map.nodes()?.into_iter().zip(cached);
        let node = |(node, cached): (i32, bool)| usize::try_from(node).ok().filter(|_| cached);
        Ok(nodes.map(node).collect())
    }
}

/// Drops all clean pages from the page cache.
pub(crate) fn drop_caches() -> Outcome {
    fs::write("/proc/sys/vm/drop_caches", "1").of("drop_caches")
}

/// The pattern: each 8 bytes are a hash of seed and offset, no two alike. The module's tests use the same.
fn word(seed: u64, offset: u64) -> u64 {
    let mixed = seed
        .wrapping_mul(0xd134_2543_de82_ef95)
        .wrapping_add(offset >> 3)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

// By whole words: in a guest, which emulates each instruction, a check by slices takes ten times as long.
fn fill(buffer: &mut [u8], seed: u64, offset: u64) {
    let (words, rest) = buffer.as_chunks_mut::<8>();
    let mut at = offset;
    for bytes in words {
        *bytes = word(seed, at).to_le_bytes();
        at += 8;
    }
    rest.copy_from_slice(&word(seed, at).to_le_bytes()[..rest.len()]);
}

/// Offset of the first wrong 8 bytes, if any. `offset` is a multiple of 8.
pub(crate) fn first_wrong(buffer: &[u8], seed: u64, offset: u64) -> Option<u64> {
    let (words, rest) = buffer.as_chunks::<8>();
    let mut at = offset;
    for bytes in words {
        if u64::from_le_bytes(*bytes) != word(seed, at) {
            return Some(at);
        }
        at += 8;
    }
    let last = &word(seed, at).to_le_bytes()[..rest.len()];
    (last != rest).then_some(at)
}

/// Makes a new directory that only root can enter, in place of any old one.
pub(crate) fn private_dir(path: &Path) -> Outcome {
    if path.exists() {
        fs::remove_dir_all(path)?;
    }
    DirBuilder::new()
        .mode(0o700)
        .create(path)
        .of(path.display())
}

fn readahead_of_lower() -> Outcome<PathBuf> {
    let device = fs::metadata(lower())?.st_dev();
    let (major, minor) = (major(device), minor(device));
    Ok(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb").into())
}

/// Where the file system under test is mounted.
pub(crate) fn lower() -> PathBuf {
    std::env::var_os("RFS_LOWER").map_or_else(|| "/lower".into(), PathBuf::from)
}

/// KiB that the kernel reads ahead on the lower device.
pub(crate) fn readahead() -> Outcome<String> {
    let path = readahead_of_lower()?;
    Ok(fs::read_to_string(&path)
        .of(path.display())?
        .trim()
        .to_owned())
}

/// Sets it for files opened from now on. The old value is restored after the test.
pub(crate) fn set_readahead(kib: &str) -> Outcome {
    let path = readahead_of_lower()?;
    fs::write(&path, kib).of(path.display())
}

/// The last MiB, at most, of a text that may be too large for memory.
pub(crate) fn tail(path: &Path) -> Outcome<String> {
    let mut file = File::open(path).of(path.display())?;
    let length = file.metadata()?.len();
    std::io::Seek::seek(
        &mut file,
        std::io::SeekFrom::Start(length.saturating_sub(MIB)),
    )?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found_where_it_is() {
        let mut buffer = vec![0; 8192 + 3];
        fill(&mut buffer, 7, 4096);
        assert_eq!(first_wrong(&buffer, 7, 4096), None);
        assert_eq!(first_wrong(&buffer, 8, 4096), Some(4096));
        buffer[4090] ^= 1;
        assert_eq!(first_wrong(&buffer, 7, 4096), Some(4096 + 4088));
        buffer[4090] ^= 1;
        buffer[8194] ^= 1;
        assert_eq!(first_wrong(&buffer, 7, 4096), Some(4096 + 8192));
    }
}
