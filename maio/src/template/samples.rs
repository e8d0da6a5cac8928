//! Small templates for tests.

use super::{Group, Identity, Template, TemplateKind, pages_of};
use crate::Extent;

/// The same numbers on every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("it is below")
    }
}

/// Some ranges within the files, in disorder.
pub(super) fn extents(random: &mut Random, files: &[Identity]) -> Vec<Extent> {
    let mut extents = Vec::new();
    for _ in 0..random.below(200) {
        let file = random.below(files.len());
        let Some(limit @ 1..) = pages_of(files[file].size) else {
            continue;
        };
        let first = random.below(limit as usize);
        let most = 1 << random.below(20);
        let pages = 1 + random.below((limit as usize - first).min(most));
        extents.push(Extent {
            file: u32::try_from(file).expect("it is small"),
            first: u32::try_from(first).expect("it is small"),
            pages: u32::try_from(pages).expect("it is small"),
        });
    }
    extents
}

pub(super) fn identity(path: &str, size: u64) -> Identity {
    Identity {
        path: path.to_owned(),
        size,
        mtime_ns: 1_700_000_000_123_456_789,
        inode: 4711,
        header: 0x0123_4567_89ab_cdef,
    }
}

/// Two workers and three files.
pub(super) fn small() -> Template {
    let files = vec![
        identity("model-00001-of-00002.safetensors", 40 << 20),
        identity("model-00002-of-00002.safetensors", (30 << 20) + 5),
        identity("config.json", 700),
    ];
    let mut random = Random(7);
    let mut group = |worker, xpu| {
        let mut ranges = extents(&mut random, &files);
        // So that each file is read, to its last page.
        ranges.extend((0..3).map(|file| Extent {
            file,
            first: pages_of(files[file as usize].size).expect("it is small") - 1,
            pages: 1,
        }));
        Group::new(worker, xpu, &ranges).expect("a group")
    };
    let groups = vec![group(0, Some(3)), group(1, None)];
    Template {
        kind: TemplateKind::Model,
        service: "qwen".to_owned(),
        node: "node-1".to_owned(),
        made_s: 1_790_000_000,
        loads: 2,
        files,
        groups,
    }
}
