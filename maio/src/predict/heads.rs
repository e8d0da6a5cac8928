//! The parts of a model's config.json that decide how layers are cut.

use serde_json::Value;

use super::{Library, read};

/// Upper bound on the size of config.json; real ones have a few kilobytes.
const LARGEST: u64 = 1 << 20;

/// The numbers of attention heads, if known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heads {
    /// Heads of queries.
    pub(super) queries: Option<u64>,
    /// Heads of keys, as many as of values. If workers outnumber them, several workers hold the same head.
    pub(super) keys: Option<u64>,
}

impl Heads {
    /// The heads according to config.json; without that they are unknown.
    pub(super) fn of(library: &dyn Library) -> Self {
        let mut start = Vec::new();
        while (start.len() as u64) < LARGEST {
            let at = start.len();
            start.resize(at + (64 << 10), 0);
            let read = read::once(library, "config.json", at as u64, &mut start[at..]);
            let read = read.unwrap_or(0);
            start.truncate(at + read);
            if read == 0 {
                return Self::parse(&start);
            }
        }
        Self::default()
    }

    fn parse(text: &[u8]) -> Self {
        let Ok(config) = serde_json::from_slice::<Value>(text) else {
            return Self::default();
        };
        // Models for images or audio as well have a section for the text model.
        let part = ["text_config", "llm_config"]
            .into_iter()
            .find_map(|name| config.get(name).filter(|part| part.is_object()))
            .unwrap_or(&config);
        let number = |names: [&str; 2]| {
            names
                .into_iter()
                .find_map(|name| part.get(name)?.as_u64())
                .filter(|&number| number > 0)
        };
        let queries = number(["num_attention_heads", "n_head"]);
        Self {
            queries,
            keys: number(["num_key_value_heads", "num_kv_heads"]).or(queries),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_found_where_models_say_them() {
        let table = [
            (
                r#"{"num_attention_heads": 32, "num_key_value_heads": 8}"#,
                (Some(32), Some(8)),
            ),
            (r#"{"n_head": 12}"#, (Some(12), Some(12))),
            (
                r#"{"num_attention_heads": 1, "text_config": {"num_attention_heads": 16}}"#,
                (Some(16), Some(16)),
            ),
            (
                r#"{"num_attention_heads": 0, "num_key_value_heads": -1}"#,
                (None, None),
            ),
            (r#"{"num_attention_heads": "32"}"#, (None, None)),
            ("[]", (None, None)),
            ("", (None, None)),
        ];
        for (text, (queries, keys)) in table {
            assert_eq!(
                Heads::parse(text.as_bytes()),
                Heads { queries, keys },
                "{text}"
            );
        }
    }
}
