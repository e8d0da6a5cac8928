//! A model's folder in memory, and what must hold for any prediction from it.

use std::collections::BTreeMap;
use std::io;

use maio::predict::{Deployment, Library, Order, Prediction, predict_reads};
use maio::template::{Group, MAX_EXTENTS};
use maio::{Extent, PAGE};

/// Files with only their beginnings in memory.
#[derive(Debug, Default)]
pub(super) struct Shelf(BTreeMap<String, File>);

#[derive(Debug)]
struct File {
    bytes: Vec<u8>,
    size: u64,
    /// The value of every byte in the rest.
    fill: u8,
}

impl Shelf {
    /// Adds a file with this beginning, and a byte of the input that says what follows it: mostly little, at
    /// most more than can be counted in pages; seldom zeros, as in files with holes, which readers can take
    /// for a lot of contents and are slow at.
    pub(super) fn add(&mut self, path: &str, bytes: &[u8], rest: u8) {
        let fill = if rest.is_multiple_of(16) { 0 } else { 0xff };
        let rest = u64::from(rest);
        let more = match rest {
            0..64 => rest,
            64..240 => (rest - 64) << 9,
            _ => ((4 | (rest & 3)) * 0x3fff) << ((rest - 240) * 5 / 2),
        };
        let size = bytes.len() as u64 + more;
        let bytes = bytes.to_vec();
        self.0.insert(path.to_owned(), File { bytes, size, fill });
    }
}

impl Library for Shelf {
    fn files(&self) -> Vec<(String, u64)> {
        let size = |(path, file): (&String, &File)| (path.clone(), file.size);
        self.0.iter().map(size).collect()
    }

    fn read(&self, path: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let File { bytes, size, fill } = self.0.get(path).ok_or(io::ErrorKind::NotFound)?;
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = bytes.get(offset..).unwrap_or_default();
        let copied = bytes.len().min(buf.len());
        buf[..copied].copy_from_slice(&bytes[..copied]);
        let length = buf.len().min(left);
        buf[copied..length.max(copied)].fill(*fill);
        Ok(length)
    }
}

/// The deployment for a byte of the input: every order, and numbers of workers that share evenly or do not.
pub(super) fn wanted(byte: u8) -> Deployment {
    let order = [
        None,
        Some(Order::Vllm),
        Some(Order::Transformers),
        Some(Order::File),
    ];
    let tp = [1, 2, 3, 4];
    Deployment {
        tp: tp[usize::from(byte >> 2) % tp.len()],
        experts: byte & 16 != 0,
        order: order[usize::from(byte & 3)],
    }
}

/// Checks, whatever headers say, that a template can be made of the prediction, that no page comes twice,
/// and that none is beyond its file.
pub(super) fn check(shelf: &Shelf, wanted: Deployment) {
    let Ok(prediction) = predict_reads(shelf, &wanted) else {
        assert!(shelf.0.values().all(|file| file.size == 0), "no model");
        return;
    };
    assert_eq!(prediction.groups.len(), wanted.tp as usize);
    for (path, size) in &prediction.files {
        assert_eq!(shelf.0.get(path).map(|file| file.size), Some(*size));
    }
    for group in &prediction.groups {
        check_group(&prediction, group);
    }
    check_sharing(shelf, wanted, &prediction);
    // Only one group, as packing tries several ways and is slow.
    if let Some(group) = prediction.groups.last().filter(|group| group.len() < 100) {
        let packed = Group::new(0, None, group).expect("ranges that can be");
        assert_eq!(packed.extents().expect("ranges that can be"), *group);
    }
}

fn check_group(prediction: &Prediction, group: &[Extent]) {
    for extent in group {
        let (_, size) = &prediction.files[extent.file as usize];
        let end = u64::from(extent.first) + u64::from(extent.pages);
        assert!(
            extent.pages > 0 && end <= size.div_ceil(PAGE),
            "{extent:?} of {size}"
        );
    }
    let mut sorted = group.to_vec();
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        let apart = pair[0].file != pair[1].file || pair[0].end() <= pair[1].first;
        assert!(apart, "a page comes twice: {pair:?}");
    }
    assert!(
        group.len() <= MAX_EXTENTS,
        "more ranges than a template takes"
    );
}

/// Checks that all workers together read what one alone would, no less and no more.
fn check_sharing(shelf: &Shelf, wanted: Deployment, shared: &Prediction) {
    let too_many = |note: &String| note.contains("too many ranges");
    if wanted.tp == 1 || shared.notes.iter().any(too_many) {
        return;
    }
    let alone = predict_reads(shelf, &Deployment { tp: 1, ..wanted }).expect("a model");
    assert_eq!(
        pages(&shared.groups),
        pages(&alone.groups),
        "shared and alone"
    );
}

/// The pages of all groups: file, first page and the page after the last, joined where they meet.
fn pages(groups: &[Vec<Extent>]) -> Vec<(u32, u32, u32)> {
    let mut all: Vec<_> = groups.iter().flatten().collect();
    all.sort_unstable();
    let mut joined: Vec<(u32, u32, u32)> = Vec::new();
    for extent in all {
        match joined.last_mut() {
            Some((file, _, end)) if *file == extent.file && *end >= extent.first => {
                *end = extent.end().max(*end);
            }
            _ => joined.push((extent.file, extent.first, extent.end())),
        }
    }
    joined
}
