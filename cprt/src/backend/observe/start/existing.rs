//! What a process already has when the worker begins to follow it: children, and files that are mapped or open.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::statfs::fstatfs;

use super::paths::Opened;
use crate::machine::files::{Tree, is_of_storage};
use crate::machine::mappings::{self, Identity};
use crate::machine::ranges::Ranges;
use crate::sys::pagemap::Pagemap;

pub(super) fn folder(process: u32) -> PathBuf {
    Path::new("/proc").join(process.to_string())
}

/// Whether a process runs: one that has ended and waits for its parent does not.
pub(super) fn is_alive(process: u32) -> bool {
    folder(process).join("exe").read_link().is_ok()
}

/// Calls `each` for a process, and then for its children and theirs; the kernel follows those that are started later.
pub(super) fn with_children(
    process: u32,
    each: &mut impl FnMut(u32) -> io::Result<()>,
) -> io::Result<()> {
    let mut todo = vec![process];
    while let Some(process) = todo.pop() {
        each(process)?;
        // A process that has ended meanwhile has none.
        for task in fs::read_dir(folder(process).join("task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            todo.extend(
                children
                    .split_whitespace()
                    .filter_map(|it| it.parse::<u32>().ok()),
            );
        }
    }
    Ok(())
}

/// The files with storage behind them that a process has mapped or open, each once, if they have a path in its view.
pub(super) fn files_of(process: u32, view: &Tree) -> Vec<(Opened, File)> {
    let mut seen = HashSet::new();
    let mut files = Vec::new();
    for kind in ["map_files", "fd"] {
        let Ok(entries) = fs::read_dir(folder(process).join(kind)) else {
            continue;
        };
        for entry in entries.flatten() {
            let Some((opened, file)) = look(process, view, &entry.path()) else {
                continue;
            };
            if seen.insert(opened.identity) {
                files.push((opened, file));
            }
        }
    }
    files
}

/// The target of a link of `/proc`. Only regular files are opened: opening others may wait or have effects.
fn look(process: u32, view: &Tree, link: &Path) -> Option<(Opened, File)> {
    let found = fs::metadata(link).ok()?;
    let path = link.read_link().ok()?;
    let identity = Identity::of(&found);
    let named = path.strip_prefix("/").ok();
    let has_name = named.is_some_and(|it| view.identity(it).is_ok_and(|it| it == identity));
    if !found.is_file() || !has_name {
        return None;
    }
    let file = File::open(link).ok()?;
    if !is_of_storage(fstatfs(&file).ok()?.filesystem_type()) {
        return None;
    }
    let opened = Opened {
        process,
        path,
        identity,
        size: found.len(),
    };
    Some((opened, file))
}

/// The ranges of a file that a process has present in its mappings.
pub(super) fn mapped(process: u32, file: Identity, pagemap: &mut Pagemap) -> Ranges {
    let mut found = Vec::new();
    for mapping in mappings::of(process, file, None) {
        let pages = pagemap.present(&mapping.addresses).unwrap_or_default();
        found.extend(pages.iter().map(|pages| mapping.range_of(pages)));
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_its_program_and_no_devices() {
        let own = std::process::id();
        let view = Tree::of_root(Path::new("/")).expect("the root directory");
        let files = files_of(own, &view);
        if files.is_empty() {
            crate::sys::testing::skip("this process may not look at its own mappings");
            return;
        }
        let program = std::env::current_exe().expect("a program");
        assert!(files.iter().any(|(opened, _)| opened.path == program));
        for (opened, _) in &files {
            assert!(!opened.path.starts_with("/dev") && !opened.path.starts_with("/proc"));
        }
        let identity = Identity::of(&program.metadata().expect("it is there"));
        let mut pagemap = Pagemap::open(own).expect("its own");
        assert!(mapped(own, identity, &mut pagemap).iter().next().is_some());
    }

    #[test]
    fn children_are_found_and_the_dead_are_known() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("a child");
        let mut all = Vec::new();
        let known = with_children(std::process::id(), &mut |one| {
            all.push(one);
            Ok(())
        });
        known.expect("to look");
        assert_eq!(all.first(), Some(&std::process::id()));
        // Few kernels are built without lists of children.
        let tells = Path::new("/proc/thread-self/children").exists();
        assert_eq!(all.contains(&child.id()), tells);
        assert!(is_alive(child.id()));
        child.kill().expect("ours");
        while is_alive(child.id()) {
            std::thread::yield_now();
        }
        child.wait().expect("its end");
    }
}
