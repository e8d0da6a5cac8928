//! What is loaded of some files, and in which order: by a service's template, or by a model's headers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cprt::residency::{CacheFile, Part};
use maio::predict::{Deployment, Directory, predict_reads};
use maio::template::{Store, Template, TemplateKind, View};
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::template::find;
use crate::{run, start};

/// Where the order comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Source {
    /// The template of a service.
    Template,
    /// That of a start.
    Start,
    /// A model's files, as frameworks read them.
    Headers,
    /// The files' names.
    Names,
}

/// A range of a file by its path without links: offset and length.
type PathRange = (PathBuf, u64, u64);

/// The template of a service or of its start; `None` if there is none.
pub(super) fn known(store: &Store, service: &str) -> Result<Option<Template>> {
    for name in [service.to_owned(), run::start_name_of_service(service)] {
        match find(store, &name, None) {
            Err(Failure::NoTemplate(_)) => {}
            done => return done.map(Some),
        }
    }
    Ok(None)
}

/// What a template has of these files.
pub(super) fn by_template(
    template: &Template,
    files: &[CacheFile],
    paths: &[PathBuf],
) -> Result<(Source, Vec<Part>)> {
    let resolve = |path: PathBuf| path.canonicalize().ok();
    let mut real: HashMap<String, Vec<PathBuf>> = HashMap::new();
    let mut ranges_of = |path: &str, roots: &[PathBuf], offset, length| {
        let real = real.entry(path.to_owned()).or_insert_with(|| {
            let below = roots.iter().map(|root| root.join(path));
            below.filter_map(resolve).collect()
        });
        let ranges = real.iter().map(|path| (path.clone(), offset, length));
        ranges.collect::<Vec<PathRange>>()
    };
    let (source, ranges) = match template.kind {
        TemplateKind::Start => {
            let root = [PathBuf::from("/")];
            let expected = start::expected(template)?.into_iter();
            let ranges =
                expected.flat_map(|(path, at, length)| ranges_of(&path, &root, at, length));
            (Source::Start, ranges.collect::<Vec<_>>())
        }
        TemplateKind::Model => {
            let groups = View::of(template)?.groups.into_iter();
            let ranges = in_turn(groups.map(|group| group.ranges).collect()).into_iter();
            let ranges = ranges.flat_map(|(path, at, length)| ranges_of(path, paths, at, length));
            (Source::Template, ranges.collect())
        }
    };
    Ok((source, parts(files, &ranges)))
}

/// All of these files: those of a model in the order in which frameworks read them, then the others.
pub(super) fn whole(files: &[CacheFile], paths: &[PathBuf]) -> (Source, Vec<Part>) {
    let folders = paths.iter().filter(|path| path.is_dir());
    let named: Vec<_> = folders.flat_map(|folder| predicted(folder)).collect();
    let source = if named.is_empty() {
        Source::Names
    } else {
        Source::Headers
    };
    (source, named_first(files, &named))
}

/// The files of a model without links, in the order in which they are read.
fn predicted(folder: &Path) -> Vec<PathBuf> {
    let prediction = predict_reads(&Directory::new(folder), &Deployment::default());
    let files = prediction.into_iter().flat_map(|it| it.files);
    let real = files.map(|(name, _)| folder.join(name).canonicalize());
    real.filter_map(Result::ok).collect()
}

fn places(files: &[CacheFile]) -> HashMap<&Path, usize> {
    let places = files.iter().zip(0..);
    places.map(|(file, at)| (file.real.as_path(), at)).collect()
}

/// The ranges that are of these files, up to their ends.
fn parts(files: &[CacheFile], ranges: &[PathRange]) -> Vec<Part> {
    let places = places(files);
    let part = |(path, offset, length): &PathRange| {
        let &file = places.get(path.as_path())?;
        let end = offset.saturating_add(*length).min(files[file].size);
        (*offset < end).then_some(Part {
            file,
            range: *offset..end,
        })
    };
    ranges.iter().filter_map(part).collect()
}

/// Whole files, the named ones first.
fn named_first(files: &[CacheFile], named: &[PathBuf]) -> Vec<Part> {
    let places = places(files);
    let mut left: Vec<_> = files.iter().map(|file| file.size > 0).collect();
    let first = named.iter().filter_map(|path| places.get(path.as_path()));
    let all = first.copied().chain(0..files.len());
    let once = all.filter(|&file| std::mem::take(&mut left[file]));
    let whole = |file: usize| Part {
        file,
        range: 0..files[file].size,
    };
    once.map(whole).collect()
}

/// One from each list in its turn: the workers of a service read at the same time.
fn in_turn<T>(lists: Vec<Vec<T>>) -> Vec<T> {
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(lists.iter_mut().filter_map(Iterator::next));
        if all.len() == before {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_their_turns() {
        let lists = vec![vec![1, 4, 6], vec![], vec![2], vec![3, 5]];
        assert_eq!(in_turn(lists), [1, 2, 3, 4, 5, 6]);
        assert!(in_turn(Vec::<Vec<u8>>::new()).is_empty());
    }

    fn files() -> (test_support::Folder, Vec<CacheFile>) {
        // On storage: the folder for temporary files may be in memory.
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp");
        std::fs::create_dir_all(&target).expect("a folder");
        let folder = test_support::Folder::within(&target, "ppcctl-order");
        for (name, size) in [("a", 10), ("b", 0), ("c", 30)] {
            folder.write(name, vec![7; size]);
        }
        let found = cprt::residency::find(&[folder.path().to_owned()]);
        let files = found.expect("they are there").files;
        (folder, files)
    }

    #[test]
    fn named_files_come_first_and_ranges_end_with_their_files() {
        let (folder, files) = files();
        let path = |name: &str| folder.path().join(name);
        let part = |file, range| Part { file, range };
        let named = [path("c"), path("x"), path("c")];
        assert_eq!(
            named_first(&files, &named),
            [part(2, 0..30), part(0, 0..10)]
        );
        let ranges = [
            (path("c"), 20, 20),
            (path("x"), 0, 5),
            (path("a"), 10, 5),
            (path("a"), 0, 5),
        ];
        assert_eq!(parts(&files, &ranges), [part(2, 20..30), part(0, 0..5)]);
    }
}
