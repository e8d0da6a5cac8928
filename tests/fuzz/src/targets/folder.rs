//! A whole folder: which files are the model, what its index and configuration say, and headers with wrong
//! lengths.
//!
//! The input is a byte for the deployment, then for each file a byte that chooses its name, a byte for how
//! much follows its beginning, the length of the beginning in two bytes, and the beginning.

use super::shelf::{Shelf, check, wanted};
use super::{Target, gguf, safetensors};

pub(super) const TARGET: Target = Target {
    name: "folder",
    run,
    seeds,
    words: &[
        b"{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"",
        b"model-00002-of-00002.safetensors\"}}",
        b"pytorch_model-2.bin",
        b"\"num_attention_heads\":8",
        b"\"num_key_value_heads\":2",
        b"\"text_config\":{",
        b"\"metadata\":{",
        b"\\ud83d\\ude00",
    ],
};

const INDEX: &str = "model.safetensors.index.json";

const NAMES: [&str; 17] = [
    "config.json",
    INDEX,
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "consolidated.safetensors",
    "sub/model.safetensors",
    "tokenizer.json",
    "tokenizer.model",
    "pytorch_model.bin.index.json",
    "pytorch_model-2.bin",
    "pytorch_model-10.bin",
    "training_args.bin",
    "model-00001-of-00002.gguf",
    "other.gguf",
    "model.pth",
    "README.md",
    "weights",
];

fn run(input: &[u8]) {
    let Some((how, mut rest)) = input.split_first() else {
        return;
    };
    let mut shelf = Shelf::default();
    while let Some(([name, behind, low, high], more)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (bytes, more) = more.split_at(length);
        rest = more;
        let path = NAMES[usize::from(*name) % NAMES.len()];
        // Texts are read whole, and what follows their beginning is not text: more of it would only be slow.
        let most = match path.rsplit_once('.') {
            Some((_, "json")) => 63,
            _ => u8::MAX,
        };
        shelf.add(path, bytes, *behind & most);
    }
    check(&shelf, wanted(*how));
}

fn file(name: &str, behind: u8, bytes: &[u8]) -> Vec<u8> {
    let number = NAMES.iter().position(|&it| it == name).unwrap_or(0);
    let number = number.to_le_bytes()[0];
    let [low, high, ..] = bytes.len().to_le_bytes();
    [&[number, behind, low, high], bytes].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let config = br#"{"text_config":{"num_attention_heads":8,"num_key_value_heads":2}}"#;
    let index = r#"{"metadata":{},"weight_map":{"a":"model-00002-of-00002.safetensors",
        "b":"model-00001-of-00002.safetensors"}}"#;
    let shard = safetensors::with_length(safetensors::HEADER.as_bytes());
    let shards = [
        vec![8],
        file("config.json", 0, config),
        file(INDEX, 0, index.as_bytes()),
        file(NAMES[2], 245, &shard),
        file(NAMES[3], 245, &safetensors::with_length(b"{}")),
        file("consolidated.safetensors", 60, b""),
        file("sub/model.safetensors", 60, b""),
        file("tokenizer.json", 0, b"{}"),
    ];
    let index = index.replace("model-00002-of-00002.safetensors", "pytorch_model-2.bin");
    let plain = [
        vec![1],
        file("pytorch_model-10.bin", 60, b""),
        file("pytorch_model-2.bin", 70, b""),
        file("training_args.bin", 9, b""),
        file("pytorch_model.bin.index.json", 0, index.as_bytes()),
    ];
    let quantised = [
        vec![0],
        file("model-00001-of-00002.gguf", 200, &gguf::file()),
        file("other.gguf", 60, b"GGUF"),
    ];
    let others = [
        vec![0],
        file("weights", 255, b""),
        file("README.md", 30, b"x"),
    ];
    vec![
        shards.concat(),
        plain.concat(),
        quantised.concat(),
        others.concat(),
        Vec::new(),
    ]
}
