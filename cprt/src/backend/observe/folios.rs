//! Which pages of files lie in one large folio, and so come into a process by one fault. Pure.
//!
//! The tracepoints report the page of a fault, or the 64 KiB around it. If the page lies in a folio of the size of a
//! page table, the kernel maps the whole folio; from Linux 6.18 on, it does so with folios of any size. Pages mapped
//! in this way cause no faults and no records; which pages form a folio is recorded as they enter the page cache.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use ppc::FileId;

/// The bytes that a fault maps in any case; smaller folios are of no interest.
const AROUND: u64 = 64 << 10;
/// The bytes that one entry of a directory of page tables maps.
const TABLE: u64 = 2 << 20;
/// Upper bound on known folios: 1 TiB in folios of 2 MiB.
const MOST: usize = 1 << 19;

/// The large folios of all files.
#[derive(Debug, Default)]
pub(super) struct Folios {
    /// Whether this kernel maps folios of any size at once.
    whole: bool,
    known: usize,
    ends: HashMap<FileId, BTreeMap<u64, u64>>,
}

impl Folios {
    pub(super) fn new(whole: bool) -> Self {
        Self {
            whole,
            ..Self::default()
        }
    }

    /// Notes that these bytes have come in as one folio.
    pub(super) fn add(&mut self, file: FileId, folio: &Range<u64>) {
        let large = folio.end - folio.start > AROUND;
        if !large && !self.ends.contains_key(&file) {
            return;
        }
        if self.known >= MOST {
            self.clear();
        }
        let ends = self.ends.entry(file).or_default();
        // Earlier folios of these bytes are gone.
        let overlaps = |(&start, &end): (&u64, &u64)| (end > folio.start).then_some(start);
        while let Some(start) = ends.range(..folio.end).next_back().and_then(overlaps) {
            ends.remove(&start);
            self.known -= 1;
        }
        if large {
            ends.insert(folio.start, folio.end);
            self.known += 1;
        }
    }

    /// The bytes mapped by a fault that reports this range: just a `page`, or the cached pages around it.
    pub(super) fn mapped_by(&self, file: FileId, range: &Range<u64>, page: bool) -> Range<u64> {
        let around = self.ends.get(&file).and_then(|ends| {
            let (&start, &end) = ends.range(..=range.start).next_back()?;
            (end > range.start).then_some(start..end)
        });
        let Some(folio) = around else {
            return range.clone();
        };
        if self.whole || (page && folio.end - folio.start >= TABLE) {
            folio.start.min(range.start)..folio.end.max(range.end)
        } else {
            range.clone()
        }
    }

    /// Forgets all folios: no policy wants events of mappings now.
    pub(super) fn clear(&mut self) {
        self.ends.clear();
        self.known = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(3);
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn a_fault_maps_the_folio_where_the_kernel_does() {
        for (whole, page, size, mapped) in [
            (true, false, 256 * KIB, true),
            (true, true, 256 * KIB, true),
            (false, false, 2 * MIB, false),
            (false, true, 2 * MIB, true),
            (false, true, 256 * KIB, false),
        ] {
            let mut folios = Folios::new(whole);
            folios.add(FILE, &(4 * MIB..4 * MIB + size));
            let told = 4 * MIB + 128 * KIB..4 * MIB + 192 * KIB;
            let expected = if mapped {
                4 * MIB..4 * MIB + size
            } else {
                told.clone()
            };
            assert_eq!(
                folios.mapped_by(FILE, &told, page),
                expected,
                "{whole} {page} {size}"
            );
            assert_eq!(
                folios.mapped_by(FileId(4), &told, page),
                told,
                "another file"
            );
            let beyond = 8 * MIB..8 * MIB + 64 * KIB;
            assert_eq!(folios.mapped_by(FILE, &beyond, page), beyond);
        }
    }

    #[test]
    fn new_folios_replace_those_they_overlap() {
        let mut folios = Folios::new(true);
        folios.add(FILE, &(0..2 * MIB));
        folios.add(FILE, &(2 * MIB..4 * MIB));
        folios.add(FILE, &(MIB..MIB + 4 * KIB));
        folios.add(FILE, &(3 * MIB..3 * MIB + 128 * KIB));
        let at = |offset| offset..offset + 64 * KIB;
        assert_eq!(folios.mapped_by(FILE, &at(0), false), at(0));
        assert_eq!(folios.mapped_by(FILE, &at(2 * MIB), false), at(2 * MIB));
        let of = 3 * MIB..3 * MIB + 128 * KIB;
        assert_eq!(folios.mapped_by(FILE, &at(3 * MIB), false), of);
        assert_eq!(folios.known, 1);
        folios.clear();
        assert_eq!(folios.mapped_by(FILE, &at(3 * MIB), false), at(3 * MIB));
    }
}
