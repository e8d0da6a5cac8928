//! The settings a policy was registered with.

use std::collections::BTreeMap;

use crate::{Error, Result};

/// Key and value pairs. The policy takes each out once; a setting left over is a typo, for which the
/// policy is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// These pairs; of two with the same key the latter counts.
    pub fn new<K: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        let pairs = pairs.into_iter();
        Self(
            pairs
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    }

    /// Takes out a value.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.0.remove(key)
    }

    /// Takes out a number of bytes: `4096`, `128K`, `8M`, `1G`, by powers of 1024.
    ///
    /// # Errors
    ///
    /// The value is something else.
    pub fn bytes(&mut self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.text(key) else {
            return Ok(None);
        };
        bytes(&value).map(Some).ok_or_else(|| Error::Setting {
            key: key.to_owned(),
            value,
            problem: "not a number of bytes such as 4096, 128K, 8M or 1G",
        })
    }

    /// Checks that no unknown settings are left.
    ///
    /// # Errors
    ///
    /// A setting is left.
    pub fn finish(self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = self.0.into_keys().collect();
        Err(Error::UnknownSettings(keys.join(", ")))
    }
}

fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    // parse() would take a sign.
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units_and_nothing_else() {
        let cases = [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("128K", Some(128 << 10)),
            ("8M", Some(8 << 20)),
            ("3G", Some(3 << 30)),
            ("", None),
            ("K", None),
            ("+1", None),
            ("-1", None),
            ("1k", None),
            ("1 M", None),
            ("17179869184G", None),
        ];
        for (text, value) in cases {
            assert_eq!(bytes(text), value, "{text:?}");
        }
    }

    #[test]
    fn unknown_settings_are_named_in_the_error() {
        let mut settings = Settings::new([("max", "1M"), ("b", "2"), ("a", "1")]);
        assert_eq!(settings.bytes("max").expect("a size"), Some(1 << 20));
        assert_eq!(settings.bytes("max").expect("taken"), None);
        let error = settings.finish().expect_err("two are left");
        assert_eq!(error.to_string(), "Unknown setting: a, b");
        assert_eq!(error.errno(), libc::EINVAL);
    }
}
