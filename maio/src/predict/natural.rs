//! The natural order of names, by the numbers in them: shard 2 comes before shard 10.

use std::cmp::Ordering;

/// Compares two paths as vLLM does: by file name, with runs of digits as numbers.
///
/// Names are cut into text, number, text, number, and compared part by part. Folders and leading zeros
/// count only where all else is equal.
pub(super) fn compare(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (file_name(one), file_name(other));
    while !(left.is_empty() && right.is_empty()) {
        let (text, number, rest) = cut(left);
        let (other_text, other_number, other_rest) = cut(right);
        let ordering = text
            .cmp(other_text)
            .then_with(|| number.len().cmp(&other_number.len()))
            .then_with(|| number.cmp(other_number));
        if ordering.is_ne() {
            return ordering;
        }
        (left, right) = (rest, other_rest);
    }
    one.cmp(other)
}

/// The part of a path after the last slash.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The text up to the first digit, the number there without leading zeros, and the rest.
fn cut(name: &str) -> (&str, &str, &str) {
    let digits = name
        .find(|letter: char| letter.is_ascii_digit())
        .unwrap_or(name.len());
    let (text, rest) = name.split_at(digits);
    let end = rest
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(rest.len());
    let (number, rest) = rest.split_at(end);
    (text, number.trim_start_matches('0'), rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_count_as_numbers() {
        let expected = [
            "a",
            "a1",
            "x/a2-of-3",
            "a2-of-10",
            "a10",
            "a99999999999999999999999",
            "a100000000000000000000000",
            "a.1",
            "b",
        ];
        let mut names = expected;
        names.reverse();
        names.sort_by(|one, other| compare(one, other));
        assert_eq!(names, expected);
        assert_eq!(compare("a01", "a1"), Ordering::Less);
        assert_eq!(compare("a1", "a1"), Ordering::Equal);
    }

    proptest! {
        #[test]
        fn natural_order_is_a_total_order(names in prop::collection::vec("[a.01/]{0,6}", 3)) {
            let [a, b, c] = [&names[0], &names[1], &names[2]];
            prop_assert_eq!(compare(a, b), compare(b, a).reverse());
            prop_assert_eq!(compare(a, b) == Ordering::Equal, a == b);
            if compare(a, b).is_le() && compare(b, c).is_le() {
                prop_assert!(compare(a, c).is_le());
            }
        }
    }
}
