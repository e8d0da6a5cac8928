//! Which model a file belongs to, of the many that a directory may hold.
//!
//! A model is a folder with weights, and where frameworks take one file of many out of a folder, the files
//! of that name. A file belongs to the nearest folder above it that has weights; a pipeline of several
//! models, as diffusers write it, is one. Weights beside those that an index names, in another
//! format or as an adapter, are their own model. Pure: the contents of folders are passed in.

mod hub;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::predict::{Format, family, format_of, index_of, kind};

pub(crate) use hub::{Revisions, repository, revision, snapshot};

/// A file of this name says that all below it is one model.
const PIPELINE: &str = "model_index.json";
/// A folder with one of these is a model's, and what lies in it belongs together.
const MARKS: [&str; 4] = [
    PIPELINE,
    "config.json",
    "params.json",
    "adapter_config.json",
];
/// Copies of what is in shards beside them, as Mistral ships them.
const COPY: &str = "consolidated";

/// Identifies a model of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ModelKey {
    /// Its folder; "" is the mount's own.
    pub(crate) root: String,
    /// The name of its weights, where the folder has others as well.
    pub(crate) family: Option<String>,
}

/// Access to folders.
pub(crate) trait Folders {
    /// The names in a folder, and the sizes of its files.
    fn list(&self, folder: &str) -> Vec<(String, Option<u64>)>;

    /// The files that an index names; `None` if it cannot be read.
    fn index(&self, path: &str, size: u64) -> Option<BTreeSet<String>>;
}

/// The contents of a folder, without those of folders in it.
#[derive(Debug, Default)]
struct Content {
    /// Names of its weights by their kind, the one that frameworks prefer first.
    weights: BTreeMap<usize, BTreeSet<String>>,
    /// Its indices, with their sizes.
    indices: BTreeMap<String, u64>,
    marked: bool,
    is_pipeline: bool,
}

impl Content {
    fn add(&mut self, name: &str, size: u64) {
        if let Some(kind) = kind(name).filter(|_| size > 0) {
            let weights = self.weights.entry(kind).or_default();
            weights.insert(name.to_owned());
        }
        if name.ends_with(".index.json") {
            self.indices.insert(name.to_owned(), size);
        }
        self.marked |= MARKS.contains(&name);
        self.is_pipeline |= name == PIPELINE;
    }

    fn has_weights(&self) -> bool {
        !self.weights.is_empty()
    }

    fn families(&self, of: usize) -> BTreeSet<&str> {
        let weights = self.weights.get(&of).into_iter().flatten();
        weights.map(|name| family(name, of)).collect()
    }

    /// The name that distinguishes a file of this folder from other weights in it, if that is necessary.
    fn family(&self, root: &str, name: &str, folders: &dyn Folders) -> Option<String> {
        let of = kind(name)?;
        let own = Some(family(name, of).to_owned());
        if self.weights.keys().next() != Some(&of) {
            return own;
        }
        if let Some(listed) = self.listed(root, of, folders) {
            return own.filter(|_| !listed.contains(name));
        }
        let families = self.families(of);
        let is_alone = families.len() < 2;
        let is_copy = family(name, of) == COPY;
        own.filter(|_| !is_alone && (is_copy || !self.belongs_together(of)))
    }

    /// The files that the index names, if any of them exist.
    fn listed(&self, root: &str, of: usize, folders: &dyn Folders) -> Option<BTreeSet<String>> {
        let index = index_of(of)?;
        let size = *self.indices.get(index)?;
        let listed = folders.index(&join(root, index), size)?;
        let weights = self.weights.get(&of)?;
        (!listed.is_disjoint(weights)).then_some(listed)
    }

    /// Whether frameworks read all of a kind that is in a folder. Of GGUF they take one file, and so they do
    /// where nothing says what model it is.
    fn belongs_together(&self, of: usize) -> bool {
        match format_of(of) {
            Some(Format::Gguf) => false,
            Some(Format::Safetensors) => self.marked,
            Some(Format::Plain) | None => true,
        }
    }
}

