//! A model as it is published: shards of safetensors with real headers, and what each worker reads of
//! them, as vLLM does.
//!
//! It is llama in small, with layers as large as `TinyLlama`'s and as many as there is room for. How
//! layers are cut is said here once more and not taken from MAIO, which is to find out by itself.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use crate::files::{MIB, Pattern, cached_of};
use crate::model::{joined, shuffled};
use crate::mount::Mount;
use crate::outcome::{For as _, Outcome};
use crate::reader::Job;

const SHARDS: u64 = 4;
/// Numbers have two bytes, and a row of most tensors this many numbers.
const WIDTH: u64 = 2;
const HIDDEN: u64 = 2048;
const INTERMEDIATE: u64 = 5632;
const HEADS: u64 = 32;
const KEY_HEADS: u64 = 4;
const KEYS: u64 = HIDDEN / HEADS * KEY_HEADS;
const PAGE: u64 = 4096;

/// How workers share a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Each has its rows.
    Rows,
    /// Each has its columns: its part of a row is so short that all of them are read, or it is small.
    Whole,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    shape: Vec<u64>,
    cut: Cut,
    /// Where in its file.
    start: u64,
}

impl Tensor {
    fn new(name: String, shape: &[u64], cut: Cut) -> Self {
        let shape = shape.to_vec();
        Self {
            name,
            shape,
            cut,
            start: 0,
        }
    }

    fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * WIDTH
    }

    /// What a worker of so many reads of it.
    fn part(&self, rank: u32, of: u32) -> Range<u64> {
        let (rank, of) = (u64::from(rank), u64::from(of));
        let part = match self.cut {
            Cut::Whole => return self.start..self.start + self.bytes(),
            Cut::Rows => self.bytes() / of,
        };
        self.start + rank * part..self.start + (rank + 1) * part
    }
}

/// A file of it.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) name: String,
    pub(crate) file: Pattern,
    /// To look at: who opens a file might be taken for a reader.
    open: File,
    /// Where the tensors begin.
    header: u64,
    /// As they lie in it, which is by their names.
    tensors: Vec<Tensor>,
}

impl Shard {
    /// What a worker reads of it, in order.
    fn course(&self, rank: u32, of: u32) -> Vec<Range<u64>> {
        let parts = self.tensors.iter().map(|tensor| tensor.part(rank, of));
        std::iter::once(0..self.header).chain(parts).collect()
    }

    /// In whole pages, sorted and joined.
    pub(crate) fn pages(&self, rank: u32, of: u32) -> Vec<Range<u64>> {
        let course = self.course(rank, of).into_iter();
        let whole = |range: Range<u64>| {
            let end = range.end.next_multiple_of(PAGE).min(self.file.size);
            range.start / PAGE * PAGE..end
        };
        joined(course.map(whole).collect())
    }

    fn job(&self, mount: &Mount, ranges: Vec<Range<u64>>) -> Job {
        let job = Job::new(mount, &self.file).header(self.header);
        job.ranges(ranges)
    }
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) mount: Mount,
    pub(crate) config: Pattern,
    pub(crate) shards: Vec<Shard>,
}

impl Checkpoint {
    /// Makes one of about so many MiB.
    pub(crate) fn make(mount: Mount, mib: u64) -> Outcome<Self> {
        let tensors = tensors(mib);
        let all: u64 = tensors.iter().map(Tensor::bytes).sum();
        let mut shards: Vec<Vec<Tensor>> = vec![Vec::new()];
        let mut full = 0;
        for tensor in tensors {
            let begun = shards.len() as u64;
            full += tensor.bytes();
            if let Some(last) = shards.last_mut() {
                last.push(tensor);
            }
            if begun < SHARDS && full >= begun * all / SHARDS {
                shards.push(Vec::new());
            }
        }
        let mut index = String::new();
        let count = shards.len();
        let mut made = Vec::new();
        for (number, tensors) in (1..).zip(shards) {
            let name = format!("model-{number:05}-of-{count:05}.safetensors");
            for tensor in &tensors {
                let comma = if index.is_empty() { "" } else { "," };
                let _ = write!(index, "{comma}\"{}\":\"{name}\"", tensor.name);
            }
            made.push(shard(&mount, name, number, tensors)?);
        }
        let config = format!(
            "{{\"model_type\":\"llama\",\"hidden_size\":{HIDDEN},\"intermediate_size\":{INTERMEDIATE},\
             \"num_attention_heads\":{HEADS},\"num_key_value_heads\":{KEY_HEADS}}}\n"
        );
        let index = format!("{{\"weight_map\":{{{index}}}}}\n");
        fs::write(mount.lower.join("model.safetensors.index.json"), index)?;
        let lower = mount.lower.join("config.json");
        fs::write(&lower, &config)?;
        nix::unistd::sync();
        Ok(Self {
            mount,
            config: Pattern {
                lower,
                seed: 0,
                size: config.len() as u64,
            },
            shards: made,
        })
    }

