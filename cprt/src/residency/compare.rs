//! Compares the cached pages of a file with its contents on the device.
//!
//! The device is read by `O_DIRECT`, the cache through a mapping, a window at a time. Pages that are not cached stay
//! so. Some file systems accept `O_DIRECT` and answer from the page cache nevertheless, so the kernel's own account of
//! this thread's reads has to confirm each window.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, FsType, NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, fstatfs};
use serde::Serialize;

use super::release::runs;
use super::{Cache, CacheFile};
use crate::sys::window::Window;
use crate::sys::{cache, page_size};

/// Bytes read at once, a multiple of [`ALIGNED`].
const WINDOW: u64 = 4 << 20;
/// Where a read of a device begins and ends: at a block, however large that is.
const ALIGNED: u64 = 64 << 10;
/// Bytes to request at once, which is hardly ever more than a device's readahead.
const STEP: u64 = 128 << 10;
/// File systems over a network, whose reads the kernel does not account for as a device's: SMB, Ceph, 9P, Lustre.
const DISTANT: [u32; 4] = [0xff53_4d42, 0x00c3_6400, 0x0102_1997, 0x0bd0_0bd0];

/// Receives bytes of a file, in order.
pub type Contents<'a> = &'a mut dyn FnMut(&[u8]);

/// What to do with a file.
pub struct Wanted<'a> {
    /// Compare pages, too, that are not cached: each is read into the cache, and dropped.
    pub all: bool,
    /// Receives the whole file in order: as the cache has it, and the rest from the device.
    pub contents: Option<Contents<'a>>,
    /// Receives each range that is done, and answers whether to continue.
    pub goes_on: &'a mut dyn FnMut(u64) -> bool,
}

impl std::fmt::Debug for Wanted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wanted")
            .field("all", &self.all)
            .finish_non_exhaustive()
    }
}

/// The result for a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Bytes of the file that the page cache had.
    pub cached: u64,
    /// Bytes that were compared.
    pub compared: u64,
    /// Where they differ.
    pub damage: Option<Damage>,
    /// Why not all were compared that should have been.
    pub obstacle: Option<Obstacle>,
}

/// Pages of the cache that differ from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The first byte that differs.
    pub offset: u64,
    /// From there to the end of the last of the pages that follow each other and differ.
    pub length: u64,
    /// How many such extents there are.
    pub extents: u64,
    /// How many pages differ.
    pub pages: u64,
    /// The end of the last extent.
    #[serde(skip)]
    end: u64,
}

/// Why pages were not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obstacle {
    /// The file system refuses `O_DIRECT`.
    NoDirect,
    /// It accepts it and answers from memory.
    FromMemory,
    /// The kernel does not tell this user what is cached.
    NotTold,
    /// The file was written meanwhile.
    Changed,
    /// The caller asked it to stop.
    Stopped,
    /// The system's error.
    Failed(String),
}

