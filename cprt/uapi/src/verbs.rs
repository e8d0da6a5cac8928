//! The verbs for the page cache of a file: load, stop, evict, and look.
//!
//! Ranges are in bytes. `0..u64::MAX` is the whole file, however long it is: no file of Linux reaches
//! beyond `i64::MAX`, and the kernel is not asked beyond that.

use std::ops::Range;
use std::os::fd::AsFd;

use crate::bindings as c;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::FileId;
use crate::ioctl;

/// A range to bring into the page cache, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadRequest {
    flags: u32,
    file: FileId,
    offset: u64,
    length: u64,
    cookie: u64,
    charge: i32,
}

impl LoadRequest {
    /// This range, without waiting for the data; widened to whole pages, clipped to the file.
    #[must_use]
    pub fn new(file: FileId, range: Range<u64>) -> Self {
        let (offset, length) = span(range);
        Self {
            flags: 0,
            file,
            offset,
            length,
            cookie: 0,
            charge: 0,
        }
    }

    /// Return when the data is there, with the I/O errors it met.
    #[must_use]
    pub const fn wait(mut self) -> Self {
        self.flags |= c::RFS_LOAD_WAIT;
        self
    }

    /// Charge the memory cgroup of this process. Needs
    /// [`Features::CHARGE`](crate::Features::CHARGE).
    #[must_use]
    pub const fn charge(mut self, pid: i32) -> Self {
        self.flags |= c::RFS_LOAD_CHARGE;
        self.charge = pid;
        self
    }

    /// Prefer large folios to the exact range.
    #[must_use]
    pub const fn large(mut self) -> Self {
        self.flags |= c::RFS_LOAD_LARGE;
        self
    }

    /// Give it a name for [`Device::stop`].
    #[must_use]
    pub const fn cookie(mut self, cookie: u64) -> Self {
        self.cookie = cookie;
        self
    }
}

/// What a load did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes that were processed, from the start of the range.
    pub done: u64,
    /// Pages that were absent before.
    pub pages: u64,
    /// Stopped before the end: by [`Device::stop`], a signal or umount.
    pub stopped: bool,
}

/// What an eviction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Pages dropped.
    pub evicted: u64,
    /// Pages of the range that are still there: dirty, busy, or shared with a large folio that
    /// reaches outside.
    pub kept: u64,
}

/// How much of a range is in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Pages of the range, clipped to the file.
    pub pages: u64,
    /// How many of them are cached.
    pub cached: u64,
}

/// Which pages of a range are in the page cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageMap {
    residency: Residency,
    bits: Vec<u8>,
}

impl PageMap {
    /// The sums.
    #[must_use]
    pub const fn residency(&self) -> Residency {
        self.residency
    }

    /// Whether page `index` of the range is cached; beyond its end none is.
    #[must_use]
    pub fn is_cached(&self, index: u64) -> bool {
        index < self.residency.pages
            && usize::try_from(index / 8)
                .ok()
                .and_then(|byte| self.bits.get(byte))
                .is_some_and(|bits| bits >> (index % 8) & 1 == 1)
    }
}

/// How often to retry when the file, and so the clipped range, has grown between asking for its size and
/// for its pages: no program appends more often.
const GROWTH_RETRIES: usize = 8;

impl Device {
    /// Brings a range into the page cache. The calling thread's memory policy decides where new pages
    /// come from.
    ///
    /// # Errors
    ///
    /// [`Stale`](crate::ErrorKind::Stale); [`NoProcess`](crate::ErrorKind::NoProcess) if the process to
    /// charge is gone; [`Invalid`](crate::ErrorKind::Invalid) for an empty range; with
    /// [`LoadRequest::wait`] the I/O errors of the lower device.
    pub fn load(&self, request: LoadRequest) -> Result<Loaded> {
        let mut load = c::rfs_load {
            size: ioctl::size_of_argument::<c::rfs_load>(),
            flags: request.flags,
            file: request.file.as_raw(),
            offset: request.offset,
            length: request.length,
            cookie: request.cookie,
            charge: request.charge,
            ..Default::default()
        };
        self.command(&mut load)?;
        Ok(Loaded {
            done: load.done,
            pages: load.loaded,
            stopped: load.flags & c::RFS_LOAD_STOPPED != 0,
        })
    }

    /// Stops the loads in flight that have this cookie, 0 for all, and returns how many that were.
    ///
    /// # Errors
    ///
    /// [`NoDevice`](crate::ErrorKind::NoDevice) once the mount is gone.
    pub fn stop(&self, cookie: u64) -> Result<u64> {
        let mut stop = c::rfs_stop {
            size: ioctl::size_of_argument::<c::rfs_stop>(),
            cookie,
            ..Default::default()
        };
        self.command(&mut stop)?;
        Ok(stop.stopped)
    }

