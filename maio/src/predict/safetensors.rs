//! The header of a safetensors file: its length, and JSON that says where each tensor lies.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::error::Damage;
use super::{Library, read};

/// Upper bound on the length of a header, that of the reference implementation.
const LONGEST: u64 = 100_000_000;
/// The size of the header's length, which comes first in a file.
const LENGTH: u64 = 8;

/// A named array of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
    /// Its place in the file.
    pub(super) bytes: Range<u64>,
}

/// The header of a file, parsed.
#[derive(Debug)]
pub(super) struct SafetensorsHeader {
    /// Where the header ends and the tensors begin.
    pub(super) end: u64,
    /// The tensors in file order, without overlaps.
    pub(super) tensors: Vec<Tensor>,
}

/// Reads the header of a file of this size; `left` is how many bytes of headers may still be read.
pub(super) fn header(
    library: &dyn Library,
    path: &str,
    size: u64,
    left: &mut u64,
) -> Result<SafetensorsHeader, Damage> {
    let length = read::range(library, path, 0, LENGTH)?;
    let length = length.try_into().map_err(|_| Damage::Short)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST {
        return Err(Damage::Long(length));
    }
    let data = size.checked_sub(LENGTH + length).ok_or(Damage::Short)?;
    *left = left.checked_sub(length).ok_or(Damage::Budget)?;
    let text = read::range(library, path, LENGTH, length)?;
    let tensors = parse(&text, LENGTH + length, data)?;
    Ok(SafetensorsHeader {
        end: LENGTH + length,
        tensors,
    })
}

/// The tensors of a header, whose `data` bytes of data begin at `start`.
fn parse(text: &[u8], start: u64, data: u64) -> Result<Vec<Tensor>, Damage> {
    let TensorEntries(entries) = serde_json::from_slice(text)?;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let (begin, end) = entry.data_offsets;
        if begin > end || end > data {
            return Err(Damage::Place(name));
        }
        if length(&entry).is_some_and(|expected| expected != end - begin) {
            return Err(Damage::Shape(name));
        }
        tensors.push(Tensor {
            name,
            shape: entry.shape,
            bytes: start + begin..start + end,
        });
    }
    tensors.sort_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
    for pair in tensors.windows(2) {
        if pair[0].bytes.end > pair[1].bytes.start {
            let [one, other] = [0, 1].map(|at: usize| pair[at].name.clone());
            return Err(Damage::Overlap(one, other));
        }
    }
    Ok(tensors)
}

/// The length that a tensor must have, in bytes; `None` if the type is unknown or the number overflows.
fn length(entry: &TensorEntry<'_>) -> Option<u64> {
    let bytes = match &*entry.dtype {
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => 1,
        "I16" | "U16" | "F16" | "BF16" => 2,
        "I32" | "U32" | "F32" => 4,
        "I64" | "U64" | "F64" | "C64" => 8,
        _ => return None,
    };
    let product = |product: u64, &size| product.checked_mul(size);
    entry.shape.iter().try_fold(bytes, product)
}

#[derive(Deserialize)]
struct TensorEntry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// All entries of a header, except its metadata.
struct TensorEntries<'a>(Vec<(String, TensorEntry<'a>)>);

