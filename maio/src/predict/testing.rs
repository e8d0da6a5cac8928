//! Models made up for tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use super::Library;
use crate::PAGE;

/// A file of which only the start is kept; the rest are zeros.
#[derive(Clone, Debug)]
pub(super) struct Blob {
    pub(super) start: Vec<u8>,
    pub(super) size: u64,
}

impl Blob {
    /// The whole file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.start.clone();
        bytes.resize(usize::try_from(self.size).expect("small"), 0);
        bytes
    }
}

/// A folder in memory.
#[derive(Debug, Default)]
pub(super) struct FakeLibrary(BTreeMap<String, Blob>);

impl FakeLibrary {
    pub(super) fn add(&mut self, path: &str, bytes: &[u8]) {
        let blob = Blob {
            start: bytes.to_vec(),
            size: bytes.len() as u64,
        };
        self.add_blob(path, blob);
    }

    pub(super) fn add_blob(&mut self, path: &str, blob: Blob) {
        self.0.insert(path.to_owned(), blob);
    }
}

impl Library for FakeLibrary {
    fn files(&self) -> Vec<(String, u64)> {
        let files = self.0.iter();
        files
            .map(|(path, blob)| (path.clone(), blob.size))
            .collect()
    }

    /// Returns little at once, as a library may.
    fn read(&self, path: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let blob = self.0.get(path).ok_or(io::ErrorKind::NotFound)?;
        let left = usize::try_from(blob.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = buf.len().min(left).min(100_000);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let kept = blob.start.get(offset..).unwrap_or_default();
        let copied = kept.len().min(length);
        buf[..copied].copy_from_slice(&kept[..copied]);
        buf[copied..length].fill(0);
        Ok(length)
    }
}

/// A safetensors file with these tensors of two-byte numbers, in this order.
pub(super) fn safetensors(tensors: &[(&str, &[u64])]) -> Blob {
    made(tensors, 8)
}

/// The same with data that begins on a page.
pub(super) fn shard(tensors: &[(&str, &[u64])]) -> Blob {
    made(tensors, PAGE)
}

fn made(tensors: &[(&str, &[u64])], alignment: u64) -> Blob {
    let (mut text, mut end) = (r#"{"__metadata__":{"format":"pt"}"#.to_owned(), 0);
    for (name, shape) in tensors {
        let begin = end;
        end += shape.iter().product::<u64>() * 2;
        write!(
            text,
            r#","{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        )
        .expect("a string");
    }
    text.push('}');
    while !(8 + text.len() as u64).is_multiple_of(alignment) {
        text.push(' ');
    }
    let mut start = (text.len() as u64).to_le_bytes().to_vec();
    start.extend(text.as_bytes());
    let size = start.len() as u64 + end;
    Blob { start, size }
}

/// A GGUF file.
#[derive(Clone, Debug)]
pub(super) struct Gguf {
    pub(super) version: u32,
    /// Key, type and the value as it is stored.
    pub(super) pairs: Vec<(&'static str, u32, Vec<u8>)>,
    /// Names and offsets behind the header.
    pub(super) tensors: Vec<(&'static str, u64)>,
    pub(super) alignment: u64,
    /// Size of the data behind the header.
    pub(super) data: usize,
}

impl Gguf {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.pairs {
            bytes.extend((key.len() as u64).to_le_bytes());
            bytes.extend(key.as_bytes());
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        for (name, place) in &self.tensors {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend(2_u32.to_le_bytes());
            bytes.extend([0; 16]);
            bytes.extend(1_u32.to_le_bytes());
            bytes.extend(place.to_le_bytes());
        }
        let start = (bytes.len() as u64).next_multiple_of(self.alignment);
        bytes.resize(usize::try_from(start).expect("small") + self.data, 0);
        bytes
    }
}

/// Copies with a few bits flipped, the same ones in each run.
#[derive(Debug)]
pub(super) struct Flips {
    bytes: Vec<u8>,
    state: u64,
}

impl Flips {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            state: 1,
        }
    }

    fn next_number(&mut self, below: usize) -> usize {
        // Knuth's MMIX; its high bits are good.
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let high = usize::try_from(self.state >> 33).expect("31 bits");
        high % below
    }
}

impl Iterator for Flips {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut bytes = self.bytes.clone();
        for _ in 0..=self.next_number(3) {
            let at = self.next_number(bytes.len());
            bytes[at] ^= 1 << self.next_number(8);
        }
        Some(bytes)
    }
}
