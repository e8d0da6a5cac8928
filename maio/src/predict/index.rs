//! The index of a model in shards: which tensor is in which file.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::error::Damage;
use super::{Library, read};

/// Upper bound on the size of an index; that of 90,000 tensors has 9 MiB.
const LARGEST: u64 = 128 << 20;

/// The files that an index names.
pub(super) fn files(
    library: &dyn Library,
    path: &str,
    size: u64,
) -> Result<BTreeSet<String>, Damage> {
    if size > LARGEST {
        return Err(Damage::Long(size));
    }
    parse(&read::range(library, path, 0, size)?)
}

fn parse(text: &[u8]) -> Result<BTreeSet<String>, Damage> {
    Ok(serde_json::from_slice::<ShardIndex>(text)?.weight_map.0)
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: IndexedFiles,
}

/// The distinct values of a map, without its keys, which are many more.
struct IndexedFiles(BTreeSet<String>);

impl<'de> Deserialize<'de> for IndexedFiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FilesVisitor)
    }
}

struct FilesVisitor;

impl<'de> Visitor<'de> for FilesVisitor {
    type Value = IndexedFiles;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a file for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IndexedFiles, A::Error> {
        let mut files = BTreeSet::new();
        while let Some((_, file)) = map.next_entry::<IgnoredAny, String>()? {
            files.insert(file);
        }
        Ok(IndexedFiles(files))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn files_are_named_once() {
        let text =
            r#"{"metadata": {"total_size": 1}, "weight_map": {"a": "1", "b": "2", "c": "1"}}"#;
        let files = parse(text.as_bytes()).expect("good");
        assert_eq!(files.into_iter().collect::<Vec<_>>(), ["1", "2"]);
        for text in [
            "",
            "{}",
            r#"{"weight_map": ["a"]}"#,
            r#"{"weight_map": {"a": 1}}"#,
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_parsed_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&text);
        }
    }
}
