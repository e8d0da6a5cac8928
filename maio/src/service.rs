//! The identity of a service: the parameters it was started with.
//!
//! A template belongs to a service, and is found again by its ID after months and on other machines.
//! So the derivation of an ID never changes; the tests hold fixed ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// How many bytes of the hash are in an ID.
const BYTES: usize = 16;

/// Why parameters do not identify a service.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServiceError {
    /// All services would have this ID.
    #[error("A service needs at least one parameter, such as model=NAME")]
    Empty,
    /// The text between two commas is not a parameter.
    #[error("{0:?} is not key=value; a value cannot contain a comma")]
    Pair(String),
    /// Keys are for machines.
    #[error("The key {0:?} must consist of a-z, 0-9, _, . and -, and must not be empty")]
    Key(String),
    /// It is invisible, so a user could not see how two values differ.
    #[error("The value of {0} contains a control character")]
    Value(String),
    /// One key has two values.
    #[error("{key} is set to both {first:?} and {second:?}")]
    Twice {
        /// The key.
        key: String,
        /// One value.
        first: String,
        /// The other value.
        second: String,
    },
}

/// The ID of the service with these parameters, 32 hexadecimal digits.
///
/// The order of the pairs makes no difference, nor do capitals in a key and blanks around it. A
/// value is taken as it is, blanks and all.
///
/// It never changes. The pairs are sorted by key; each is hashed as the key's length in bytes
/// as 8 bytes little-endian, the key, the value's length likewise, the value; the ID is the first 16
/// bytes of the SHA-256.
///
/// # Errors
///
/// There is no pair, a key or value is not valid, or a key has two values.
pub fn service_id(pairs: &[(String, String)]) -> Result<String, ServiceError> {
    let mut hash = Sha256::new();
    for (key, value) in sorted(pairs)? {
        for part in [key.as_str(), value] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    let mut id = String::with_capacity(2 * BYTES);
    for byte in hash.finalize().iter().take(BYTES) {
        // Writing to a string cannot fail.
        let _ = write!(id, "{byte:02x}");
    }
    Ok(id)
}

/// Parses `key=value,key=value`.
///
/// Blanks around keys and values are dropped, as users put them there. A value may contain `=`.
/// It contains no comma, because there is no way to quote one. [`service_id`] checks keys and values.
///
/// # Errors
///
/// The text is empty, or a part has no `=`.
pub fn parse(text: &str) -> Result<Vec<(String, String)>, ServiceError> {
    if text.trim().is_empty() {
        return Err(ServiceError::Empty);
    }
    let pair = |text: &str| {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| ServiceError::Pair(text.trim().to_owned()))?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    };
    text.split(',').map(pair).collect()
}

fn sorted(pairs: &[(String, String)]) -> Result<BTreeMap<String, &str>, ServiceError> {
    let mut sorted: BTreeMap<String, &str> = BTreeMap::new();
    for (key, value) in pairs {
        let key = folded(key)?;
        if value.contains(char::is_control) {
            return Err(ServiceError::Value(key));
        }
        match sorted.get(&key) {
            Some(first) if first != value => {
                return Err(ServiceError::Twice {
                    first: (*first).to_owned(),
                    second: value.clone(),
                    key,
                });
            }
            _ => sorted.insert(key, value),
        };
    }
    if sorted.is_empty() {
        return Err(ServiceError::Empty);
    }
    Ok(sorted)
}

fn folded(key: &str) -> Result<String, ServiceError> {
    let folded = key.trim().to_ascii_lowercase();
    let allowed = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-');
    if folded.is_empty() || !folded.bytes().all(allowed) {
        return Err(ServiceError::Key(key.to_owned()));
    }
    Ok(folded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(pairs: &[(&str, &str)]) -> Result<String, ServiceError> {
        let owned = pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()));
        service_id(&owned.collect::<Vec<_>>())
    }

    /// Computed with another implementation. If one of these fails, the code is wrong: all templates in
    /// the world would be lost.
    #[test]
    fn ids_are_the_same_for_ever() {
        let table: [(&[(&str, &str)], &str); 3] = [
            (&[("model", "llama")], "a8b6258977cbebc8a9a2425abf9a7975"),
            (
                &[("tp", "4"), ("model", "deepseek-ai/DeepSeek-V3")],
                "35306679350ed5e098d19f2641026d19",
            ),
            (
                &[("a.b_c-1", "Größe, =")],
                "5c0aa4acdfc25c1c6a3d181f1efb2e91",
            ),
        ];
        for (pairs, expected) in table {
            assert_eq!(id(pairs).as_deref(), Ok(expected), "{pairs:?}");
        }
    }

    #[test]
    fn order_capitals_and_blanks_of_keys_make_no_difference() {
        let one = id(&[("model", "a"), ("tp", "4")]);
        assert_eq!(id(&[("tp", "4"), ("model", "a")]), one);
        assert_eq!(id(&[(" TP ", "4"), ("Model", "a")]), one);
        assert_eq!(id(&[("tp", "4"), ("model", "a"), ("TP", "4")]), one);
        assert_ne!(id(&[("tp", "4"), ("model", "A")]), one);
        assert_ne!(id(&[("tp", "4 "), ("model", "a")]), one);
    }

    #[test]
    fn similar_looking_pairs_have_different_ids() {
        let alike: [&[(&str, &str)]; 5] = [
            &[("ab", "c"), ("d", "e")],
            &[("a", "bc"), ("d", "e")],
            &[("ab", "cd"), ("e", "")],
            &[("ab", "cde")],
            &[("a", "b=c,d=e")],
        ];
        let mut ids: Vec<_> = alike.iter().map(|pairs| id(pairs).expect("good")).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), alike.len());
    }

    #[test]
    fn invalid_service_pairs_are_rejected() {
        assert_eq!(id(&[]), Err(ServiceError::Empty));
        for key in ["", " ", "a b", "ä", "a=b", "a,b", "K\u{212a}"] {
            assert_eq!(id(&[(key, "1")]), Err(ServiceError::Key(key.to_owned())));
        }
        for value in ["\n", "a\0", "\u{7f}", "\u{85}"] {
            assert_eq!(
                id(&[("a", value)]),
                Err(ServiceError::Value("a".to_owned()))
            );
        }
        let twice = id(&[("tp", "4"), ("TP", "8")]).expect_err("which?");
        assert_eq!(twice.to_string(), r#"tp is set to both "4" and "8""#);
    }

    #[test]
    fn parameters_are_taken_apart_at_commas() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            parse("model=/m/a b, tp = 4 ,extra=x=y,empty="),
            Ok(vec![
                pair("model", "/m/a b"),
                pair("tp", "4"),
                pair("extra", "x=y"),
                pair("empty", ""),
            ])
        );
        assert_eq!(parse("  "), Err(ServiceError::Empty));
        for (text, part) in [("model=a,b", "b"), ("a=1,", ""), ("tp", "tp")] {
            assert_eq!(
                parse(text),
                Err(ServiceError::Pair(part.to_owned())),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn service_id_of_any_text_ignores_the_order_of_pairs(text in "\\PC{0,40}|[a-c=, ]{0,40}") {
            if let Ok(pairs) = parse(&text)
                && let Ok(id) = service_id(&pairs)
            {
                prop_assert_eq!(id.len(), 2 * BYTES);
                let turned: Vec<_> = pairs.into_iter().rev().collect();
                prop_assert_eq!(service_id(&turned), Ok(id));
            }
        }
    }
}
