//! Chooses which of a folder's files are the model.

use std::collections::{BTreeMap, BTreeSet};

use super::build::Notes;
use super::{Format, Library, index, natural, small};

/// The files that are the model, in order.
#[derive(Debug)]
pub(super) struct ModelFiles {
    pub(super) format: Format,
    pub(super) small: Vec<(String, u64)>,
    pub(super) weights: Vec<(String, u64)>,
    pub(super) notes: Notes,
}

/// Kinds of weights, best first: endings, format, and the index that says which files count. Frameworks
/// take the first kind that the folder has.
const KINDS: [(&[&str], Format, Option<&str>); 4] = [
    (
        &["safetensors"],
        Format::Safetensors,
        Some("model.safetensors.index.json"),
    ),
    (&["gguf"], Format::Gguf, None),
    (
        &["bin"],
        Format::Plain,
        Some("pytorch_model.bin.index.json"),
    ),
    (&["pt", "pth"], Format::Plain, None),
];

/// Files that training leaves beside its result.
const TRAINING: [&str; 6] = [
    "training_args.bin",
    "optimizer.bin",
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state.pth",
];

/// Chooses the model's files among all.
pub(super) fn of(library: &dyn Library) -> ModelFiles {
    let mut notes = Notes::default();
    let files = library.files().into_iter().filter(|&(_, size)| size > 0);
    let files: BTreeMap<String, u64> = files.collect();
    let (small, too_many) = small::of(&files);
    if too_many > 0 {
        notes.add(format!(
            "{too_many} small files are skipped, because together they are too large"
        ));
    }
    let (format, mut weights) = weights(library, &files, &small, &mut notes);
    weights.sort_by(|(one, _), (other, _)| natural::compare(one, other));
    ModelFiles {
        format,
        small,
        weights,
        notes,
    }
}

type SizedFiles = Vec<(String, u64)>;

fn weights(
    library: &dyn Library,
    files: &BTreeMap<String, u64>,
    small: &SizedFiles,
    notes: &mut Notes,
) -> (Format, SizedFiles) {
    for (endings, format, index) in KINDS {
        let mut found = ending_in(files, endings);
        if found.is_empty() {
            continue;
        }
        let listed = index
            .filter(|path| files.contains_key(*path))
            .and_then(|path| listed(library, files, path, notes));
        match listed {
            Some(listed) => drop_unlisted(&mut found, &listed, notes),
            None => drop_others(&mut found, notes),
        }
        if format == Format::Gguf {
            tell_models_apart(&found, notes);
        }
        return (format, found);
    }
    let small: BTreeSet<_> = small.iter().map(|(path, _)| path).collect();
    let others = files.iter().filter(|(path, _)| !small.contains(path));
    let others = others.map(|(path, &size)| (path.clone(), size));
    (Format::Plain, others.collect())
}

fn ending_in(files: &BTreeMap<String, u64>, endings: &[&str]) -> SizedFiles {
    let found = files.iter().filter(|(path, _)| ends_in(path, endings));
    found.map(|(path, &size)| (path.clone(), size)).collect()
}

fn ends_in(path: &str, endings: &[&str]) -> bool {
    let name = natural::file_name(path);
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    ending.is_some_and(|ending| endings.contains(&ending)) && !TRAINING.contains(&name)
}

/// The kind of weights that a file is, as an index; frameworks prefer lower ones. `None` if it is not weights.
pub(crate) fn kind(path: &str) -> Option<usize> {
    KINDS
        .iter()
        .position(|(endings, ..)| ends_in(path, endings))
}

/// The name that weight files of one model share: the path without part numbers.
pub(crate) fn family(path: &str, kind: usize) -> &str {
    let Some((endings, format, _)) = KINDS.get(kind) else {
        return path;
    };
    let whole = without_part(path, endings);
    match format {
        // A number after a separator is mostly the size of the model.
        Format::Gguf => whole,
        Format::Safetensors | Format::Plain => {
            let stem = whole.trim_end_matches(|it: char| it.is_ascii_digit());
            let signed = stem.len() < whole.len() && stem.ends_with(['-', '_', '.']);
            let stem = stem.trim_end_matches(['-', '_', '.']);
            if signed && !stem.is_empty() {
                stem
            } else {
                whole
            }
        }
    }
}

/// How weights of this kind are stored.
pub(crate) fn format_of(kind: usize) -> Option<Format> {
    KINDS.get(kind).map(|&(_, format, _)| format)
}

/// The index that says which weights of this kind count, if this kind has one.
pub(crate) fn index_of(kind: usize) -> Option<&'static str> {
    KINDS.get(kind).and_then(|&(_, _, index)| index)
}

/// The files that the index names, if it can be read and at least one of them exists.
fn listed(
    library: &dyn Library,
    files: &BTreeMap<String, u64>,
    path: &str,
    notes: &mut Notes,
) -> Option<BTreeSet<String>> {
    let size = files.get(path).copied()?;
    let listed = match index::files(library, path, size) {
        Ok(listed) => listed,
        Err(damage) => {
            notes.add(format!("{path} {damage}; the model is loaded without it"));
            return None;
        }
    };
    let missing = listed.iter().filter(|file| !files.contains_key(*file));
    let missing = missing.count();
    if missing > 0 {
        notes.add(format!("{path} names {missing} files that are not there"));
    }
    (missing < listed.len()).then_some(listed)
}

fn drop_unlisted(found: &mut SizedFiles, listed: &BTreeSet<String>, notes: &mut Notes) {
    found.retain(|(path, _)| {
        let kept = listed.contains(path);
        if !kept {
            notes.add(format!(
                "{path} is skipped, because the index does not name it"
            ));
        }
        kept
    });
}

