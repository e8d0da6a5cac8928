//! The small files that a framework reads before it comes to the weights.

use std::collections::BTreeMap;

use super::natural;

/// Upper bound on the bytes of small files loaded in advance; tokenizers have up to 30 MiB.
const MOST: u64 = 64 << 20;

/// Names in the order in which a usual start reads them. A `.index.json` comes last, as it is read right
/// before the weights.
const FIRST: [&str; 17] = [
    "config.json",
    "params.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "model_index.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
];

/// The small ones among these files, in the order in which they are read, and the number that did not fit.
pub(super) fn of(files: &BTreeMap<String, u64>) -> (Vec<(String, u64)>, usize) {
    let mut found: Vec<_> = files.iter().filter(|(path, _)| is_small(path)).collect();
    found.sort_by(|(one, _), (other, _)| {
        (place(one).cmp(&place(other))).then_with(|| natural::compare(one, other))
    });
    let (mut chosen, mut too_many, mut left) = (Vec::new(), 0, MOST);
    for (path, &size) in found {
        if size <= left {
            left -= size;
            chosen.push((path.clone(), size));
        } else {
            too_many += 1;
        }
    }
    (chosen, too_many)
}

/// Whether a framework reads a file of this name before the weights.
pub(crate) fn is_small(path: &str) -> bool {
    let name = natural::file_name(path);
    match name.rsplit_once('.') {
        Some((_, "json" | "jinja" | "model" | "py" | "tiktoken")) => true,
        _ => matches!(name, "merges.txt" | "vocab.txt"),
    }
}

/// The key to sort by: files of the top folder before those of others, known before unknown, an index last.
fn place(path: &str) -> (bool, bool, usize) {
    let name = natural::file_name(path);
    let known = FIRST.iter().position(|first| *first == name);
    (
        path.ends_with(".index.json"),
        path.contains('/'),
        known.unwrap_or(FIRST.len()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[(&str, u64)]) -> (Vec<String>, usize) {
        let files = files.iter().map(|&(path, size)| (path.to_owned(), size));
        let (chosen, too_many) = of(&files.collect());
        (chosen.into_iter().map(|(path, _)| path).collect(), too_many)
    }

    #[test]
    fn they_come_in_the_order_of_a_start() {
        let (chosen, too_many) = names(&[
            ("model.safetensors", 10),
            ("model.safetensors.index.json", 10),
            ("tokenizer.json", 10),
            ("README.md", 10),
            ("sub/config.json", 10),
            ("modeling_x.py", 10),
            ("config.json", 10),
        ]);
        assert_eq!(
            chosen,
            [
                "config.json",
                "tokenizer.json",
                "modeling_x.py",
                "sub/config.json",
                "model.safetensors.index.json",
            ]
        );
        assert_eq!(too_many, 0);
    }

    #[test]
    fn files_over_the_limit_are_skipped_and_counted() {
        let large = ("config.json", MOST - 5);
        let chosen = names(&[
            large,
            ("tokenizer.json", 6),
            ("vocab.json", 5),
            ("x.py", u64::MAX),
        ]);
        assert_eq!(chosen.0, ["config.json", "vocab.json"]);
        assert_eq!(chosen.1, 2);
    }
}