/// The model that a file of a mount belongs to; `None` if there is none above it.
pub(crate) fn model_of(path: &str, folders: &dyn Folders) -> Option<ModelKey> {
    let above = ancestors(path).map(|folder| {
        let mut content = Content::default();
        for (name, size) in folders.list(folder) {
            if let Some(size) = size {
                content.add(&name, size);
            }
        }
        (folder, content)
    });
    root_among(above).map(|(root, content)| key(path, root, &content, folders))
}

/// The models among all files of a mount.
pub(crate) fn models_among(files: &[(String, u64)], folders: &dyn Folders) -> BTreeSet<ModelKey> {
    let tree = Tree::new(files);
    let weights = files.iter().filter(|(path, _)| kind(path).is_some());
    let models = weights.filter_map(|(path, _)| {
        let (root, content) = tree.root(path)?;
        Some(key(path, root, content, folders))
    });
    models.collect()
}

/// Those files below a model's folder that belong to no other model.
pub(crate) fn own(
    files: Vec<(String, u64)>,
    wanted: Option<&str>,
    folders: &dyn Folders,
) -> Vec<(String, u64)> {
    let tree = Tree::new(&files);
    let is_own = |path: &str| match tree.root(path) {
        // Files beside the weights belong to each family.
        Some(("", content)) => {
            path.contains('/')
                || kind(path).is_none()
                || content.family("", path, folders).as_deref() == wanted
        }
        Some(_) => false,
        None => true,
    };
    let keep: Vec<bool> = files.iter().map(|(path, _)| is_own(path)).collect();
    drop(tree);
    let kept = files.into_iter().zip(keep);
    kept.filter_map(|(file, keep)| keep.then_some(file))
        .collect()
}

/// All folders at once.
struct Tree<'a>(BTreeMap<&'a str, Content>);

impl<'a> Tree<'a> {
    fn new(files: &'a [(String, u64)]) -> Self {
        let mut folders: BTreeMap<&str, Content> = BTreeMap::new();
        for (path, size) in files {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            folders.entry(folder).or_default().add(name, *size);
        }
        Self(folders)
    }

    fn root(&self, path: &'a str) -> Option<(&'a str, &Content)> {
        let known = |folder| Some((folder, self.0.get(folder)?));
        root_among(ancestors(path).filter_map(known))
    }
}

/// Of the folders above a file, the nearest first, the one that is its model's.
fn root_among<'p, C: std::borrow::Borrow<Content>>(
    folders: impl Iterator<Item = (&'p str, C)>,
) -> Option<(&'p str, C)> {
    let (mut with_weights, mut pipeline, mut marked) = (None, None, None);
    for (folder, content) in folders {
        let it: &Content = content.borrow();
        if it.is_pipeline {
            // A model within another is a part of that.
            pipeline = Some((folder, content));
        } else if it.has_weights() {
            with_weights.get_or_insert((folder, content));
        } else if it.marked {
            marked.get_or_insert((folder, content));
        }
    }
    pipeline.or(with_weights).or(marked)
}

fn key(path: &str, root: &str, content: &Content, folders: &dyn Folders) -> ModelKey {
    let name = below(root, path).filter(|name| !name.contains('/'));
    let family = name.filter(|_| !content.is_pipeline);
    ModelKey {
        root: root.to_owned(),
        family: family.and_then(|name| content.family(root, name, folders)),
    }
}

/// The folders above a file, the nearest first; the last one is "".
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(parent(path)), |&folder| {
        (!folder.is_empty()).then(|| parent(folder))
    })
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// A path below a folder, from there.
pub(crate) fn below<'p>(folder: &str, path: &'p str) -> Option<&'p str> {
    if folder.is_empty() {
        return Some(path);
    }
    path.strip_prefix(folder)?.strip_prefix('/')
}

/// The other way round.
pub(crate) fn join(folder: &str, path: &str) -> String {
    match (folder, path) {
        ("", path) => path.to_owned(),
        (folder, "") => folder.to_owned(),
        (folder, path) => format!("{folder}/{path}"),
    }
}
