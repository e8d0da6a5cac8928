//! Which bytes each set keeps: sets may have files in common. Pure.

use std::collections::HashMap;

use crate::machine::mappings::Identity;
use crate::machine::ranges::Ranges;
use crate::residency::{CacheFile, Part, distinct};

/// The files of a set, and what it would keep of them by itself.
#[derive(Debug, Default)]
pub(super) struct Wish {
    pub(super) files: Vec<CacheFile>,
    /// In their order; of these files.
    pub(super) parts: Vec<Part>,
    pub(super) budget: Option<u64>,
}

impl Wish {
    /// All of these files.
    pub(super) fn whole(files: Vec<CacheFile>, budget: Option<u64>) -> Self {
        let parts = files.iter().zip(0..).map(|(it, file)| Part {
            file,
            range: 0..it.size,
        });
        Self {
            parts: parts.filter(|part| !part.range.is_empty()).collect(),
            files,
            budget,
        }
    }
}

/// What a set keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// In their order; of the files of all sets.
    pub(super) parts: Vec<Part>,
    /// Bytes that it would keep by itself without a budget.
    pub(super) whole: u64,
}

/// The files of all sets, each once, and what each set keeps: the first ones have the first choice.
pub(super) fn share(wishes: &[Wish]) -> (Vec<CacheFile>, Vec<Share>) {
    let mut files: Vec<CacheFile> = Vec::new();
    let mut numbers: HashMap<Identity, usize> = HashMap::new();
    let mut taken: HashMap<usize, Ranges> = HashMap::new();
    let mut shares = Vec::new();
    for wish in wishes {
        let number = wish.files.iter().map(|file| {
            *numbers.entry(file.identity()).or_insert_with(|| {
                files.push(file.clone());
                files.len() - 1
            })
        });
        let number: Vec<_> = number.collect();
        let parts = distinct(&wish.parts, u64::MAX);
        let whole = bytes(&parts);
        let free = parts.iter().flat_map(|part| {
            let file = number[part.file];
            let gaps = match taken.get(&file) {
                Some(taken) => taken.gaps(&part.range, 1),
                None => vec![part.range.clone()],
            };
            gaps.into_iter().map(move |range| Part { file, range })
        });
        let free: Vec<_> = free.collect();
        let parts = distinct(&free, wish.budget.unwrap_or(u64::MAX));
        for part in &parts {
            taken.entry(part.file).or_default().insert(&part.range);
        }
        shares.push(Share { parts, whole });
    }
    (files, shares)
}

pub(super) fn bytes(parts: &[Part]) -> u64 {
    parts.iter().map(length).sum()
}

pub(super) fn length(part: &Part) -> u64 {
    part.range.end - part.range.start
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use test_support::Folder;

    use super::*;
    use crate::residency::find;

    fn part(file: usize, range: Range<u64>) -> Part {
        Part { file, range }
    }

    #[test]
    fn a_byte_belongs_to_the_first_set_that_has_room_for_it() {
        // On storage, as only that is found.
        let target = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp");
        std::fs::create_dir_all(&target).expect("a folder");
        let folder = Folder::within(&target, "cprt-share");
        for (name, size) in [("a", 100), ("b", 50), ("c", 0)] {
            folder.write(name, vec![7; size]);
        }
        let files = |names: &[&str]| {
            let paths: Vec<_> = names.iter().map(|it| folder.path().join(it)).collect();
            find(&paths).expect("they are there").files
        };
        let wishes = [
            Wish::whole(files(&["a"]), Some(30)),
            Wish {
                files: files(&["b", "a"]),
                parts: vec![part(1, 20..60), part(0, 0..50), part(1, 50..100)],
                budget: None,
            },
            Wish::whole(files(&["a", "b", "c"]), None),
        ];
        let (all, shares) = share(&wishes);
        let names = all.iter().map(|it| it.path.file_name().expect("a name"));
        assert_eq!(names.collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(shares[0].parts, [part(0, 0..30)]);
        assert_eq!(shares[0].whole, 100);
        let second = [part(0, 30..60), part(1, 0..50), part(0, 60..100)];
        assert_eq!(shares[1].parts, second);
        assert_eq!(shares[1].whole, 130);
        assert_eq!((shares[2].parts.len(), shares[2].whole), (0, 150));
    }
}