    /// Drops the clean pages of the range, those that processes map included; private copies are
    /// not touched. Only pages wholly inside go, and the file's last one if its end is inside.
    ///
    /// # Errors
    ///
    /// [`Stale`](crate::ErrorKind::Stale); [`Invalid`](crate::ErrorKind::Invalid) for an empty
    /// range.
    pub fn evict(&self, file: FileId, range: Range<u64>) -> Result<Evicted> {
        self.evict_with(0, file, range)
    }

    /// The same, but pages that processes map stay.
    ///
    /// # Errors
    ///
    /// Those of [`Device::evict`].
    pub fn evict_unmapped(&self, file: FileId, range: Range<u64>) -> Result<Evicted> {
        self.evict_with(c::RFS_EVICT_UNMAPPED, file, range)
    }

    fn evict_with(&self, flags: u32, file: FileId, range: Range<u64>) -> Result<Evicted> {
        let (offset, length) = span(range);
        let mut evict = c::rfs_evict {
            size: ioctl::size_of_argument::<c::rfs_evict>(),
            flags,
            file: file.as_raw(),
            offset,
            length,
            ..Default::default()
        };
        self.command(&mut evict)?;
        Ok(Evicted {
            evicted: evict.evicted,
            kept: evict.kept,
        })
    }

    /// How much of the range, widened to whole pages and clipped to the file, is cached.
    ///
    /// # Errors
    ///
    /// [`Stale`](crate::ErrorKind::Stale); [`Invalid`](crate::ErrorKind::Invalid) for an empty
    /// range.
    pub fn resident(&self, file: FileId, range: Range<u64>) -> Result<Residency> {
        self.resident_into(file, span(range), &mut [])
            .map_err(resident_error)
    }

    /// Which pages of the range are cached.
    ///
    /// # Errors
    ///
    /// Those of [`Device::resident`].
    pub fn page_map(&self, file: FileId, range: Range<u64>) -> Result<PageMap> {
        let span = span(range);
        let mut attempt = 0;
        loop {
            let residency = self
                .resident_into(file, span, &mut [])
                .map_err(resident_error)?;
            // The protocol counts the bytes of a bitmap in 32 bits: more pages is its EMSGSIZE.
            let bytes = u32::try_from(residency.pages.div_ceil(8)).unwrap_or(u32::MAX);
            let mut bits = vec![0; bytes as usize];
            if bits.is_empty() {
                return Ok(PageMap { residency, bits });
            }
            match self.resident_into(file, span, &mut bits) {
                Ok(residency) => return Ok(PageMap { residency, bits }),
                Err(error)
                    if error.raw_os_error() == Some(libc::EMSGSIZE) && attempt < GROWTH_RETRIES =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(resident_error(error)),
            }
        }
    }

    fn resident_into(
        &self,
        file: FileId,
        span: (u64, u64),
        bitmap: &mut [u8],
    ) -> std::io::Result<Residency> {
        let answer = ioctl::resident(self.as_fd(), file.as_raw(), span, bitmap)?;
        Ok(Residency {
            pages: answer.pages,
            cached: answer.cached,
        })
    }
}

fn resident_error(source: std::io::Error) -> Error {
    Error::command("RESIDENT", source)
}

/// The greatest offset in Linux. The kernel refuses a range that reaches beyond.
const LAST_OFFSET: u64 = i64::MAX.cast_unsigned();

/// Offset and length; a range that ends before it begins is as empty as any.
fn span(range: Range<u64>) -> (u64, u64) {
    (
        range.start,
        range.end.min(LAST_OFFSET).saturating_sub(range.start),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_offset_and_length() {
        let cases = [
            (0..u64::MAX, (0, LAST_OFFSET)),
            (4096..u64::MAX, (4096, LAST_OFFSET - 4096)),
            (u64::MAX - 1..u64::MAX, (u64::MAX - 1, 0)),
            (4096..8192, (4096, 4096)),
            (7..7, (7, 0)),
            (Range { start: 9, end: 7 }, (9, 0)),
        ];
        for (range, expected) in cases {
            assert_eq!(span(range), expected);
        }
    }

    #[test]
    fn load_request_builder_sets_every_field() {
        let request = LoadRequest::new(FileId::from_raw(3), 10..30)
            .wait()
            .large()
            .charge(77)
            .cookie(5);
        assert_eq!(
            request.flags,
            c::RFS_LOAD_WAIT | c::RFS_LOAD_LARGE | c::RFS_LOAD_CHARGE
        );
        assert_eq!((request.offset, request.length), (10, 20));
        assert_eq!((request.charge, request.cookie), (77, 5));
    }

    #[test]
    fn bits_of_a_page_map_count_from_the_lowest() {
        let map = PageMap {
            residency: Residency {
                pages: 10,
                cached: 3,
            },
            bits: vec![0b1000_0001, 0b1111_1110],
        };
        let cached: Vec<u64> = (0..20).filter(|&page| map.is_cached(page)).collect();
        assert_eq!(cached, [0, 7, 9], "pages beyond the tenth are not there");
    }
}
