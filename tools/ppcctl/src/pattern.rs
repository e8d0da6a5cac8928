//! Patterns for paths: one without `*` matches any part of a path, one with `*` the whole path.

use std::convert::Infallible;
use std::str::FromStr;

use cprt::control::wildcard::fits;

/// A pattern for paths in a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(String);

impl FromStr for Pattern {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl Pattern {
    pub(crate) fn matches(&self, path: &str) -> bool {
        if self.0.contains('*') {
            fits(&self.0, path)
        } else {
            path.contains(&self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_what_they_say() {
        for (pattern, path, expected) in [
            ("", "a/b", true),
            ("model", "llama/model-1.safetensors", true),
            ("Model", "llama/model-1.safetensors", false),
            ("*", "", true),
            ("*.safetensors", "llama/model-1.safetensors", true),
            ("*.safetensors", "model.safetensors.tmp", false),
            ("llama/*", "llama/a/b", true),
            ("llama/*", "x/llama/a", false),
            ("l*/model-*.s*", "llama/model-1.safetensors", true),
            ("*a*b*", "xxbxxa", false),
            ("*a*b*", "xaxbx", true),
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
            ("a**b", "ab", true),
            ("é*", "été", true),
        ] {
            let matcher: Pattern = pattern.parse().expect("any text is one");
            assert_eq!(matcher.matches(path), expected, "{pattern} {path}");
        }
    }
}
