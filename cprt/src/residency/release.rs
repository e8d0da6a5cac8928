//! Takes a file out of the page cache, and says why the rest stays.

use std::fs::File;
use std::io;
use std::ops::Range;

use serde::Serialize;

use super::{Cache, CacheFile, plain};
use crate::backend::Fault;
use crate::machine::mappings;
use crate::machine::ranges::Ranges;
use crate::sys::window::Window;
use crate::sys::{cache, page_size};

/// Bytes looked at through one mapping.
const WINDOW: u64 = 256 << 20;

/// Upper bound on tries at a file. A page that is being written stays, and may have been written before the kernel is
/// asked why: with no reason left to stay, it goes at the next try.
const TRIES: usize = 3;

/// What became of a file's cached pages, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Released {
    /// Cached before; `None`, here and below, if the kernel does not tell this user.
    pub before: Option<u64>,
    /// Cached afterwards.
    pub after: Option<u64>,
    /// Of these, what is not on the device yet.
    pub dirty: u64,
    /// Of these, what processes map.
    pub mapped: u64,
    /// Of what they map, what one of them has locked into memory.
    pub locked: u64,
    /// These processes.
    pub processes: Vec<u32>,
}

impl Released {
    /// How many bytes stay for another reason than these.
    #[must_use]
    pub fn stay_unexplained(&self) -> u64 {
        let explained = self.dirty + self.mapped;
        self.after.unwrap_or(0).saturating_sub(explained)
    }
}

impl Cache {
    /// Drops all pages of a file that are on the device and that no process maps.
    ///
    /// # Errors
    ///
    /// The file is gone, or may not be read.
    pub fn release(&self, file: &CacheFile) -> io::Result<Released> {
        let opened = file.open()?;
        let all = 0..opened.metadata()?.len();
        let before = match self.engine.resident(&opened, &all) {
            Err(Fault::Io(error)) if error.raw_os_error() == Some(libc::EPERM) => {
                let all = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
                nix::fcntl::posix_fadvise(&opened, 0, 0, all)?;
                return Ok(Released::default());
            }
            done => done.map_err(plain)?,
        };
        let mut released = Released {
            before: Some(before),
            after: Some(before),
            ..Released::default()
        };
        for _ in 0..TRIES {
            if released.stay_unexplained() == 0 {
                break;
            }
            self.engine.evict(&opened, &all, true).map_err(plain)?;
            let after = self.engine.resident(&opened, &all).map_err(plain)?;
            released = Released {
                before: Some(before),
                after: Some(after),
                ..Released::default()
            };
            if after > 0 {
                explain(file, &opened, &all, &mut released)?;
            }
        }
        Ok(released)
    }
}

impl Cache {
    /// Drops the pages of a range that are on the device and that no process maps; returns how many bytes went, and
    /// how many stay.
    pub(crate) fn release_range(
        &self,
        file: &CacheFile,
        range: &Range<u64>,
    ) -> io::Result<(u64, u64)> {
        let opened = file.open()?;
        let before = self.engine.resident(&opened, range).map_err(plain)?;
        if before == 0 {
            return Ok((0, 0));
        }
        let evicted = self.engine.evict(&opened, range, true).map_err(plain)?;
        let after = self.engine.resident(&opened, range).map_err(plain)?;
        Ok((evicted.dropped.min(before.saturating_sub(after)), after))
    }

    /// The cached parts of a range.
    pub(crate) fn cached(&self, file: &CacheFile, range: &Range<u64>) -> io::Result<Ranges> {
        let opened = file.open()?;
        let end = range.end.min(opened.metadata()?.len());
        let range = range.start.min(end)..end;
        if self.engine.resident(&opened, &range).map_err(plain)? == range.end - range.start {
            return Ok([range].into_iter().collect());
        }
        cached(&opened, &range, page_size())
    }
}

/// Finds out why pages stay.
fn explain(
    file: &CacheFile,
    opened: &File,
    all: &Range<u64>,
    released: &mut Released,
) -> io::Result<()> {
    let page = page_size();
    let length = all.end - all.start;
    // Before Linux 6.5 it is not known.
    let dirty = cache::dirty(opened, all).unwrap_or(0) * page;
    released.dirty = dirty.min(length);
    let mappers = mappings::all_of(file.identity(), None);
    if mappers.is_empty() {
        return Ok(());
    }
    let cached = cached(opened, all, page)?;
    let (mut mapped, mut locked) = (Ranges::default(), Ranges::default());
    for (process, of_one) in &mappers {
        for mapping in of_one {
            mapped.insert(&mapping.range());
            if mappings::is_locked(*process, mapping) {
                locked.insert(&mapping.range());
            }
        }
    }
    released.mapped = common(&cached, &mapped);
    released.locked = common(&cached, &locked);
    released.processes = mappers.iter().map(|(process, _)| *process).collect();
    Ok(())
}

/// How many bytes are in both sets.
fn common(one: &Ranges, other: &Ranges) -> u64 {
    one.iter().map(|range| other.within(&range)).sum()
}

/// The cached ranges of a file; the last page ends with it.
pub(super) fn cached(file: &File, all: &Range<u64>, page: u64) -> io::Result<Ranges> {
    let mut ranges = Ranges::default();
    let mut pages = Vec::new();
    let mut at = all.start / page * page;
    while at < all.end {
        let end = all.end.min(at + WINDOW);
        Window::of(file, &(at..end))?.resident(page, &mut pages)?;
        for run in runs(&pages) {
            let end = at + run.end as u64 * page;
            ranges.insert(&(at + run.start as u64 * page..end.min(all.end)));
        }
        at = end;
    }
    Ok(ranges)
}

/// The runs of cached pages.
pub(super) fn runs(pages: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (place, _) in pages
        .iter()
        .enumerate()
        .filter(|(_, state)| **state & 1 != 0)
    {
        match runs.last_mut() {
            Some(run) if run.end == place => run.end += 1,
            _ => runs.push(place..place + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_of_the_lowest_bits() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[0, 1, 3, 2, 1]), [1..3, 4..5]);
    }

    #[test]
    fn bytes_shared_by_two_sets_are_counted_once() {
        let set = |ranges: [Range<u64>; 2]| ranges.into_iter().collect::<Ranges>();
        assert_eq!(common(&set([0..10, 20..30]), &set([5..25, 29..40])), 11);
    }
}
