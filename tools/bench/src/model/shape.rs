//! The tensors of a model like Llama, and how workers share them.

use serde::{Deserialize, Serialize};

/// The dimensions of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) layers: u64,
    pub(crate) hidden: u64,
    pub(crate) intermediate: u64,
    pub(crate) words: u64,
    pub(crate) heads: u64,
    pub(crate) key_heads: u64,
    /// Upper bound on the bytes of tensors in a file.
    pub(crate) shard: u64,
}

/// 1.27 GB in 7 files.
pub(crate) const STANDARD: Shape = Shape {
    layers: 10,
    hidden: 2048,
    intermediate: 6448,
    words: 32_768,
    heads: 32,
    key_heads: 8,
    shard: 195_000_000,
};

/// 0.29 GB in 7 files.
pub(crate) const SMALL: Shape = Shape {
    layers: 10,
    hidden: 1024,
    intermediate: 2816,
    words: 16_384,
    heads: 16,
    key_heads: 4,
    shard: 45_000_000,
};

/// The part of a tensor that a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// All of it.
    Whole,
    /// Some of the rows, which are contiguous.
    Rows,
    /// A part of each row; rows are short, so all pages are touched.
    Columns,
}

/// A tensor of two-byte numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) rows: u64,
    /// 0 if there is only one dimension.
    pub(crate) columns: u64,
    pub(crate) split: Split,
}

impl Tensor {
    pub(crate) fn bytes(&self) -> u64 {
        self.rows * self.columns.max(1) * 2
    }
}

impl Shape {
    /// Bytes of all tensors.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors().iter().map(Tensor::bytes).sum()
    }

    /// A shape of about this many MiB in four files, with tensors of the same sizes and as many layers as
    /// fit.
    pub(crate) fn of_mib(self, mib: u64) -> Self {
        let of_layers = |layers| Self { layers, ..self }.bytes();
        let layer = of_layers(1) - of_layers(0);
        let room = (mib << 20).saturating_sub(of_layers(0));
        let layers = (room / layer).max(1);
        // A file is full when the next tensor does not fit, so each is a little smaller.
        let shard = of_layers(layers) * 27 / 100;
        Self {
            layers,
            shard,
            ..self
        }
    }

    /// All tensors, in the order of the model.
    pub(crate) fn tensors(&self) -> Vec<Tensor> {
        let Self {
            hidden,
            intermediate,
            ..
        } = *self;
        let keys = hidden / self.heads * self.key_heads;
        let mut all = vec![tensor(
            "model.embed_tokens",
            self.words,
            hidden,
            Split::Rows,
        )];
        for layer in 0..self.layers {
            let of_layer = [
                ("input_layernorm", hidden, 0, Split::Whole),
                ("mlp.down_proj", hidden, intermediate, Split::Columns),
                ("mlp.gate_proj", intermediate, hidden, Split::Rows),
                ("mlp.up_proj", intermediate, hidden, Split::Rows),
                ("post_attention_layernorm", hidden, 0, Split::Whole),
                ("self_attn.k_proj", keys, hidden, Split::Rows),
                ("self_attn.o_proj", hidden, hidden, Split::Columns),
                ("self_attn.q_proj", hidden, hidden, Split::Rows),
                ("self_attn.v_proj", keys, hidden, Split::Rows),
            ];
            all.extend(of_layer.map(|(name, rows, columns, split)| {
                tensor(
                    &format!("model.layers.{layer}.{name}"),
                    rows,
                    columns,
                    split,
                )
            }));
        }
        all.push(tensor("model.norm", hidden, 0, Split::Whole));
        all.push(tensor("lm_head", self.words, hidden, Split::Rows));
        all
    }
}

fn tensor(layer: &str, rows: u64, columns: u64, split: Split) -> Tensor {
    Tensor {
        name: format!("{layer}.weight"),
        rows,
        columns,
        split,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_as_large_as_they_say() {
        assert_eq!(STANDARD.bytes() / 10_000_000, 127);
        assert_eq!(SMALL.bytes() / 10_000_000, 29);
        assert_eq!(STANDARD.tensors().len(), 93);
        for (shape, mib) in [(STANDARD, 2048), (SMALL, 256)] {
            let bytes = shape.of_mib(mib).bytes();
            assert!(
                bytes <= mib << 20 && bytes > (mib << 20) * 8 / 10,
                "{bytes}"
            );
        }
    }

    #[test]
    fn rows_can_be_shared_by_eight() {
        for shape in [STANDARD, SMALL] {
            for tensor in shape.tensors().iter().filter(|it| it.split != Split::Whole) {
                assert!(tensor.rows.is_multiple_of(8), "{tensor:?}");
                assert!((tensor.bytes() / 8).is_multiple_of(8), "{tensor:?}");
            }
        }
    }
}
