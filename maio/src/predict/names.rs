//! Decides by the names that models give to layers how these are cut.
//!
//! Several workers share a layer in one of two ways: each computes some of its outputs, and needs
//! those rows of the weights; or each receives some of its inputs, and needs those columns. All workers
//! take the whole of a layer that is not known to be cut.

/// Which part of a tensor a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// All of it.
    Whole,
    /// Rows of each of the layers that lie one behind the other in this tensor.
    Rows {
        /// The number of layers.
        fused: u64,
    },
    /// Rows of keys or values, which may have fewer heads than there are workers.
    Keys,
    /// Rows of queries, then keys, then values.
    Attention,
    /// Rows of words, padded until they can be shared evenly.
    Words,
    /// Columns.
    Columns,
}

/// How the workers share the layer that a tensor belongs to.
enum Layer {
    /// By outputs.
    Outputs(Cut),
    /// By inputs.
    Inputs,
}

/// How the tensor of this name is cut.
pub(super) fn split(name: &str) -> Cut {
    let Some((layer, parameter)) = name.rsplit_once('.') else {
        return Cut::Whole;
    };
    if is_elsewhere(layer) {
        return Cut::Whole;
    }
    let name = layer.rsplit_once('.').map_or(layer, |(_, name)| name);
    let known = match name {
        // Only at the top is it the output of the whole model; a layer's has nothing to do with words.
        "output" if layer != name => None,
        _ => known(name),
    };
    match (known, parameter) {
        (Some(Layer::Outputs(split)), "bias") => split,
        (Some(Layer::Outputs(split)), parameter) if is_by_outputs(parameter) => split,
        (Some(Layer::Inputs), parameter) if is_by_outputs(parameter) => Cut::Columns,
        // Stored transposed. Here the shape is enough only for even cuts.
        (Some(Layer::Outputs(Cut::Rows { fused: 1 })), parameter) if is_by_inputs(parameter) => {
            Cut::Columns
        }
        (Some(Layer::Inputs), parameter) if is_by_inputs(parameter) => Cut::Rows { fused: 1 },
        _ => Cut::Whole,
    }
}

/// Whether a tensor belongs to one of many experts, and not to a shared one that all words go to.
pub(super) fn is_experts(name: &str) -> bool {
    name.split('.').any(|part| part == "experts")
}

/// Whether this parameter has a row for each output.
fn is_by_outputs(parameter: &str) -> bool {
    let parameters = [
        "weight",
        "weight_packed",
        "weight_scale",
        "weight_scale_inv",
    ];
    parameters.contains(&parameter)
}

/// Whether this parameter has a row for each input, as GPTQ and AWQ store them.
fn is_by_inputs(parameter: &str) -> bool {
    ["qweight", "qzeros", "scales"].contains(&parameter)
}

/// Whether the names mean something else here: layers for images and audio are often not shared and have
/// other heads, and `ChatGLM` gives known names to layers that it fuses in its own way.
fn is_elsewhere(layer: &str) -> bool {
    let others = ["vision", "visual", "audio", "transformer.encoder.layers."];
    others.iter().any(|other| layer.contains(other))
}

fn known(name: &str) -> Option<Layer> {
    let split = match name {
        "q_proj" | "gate_proj" | "up_proj" | "w1" | "w3" | "q_b_proj" | "kv_b_proj" | "fc1"
        | "dense_h_to_4h" | "query_key_value" => Cut::Rows { fused: 1 },
        "gate_up_proj" => Cut::Rows { fused: 2 },
        "k_proj" | "v_proj" => Cut::Keys,
        "qkv_proj" | "c_attn" => Cut::Attention,
        "lm_head" | "embed_tokens" | "word_embeddings" | "tok_embeddings" | "wte" | "output" => {
            Cut::Words
        }
        "o_proj" | "down_proj" | "w2" | "wo" | "out_proj" | "c_proj" | "fc2" | "dense_4h_to_h"
        | "dense" => return Some(Layer::Inputs),
        _ => return None,
    };
    Some(Layer::Outputs(split))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_name_determines_how_it_is_split() {
        let rows = Cut::Rows { fused: 1 };
        let table = [
            ("model.layers.0.self_attn.q_proj.weight", rows),
            ("model.layers.0.self_attn.q_proj.bias", rows),
            ("model.layers.0.self_attn.k_proj.weight", Cut::Keys),
            ("model.layers.0.self_attn.k_proj.k_scale", Cut::Whole),
            ("model.layers.0.self_attn.qkv_proj.weight", Cut::Attention),
            ("model.layers.0.self_attn.o_proj.weight", Cut::Columns),
            ("model.layers.0.self_attn.o_proj.bias", Cut::Whole),
            (
                "model.layers.3.mlp.experts.255.down_proj.weight",
                Cut::Columns,
            ),
            (
                "model.layers.3.mlp.experts.255.up_proj.weight_scale_inv",
                rows,
            ),
            (
                "model.layers.3.mlp.gate_up_proj.weight",
                Cut::Rows { fused: 2 },
            ),
            ("model.layers.3.mlp.gate_up_proj.qweight", Cut::Whole),
            ("model.layers.3.mlp.gate.weight", Cut::Whole),
            ("model.layers.0.mlp.gate_proj.qweight", Cut::Columns),
            ("model.layers.0.mlp.gate_proj.scales", Cut::Columns),
            ("model.layers.0.mlp.gate_proj.g_idx", Cut::Whole),
            ("model.layers.0.mlp.down_proj.qweight", rows),
            ("model.layers.0.self_attn.k_proj.qweight", Cut::Whole),
            ("model.layers.0.input_layernorm.weight", Cut::Whole),
            ("model.embed_tokens.weight", Cut::Words),
            ("lm_head.weight", Cut::Words),
            ("output.weight", Cut::Words),
            ("bert.encoder.layer.0.output.weight", Cut::Whole),
            ("model.vision_tower.layers.0.q_proj.weight", Cut::Whole),
            (
                "transformer.encoder.layers.0.mlp.dense_h_to_4h.weight",
                Cut::Whole,
            ),
            ("model.layers.0.mlp.experts.gate_up_proj", Cut::Whole),
            ("weight", Cut::Whole),
            ("", Cut::Whole),
            (".", Cut::Whole),
        ];
        for (name, expected) in table {
            assert_eq!(split(name), expected, "{name}");
        }
    }
}
