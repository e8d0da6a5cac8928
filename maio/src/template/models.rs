//! Models as they lie on disk and as vLLM reads them, for tests of size.

use std::fmt::Write as _;
use std::ops::Range;

use super::{Identity, samples};
use crate::Extent;

/// The order of tensors in a file. They are read in the order of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightFormat {
    /// As safetensors writes them: those with wide elements first, then by name. So the scales of
    /// a file are together at its beginning.
    Safetensors,
    /// By name: scales lie beside their weights.
    Names,
    /// By module: expert 2 before expert 10.
    Modules,
}

impl WeightFormat {
    pub(crate) const ALL: [Self; 3] = [Self::Safetensors, Self::Names, Self::Modules];
}

/// What a worker of several reads of a tensor.
#[derive(Clone, Copy)]
enum ModelSplit {
    /// Its part of the rows.
    Rows,
    /// All: it is not split, or by columns, which touches every page.
    None,
    /// No part of it is read.
    Skipped,
}

struct TensorPlan {
    name: String,
    /// The size of an element, in bytes.
    width: u64,
    shape: [u64; 2],
    split: ModelSplit,
}

pub(super) struct ModelTensor {
    name: String,
    bytes: Range<u64>,
    split: ModelSplit,
}

pub(super) struct ModelFile {
    size: u64,
    /// In the order in which they are read.
    pub(super) tensors: Vec<ModelTensor>,
}

pub(crate) struct Model {
    pub(super) files: Vec<ModelFile>,
}

impl Model {
    /// Qwen2.5-7B: 15 GB of bf16.
    pub(crate) fn qwen_7b(layout: WeightFormat) -> Self {
        let mut plans = TensorPlans(Vec::new());
        plans.bf16("model.embed_tokens.weight", [152_064, 3584]);
        for layer in 0..28 {
            let base = format!("model.layers.{layer}");
            for (name, rows) in [("q", 3584), ("k", 512), ("v", 512)] {
                plans.bf16(
                    &format!("{base}.self_attn.{name}_proj.weight"),
                    [rows, 3584],
                );
                plans.bf16(&format!("{base}.self_attn.{name}_proj.bias"), [rows, 1]);
            }
            plans.bf16(&format!("{base}.self_attn.o_proj.weight"), [3584, 3584]);
            plans.bf16(&format!("{base}.mlp.gate_proj.weight"), [18_944, 3584]);
            plans.bf16(&format!("{base}.mlp.up_proj.weight"), [18_944, 3584]);
            plans.bf16(&format!("{base}.mlp.down_proj.weight"), [3584, 18_944]);
            plans.bf16(&format!("{base}.input_layernorm.weight"), [3584, 1]);
            plans.bf16(
                &format!("{base}.post_attention_layernorm.weight"),
                [3584, 1],
            );
        }
        plans.bf16("model.norm.weight", [3584, 1]);
        plans.bf16("lm_head.weight", [152_064, 3584]);
        Self::laid_out(plans, 2_100_000_000, layout)
    }

    /// DeepSeek-V3: 690 GB, mostly fp8 with a scale for each 128 x 128 elements.
    pub(crate) fn deepseek_671b(layout: WeightFormat) -> Self {
        let mut plans = TensorPlans(Vec::new());
        plans.bf16("model.embed_tokens.weight", [129_280, 7168]);
        for layer in 0..62 {
            let from = plans.0.len();
            plans.attention(&format!("model.layers.{layer}"));
            let mlp = format!("model.layers.{layer}.mlp");
            if layer < 3 {
                plans.mlp(&mlp, 18_432);
            } else {
                plans.bf16(&format!("{mlp}.gate.weight"), [256, 7168]);
                plans.mlp(&format!("{mlp}.shared_experts"), 2048);
                for expert in 0..256 {
                    plans.mlp(&format!("{mlp}.experts.{expert}"), 2048);
                }
            }
            // The last layer predicts the token after the next one and is not loaded.
            if layer == 61 {
                for plan in &mut plans.0[from..] {
                    plan.split = ModelSplit::Skipped;
                }
            }
        }
        plans.bf16("model.norm.weight", [7168, 1]);
        plans.bf16("lm_head.weight", [129_280, 7168]);
        Self::laid_out(plans, 4_220_000_000, layout)
    }

    /// Fills one file after the other, as Hugging Face's libraries do.
    fn laid_out(plans: TensorPlans, limit: u64, layout: WeightFormat) -> Self {
        let (mut files, mut size) = (vec![Vec::new()], 0);
        for plan in plans.0 {
            size += plan.bytes();
            if size > limit {
                files.push(Vec::new());
                size = plan.bytes();
            }
            if let Some(last) = files.last_mut() {
                last.push(plan);
            }
        }
        let files = files.into_iter().map(|plans| file(plans, layout)).collect();
        Self { files }
    }

    pub(super) fn identities(&self) -> Vec<Identity> {
        let count = self.files.len();
        let mut random = samples::Random(3);
        let identity = |(at, file): (usize, &ModelFile)| Identity {
            path: format!("model-{:05}-of-{count:05}.safetensors", at + 1),
            size: file.size,
            mtime_ns: 1_700_000_000_000_000_000 + (random.next() >> 20).cast_signed(),
            inode: random.next() >> 32,
            header: random.next(),
        };
        self.files.iter().enumerate().map(identity).collect()
    }

