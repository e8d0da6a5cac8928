//! The JSON header of one shard, whose tensors are cut by their names and by the number of heads in a
//! configuration.
//!
//! The input is a byte for the deployment, a byte for how much follows the header, the heads of queries and of
//! keys, then the header. The target puts its length before it; the folder's target has wrong lengths.

use super::Target;
use super::shelf::{Shelf, check, wanted};

pub(super) const TARGET: Target = Target {
    name: "safetensors",
    run,
    seeds,
    words: &[
        b"\"dtype\":\"BF16\"",
        b"\"F32\"",
        b"\"shape\":[",
        b"\"data_offsets\":[",
        b"\"__metadata__\":{",
        b"model.layers.0.self_attn.",
        b".q_proj.weight\"",
        b".k_proj.weight\"",
        b".qkv_proj.weight\"",
        b".o_proj.weight\"",
        b".gate_up_proj.weight\"",
        b".down_proj.qweight\"",
        b"lm_head.weight\"",
        b".bias\"",
        b"\\u0061",
        b"}}",
        b"},\"",
        b"]",
        b",",
    ],
};

fn run(input: &[u8]) {
    let Some(([how, behind, queries, keys], text)) = input.split_first_chunk() else {
        return;
    };
    let mut shelf = Shelf::default();
    let [queries, keys] = [*queries, *keys].map(|heads| match heads {
        255 => u64::MAX,
        heads => u64::from(heads),
    });
    let config = format!(r#"{{"num_attention_heads":{queries},"num_key_value_heads":{keys}}}"#);
    shelf.add("config.json", config.as_bytes(), 0);
    shelf.add("model.safetensors", &with_length(text), *behind);
    check(&shelf, wanted(*how));
}

pub(super) fn with_length(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// Tensors that are cut in each way.
pub(super) const HEADER: &str = r#"{"__metadata__":{"format":"pt"},
"lm_head.weight":{"dtype":"BF16","shape":[100,64],"data_offsets":[0,12800]},
"l.0.q_proj.weight":{"dtype":"F32","shape":[64,64],"data_offsets":[12800,29184]},
"l.0.k_proj.weight":{"dtype":"U8","shape":[16,64],"data_offsets":[29184,30208]},
"l.0.qkv_proj.weight":{"dtype":"X","shape":[96,64],"data_offsets":[30208,36352]},
"l.0.gate_up_proj.weight":{"dtype":"I8","shape":[64,64],"data_offsets":[36352,40448]},
"l.0.norm":{"dtype":"I64","shape":[],"data_offsets":[40448,40456]}}"#;

/// Columns of rows that are long enough to cut, and a vocabulary that workers cannot share evenly.
const COLUMNS: &str = r#"{
"l.0.o_proj.weight":{"dtype":"F16","shape":[4,1048576],"data_offsets":[0,8388608]},
"lm_head.weight":{"dtype":"F32","shape":[100,1024],"data_offsets":[8388608,8798208]}}"#;

/// More rows than a group can list one by one, followed by a hole. It once made a group too large to store.
const ROWS: &str = r#"{"l.0.o_proj.weight":{"dtype":"X","shape":[4194304,1048576],"data_offsets":[0,4398046511104]}}"#;

fn seeds() -> Vec<Vec<u8>> {
    let seed = |how, rest, text: &str| [&[how, rest, 8, 2], text.as_bytes()].concat();
    let cut = (0..16).flat_map(|how| [seed(how, 245, HEADER), seed(how, 245, COLUMNS)]);
    let others = [seed(4, 254, ROWS), seed(0, 0, "{}"), Vec::new()];
    cut.chain(others).collect()
}