    /// Of the weights.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.file.size).sum()
    }

    /// Nothing of it is cached.
    pub(crate) fn make_cold(&self) -> Outcome {
        let files = self.shards.iter().map(|shard| &shard.file);
        files
            .chain(std::iter::once(&self.config))
            .try_for_each(Pattern::make_cold)
    }

    /// How much of the weights is cached.
    pub(crate) fn cached(&self) -> Outcome<u64> {
        let files = self.shards.iter();
        files.map(|shard| cached_of(&shard.open)).sum()
    }

    /// A look at the configuration, with which a load begins.
    pub(crate) fn look(&self) -> Outcome {
        let job = Job::new(&self.mount, &self.config);
        job.header(self.config.size).run()?;
        Ok(())
    }

    /// The worker of a rank among so many, that reads the first so many shards.
    pub(crate) fn worker(&self, rank: u32, of: u32, shards: usize) -> Job {
        let shards = self.shards.iter().take(shards);
        let mut jobs = shards.map(|shard| shard.job(&self.mount, shard.course(rank, of)));
        let first = jobs.next().unwrap_or_else(|| {
            let nothing = std::iter::empty();
            Job::new(&self.mount, &self.config).ranges(nothing)
        });
        first.then(jobs).rank(rank)
    }

    /// One that reads the same, but for the headers in no order.
    pub(crate) fn wanderer(&self, rank: u32, of: u32) -> Job {
        let (mut headers, mut tensors) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let mut course = shard.course(rank, of).into_iter();
            headers.extend(
                course
                    .next()
                    .map(|range| shard.job(&self.mount, vec![range])),
            );
            tensors.extend(course.map(|range| shard.job(&self.mount, vec![range])));
        }
        let nothing = self.worker(rank, of, 0);
        nothing.then(headers).then(shuffled(tensors))
    }
}

/// In the order in which they are published.
fn tensors(mib: u64) -> Vec<Tensor> {
    let words = mib * MIB / 16 / (HIDDEN * WIDTH);
    let layer = 2 * HIDDEN * HIDDEN + 2 * KEYS * HIDDEN + 3 * INTERMEDIATE * HIDDEN;
    let layers = (mib * MIB * 7 / 8 / (layer * WIDTH)).max(1);
    let embedding = |name: &str| Tensor::new(name.to_owned(), &[words, HIDDEN], Cut::Rows);
    let mut all = vec![embedding("model.embed_tokens.weight")];
    for layer in 0..layers {
        let parts: [(&str, &[u64], Cut); 9] = [
            ("self_attn.q_proj", &[HIDDEN, HIDDEN], Cut::Rows),
            ("self_attn.k_proj", &[KEYS, HIDDEN], Cut::Rows),
            ("self_attn.v_proj", &[KEYS, HIDDEN], Cut::Rows),
            ("self_attn.o_proj", &[HIDDEN, HIDDEN], Cut::Whole),
            ("mlp.gate_proj", &[INTERMEDIATE, HIDDEN], Cut::Rows),
            ("mlp.up_proj", &[INTERMEDIATE, HIDDEN], Cut::Rows),
            ("mlp.down_proj", &[HIDDEN, INTERMEDIATE], Cut::Whole),
            ("input_layernorm", &[HIDDEN], Cut::Whole),
            ("post_attention_layernorm", &[HIDDEN], Cut::Whole),
        ];
        for (name, shape, cut) in parts {
            let name = format!("model.layers.{layer}.{name}.weight");
            all.push(Tensor::new(name, shape, cut));
        }
    }
    let norm = "model.norm.weight".to_owned();
    all.push(Tensor::new(norm, &[HIDDEN], Cut::Whole));
    all.push(embedding("lm_head.weight"));
    all
}

/// Makes a file of some tensors: all of it is of the pattern, but for the header.
fn shard(mount: &Mount, name: String, seed: u64, mut tensors: Vec<Tensor>) -> Outcome<Shard> {
    tensors.sort_by(|one, other| one.name.cmp(&other.name));
    let mut text = "{\"__metadata__\":{\"format\":\"pt\"}".to_owned();
    let mut at = 0;
    for tensor in &mut tensors {
        tensor.start = at;
        at += tensor.bytes();
        let _ = write!(
            text,
            ",\"{}\":{{\"dtype\":\"BF16\",\"shape\":{:?},\"data_offsets\":[{},{at}]}}",
            tensor.name, tensor.shape, tensor.start
        );
    }
    text.push('}');
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let header = 8 + text.len() as u64;
    for tensor in &mut tensors {
        tensor.start += header;
    }
    let file = mount.file(&name, seed, header + at)?;
    let mut start = Vec::new();
    start.write_all(&(text.len() as u64).to_le_bytes())?;
    start.write_all(text.as_bytes())?;
    let open = File::options().read(true).write(true).open(&file.lower)?;
    open.write_all_at(&start, 0).of(&name)?;
    open.sync_all()?;
    Ok(Shard {
        name,
        file,
        open,
        header,
        tensors,
    })
}
