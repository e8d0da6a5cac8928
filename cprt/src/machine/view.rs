//! The files that a container is going to see, before it has a process: found in the layers of its root directory and
//! in its volumes, on the host.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::backend::Fault;
use crate::machine::files::Tree;
use crate::machine::mappings::Identity;

/// What a container has at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The path in the container.
    pub(crate) at: PathBuf,
    /// Directories of the host, the topmost first: what is in one hides what is in those below.
    pub(crate) layers: Vec<PathBuf>,
}

/// All places.
#[derive(Debug)]
pub(crate) struct View {
    /// Those with the longest paths first.
    places: Vec<(PathBuf, Vec<Tree>)>,
}

impl View {
    /// Opens the directories that are there, by their paths below a root directory: [`root_of`] the process that names
    /// them. Those of a place none of which can be opened hide what is below it.
    pub(crate) fn open(root: &Path, places: &[Place]) -> Self {
        let ours = |layer: &PathBuf| {
            let inner = layer.strip_prefix("/").ok()?;
            Tree::of_root(&root.join(inner)).ok()
        };
        let open = |place: &Place| {
            let trees = place.layers.iter().filter_map(ours).collect();
            (place.at.clone(), trees)
        };
        let mut places: Vec<_> = places.iter().map(open).collect();
        places.sort_by_key(|(at, _)| std::cmp::Reverse(at.components().count()));
        Self { places }
    }

    /// Whether there is any directory to look into.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.iter().all(|(_, trees)| trees.is_empty())
    }

    /// Opens a regular file by its path in the container.
    ///
    /// A directory of a layer may hide those below it. That is not checked: loading a hidden file only costs the load.
    pub(crate) fn file(&self, path: &Path) -> Result<File, Fault> {
        let path = Path::new("/").join(path);
        let mut places = self.places.iter();
        let found = places.find_map(|(at, trees)| Some((path.strip_prefix(at).ok()?, trees)));
        let Some((inner, trees)) = found else {
            return Err(Fault::Stale);
        };
        for tree in trees {
            match tree.file(inner) {
                Ok(file) => return Ok(file),
                // A layer above hides it, by a device node in its place or by something that is not a file.
                Err(Fault::NoFile) => return Err(Fault::NoFile),
                // It is not in this layer.
                Err(_) => {}
            }
        }
        Err(Fault::Stale)
    }
}

/// The root directory of a process that names paths, as seen from here: our own, unless the process has other mounts.
/// The runtime of containers runs on the host, while we may be in a container ourselves.
pub(crate) fn root_of(process: Option<u32>) -> PathBuf {
    let namespace = |process: &str| {
        let path = Path::new("/proc").join(process).join("ns/mnt");
        path.metadata().ok().map(|it| Identity::of(&it))
    };
    let process = process.map(|it| it.to_string()).unwrap_or_default();
    let theirs = namespace(&process);
    if theirs.is_some() && theirs != namespace("self") {
        Path::new("/proc").join(process).join("root")
    } else {
        PathBuf::from("/")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use test_support::Folder;

    use super::*;

    fn text(view: &View, path: &str) -> Option<String> {
        let mut text = String::new();
        let mut file = view.file(Path::new(path)).ok()?;
        file.read_to_string(&mut text).expect("text");
        Some(text)
    }

    #[test]
    fn upper_layers_and_volumes_hide_lower_files() {
        let folder = Folder::new("view");
        for (path, content) in [
            ("lower/a", "lower a"),
            ("lower/b", "lower b"),
            ("lower/hidden", "hidden"),
            ("lower/models/x", "image x"),
            ("upper/b", "upper b"),
            ("volume/x", "volume x"),
            ("secret", "secret"),
        ] {
            folder.write(path, content);
        }
        std::fs::create_dir(folder.path().join("upper/hidden")).expect("ours");
        std::os::unix::fs::symlink("../secret", folder.path().join("upper/link")).expect("ours");
        let place = |at: &str, layers: &[&str]| Place {
            at: at.into(),
            layers: layers.iter().map(|it| Path::new("/").join(it)).collect(),
        };
        let places = [
            place("/", &["upper", "lower", "none"]),
            place("/models", &["volume"]),
            place("/models/gone", &["none"]),
        ];
        let view = View::open(folder.path(), &places);
        assert!(!view.is_empty());
        for (path, expected) in [
            ("/a", Some("lower a")),
            ("a", Some("lower a")),
            ("/b", Some("upper b")),
            ("/models/x", Some("volume x")),
            ("/modelsx", None),
            ("/models/gone/x", None),
            ("/hidden", None),
            ("/link", None),
            ("/../secret", None),
            ("/models/../a", None),
        ] {
            assert_eq!(text(&view, path).as_deref(), expected, "{path}");
        }
        assert!(View::open(folder.path(), &[place("/", &["none"])]).is_empty());
    }

    #[test]
    fn a_process_with_our_mounts_has_our_root_directory() {
        for process in [None, Some(std::process::id()), Some(u32::MAX)] {
            assert_eq!(root_of(process), Path::new("/"), "{process:?}");
        }
    }
}