/// Without an index, frameworks read only the top folder. If it has shards and a copy of them all in
/// `consolidated` files, as Mistral's models do, they read the shards.
fn drop_others(found: &mut SizedFiles, notes: &mut Notes) {
    let is_top = |path: &str| !path.contains('/');
    let is_copy = |path: &str| natural::file_name(path).starts_with("consolidated");
    let any_top = found.iter().any(|(path, _)| is_top(path));
    found.retain(|(path, _)| {
        let kept = is_top(path) || !any_top;
        if !kept {
            notes.add(format!(
                "{path} is skipped, because it is not in the top folder"
            ));
        }
        kept
    });
    let any_shard = found.iter().any(|(path, _)| !is_copy(path));
    found.retain(|(path, _)| {
        let kept = !is_copy(path) || !any_shard;
        if !kept {
            notes.add(format!(
                "{path} is skipped, because it is a copy of the other files"
            ));
        }
        kept
    });
}

/// Notes if there are several models: a folder of GGUF files often has one model in several sizes, and only
/// one of them is loaded.
fn tell_models_apart(found: &SizedFiles, notes: &mut Notes) {
    let models: BTreeSet<_> = found
        .iter()
        .map(|(path, _)| without_part(path, &["gguf"]))
        .collect();
    if models.len() > 1 {
        notes.add(format!(
            "The folder has {} GGUF models, and it is unknown which of them will be loaded",
            models.len()
        ));
    }
}

/// A path without its ending and without the suffix of a part, `-00001-of-00005`.
fn without_part<'p>(path: &'p str, endings: &[&str]) -> &'p str {
    let stem = match path.rsplit_once('.') {
        Some((stem, ending)) if endings.contains(&ending) => stem,
        _ => path,
    };
    let part = |stem: &'p str| -> Option<&'p str> {
        let (rest, all) = stem.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        (digits(all) && digits(number)).then_some(stem)
    };
    part(stem).unwrap_or(stem)
}

#[cfg(test)]
mod tests {
    use super::super::testing::FakeLibrary;
    use super::*;

    fn chosen(files: &[&str], index: Option<(&str, &str)>) -> (Format, Vec<String>, usize) {
        let mut library = FakeLibrary::default();
        for path in files {
            library.add(path, b"x");
        }
        if let Some((path, text)) = index {
            library.add(path, text.as_bytes());
        }
        let choice = of(&library);
        let names = choice.weights.into_iter().map(|(path, _)| path);
        (choice.format, names.collect(), choice.notes.finish().len())
    }

    #[test]
    fn model_files_come_from_the_index_or_their_names() {
        let index = (
            "model.safetensors.index.json",
            r#"{"weight_map": {"x": "model-10.safetensors", "y": "model-2.safetensors"}}"#,
        );
        let files = [
            "model-10.safetensors",
            "model-2.safetensors",
            "consolidated.safetensors",
            "sub/other.safetensors",
            "pytorch_model.bin",
        ];
        let expected = ["model-2.safetensors", "model-10.safetensors"];
        let (format, names, notes) = chosen(&files, Some(index));
        assert_eq!(format, Format::Safetensors);
        assert_eq!(names, expected);
        assert_eq!(notes, 2);
        // Without an index, the names say it.
        assert_eq!(chosen(&files, None).1, expected);
        // So do they if the index is damaged or belongs to another model.
        for text in [
            "{",
            r#"{"weight_map": {"x": "gone"}}"#,
            r#"{"weight_map": {}}"#,
        ] {
            assert_eq!(chosen(&files, Some((index.0, text))).1, expected, "{text}");
        }
    }

    #[test]
    fn copies_alone_are_the_model() {
        let (_, names, notes) = chosen(&["consolidated.safetensors"], None);
        assert_eq!((names.len(), notes), (1, 0));
    }

    #[test]
    fn kinds_are_taken_in_turn() {
        let table: [(&[&str], Format, &[&str]); 5] = [
            (&["b.gguf", "a.bin"], Format::Gguf, &["b.gguf"]),
            (
                &["a.pt", "a.bin", "training_args.bin"],
                Format::Plain,
                &["a.bin"],
            ),
            (
                &["a-10.pth", "a-9.pt", "optimizer.pt"],
                Format::Plain,
                &["a-9.pt", "a-10.pth"],
            ),
            (
                &["x10.data", "x9.data", "config.json"],
                Format::Plain,
                &["x9.data", "x10.data"],
            ),
            (
                &["unet/a.safetensors", "vae/b.safetensors"],
                Format::Safetensors,
                &["unet/a.safetensors", "vae/b.safetensors"],
            ),
        ];
        for (files, format, expected) in table {
            let (found, names, _) = chosen(files, None);
            assert_eq!((found, names), (format, owned(expected)), "{files:?}");
        }
    }

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn model_parts_are_distinguished_from_several_models() {
        let parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        assert_eq!(chosen(&parts, None).2, 0);
        assert_eq!(chosen(&["m-Q4.gguf", "m-Q8.gguf"], None).2, 1);
        assert_eq!(without_part("a-1-of-x.gguf", &["gguf"]), "a-1-of-x");
    }

    #[test]
    fn parts_of_a_model_have_a_family() {
        let table = [
            ("model-00001-of-00002.safetensors", "model"),
            ("model-2.safetensors", "model"),
            ("sd15.safetensors", "sd15"),
            ("consolidated.00.pth", "consolidated"),
            ("m-q4-00001-of-00002.gguf", "m-q4"),
            ("m-7.gguf", "m-7"),
            ("7.bin", "7"),
        ];
        for (path, expected) in table {
            let kind = kind(path).expect("weights");
            assert_eq!(family(path, kind), expected, "{path}");
        }
        assert_eq!(kind("optimizer.pt").or(kind("config.json")), None);
    }
}
