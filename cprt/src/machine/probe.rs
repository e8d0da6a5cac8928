//! Finds out what the system has: kinds of file systems, and programs.

use std::path::{Path, PathBuf};

/// Whether a kind of file system is in the text of `/proc/filesystems`.
#[must_use]
pub fn lists_file_system(filesystems: &str, kind: &str) -> bool {
    filesystems
        .lines()
        .any(|line| line.split_ascii_whitespace().next_back() == Some(kind))
}

/// The first file of this name in directories, as those of `PATH`.
pub fn find_program(
    name: impl AsRef<Path>,
    directories: impl IntoIterator<Item = PathBuf>,
) -> Option<PathBuf> {
    let programs = directories.into_iter();
    programs
        .map(|directory| directory.join(&name))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_among_file_systems() {
        assert!(lists_file_system(
            "nodev\tsysfs\nnodev\trfs\n\text4\n",
            "rfs"
        ));
        assert!(!lists_file_system("nodev\terrfs\n\trfsx\n", "rfs"));
        assert!(!lists_file_system("", "rfs"));
    }

    #[test]
    fn programs_are_looked_for_in_turn() {
        let here = std::env::current_exe().expect("this program");
        let (directory, name) = (here.parent().expect("its folder"), here.file_name());
        let found = find_program(
            name.expect("its name"),
            [PathBuf::from("/nowhere"), directory.to_owned()],
        );
        assert_eq!(found, Some(here.clone()));
        assert_eq!(
            find_program("no-such-program", [directory.to_owned()]),
            None
        );
    }
}
