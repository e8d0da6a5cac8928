//! Builds a prediction, one file after another, for all workers.

use super::error::Damage;
use super::heads::Heads;
use super::pages::{self, WorkerPages};
use super::safetensors::Tensor;
use super::tp::{self, Share};
use super::{Deployment, Format, Library, Order, Prediction, gguf, names, safetensors};
use crate::template::{MAX_EXTENTS, MAX_FILES};

/// Upper bound on the bytes of headers read for one model; the largest models have 15 MiB.
pub(super) const HEADERS: u64 = 128 << 20;
/// Upper bound on the ranges recorded for all workers together, which take 192 MiB. Files beyond it are
/// taken whole.
const RANGES: u32 = 1 << 24;
/// Upper bound on the ranges of one worker, three times what the largest models have. Files beyond it at most
/// double the number and add one range each, which still fits into a template.
const RANGES_OF_ONE: u32 = 1 << 18;
const _: () = assert!(2 * RANGES_OF_ONE as usize + MAX_FILES < MAX_EXTENTS);
/// vLLM pads the vocabulary to a multiple of this before it is cut.
const VLLM_PADDING: u64 = 64;

/// Notes for users; beyond a limit they are only counted.
#[derive(Debug, Default)]
pub(super) struct Notes {
    said: Vec<String>,
    more: usize,
}

impl Notes {
    const MOST: usize = 100;

    pub(super) fn add(&mut self, note: String) {
        if self.said.len() < Self::MOST {
            self.said.push(note);
        } else {
            self.more += 1;
        }
    }

    pub(super) fn finish(mut self) -> Vec<String> {
        if self.more > 0 {
            self.said.push(format!("And {} more notes", self.more));
        }
        self.said
    }
}

/// A prediction that is being built.
pub(super) struct PredictionBuilder<'a> {
    library: &'a dyn Library,
    order: Order,
    /// Whether each expert belongs to one worker. Headers do not show to which.
    whole_experts: bool,
    heads: Heads,
    files: Vec<(String, u64)>,
    groups: Vec<WorkerPages>,
    /// Bytes of headers that may still be read.
    left: u64,
    notes: Notes,
}

impl<'a> PredictionBuilder<'a> {
    pub(super) fn new(
        library: &'a dyn Library,
        wanted: Deployment,
        order: Order,
        notes: Notes,
    ) -> Self {
        let tp = wanted.tp;
        // Heads matter only for cutting layers between several workers.
        let heads = match tp {
            1 => Heads::default(),
            _ => Heads::of(library),
        };
        let most = RANGES_OF_ONE.min(RANGES / tp.max(1));
        Self {
            library,
            order,
            whole_experts: wanted.experts,
            heads,
            files: Vec::new(),
            groups: (0..tp).map(|_| WorkerPages::new(most as usize)).collect(),
            left: HEADERS,
            notes,
        }
    }

    /// Adds a file that all workers read from end to end.
    pub(super) fn whole(&mut self, path: String, size: u64) {
        self.open(path, size);
        self.groups.iter_mut().for_each(WorkerPages::whole);
    }

    /// Adds a shard: each worker reads the header and its part of each tensor.
    pub(super) fn safetensors(&mut self, path: String, size: u64) {
        let mut header = match safetensors::header(self.library, &path, size, &mut self.left) {
            Ok(header) => header,
            Err(damage) => return self.damaged(path, size, &damage),
        };
        if self.order == Order::Vllm {
            header
                .tensors
                .sort_by(|one, other| one.name.cmp(&other.name));
        }
        self.open(path, size);
        for group in &mut self.groups {
            group.take(&(0..header.end));
        }
        for tensor in &header.tensors {
            self.tensor(tensor);
        }
    }

    /// Adds a GGUF file: all workers read the header, and then each tensor.
    pub(super) fn gguf(&mut self, path: String, size: u64) {
        let layout = match gguf::layout(self.library, &path, size, &mut self.left) {
            Ok(layout) => layout,
            Err(damage) => return self.damaged(path, size, &damage),
        };
        self.open(path, size);
        for group in &mut self.groups {
            for range in layout.ranges() {
                group.take(&range);
            }
        }
    }

    pub(super) fn finish(mut self, format: Format) -> Prediction {
        if self.groups.iter().any(WorkerPages::is_full) {
            let note = "There are too many ranges; the last files are loaded whole";
            self.notes.add(note.to_owned());
        }
        Prediction {
            format,
            order: self.order,
            files: self.files,
            groups: self.groups.into_iter().map(WorkerPages::finish).collect(),
            notes: self.notes.finish(),
        }
    }

    fn damaged(&mut self, path: String, size: u64, damage: &Damage) {
        let note = format!("{path} {damage}; it is loaded from beginning to end");
        self.notes.add(note);
        self.whole(path, size);
    }

    fn open(&mut self, path: String, size: u64) {
        if size > pages::LARGEST {
            let note = format!("Of {path}, everything beyond 16 TiB is skipped");
            self.notes.add(note);
        }
        let file = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        self.files.push((path, size));
        for group in &mut self.groups {
            group.open(file, size);
        }
    }

    fn tensor(&mut self, tensor: &Tensor) {
        let of = self.groups.len() as u64;
        let split = if self.whole_experts && names::is_experts(&tensor.name) {
            names::Cut::Whole
        } else {
            names::split(&tensor.name)
        };
        for (rank, group) in (0..).zip(&mut self.groups) {
            let share = Share {
                rank,
                of,
                heads: self.heads,
                padding: match self.order {
                    Order::Vllm => VLLM_PADDING,
                    Order::Transformers | Order::File => 1,
                },
            };
            for run in tp::of(tensor, split, &share) {
                group.take_run(&run);
            }
        }
    }
}