impl Obstacle {
    /// Whether contents whose hash is right prove as much as the device would.
    #[must_use]
    pub const fn is_outdone_by_hash(&self) -> bool {
        matches!(self, Self::NoDirect | Self::FromMemory)
    }
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoDirect => {
                f.write_str("its file system does not support O_DIRECT; only hashes can check it")
            }
            Self::FromMemory => f.write_str(
                "its file system answers O_DIRECT from memory; only hashes can check it",
            ),
            Self::NotTold => f.write_str(
                "the kernel shows only its owner and root what is cached; try as one of these",
            ),
            Self::Changed => f.write_str("it was written during the check; try again"),
            Self::Stopped => f.write_str("interrupted"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl Cache {
    /// Compares a file.
    ///
    /// # Errors
    ///
    /// The file is gone, or may not be read.
    pub fn compare(&self, file: &CacheFile, wanted: &mut Wanted<'_>) -> io::Result<Comparison> {
        let opened = file.open()?;
        let before = stamp(&opened)?;
        let mut comparer = Comparer::new(&opened, before.0)?;
        if let Err(obstacle) = comparer.run(wanted) {
            comparer.outcome.obstacle = Some(obstacle);
        }
        let mut outcome = comparer.outcome;
        if stamp(&opened)? != before {
            outcome.obstacle = Some(Obstacle::Changed);
            outcome.damage = None;
        }
        Ok(outcome)
    }
}

/// What changes when a file is written: its length and the time of its last change.
fn stamp(file: &File) -> io::Result<(u64, i64, i64)> {
    let metadata = file.metadata()?;
    Ok((metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

/// The comparison of one file under way.
struct Comparer<'a> {
    file: &'a File,
    direct: Option<File>,
    /// The kernel accounts for what this file system's devices deliver.
    accounts: bool,
    told: bool,
    size: u64,
    page: u64,
    device: Aligned,
    memory: Vec<u8>,
    /// Ranges that were not cached before, to drop again.
    brought_in: Vec<Range<u64>>,
    outcome: Comparison,
}

impl<'a> Comparer<'a> {
    fn new(file: &'a File, size: u64) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(path);
        let direct = match direct {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
            done => Some(done?),
        };
        let told = cache::may_ask(file);
        let obstacle = match (told, &direct) {
            (false, _) => Some(Obstacle::NotTold),
            (_, None) => Some(Obstacle::NoDirect),
            _ => None,
        };
        let kind = fstatfs(file)?.filesystem_type();
        Ok(Self {
            file,
            direct,
            accounts: !is_distant(kind),
            told,
            size,
            page: page_size(),
            device: Aligned::new(),
            memory: Vec::new(),
            brought_in: Vec::new(),
            outcome: Comparison {
                obstacle,
                ..Comparison::default()
            },
        })
    }

    fn run(&mut self, wanted: &mut Wanted<'_>) -> Result<(), Obstacle> {
        let mut at = 0;
        while at < self.size {
            let window = at..self.size.min(at + WINDOW);
            self.window(&window, wanted).map_err(|error| {
                if error.kind() == io::ErrorKind::UnexpectedEof {
                    Obstacle::Changed
                } else {
                    Obstacle::Failed(format!("reading at {at}: {error}"))
                }
            })?;
            at = window.end;
            if !(wanted.goes_on)(window.end - window.start) && at < self.size {
                return Err(Obstacle::Stopped);
            }
        }
        Ok(())
    }

    fn window(&mut self, window: &Range<u64>, wanted: &mut Wanted<'_>) -> io::Result<()> {
        let mapped = Window::of(self.file, window)?;
        let mut cached = Vec::new();
        if self.told {
            let mut pages = Vec::new();
            mapped.resident(self.page, &mut pages)?;
            let bytes = |run: Range<usize>| {
                let place = |page: usize| window.start + page as u64 * self.page;
                place(run.start)..place(run.end).min(window.end)
            };
            cached.extend(runs(&pages).into_iter().map(bytes));
        }
        self.outcome.cached += cached.iter().map(length).sum::<u64>();
        if wanted.contents.is_none() && !wanted.all {
            for range in &cached {
                self.range(&mapped, window, range, std::slice::from_ref(range), false)?;
            }
            return Ok(());
        }
        let compared = self.range(&mapped, window, window, &cached, wanted.all);
        // What is mapped cannot be dropped.
        drop(mapped);
        for range in self.brought_in.drain(..) {
            advise(self.file, &range, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        }
        compared?;
        if let Some(contents) = &mut wanted.contents {
            contents(&self.memory);
        }
        Ok(())
    }

    /// Compares what is cached of a range of the window, or with `all` the whole of it.
    fn range(
        &mut self,
        mapped: &Window,
        window: &Range<u64>,
        range: &Range<u64>,
        cached: &[Range<u64>],
        all: bool,
    ) -> io::Result<()> {
        let has_device = self.read_device(range)?;
        let base = range.start;
        let within = |part: &Range<u64>| place(part.start - base)..place(part.end - base);
        self.memory.resize(place(length(range)), 0);
        let copy = |part: &Range<u64>, into: &mut [u8]| {
            if mapped.copy(place(part.start - window.start), into)? == into.len() {
                Ok(())
            } else {
                Err(io::Error::from(io::ErrorKind::UnexpectedEof))
            }
        };
        for part in cached {
            copy(part, &mut self.memory[within(part)])?;
        }
        for part in gaps(range, cached) {
            let into = &mut self.memory[within(&part)];
            if has_device && !all {
                into.copy_from_slice(&self.device.bytes()[within(&part)]);
                continue;
            }
            // Exactly these pages: of a read, the kernel would bring in what follows as well.
            advise(self.file, &part, PosixFadviseAdvice::POSIX_FADV_WILLNEED)?;
            self.brought_in.push(part.clone());
            copy(&part, into)?;
        }
        if has_device {
            let whole = [range.clone()];
            for part in if all { &whole } else { cached } {
                let (memory, device) = (&self.memory[within(part)], self.device.bytes());
                let device = &device[within(part)];
                compare(
                    &mut self.outcome.damage,
                    part.start,
                    memory,
                    device,
                    self.page,
                );
                self.outcome.compared += length(part);
            }
        }
        Ok(())
    }

    /// Reads a range from the device; returns whether it was the device that answered.
    fn read_device(&mut self, range: &Range<u64>) -> io::Result<bool> {
        let Some(direct) = &self.direct else {
            return Ok(false);
        };
        let before = if self.accounts { delivered() } else { None };
        let got = match self.device.read(direct, range) {
            // Some file systems accept the flag and refuse the reads.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.direct = None;
                self.hindered(Obstacle::NoDirect);
                return Ok(false);
            }
            done => done?,
        };
        if (got as u64) < length(range) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let came = before.and_then(|before| Some(delivered()?.saturating_sub(before)));
        if came.is_some_and(|came| came < length(range) && came < certain(self.device.bytes())) {
            self.hindered(Obstacle::FromMemory);
            return Ok(false);
        }
        Ok(true)
    }

    fn hindered(&mut self, by: Obstacle) {
        self.outcome.obstacle.get_or_insert(by);
    }
}

/// Compares page by page, and adds what differs.
fn compare(damage: &mut Option<Damage>, offset: u64, memory: &[u8], device: &[u8], page: u64) {
    if memory == device {
        return;
    }
    let size = place(page);
    let pairs = memory.chunks(size).zip(device.chunks(size));
    for (at, (one, other)) in (offset..).step_by(size).zip(pairs) {
        let differs = one.iter().zip(other).position(|(a, b)| a != b);
        if let Some(first) = differs {
            let page = at..at + one.len() as u64;
            Damage::add(damage, &page, at + first as u64);
        }
    }
}

impl Damage {
    /// Adds a page that comes after all others, and its first byte that differs.
    fn add(damage: &mut Option<Self>, page: &Range<u64>, first: u64) {
        let damage = damage.get_or_insert(Self {
            offset: first,
            length: 0,
            extents: 0,
            pages: 0,
            end: 0,
        });
        if damage.pages == 0 || damage.end != page.start {
            damage.extents += 1;
        }
        damage.pages += 1;
        damage.end = page.end;
        if damage.extents == 1 {
            damage.length = page.end - damage.offset;
        }
    }
}

/// Advises the kernel, in steps: it requests no more at a time than the device's readahead.
fn advise(file: &File, range: &Range<u64>, advice: PosixFadviseAdvice) -> io::Result<()> {
    for start in (range.start..range.end).step_by(place(STEP)) {
        let bytes = STEP.min(range.end - start);
        posix_fadvise(file, start.cast_signed(), bytes.cast_signed(), advice)?;
    }
    Ok(())
}

/// The parts of a range between others, which are in it and in order.
fn gaps(range: &Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let starts = std::iter::once(range.start).chain(others.iter().map(|it| it.end));
    let ends = others.iter().map(|it| it.start).chain([range.end]);
    let gaps = starts.zip(ends).map(|(start, end)| start..end);
    gaps.filter(|gap| !gap.is_empty()).collect()
}

/// A buffer whose memory a device can write to.
struct Aligned {
    memory: Vec<u8>,
    shift: usize,
    /// The requested part of the bytes that were read.
    part: Range<usize>,
}

impl Aligned {
    const MEMORY: usize = 64 << 10;

    fn new() -> Self {
        // Written to, so that it is there: btrfs would read through the page cache into memory that is not.
        let memory = vec![1; place(WINDOW) + Self::MEMORY];
        // At most the one that was added.
        let shift = memory.as_ptr().align_offset(Self::MEMORY).min(Self::MEMORY);
        Self {
            memory,
            shift,
            part: 0..0,
        }
    }

    /// Reads a range that lies in one window; returns how many bytes of it there are.
    fn read(&mut self, file: &File, range: &Range<u64>) -> io::Result<usize> {
        let start = range.start / ALIGNED * ALIGNED;
        let whole = place(range.end.next_multiple_of(ALIGNED) - start);
        let buffer = &mut self.memory[self.shift..self.shift + whole];
        let mut done = 0;
        while done < whole {
            match file.read_at(&mut buffer[done..], start + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What is left begins behind the end of the file, amid a block.
                Err(error) if done > 0 && error.raw_os_error() == Some(libc::EINVAL) => break,
                Err(error) => return Err(error),
            }
        }
        let from = place(range.start - start);
        let to = done.clamp(from, from + place(length(range)));
        self.part = self.shift + from..self.shift + to;
        Ok(to - from)
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.part.clone()]
    }
}

/// Whether a network or a program serves it, so that no device is accounted for.
fn is_distant(kind: FsType) -> bool {
    let number = u32::try_from(kind.0 & 0xffff_ffff).unwrap_or(0);
    [FUSE_SUPER_MAGIC, NFS_SUPER_MAGIC, SMB_SUPER_MAGIC].contains(&kind)
        || DISTANT.contains(&number)
}

/// Bytes that devices have delivered for this thread; `None` where the kernel keeps no account.
fn delivered() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/io").ok()?;
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix("read_bytes: "))?
        .parse()
        .ok()
}

/// How many bytes a device has to deliver for these at least: none for zeros, because they may be a hole.
fn certain(bytes: &[u8]) -> u64 {
    /// The smallest block of a device.
    const BLOCK: usize = 512;
    let is_certain = |block: &&[u8]| block.iter().any(|&byte| byte != 0);
    (bytes.chunks(BLOCK).filter(is_certain).count() * BLOCK) as u64
}

const fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// A place within a window, which is small.
fn place(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
