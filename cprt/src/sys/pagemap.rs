//! Finds the present pages of a process, by the kernel's walk over its page tables.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// The flag of a present page in an entry of the older interface, the file itself.
const ENTRY_PRESENT: u64 = 1 << 63;

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// The page tables of a process.
#[derive(Debug)]
pub(crate) struct Pagemap {
    file: File,
    scans: bool,
}

impl Pagemap {
    pub(crate) fn open(process: u32) -> io::Result<Self> {
        let file = File::open(format!("/proc/{process}/pagemap"))?;
        Ok(Self { file, scans: true })
    }

    /// The ranges of addresses that have a page, in order and joined. From Linux 6.7 on, the kernel walks the
    /// tables; before that, the entry of every page has to be read.
    pub(crate) fn present(&mut self, addresses: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        if self.scans {
            match self.scan(addresses) {
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.scans = false,
                done => return done,
            }
        }
        self.read(addresses)
    }

    fn scan(&self, addresses: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut found = Vec::new();
        let mut regions = [Region::default(); 256];
        let mut at = addresses.start;
        while at < addresses.end {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                start: at,
                end: addresses.end,
                vec: regions.as_mut_ptr().expose_provenance() as u64,
                vec_len: regions.len() as u64,
                category_mask: PAGE_IS_PRESENT,
                return_mask: PAGE_IS_PRESENT,
                ..ScanArg::default()
            };
            // SAFETY: the kernel reads and writes the argument, which has the size that it names
            // itself, and writes at most vec_len regions to an array of that length.
            let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
            let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
            for region in &regions[..count.min(regions.len())] {
                join(&mut found, region.start..region.end);
            }
            if arg.walk_end <= at {
                break;
            }
            at = arg.walk_end;
        }
        Ok(found)
    }

    fn read(&self, addresses: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let page = super::page_size();
        let mut found = Vec::new();
        let mut entries = vec![0; 64 << 10];
        let mut at = addresses.start;
        while at < addresses.end {
            let left = (addresses.end - at).div_ceil(page) * 8;
            let room = entries
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            let got = self.file.read_at(&mut entries[..room], at / page * 8)?;
            if got < 8 {
                break;
            }
            for entry in entries[..got].as_chunks::<8>().0 {
                if u64::from_ne_bytes(*entry) & ENTRY_PRESENT != 0 {
                    join(&mut found, at..at + page);
                }
                at += page;
            }
        }
        Ok(found)
    }
}

/// Adds a range that comes after all others.
fn join(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_of_this_process_are_there_by_both_ways() {
        let page = super::super::page_size();
        let memory = vec![1_u8; 64 << 10];
        let start = (memory.as_ptr().addr() as u64).next_multiple_of(page);
        let addresses = start..start + (32 << 10);
        let mut pagemap = Pagemap::open(std::process::id()).expect("our own");
        for scans in [true, false] {
            pagemap.scans = scans;
            let present = pagemap.present(&addresses).expect("to look");
            assert_eq!(present, std::slice::from_ref(&addresses), "{scans}");
        }
        assert_eq!(
            memory.iter().map(|&byte| u64::from(byte)).sum::<u64>(),
            64 << 10
        );
    }
}
