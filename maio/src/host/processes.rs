//! Facts about a reader from `/proc`.

use std::fs;
use std::path::{Path, PathBuf};

use ppc::ranks::Layout;

use super::ranks::{layout_of, rank_of};

/// How many processes are asked how many workers there are: a worker, its engine, the server and what started that.
const ANCESTORS: usize = 6;

fn folder(process: u32) -> PathBuf {
    Path::new("/proc").join(process.to_string())
}

/// Whether it still exists.
pub(super) fn is_alive(process: u32) -> bool {
    folder(process).exists()
}

/// Its number among the workers of its service, by its title or the variables of the usual launchers.
pub(super) fn read_rank(process: u32) -> Option<u32> {
    let folder = folder(process);
    let environment = fs::read(folder.join("environ")).unwrap_or_default();
    let title = fs::read(folder.join("cmdline")).unwrap_or_default();
    rank_of(&environment, &title)
}

/// How its service splits its model, by its own command line or that of an ancestor.
pub(super) fn read_layout(process: u32) -> Option<Layout> {
    let above = |&process: &u32| parent(process).filter(|&it| it > 1);
    let mut all = std::iter::successors(Some(process), above).take(ANCESTORS);
    all.find_map(|process| layout_of(&fs::read(folder(process).join("cmdline")).ok()?))
}

pub(super) fn parent(process: u32) -> Option<u32> {
    let status = fs::read_to_string(folder(process).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line?.trim().parse().ok()
}

/// Whether it has this file open for I/O that goes around the page cache.
pub(super) fn reads_direct(process: u32, inode: u64) -> bool {
    let Ok(descriptors) = fs::read_dir(folder(process).join("fdinfo")) else {
        return false;
    };
    let texts = descriptors.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    texts.into_iter().any(|text| is_direct(&text, inode))
}

fn is_direct(text: &str, inode: u64) -> bool {
    let field = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim)
    };
    let flags = field("flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
    let number = field("ino:").and_then(|number| number.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & libc::O_DIRECT != 0) && number == Some(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_octal_and_the_inode_has_to_be_the_same() {
        let text = format!(
            "pos:\t0\nflags:\t0{:o}\nmnt_id:\t28\nino:\t77\n",
            libc::O_DIRECT
        );
        assert!(is_direct(&text, 77));
        assert!(!is_direct(&text, 78));
        assert!(!is_direct("pos:\t0\nflags:\t0100000\nino:\t77\n", 77));
        assert!(!is_direct("", 0));
    }

    #[test]
    fn own_process_is_alive_and_has_no_direct_reads() {
        assert!(is_alive(std::process::id()));
        assert!(!reads_direct(std::process::id(), 1));
        assert!(!is_alive(u32::MAX));
        let above = std::os::unix::process::parent_id();
        assert_eq!(parent(std::process::id()), Some(above));
    }
}
