//! The purpose of a file, judged by its path. Pure.

use serde::Serialize;

/// The kinds of files in a summary, which shows when the first and the last of each kind is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FileKind {
    Program,
    SharedObject,
    /// A module or package of an interpreter.
    Package,
    Weights,
    /// A directory that is listed.
    Directory,
    Other,
}

const WEIGHTS: [&str; 12] = [
    "bin",
    "ckpt",
    "engine",
    "ggml",
    "gguf",
    "h5",
    "npy",
    "npz",
    "onnx",
    "pt",
    "pth",
    "safetensors",
];
const MODULES: [&str; 6] = ["jar", "js", "mjs", "pl", "py", "pyc"];
const FOLDERS_OF_PACKAGES: [&str; 3] = ["dist-packages", "node_modules", "site-packages"];
const FOLDERS_OF_PROGRAMS: [&str; 3] = ["bin", "libexec", "sbin"];

impl FileKind {
    pub(super) fn of(path: &str) -> Self {
        let mut folders = path.split('/');
        let name = folders.next_back().unwrap_or_default();
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        let is_below = |names: &[&str]| folders.clone().any(|folder| names.contains(&folder));
        let version = name.split_once(".so.").map(|(_, version)| version);
        if name.is_empty() {
            Self::Directory
        } else if extension == "so"
            || version.is_some_and(|it| it.starts_with(|c: char| c.is_ascii_digit()))
        {
            Self::SharedObject
        } else if MODULES.contains(&extension) || is_below(&FOLDERS_OF_PACKAGES) {
            // Before weights: Python's path lists have the extension of some torch checkpoints.
            Self::Package
        } else if WEIGHTS.contains(&extension) {
            Self::Weights
        } else if folders
            .next_back()
            .is_some_and(|folder| FOLDERS_OF_PROGRAMS.contains(&folder))
        {
            Self::Program
        } else {
            Self::Other
        }
    }

    /// The name shown to people, in the plural.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Program => "programs",
            Self::SharedObject => "shared objects",
            Self::Package => "packages",
            Self::Weights => "weights",
            Self::Directory => "directories",
            Self::Other => "other files",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_kind_is_derived_from_name_and_folder() {
        for (path, kind) in [
            ("usr/bin/python3.11", FileKind::Program),
            ("usr/libexec/x", FileKind::Program),
            ("usr/bin/activate.py", FileKind::Package),
            ("usr/lib/x86_64-linux-gnu/libc.so.6", FileKind::SharedObject),
            (
                "v/lib/python3.11/site-packages/torch/_C.so",
                FileKind::SharedObject,
            ),
            (
                "v/lib/python3.11/site-packages/torch/x.dat",
                FileKind::Package,
            ),
            ("usr/lib/python3.11/os.pyc", FileKind::Package),
            ("v/lib/site-packages/paths.pth", FileKind::Package),
            ("srv/m/consolidated.00.pth", FileKind::Weights),
            ("srv/m/model-00001-of-00002.safetensors", FileKind::Weights),
            ("srv/bin/model.gguf", FileKind::Weights),
            ("srv/bin/deeper/data", FileKind::Other),
            ("etc/ld.so.cache", FileKind::Other),
            ("etc/passwd", FileKind::Other),
            ("so", FileKind::Other),
            ("v/lib/site-packages/torch/", FileKind::Directory),
        ] {
            assert_eq!(FileKind::of(path), kind, "{path}");
        }
    }
}
