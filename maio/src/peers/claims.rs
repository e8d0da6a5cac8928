//! Claims: what services of one node have yet to read, as they publish it to each other. Pure.
//!
//! A service publishes which blocks of which files its readers still need. Others that share files with
//! it drop those blocks last. A claim is advice: a wrong one costs a load, never correctness.

use std::collections::HashMap;

use crate::extent::Extent;

/// The identity of a file on this node, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) mtime_ns: i64,
}

/// Pages of a block: 2 MiB are a bit.
const BLOCK: u32 = 512;
/// The first word of the file; it includes the version.
const MAGIC: u64 = u64::from_le_bytes(*b"maioCLM1");
/// Words in front of each file's blocks: its key and how many words those take.
const HEAD: usize = 4;

/// Blocks of files, by the owner's numbers of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    files: Vec<Vec<u64>>,
}

impl Claims {
    /// Adds all blocks that a range overlaps.
    pub(crate) fn add(&mut self, extent: &Extent) {
        let file = extent.file as usize;
        if self.files.len() <= file {
            self.files.resize_with(file + 1, Vec::new);
        }
        let blocks = &mut self.files[file];
        for (word, bit) in blocks_of(extent) {
            if blocks.len() <= word {
                blocks.resize(word + 1, 0);
            }
            blocks[word] |= bit;
        }
    }

    /// Whether any of a range is claimed.
    pub(crate) fn has(&self, extent: &Extent) -> bool {
        let blocks = self.files.get(extent.file as usize);
        blocks.is_some_and(|blocks| {
            blocks_of(extent).any(|(word, bit)| blocks.get(word).is_some_and(|it| it & bit != 0))
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.iter().flatten().all(|&word| word == 0)
    }

    /// The encoding for other services, with the identities of our files.
    pub(crate) fn to_bytes(&self, keys: &[Option<FileKey>]) -> Vec<u8> {
        let mut words = vec![MAGIC];
        for (blocks, key) in self.files.iter().zip(keys) {
            let Some(key) = key.filter(|_| !blocks.is_empty()) else {
                continue;
            };
            let time = key.mtime_ns.cast_unsigned();
            words.extend([key.device, key.inode, time, blocks.len() as u64]);
            words.extend(blocks);
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Adds another service's claims on our files; nonsense is skipped. Returns whether it reads any of our files.
    pub(crate) fn merge(&mut self, bytes: &[u8], numbers: &HashMap<FileKey, u32>) -> bool {
        let mut shares = false;
        let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(word).collect();
        let Some((&MAGIC, mut rest)) = words.split_first() else {
            return shares;
        };
        while rest.len() >= HEAD {
            let (head, after) = rest.split_at(HEAD);
            let Ok(length) = usize::try_from(head[3]) else {
                return shares;
            };
            let Some((blocks, next)) = after.split_at_checked(length) else {
                return shares;
            };
            rest = next;
            let key = FileKey {
                device: head[0],
                inode: head[1],
                mtime_ns: head[2].cast_signed(),
            };
            if let Some(&file) = numbers.get(&key) {
                self.merge_file(file as usize, blocks);
                shares = true;
            }
        }
        shares
    }

    fn merge_file(&mut self, file: usize, more: &[u64]) {
        if self.files.len() <= file {
            self.files.resize_with(file + 1, Vec::new);
        }
        let blocks = &mut self.files[file];
        blocks.resize(blocks.len().max(more.len()), 0);
        for (block, more) in blocks.iter_mut().zip(more) {
            *block |= more;
        }
    }
}

fn blocks_of(extent: &Extent) -> impl Iterator<Item = (usize, u64)> {
    let blocks = extent.first / BLOCK..extent.end().div_ceil(BLOCK);
    blocks.map(|block| ((block / 64) as usize, 1 << (block % 64)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(file: u32, first: u32, pages: u32) -> Extent {
        Extent { file, first, pages }
    }

    fn key(inode: u64) -> FileKey {
        FileKey {
            device: 1,
            inode,
            mtime_ns: -7,
        }
    }

    #[test]
    fn a_range_claims_all_blocks_that_it_has_a_part_of() {
        let mut claims = Claims::default();
        assert!(claims.is_empty());
        claims.add(&extent(1, 511, 2));
        claims.add(&extent(1, 64 * 512, 1));
        assert!(!claims.is_empty());
        for (file, first, pages, expected) in [
            (1, 0, 1, true),
            (1, 512, 1, true),
            (1, 1023, 9, true),
            (1, 1024, 9, false),
            (1, 1024, 64 * 512, true),
            (0, 0, 9, false),
            (2, 0, 9, false),
        ] {
            assert_eq!(claims.has(&extent(file, first, pages)), expected, "{first}");
        }
    }

    #[test]
    fn others_know_files_by_other_numbers_and_some_not_at_all() {
        let mut claims = Claims::default();
        for file in 0..3 {
            claims.add(&extent(file, 512 * file, 512));
        }
        let bytes = claims.to_bytes(&[Some(key(10)), None, Some(key(12))]);
        let mut other = Claims::default();
        other.add(&extent(5, 0, 1));
        other.merge(&bytes, &HashMap::from([(key(12), 5), (key(11), 0)]));
        assert!(other.has(&extent(5, 1024, 1)) && other.has(&extent(5, 0, 1)));
        assert!(!other.has(&extent(5, 512, 1)) && !other.has(&extent(0, 0, 4096)));
        let before = other.clone();
        other.merge(b"maioCLM2........", &HashMap::new());
        other.merge(&bytes[..bytes.len() - 1], &HashMap::from([(key(12), 9)]));
        assert_eq!(other, before, "what is cut off or of another version");
    }

    proptest! {
        #[test]
        fn arbitrary_peer_claims_do_not_panic(
            head in prop::bool::ANY, words in prop::collection::vec(prop_oneof![0..4_u64, any::<u64>()], 0..40)
        ) {
            let magic = head.then_some(MAGIC);
            let bytes: Vec<u8> = magic.into_iter().chain(words).flat_map(u64::to_le_bytes).collect();
            let numbers = HashMap::from([(FileKey { device: 1, inode: 1, mtime_ns: 1 }, 0)]);
            let mut claims = Claims::default();
            claims.merge(&bytes, &numbers);
            claims.has(&extent(0, 0, u32::MAX >> 8));
        }
    }
}
