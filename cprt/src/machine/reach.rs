//! How far a directory reaches: caches of downloads have links in it that lead to files beside it.

use std::fs;
use std::path::{Path, PathBuf};

/// Upper bound on entries looked at; a model has fewer.
const MOST: usize = 20_000;
/// How many levels up a cache's files may be; a wider directory has to be named by the user.
const LEVELS: usize = 2;

/// The directory that has to be observed for a model's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The directory itself.
    Itself,
    /// This wider directory, which includes the files that its links lead to.
    Wider(PathBuf),
    /// Some of its files are here, too far away.
    TooFar(PathBuf),
}

/// The reach of a directory that is not a link itself.
#[must_use]
pub fn of(directory: &Path) -> Reach {
    let mut root = directory;
    let mut levels = 0;
    let targets = links(directory);
    for target in &targets {
        while !target.starts_with(root) {
            levels += 1;
            let wider = root.parent().filter(|it| it.parent().is_some());
            let Some(wider) = wider.filter(|_| levels <= LEVELS) else {
                let folder = target.parent().unwrap_or(target);
                return Reach::TooFar(folder.to_owned());
            };
            root = wider;
        }
    }
    if root == directory {
        Reach::Itself
    } else {
        Reach::Wider(root.to_owned())
    }
}

/// The files that links in a directory lead to.
fn links(directory: &Path) -> Vec<PathBuf> {
    let mut targets = Vec::new();
    let mut todo = vec![directory.to_owned()];
    let mut left = MOST;
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if left == 0 {
                return targets;
            }
            left -= 1;
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() {
                todo.push(entry.path());
            } else if kind.is_symlink()
                && let Ok(target) = entry.path().canonicalize()
                && target.is_file()
            {
                targets.push(target);
            }
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_cache_of_downloads_reaches_as_far_as_its_files() {
        let top = std::env::temp_dir().join(format!("ppcctl-{}-reach", std::process::id()));
        let hub = top.join("hub/models--x--y");
        let snapshot = hub.join("snapshots/0123");
        for folder in ["blobs", "snapshots/0123/onnx", "snapshots/4567"] {
            fs::create_dir_all(hub.join(folder)).expect("a folder");
        }
        fs::write(hub.join("blobs/a"), "a").expect("a file");
        fs::write(snapshot.join("config.json"), "{}").expect("a file");
        symlink("config.json", snapshot.join("generation.json")).expect("a link");
        symlink("nowhere", snapshot.join("broken")).expect("a link");
        symlink(&top, snapshot.join("onnx/folder")).expect("a link");
        let hub = hub.canonicalize().expect("it is there");
        let snapshot = hub.join("snapshots/0123");
        assert_eq!(of(&snapshot), Reach::Itself);
        symlink("../../../blobs/a", snapshot.join("onnx/model")).expect("a link");
        assert_eq!(of(&snapshot), Reach::Wider(hub.clone()));
        assert_eq!(of(&hub), Reach::Itself);
        fs::write(top.join("far"), "far").expect("a file");
        symlink(top.join("far"), hub.join("snapshots/4567/far")).expect("a link");
        let far = top.canonicalize().expect("it is there");
        assert_eq!(of(&hub.join("snapshots/4567")), Reach::TooFar(far));
        let _ = fs::remove_dir_all(&top);
    }

    #[test]
    fn directory_linking_to_proc_reaches_too_far() {
        let top = std::env::temp_dir().join(format!("ppcctl-{}-root", std::process::id()));
        fs::create_dir_all(&top).expect("a folder");
        symlink("/proc/version", top.join("version")).expect("a link");
        let real = top.canonicalize().expect("it is there");
        assert_eq!(of(&real), Reach::TooFar("/proc".into()));
        let _ = fs::remove_dir_all(&top);
    }
}
