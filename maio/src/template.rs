//! What a service reads to load its model: which worker, which ranges of which files, in which order. Or what a command
//! read at its last starts ([`TemplateKind`]).
//!
//! Recorded on one load, replayed as prefetching on the next. A template is small and made to be
//! kept: [`Template::from_bytes`] checks all input, whatever its origin, and ranges are
//! checked against their files when they are unpacked.

mod diff;
mod error;
mod format;
mod identity;
mod nodes;
mod pack;
mod store;
mod view;

#[cfg(test)]
pub(crate) mod models;
#[cfg(test)]
mod samples;

use std::sync::Arc;

use serde::Serialize;

pub use diff::{Change, Diff, FileDiff, WorkerDiff, diff};
pub use error::TemplateError;
pub(crate) use identity::is_folder;
pub use identity::{HEADER, Identity, Sameness, header_hash};
pub use nodes::{FoundTemplate, learn};
pub use store::{Stamp, Store, StoreEntry, Summary, default_root, this_node, valid_name};
pub use view::{FileView, GroupView, View};

use crate::{Extent, PAGE};

/// The most ranges of a group.
pub const MAX_EXTENTS: usize = 1 << 20;
/// The most groups of a template.
pub const MAX_GROUPS: usize = 4096;
/// The most files of a template.
pub const MAX_FILES: usize = 65536;
/// The most bytes of a template, as it is kept.
pub const MAX_BYTES: usize = 64 << 20;

/// What a template is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TemplateKind {
    /// The loads of a model: there is a group for each worker.
    #[default]
    Model,
    /// The starts of a command: there is a group for each of the last ones, the newest first.
    Start,
}

/// What is known of how a service loads, or of how a command starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// What it is of.
    pub kind: TemplateKind,
    /// The service, by a [`valid_name`].
    pub service: String,
    /// The node it was recorded on, likewise.
    pub node: String,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
    /// How many loads it has been right for.
    pub loads: u32,
    /// What is read; [`Extent::file`] counts in here.
    pub files: Vec<Identity>,
    /// The workers that read it; for a start, what each of the last ones read, the newest first.
    pub groups: Vec<Group>,
}

impl Template {
    /// Whether the model's readers bypassed the page cache (`O_DIRECT`): the files are known, and no worker reads them
    /// from there.
    #[must_use]
    pub fn bypasses_cache(&self) -> bool {
        self.kind == TemplateKind::Model && self.groups.is_empty() && !self.files.is_empty()
    }
}

/// What one worker reads, in order. It is packed, because it may be large and is not always needed.
#[derive(Clone, Debug)]
pub struct Group {
    /// The worker, numbered from 0; of a start, how many were after it.
    pub worker: u32,
    /// The accelerator it loads for.
    pub xpu: Option<u16>,
    count: u32,
    pages: u64,
    packed: Vec<u8>,
    /// How many pages the files have; of templates that were read.
    limits: Option<Arc<[u32]>>,
}

impl Group {
    /// A worker's ranges, in reading order.
    ///
    /// # Errors
    /// [`TemplateError::Inconsistent`] if there are more than [`MAX_EXTENTS`], or one is empty, has no end
    /// or is of a file beyond [`MAX_FILES`].
    pub fn new(worker: u32, xpu: Option<u16>, extents: &[Extent]) -> Result<Self, TemplateError> {
        pack::check(extents)?;
        Ok(Self {
            worker,
            xpu,
            count: u32::try_from(extents.len()).unwrap_or(u32::MAX),
            pages: pages(extents),
            packed: pack::pack(extents),
            limits: None,
        })
    }

    /// The ranges, in reading order. Unpacked each time, so keep them.
    ///
    /// # Errors
    /// [`TemplateError::Inconsistent`] if a template that was read has ranges that cannot be.
    pub fn extents(&self) -> Result<Vec<Extent>, TemplateError> {
        self.unpack(self.limits.as_deref())
    }

