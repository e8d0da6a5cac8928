//! Finds the library of a policy by its name.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf, absolute};

use thiserror::Error;

/// Where policies are installed.
pub const DIRECTORY: &str = "/usr/lib/ppc";

/// The variable with further directories to search, separated by colons.
pub const VARIABLE: &str = "PPC_POLICY_PATH";

/// There is no such library.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Missing {
    /// No library has that name.
    #[error(
        "There is no {name}.so in {directories}; name the directory, as in ./{name}.so, or set \
         PPC_POLICY_PATH"
    )]
    Name {
        /// The name, without `.so`.
        name: String,
        /// The directories that were searched.
        directories: String,
    },
    /// The path is relative, and there is no current directory.
    #[error("Looking up the current directory")]
    Nowhere(#[source] io::Error),
}

/// The absolute path of a library. `given` is a path if it has a slash; otherwise it is a name, with or
/// without `.so`, that is searched for in the directories of [`VARIABLE`], in `../lib/ppc` relative to
/// this program's directory, if that exists, and in [`DIRECTORY`].
///
/// # Errors
///
/// No library has that name. A path is not checked here.
pub fn look_up(given: &Path) -> Result<PathBuf, Missing> {
    let path = env::var_os(VARIABLE);
    let mut more: Vec<_> = path.iter().flat_map(env::split_paths).collect();
    more.extend(beside_us());
    look_up_in(given, &more)
}

/// The directory of policies that were installed or built together with this program.
fn beside_us() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let directory = program.parent()?.parent()?.join("lib/ppc");
    (directory.is_dir() && directory != Path::new(DIRECTORY)).then_some(directory)
}

fn look_up_in(given: &Path, more: &[PathBuf]) -> Result<PathBuf, Missing> {
    let full = |path: &Path| absolute(path).map_err(Missing::Nowhere);
    if given.as_os_str().as_bytes().contains(&b'/') {
        return full(given);
    }
    let stem = match given.extension() {
        Some(extension) if extension == OsStr::new("so") => given.with_extension(""),
        _ => given.to_owned(),
    };
    let mut file = stem.clone().into_os_string();
    file.push(".so");
    // An empty entry would mean the current directory, which is not searched for names.
    let directories: Vec<_> = more
        .iter()
        .filter(|directory| !directory.as_os_str().is_empty())
        .map(PathBuf::as_path)
        .chain([Path::new(DIRECTORY)])
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
    Err(Missing::Name {
        name: stem.display().to_string(),
        directories: shown.join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_and_paths_are_not() {
        let directory = env::temp_dir().join(format!("ppc-names-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("a free name");
        let library = directory.join("eager-1.2.so");
        std::fs::write(&library, "").expect("a scratch file");
        let more = [PathBuf::new(), "/nowhere".into(), directory.clone()];
        for name in ["eager-1.2", "eager-1.2.so"] {
            let found = look_up_in(Path::new(name), &more).expect("it is there");
            assert_eq!(found, library);
        }
        std::fs::remove_dir_all(&directory).expect("it was just there");

        let missing = look_up_in(Path::new("eager-1.2.so"), &more).expect_err("it is gone");
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
            let found = look_up_in(Path::new(path), &more).expect("a path");
            assert_eq!(found, expected);
        }
    }
}
