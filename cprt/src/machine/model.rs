//! Finds the model that a command names, so that the user need not name it twice.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The least size of a file of weights.
const WEIGHTS: u64 = 16 << 20;
/// The endings of files of weights in a model's directory.
const ENDINGS: [&str; 4] = ["safetensors", "bin", "pt", "pth"];

/// The working directory and the environment of a command, by which its arguments are resolved.
pub struct Surroundings<'a> {
    /// Its working directory.
    pub here: &'a Path,
    /// Its environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl std::fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings")
            .field("here", &self.here)
            .finish_non_exhaustive()
    }
}

/// The directory of the first model that a command's arguments or option values name, by itself or by its file in
/// GGUF, or the newest copy of it in a cache of downloads.
#[must_use]
pub fn named(arguments: &[OsString], around: &Surroundings<'_>) -> Option<PathBuf> {
    let mut names = arguments.iter().filter_map(|argument| value(argument));
    names.find_map(|name| {
        let here = directory(name, around.here).or_else(|| around_file(name, around.here));
        here.or_else(|| download(name, &cache(around.variable)?))
    })
}

/// An argument, or the value of an option.
fn value(argument: &OsStr) -> Option<&OsStr> {
    let bytes = argument.as_bytes();
    if !bytes.starts_with(b"-") {
        return Some(argument);
    }
    let sign = bytes.iter().position(|&byte| byte == b'=')?;
    Some(OsStr::from_bytes(&bytes[sign + 1..]))
}

/// A directory with a model: it has a configuration, and weights.
fn directory(name: &OsStr, here: &Path) -> Option<PathBuf> {
    let path = here.join(name);
    if name.is_empty() || !path.join("config.json").is_file() {
        return None;
    }
    let entries = fs::read_dir(&path).ok()?;
    let mut files = entries.flatten().map(|entry| entry.path());
    files.any(|file| is_weights(&file)).then_some(path)
}

/// The directory of a file that is a whole model, or the first part of one.
fn around_file(name: &OsStr, here: &Path) -> Option<PathBuf> {
    let path = here.join(name);
    let is_model = path.extension() == Some(OsStr::new("gguf")) && is_large(&path);
    path.parent().filter(|_| is_model).map(Path::to_owned)
}

fn is_weights(file: &Path) -> bool {
    let ending = file.extension().and_then(OsStr::to_str);
    ending.is_some_and(|ending| ENDINGS.contains(&ending)) && is_large(file)
}

fn is_large(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.len() >= WEIGHTS)
}

/// The cache in which libraries keep downloads from the model hub, by their environment variables.
fn cache(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| {
        variable(name)
            .filter(|it| !it.is_empty())
            .map(PathBuf::from)
    };
    let home = || {
        path("HF_HOME").or_else(|| {
            let caches = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
            Some(caches?.join("huggingface"))
        })
    };
    path("HF_HUB_CACHE").or_else(|| Some(home()?.join("hub")))
}

/// A model by its name, as `owner/model`.
fn download(name: &OsStr, cache: &Path) -> Option<PathBuf> {
    let (owner, model) = name.to_str()?.split_once('/')?;
    let plain = |part: &str| {
        let may_be = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        part.chars().all(may_be) && part.starts_with(|first: char| first.is_ascii_alphanumeric())
    };
    if !plain(owner) || !plain(model) {
        return None;
    }
    let copy = cache.join(format!("models--{owner}--{model}"));
    let revision = fs::read_to_string(copy.join("refs/main")).ok()?;
    let revision = revision.trim();
    let snapshot = plain(revision).then(|| copy.join("snapshots").join(revision))?;
    directory(snapshot.as_os_str(), Path::new("/"))
}

#[cfg(test)]
mod tests {
    use test_support::Folder;

    use super::*;

    fn make_model(folder: &Folder, at: &str) -> PathBuf {
        folder.write(&format!("{at}/config.json"), "{}");
        let weights = folder.write(&format!("{at}/model-1.safetensors"), "");
        let file = fs::File::options()
            .write(true)
            .open(&weights)
            .expect("it is there");
        file.set_len(WEIGHTS).expect("a hole");
        folder.path().join(at)
    }

    fn found(words: &[&OsStr]) -> Option<PathBuf> {
        let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        let around = Surroundings {
            here: Path::new("/"),
            variable: &|_| None,
        };
        named(&words, &around)
    }

    #[test]
    fn a_model_is_found_as_an_argument_and_as_the_value_of_an_option() {
        let folder = Folder::new("run-model");
        let model = make_model(&folder, "m");
        let mut option = OsString::from("--model=");
        option.push(&model);
        let serve = OsStr::new("serve");
        assert_eq!(found(&[serve, model.as_os_str()]), Some(model.clone()));
        assert_eq!(found(&[serve, &option]), Some(model.clone()));
        assert_eq!(found(&[OsStr::new("m")]), None, "it is elsewhere");
        let around = Surroundings {
            here: folder.path(),
            variable: &|_| None,
        };
        let relative = named(&["m".into()], &around);
        assert_eq!(relative, Some(model.clone()));
        // A folder of data is not a model, nor is one without weights.
        folder.write("data/a.bin", "b");
        folder.write("empty/config.json", "{}");
        for name in ["data", "empty", "nothing"] {
            assert_eq!(found(&[folder.path().join(name).as_os_str()]), None);
        }
    }

    #[test]
    fn a_file_in_gguf_names_the_folder_that_it_is_in() {
        let folder = Folder::new("run-gguf");
        let make = |name: &str, size| {
            let path = folder.write(name, "GGUF");
            let file = fs::File::options().write(true).open(&path);
            file.and_then(|it| it.set_len(size)).expect("a hole");
            path
        };
        let (large, small) = (make("m.gguf", WEIGHTS), make("words.gguf", WEIGHTS - 1));
        let minus = OsStr::new("-m");
        let root = Some(folder.path().to_owned());
        assert_eq!(found(&[minus, large.as_os_str()]), root);
        assert_eq!(found(&[minus, small.as_os_str()]), None);
        assert_eq!(
            found(&[folder.path().as_os_str()]),
            None,
            "it may be anything"
        );
        let around = Surroundings {
            here: folder.path(),
            variable: &|_| None,
        };
        let relative = named(&["m.gguf".into()], &around);
        assert_eq!(relative.and_then(|it| it.canonicalize().ok()), root);
    }

    #[test]
    fn a_name_is_looked_up_in_the_cache_of_downloads() {
        let folder = Folder::new("run-hub");
        let model = make_model(&folder, "models--meta--Llama-3/snapshots/01ab");
        folder.write("models--meta--Llama-3/refs/main", "01ab\n");
        let name = |name: &'static str| download(OsStr::new(name), folder.path());
        assert_eq!(name("meta/Llama-3"), Some(model));
        for other in ["meta/other", "meta", "../x", "meta/Llama-3/x", "", "/"] {
            assert_eq!(name(other), None, "{other}");
        }
        let root = folder.path().as_os_str().to_owned();
        let around = Surroundings {
            here: Path::new("/"),
            variable: &|name| (name == "HF_HUB_CACHE").then(|| root.clone()),
        };
        let found = named(&["--model=meta/Llama-3".into()], &around);
        assert!(found.is_some_and(|it| it.starts_with(folder.path())));
        folder.write("models--meta--Llama-3/refs/main", "../../../../etc");
        assert_eq!(name("meta/Llama-3"), None);
    }
}