    fn unpack(&self, limits: Option<&[u32]>) -> Result<Vec<Extent>, TemplateError> {
        let extents = pack::unpack(&self.packed, self.count as usize, limits)?;
        if pages(&extents) != self.pages {
            return Err(TemplateError::Inconsistent(
                "a group lists pages that do not add up to its own count",
            ));
        }
        Ok(extents)
    }

    /// The bytes that the worker reads, counting twice what it reads twice. In a template that was read, this
    /// is the number it states, until [`Group::extents`] agrees.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.pages.saturating_mul(PAGE)
    }

    /// How many ranges there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.worker, it.xpu, it.count, it.pages);
        key(self) == key(other) && self.packed == other.packed
    }
}

impl Eq for Group {}

fn pages(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| u64::from(extent.pages)).sum()
}

/// How many pages a file of that size has, if they can be counted.
fn pages_of(size: u64) -> Option<u32> {
    u32::try_from(size.div_ceil(PAGE)).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::models::{Model, WeightFormat};
    use super::*;

    fn template(model: &Model, workers: u32) -> Template {
        let group = |worker| {
            let xpu = u16::try_from(worker).ok();
            Group::new(worker, xpu, &model.reads(worker, workers)).expect("a group")
        };
        Template {
            kind: TemplateKind::Model,
            service: "0123456789abcdef0123456789abcdef".to_owned(),
            node: "node-17.cluster.example".to_owned(),
            made_s: 1_790_000_000,
            loads: 3,
            files: model.identities(),
            groups: (0..workers).map(group).collect(),
        }
    }

    #[test]
    fn a_model_of_7b_takes_11_kb() {
        for layout in WeightFormat::ALL {
            let model = Model::qwen_7b(layout);
            let tensors: usize = model.files.iter().map(|file| file.tensors.len()).sum();
            assert_eq!((model.files.len(), tensors), (8, 339));
            let template = template(&model, 1);
            let bytes = template.to_bytes().expect("bytes");
            let ranges = template.groups[0].len();
            println!("7B {layout:?}: {ranges} ranges, {} bytes", bytes.len());
            assert!(bytes.len() <= 11_000);
        }
    }

    #[test]
    fn a_model_of_671b_for_16_workers_takes_545_kb() {
        for layout in WeightFormat::ALL {
            let model = Model::deepseek_671b(layout);
            assert_eq!(model.files.len(), 163);
            let template = template(&model, 16);
            let bytes = template.to_bytes().expect("bytes");
            let ranges: usize = template.groups.iter().map(Group::len).sum();
            println!("671B {layout:?}: {ranges} ranges, {} bytes", bytes.len());
            assert!(bytes.len() <= 545_000);
            let last = template.groups[15].extents().expect("ranges");
            assert_eq!(last, model.reads(15, 16));
        }
    }

    /// cargo test --release -p maio --lib -- --ignored --exact --nocapture \
    ///     `template::tests::how_long_it_takes`
    #[test]
    #[ignore = "prints times, which is for the one who wants to see them"]
    fn how_long_it_takes() {
        fn median<T>(name: &str, mut of: impl FnMut() -> T) {
            let mut times: Vec<_> = (0..9)
                .map(|_| {
                    let start = Instant::now();
                    std::hint::black_box(of());
                    start.elapsed()
                })
                .collect();
            times.sort();
            println!("  {name}: {:?} (least {:?})", times[4], times[0]);
        }
        for layout in WeightFormat::ALL {
            let model = Model::deepseek_671b(layout);
            let template = template(&model, 16);
            let bytes = template.to_bytes().expect("bytes");
            let reads = model.reads(5, 16);
            println!(
                "671B {layout:?}, {} bytes, {} ranges a group",
                bytes.len(),
                reads.len()
            );
            median("from_bytes", || {
                Template::from_bytes(&bytes).expect("a template")
            });
            median("extents of a group", || {
                template.groups[5].extents().expect("ranges")
            });
            median("a group", || Group::new(5, None, &reads).expect("a group"));
            median("to_bytes", || template.to_bytes().expect("bytes"));
            median("diff of 16 groups", || {
                diff(&template, &template).expect("what differs")
            });
        }
    }
}
