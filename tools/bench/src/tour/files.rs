//! The files of a user's model.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Failure, Result, file};

/// The files, in the order of their paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) paths: Vec<PathBuf>,
    pub(super) sizes: Vec<u64>,
}

impl Files {
    /// All files below a folder, including the targets of links, which stores of models use, but no hidden ones.
    pub(super) fn below(folder: &Path) -> Result<Self> {
        let mut found = Vec::new();
        collect(folder, &mut found)?;
        found.sort();
        let (paths, sizes): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        if sizes.iter().all(|size| *size == 0) {
            return Err(Failure::Said(format!(
                "There is nothing to load in {}: set MODEL to the directory with the model's files",
                folder.display()
            )));
        }
        Ok(Self { paths, sizes })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// The largest file, whose disk stands for that of all.
    pub(super) fn largest(&self) -> &Path {
        let all = self.paths.iter().zip(&self.sizes);
        let largest = all.max_by_key(|(_, size)| **size);
        largest.map_or(Path::new("/"), |(path, _)| path)
    }
}

fn collect(folder: &Path, found: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(file("Listing", folder))? {
        let entry = entry.map_err(file("Listing", folder))?;
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, found)?;
        } else if let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
        {
            found.push((path, metadata.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_through_links_and_in_order() {
        let folder = std::env::temp_dir().join(format!("ppc-bench-{}-files", std::process::id()));
        let snapshot = folder.join("snapshot");
        fs::create_dir_all(snapshot.join("more")).expect("folders");
        fs::create_dir_all(snapshot.join(".cache")).expect("a folder");
        for (name, bytes) in [("blob", 7), ("snapshot/a.json", 2), ("snapshot/more/z", 1)] {
            fs::write(folder.join(name), vec![1; bytes]).expect("a file");
        }
        fs::write(snapshot.join(".cache/hidden"), "x").expect("a file");
        std::os::unix::fs::symlink("../blob", snapshot.join("b.safetensors")).expect("a link");
        std::os::unix::fs::symlink("nowhere", snapshot.join("c")).expect("a link");
        let found = Files::below(&snapshot);
        let empty = Files::below(&snapshot.join(".cache/none"));
        let _ = fs::remove_dir_all(&folder);
        let found = found.expect("they are there");
        assert_eq!(found.sizes, [2, 7, 1]);
        assert!(found.largest().ends_with("b.safetensors"));
        assert!(empty.is_err());
    }
}