    /// What one of `workers` workers reads: of each file the header, then its part of each tensor. Ranges are
    /// whole pages, joined where one continues another; a page that several tensors share is there for each.
    pub(crate) fn reads(&self, worker: u32, workers: u32) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for (at, file) in (0..).zip(&self.files) {
            let header = 0..file.header();
            let tensors = file.tensors.iter().map(|it| it.read(worker, workers));
            for bytes in std::iter::once(header).chain(tensors) {
                let Some(next) = Extent::of_bytes(at, &bytes) else {
                    continue;
                };
                match extents.last_mut() {
                    Some(last)
                        if last.file == at && (last.first..=last.end()).contains(&next.first) =>
                    {
                        last.pages = last.end().max(next.end()) - last.first;
                    }
                    _ => extents.push(next),
                }
            }
        }
        extents
    }
}

impl ModelFile {
    fn header(&self) -> u64 {
        let starts = self.tensors.iter().map(|tensor| tensor.bytes.start);
        starts.min().unwrap_or(0)
    }
}

impl ModelTensor {
    fn read(&self, worker: u32, workers: u32) -> Range<u64> {
        let Range { start, end } = self.bytes;
        let part = |at: u32| start + (end - start) * u64::from(at) / u64::from(workers);
        match self.split {
            ModelSplit::Rows => part(worker)..part(worker + 1),
            ModelSplit::None => start..end,
            ModelSplit::Skipped => start..start,
        }
    }
}

impl TensorPlan {
    fn bytes(&self) -> u64 {
        self.shape[0] * self.shape[1] * self.width
    }
}

struct TensorPlans(Vec<TensorPlan>);

impl TensorPlans {
    fn add(&mut self, name: &str, width: u64, shape: [u64; 2], split: ModelSplit) {
        let name = name.to_owned();
        self.0.push(TensorPlan {
            name,
            width,
            shape,
            split,
        });
    }

    fn bf16(&mut self, name: &str, shape: [u64; 2]) {
        self.add(name, 2, shape, ModelSplit::None);
    }

    /// Adds an fp8 tensor and its scales, which all workers read.
    fn fp8(&mut self, name: &str, shape: [u64; 2], split: ModelSplit) {
        self.add(&format!("{name}.weight"), 1, shape, split);
        let blocks = shape.map(|side| side.div_ceil(128));
        self.add(
            &format!("{name}.weight_scale_inv"),
            4,
            blocks,
            ModelSplit::None,
        );
    }

    fn mlp(&mut self, base: &str, width: u64) {
        self.fp8(
            &format!("{base}.gate_proj"),
            [width, 7168],
            ModelSplit::Rows,
        );
        self.fp8(&format!("{base}.up_proj"), [width, 7168], ModelSplit::Rows);
        self.fp8(
            &format!("{base}.down_proj"),
            [7168, width],
            ModelSplit::None,
        );
    }

    fn attention(&mut self, layer: &str) {
        let base = format!("{layer}.self_attn");
        self.fp8(&format!("{base}.q_a_proj"), [1536, 7168], ModelSplit::None);
        self.bf16(&format!("{base}.q_a_layernorm.weight"), [1536, 1]);
        self.fp8(
            &format!("{base}.q_b_proj"),
            [24_576, 1536],
            ModelSplit::Rows,
        );
        self.fp8(
            &format!("{base}.kv_a_proj_with_mqa"),
            [576, 7168],
            ModelSplit::None,
        );
        self.bf16(&format!("{base}.kv_a_layernorm.weight"), [512, 1]);
        self.fp8(
            &format!("{base}.kv_b_proj"),
            [32_768, 512],
            ModelSplit::Rows,
        );
        self.fp8(&format!("{base}.o_proj"), [7168, 16_384], ModelSplit::None);
        self.bf16(&format!("{layer}.input_layernorm.weight"), [7168, 1]);
        self.bf16(
            &format!("{layer}.post_attention_layernorm.weight"),
            [7168, 1],
        );
    }
}

/// Lays tensors out behind a header, which is JSON and ends at a multiple of 8.
fn file(mut plans: Vec<TensorPlan>, layout: WeightFormat) -> ModelFile {
    match layout {
        WeightFormat::Safetensors => {
            plans.sort_by(|a, b| (b.width, &a.name).cmp(&(a.width, &b.name)));
        }
        WeightFormat::Names => plans.sort_by(|a, b| a.name.cmp(&b.name)),
        WeightFormat::Modules => {}
    }
    let (mut header, mut at) = (String::from("{"), 0);
    for plan in &plans {
        let end = at + plan.bytes();
        let TensorPlan { name, shape, .. } = plan;
        let line = r#""dtype":"F8_E4M3","shape":"#;
        let _ = write!(
            header,
            r#""{name}":{{{line}{shape:?},"data_offsets":[{at},{end}]}},"#
        );
        at = end;
    }
    let mut end = 8 + (header.len() as u64).next_multiple_of(8);
    let place = |plan: TensorPlan| {
        let start = end;
        end += plan.bytes();
        ModelTensor {
            name: plan.name,
            bytes: start..end,
            split: plan.split,
        }
    };
    let mut tensors: Vec<ModelTensor> = plans.into_iter().map(place).collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    ModelFile { size: end, tensors }
}
