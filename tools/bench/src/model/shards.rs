//! The files of a model: safetensors with their headers, an index and a configuration.

use std::fmt::Write as _;
use std::ops::Range;

use serde_json::json;

use super::pattern::Pattern;
use super::shape::{Shape, Split, Tensor};

/// The file that frameworks read first.
pub(crate) const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";

/// The place of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) split: Split,
    /// Its range in the file.
    pub(crate) bytes: Range<u64>,
}

/// A file of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) name: String,
    /// The bytes before the tensors.
    pub(crate) header: Vec<u8>,
    /// The tensors in file order, which is by name.
    pub(crate) tensors: Vec<Placed>,
    pub(crate) size: u64,
    pub(crate) pattern: Pattern,
}

/// A whole model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) shards: Vec<Shard>,
    /// Names and contents of the small files.
    pub(crate) small: Vec<(&'static str, String)>,
}

impl Model {
    pub(crate) fn new(shape: &Shape) -> Self {
        let mut groups: Vec<Vec<Tensor>> = vec![Vec::new()];
        let mut filled = 0;
        for tensor in shape.tensors() {
            if filled > 0 && filled + tensor.bytes() > shape.shard {
                groups.push(Vec::new());
                filled = 0;
            }
            filled += tensor.bytes();
            groups.last_mut().expect("there is one").push(tensor);
        }
        let count = groups.len();
        let mut map = serde_json::Map::new();
        let mut shards = Vec::new();
        for (number, mut tensors) in (1..).zip(groups) {
            let name = format!("model-{number:05}-of-{count:05}.safetensors");
            tensors.sort_by(|one, other| one.name.cmp(&other.name));
            for tensor in &tensors {
                map.insert(tensor.name.clone(), json!(name));
            }
            shards.push(shard(name, number, &tensors));
        }
        let data: u64 = shards.iter().map(Shard::data).sum();
        let index = json!({"metadata": {"total_size": data}, "weight_map": map});
        let small = vec![(CONFIG, config(shape)), (INDEX, index.to_string())];
        Self { shards, small }
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        let small = self.small.iter().map(|(_, text)| text.len() as u64);
        self.shards
            .iter()
            .map(|shard| shard.size)
            .chain(small)
            .sum()
    }
}

impl Shard {
    fn data(&self) -> u64 {
        self.size - self.header.len() as u64
    }
}

fn config(shape: &Shape) -> String {
    let text = json!({
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_heads,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.words,
    });
    text.to_string()
}

fn shard(name: String, number: u64, tensors: &[Tensor]) -> Shard {
    let mut text = r#"{"__metadata__":{"format":"pt"}"#.to_owned();
    let mut end = 0;
    let mut ranges = Vec::new();
    for tensor in tensors {
        let begin = end;
        end += tensor.bytes();
        ranges.push(begin..end);
        let shape = match tensor.columns {
            0 => format!("[{}]", tensor.rows),
            columns => format!("[{},{columns}]", tensor.rows),
        };
        let name = &tensor.name;
        // Writing into a string cannot fail.
        let _ = write!(
            text,
            r#","{name}":{{"dtype":"BF16","shape":{shape},"data_offsets":[{begin},{end}]}}"#
        );
    }
    text.push('}');
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text.as_bytes());
    let start = header.len() as u64;
    let place = |(tensor, range): (&Tensor, Range<u64>)| Placed {
        split: tensor.split,
        bytes: start + range.start..start + range.end,
    };
    Shard {
        name,
        tensors: tensors.iter().zip(ranges).map(place).collect(),
        size: start + end,
        pattern: Pattern::of_file(number),
        header,
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::{SMALL, STANDARD};
    use super::*;

    #[test]
    fn seven_files_hold_all_tensors_one_behind_the_other() {
        for shape in [STANDARD, SMALL] {
            let model = Model::new(&shape);
            assert_eq!(model.shards.len(), 7);
            let tensors: usize = model.shards.iter().map(|it| it.tensors.len()).sum();
            assert_eq!(tensors, shape.tensors().len());
            for shard in &model.shards {
                let mut end = shard.header.len() as u64;
                for tensor in &shard.tensors {
                    assert_eq!(tensor.bytes.start, end);
                    assert!(end.is_multiple_of(8));
                    end = tensor.bytes.end;
                }
                assert_eq!(end, shard.size);
            }
        }
    }

    /// MAIO's prediction from the headers has to match what these readers read.
    #[test]
    fn maio_understands_the_headers_as_the_readers_do() {
        let folder = std::env::temp_dir().join(format!("ppc-bench-{}-headers", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let model = Model::new(&SMALL);
        for shard in &model.shards {
            let file = std::fs::File::create(folder.join(&shard.name)).expect("a file");
            std::io::Write::write_all(&mut &file, &shard.header).expect("to write");
            file.set_len(shard.size).expect("to grow");
        }
        for (name, text) in &model.small {
            std::fs::write(folder.join(name), text).expect("to write");
        }
        let wanted = maio::predict::Deployment {
            tp: 4,
            ..Default::default()
        };
        let library = maio::predict::Directory::new(&folder);
        let found = maio::predict::predict_reads(&library, &wanted).expect("a model");
        let _ = std::fs::remove_dir_all(&folder);
        assert_eq!(found.notes, [] as [&str; 0]);
        assert_eq!(found.groups.len(), 4);
        let task = crate::reader::Task::new(SMALL, crate::reader::Profile::tp(), &folder);
        for (rank, group) in (0..).zip(&found.groups) {
            let pages: u64 = group.iter().map(|extent| u64::from(extent.pages)).sum();
            let steps = crate::reader::steps(&model, task.profile, rank, 0);
            let touched: u64 = steps.iter().map(|it| it.touch.end - it.touch.start).sum();
            let near = (touched / 4096).abs_diff(pages);
            assert!(near * 50 < pages, "{rank}: {touched} bytes, {pages} pages");
        }
    }
}
