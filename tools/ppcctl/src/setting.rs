//! `KEY=VALUE` as it is typed, and which library and paths somebody means.

use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf, absolute};
use std::str::FromStr;

use cprt::protocol::Settings;

use crate::failure::{Failure, Result};

/// Where policies are installed.
const POLICIES: &str = "/usr/lib/ppc";

/// Where else they are looked for, separated by colons.
const POLICY_PATH: &str = "PPC_POLICY_PATH";

/// One setting of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    key: String,
    value: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("", _)) => Err("the key is missing; say KEY=VALUE".to_owned()),
            Some((key, value)) => Ok(Self {
                key: key.to_owned(),
                value: value.to_owned(),
            }),
            None => Err(format!("a setting is KEY=VALUE; say {text}=VALUE")),
        }
    }
}

/// All of them; each key once, as it is not for us to say which value is meant.
pub(crate) fn collect(settings: Vec<Setting>) -> Result<Settings> {
    let mut all = Settings::new();
    for Setting { key, value } in settings {
        if let Some(other) = all.get(&key) {
            return Err(Failure::Usage(format!(
                "{key} is set twice, to {other} and to {value}; say it once"
            )));
        }
        all.insert(key, value);
    }
    Ok(all)
}

/// The path of a library that is given as a path or as a name.
pub(crate) fn library(given: &Path) -> Result<PathBuf> {
    let path = env::var_os(POLICY_PATH);
    let more: Vec<_> = path.iter().flat_map(env::split_paths).collect();
    look_up(given, &more)
}

fn look_up(given: &Path, more: &[PathBuf]) -> Result<PathBuf> {
    if given.as_os_str().as_bytes().contains(&b'/') {
        return full(given);
    }
    let stem = match given.extension() {
        Some(extension) if extension == OsStr::new("so") => given.with_extension(""),
        _ => given.to_owned(),
    };
    let mut file = stem.clone().into_os_string();
    file.push(".so");
    // An empty one would be the current directory, where a name is not looked for.
    let directories: Vec<_> = more
        .iter()
        .filter(|directory| !directory.as_os_str().is_empty())
        .map(PathBuf::as_path)
        .chain([Path::new(POLICIES)])
        .collect();
    let found = directories
        .iter()
        .map(|directory| directory.join(&file))
        .find(|library| library.is_file());
    if let Some(library) = found {
        return full(&library);
    }
    let shown: Vec<_> = directories
        .iter()
        .map(|directory| directory.display().to_string())
        .collect();
    Err(Failure::NoSuchPolicy {
        name: stem.display().to_string(),
        directories: shown.join(", "),
    })
}

/// A path that means the same to a daemon that is elsewhere.
pub(crate) fn full(path: &Path) -> Result<PathBuf> {
    absolute(path).map_err(|source| Failure::System {
        doing: "Looking up the current directory",
        source,
    })
}

/// The same for a mount, as the kernel lists it if that can be found out: without links and `..`.
pub(crate) fn mount(path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(real) => Ok(real),
        // The daemon knows better what is wrong with it.
        Err(_) => full(path).map(|path| path.components().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(text: &str) -> Setting {
        text.parse().expect("a setting")
    }

    #[test]
    fn settings_are_split_at_the_first_sign() {
        for (text, key, value) in [
            ("a=b", "a", "b"),
            ("a=", "a", ""),
            ("a=b=c d", "a", "b=c d"),
        ] {
            let expected = Setting {
                key: key.into(),
                value: value.into(),
            };
            assert_eq!(setting(text), expected);
        }
    }

    #[test]
    fn what_is_no_setting_is_told_how_to_be_one() {
        for (text, problem) in [
            ("length", "a setting is KEY=VALUE; say length=VALUE"),
            ("", "a setting is KEY=VALUE; say =VALUE"),
            ("=1", "the key is missing; say KEY=VALUE"),
        ] {
            assert_eq!(text.parse::<Setting>(), Err(problem.to_owned()));
        }
    }

    #[test]
    fn a_key_is_said_once() {
        let twice = collect(vec![setting("a=1"), setting("b=2"), setting("a=3")]);
        let text = twice.expect_err("a twice").to_string();
        assert_eq!(text, "a is set twice, to 1 and to 3; say it once");
    }

    #[test]
    fn names_are_looked_up_and_paths_are_not() {
        let directory = env::temp_dir().join(format!("ppcctl-names-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("a free name");
        let library = directory.join("eager-1.2.so");
        std::fs::write(&library, "").expect("a scratch file");
        let more = [PathBuf::new(), "/nowhere".into(), directory.clone()];
        for name in ["eager-1.2", "eager-1.2.so"] {
            let found = look_up(Path::new(name), &more).expect("it is there");
            assert_eq!(found, library);
        }
        std::fs::remove_dir_all(&directory).expect("it was just there");

        let missing = look_up(Path::new("eager-1.2.so"), &more).expect_err("it is gone");
        let text = missing.to_string();
        let start = format!(
            "There is no eager-1.2.so in /nowhere, {}, /usr/lib/ppc;",
            directory.display()
        );
        assert!(text.starts_with(&start), "{text}");

        let here = env::current_dir().expect("a directory");
        for (path, expected) in [
            ("./p.so", here.join("p.so")),
            ("a/p", here.join("a/p")),
            ("/a/p.so", "/a/p.so".into()),
        ] {
            assert_eq!(look_up(Path::new(path), &more).expect("a path"), expected);
        }
    }

    #[test]
    fn mounts_are_as_the_kernel_lists_them() {
        assert_eq!(
            mount(Path::new("/proc/../proc/")).expect("a path"),
            Path::new("/proc")
        );
        let gone = mount(Path::new("/nowhere/./x/")).expect("a path");
        assert_eq!(gone, Path::new("/nowhere/x"));
    }
}