impl<'de> Deserialize<'de> for TensorEntries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = TensorEntries<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a place for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TensorEntries<'de>, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                entries.push((name, map.next_value()?));
            }
        }
        Ok(TensorEntries(entries))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{FakeLibrary, Flips, safetensors};
    use super::*;

    fn read(bytes: &[u8]) -> Result<SafetensorsHeader, Damage> {
        let mut library = FakeLibrary::default();
        library.add("x", bytes);
        header(&library, "x", bytes.len() as u64, &mut { u64::MAX })
    }

    fn with_header(text: &str, data: usize) -> Vec<u8> {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn small() -> Vec<u8> {
        safetensors(&[("b", &[3, 5]), ("a.weight", &[4]), ("none", &[0, 7])]).bytes()
    }

    #[test]
    fn tensors_come_as_they_lie() {
        let text = r#"{"__metadata__":{"format":"pt"},
            "a":{"dtype":"F32","shape":[2],"data_offsets":[6,14]},
            "b":{"dtype":"BF16","shape":[3,1],"data_offsets":[0,6]},
            "c":{"dtype":"F4","shape":[3],"data_offsets":[14,16]}}   "#;
        let header = read(&with_header(text, 16)).expect("good");
        let start = header.end;
        assert_eq!(start, 8 + text.len() as u64);
        let found = header.tensors.iter();
        let found: Vec<_> = found
            .map(|it| (it.name.as_str(), it.bytes.clone()))
            .collect();
        let expected = [
            ("b", start..start + 6),
            ("a", start + 6..start + 14),
            ("c", start + 14..start + 16),
        ];
        assert_eq!(found, expected);
        assert_eq!(header.tensors[0].shape, [3, 1]);
    }

    #[test]
    fn invalid_safetensors_headers_are_rejected() {
        let of = |text: &str| read(&with_header(text, 8)).expect_err(text).to_string();
        let entry = |shape: &str, offsets: &str| {
            of(&format!(
                r#"{{"x":{{"dtype":"I8","shape":{shape},"data_offsets":{offsets}}}}}"#
            ))
        };
        assert_eq!(entry("[9]", "[0,9]"), "has x at an impossible offset");
        assert_eq!(entry("[1]", "[2,1]"), "has x at an impossible offset");
        assert_eq!(
            entry("[3]", "[0,4]"),
            "has x with a size that contradicts its shape"
        );
        assert!(entry("[-1]", "[0,1]").starts_with("has a header that does not parse"));
        assert!(entry("[1]", "[0,1,2]").starts_with("has a header that does not parse"));
        assert!(entry("[1]", "[0]").starts_with("has a header that does not parse"));
        let two = r#"{"x":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},
                      "y":{"dtype":"I8","shape":[4],"data_offsets":[3,7]}}"#;
        assert_eq!(of(two), "has the overlapping tensors x and y");
        // A length that overflows is not checked.
        let huge =
            r#"{"x":{"dtype":"F64","shape":[9999999999999,9999999999],"data_offsets":[0,4]}}"#;
        assert!(read(&with_header(huge, 8)).is_ok());
        assert!(matches!(
            read(&u64::MAX.to_le_bytes()),
            Err(Damage::Long(_))
        ));
        assert!(matches!(read(&50_u64.to_le_bytes()), Err(Damage::Short)));
        assert!(of(&"[".repeat(10_000)).starts_with("has a header that does not parse"));
    }

    #[test]
    fn headers_are_read_up_to_a_limit() {
        let bytes = small();
        let mut library = FakeLibrary::default();
        library.add("x", &bytes);
        let (size, mut left) = (bytes.len() as u64, 400);
        while left >= size {
            assert!(header(&library, "x", size, &mut left).is_ok());
        }
        left = 5;
        let refused = header(&library, "x", size, &mut left);
        assert!(matches!(refused, Err(Damage::Budget)));
    }

    #[test]
    fn a_file_cut_off_anywhere_is_refused() {
        let bytes = small();
        assert!(read(&bytes).is_ok());
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn flipped_bits_leave_tensors_within_the_file() {
        let mut taken = 0;
        for bytes in Flips::of(&small()).take(10_000) {
            if let Ok(header) = read(&bytes) {
                taken += 1;
                let size = bytes.len() as u64;
                assert!(header.tensors.iter().all(|tensor| tensor.bytes.end <= size));
            }
        }
        assert!(taken > 0);
    }

    proptest! {
        #[test]
        fn anything_is_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
            let _ = parse(&bytes, 8, 100);
        }

        #[test]
        fn tensors_stay_within_the_data(
            offsets in prop::collection::vec((0_u64..60, 0_u64..60), 0..4),
        ) {
            let entry = |(at, (begin, end)): (usize, &(u64, u64))| {
                format!(r#""{at}":{{"dtype":"?","shape":[],"data_offsets":[{begin},{end}]}}"#)
            };
            let entries: Vec<_> = offsets.iter().enumerate().map(entry).collect();
            let text = format!("{{{}}}", entries.join(","));
            if let Ok(tensors) = parse(text.as_bytes(), 8, 50) {
                prop_assert!(tensors.iter().all(|it| 8 <= it.bytes.start && it.bytes.end <= 58));
                prop_assert!(tensors.windows(2).all(|it| it[0].bytes.end <= it[1].bytes.start));
            }
        }
    }
}
