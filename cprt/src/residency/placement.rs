//! On which NUMA nodes the cached pages of files are, by samples.

use std::collections::BTreeMap;
use std::fs::File;

use super::CacheFile;
use crate::sys::page_size;
use crate::sys::window::Window;

/// How many pages are looked at, of all files together.
const SAMPLES: u64 = 4096;

/// About how many bytes of the files are cached on each node. Nothing is brought in for that, and no privilege is needed;
/// it is empty if nothing is cached, or before Linux 5.14.
#[must_use]
pub fn placement(files: &[CacheFile]) -> BTreeMap<u16, u64> {
    let page = page_size();
    let all: u64 = files.iter().map(|file| file.size).sum();
    let apart = (all / SAMPLES).max(1).next_multiple_of(page);
    let mut nodes = BTreeMap::new();
    // Counted across files, so that many small ones do not take a sample each.
    let mut next = 0;
    for file in files {
        if next < file.size
            && let Ok(opened) = file.open()
        {
            for at in (next..file.size).step_by(usize::try_from(apart).unwrap_or(usize::MAX)) {
                let first = at / page * page;
                if let Some(node) = node_of(&opened, first, page) {
                    *nodes.entry(node).or_default() += apart.min(all);
                }
            }
        }
        let samples = file.size.saturating_sub(next).div_ceil(apart);
        next = (next + samples * apart).saturating_sub(file.size);
    }
    nodes
}

/// The node of a page, if that is cached.
fn node_of(file: &File, first: u64, page: u64) -> Option<u16> {
    let window = Window::of(file, &(first..first + page)).ok()?;
    let mut cached = Vec::new();
    window.resident(page, &mut cached).ok()?;
    if cached.first()? & 1 == 0 {
        return None;
    }
    // If the kernel has reclaimed it just now, this reads it again.
    window.populate(0..page).ok()?;
    window.node().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use test_support::{Folder, drop_cached};

    use super::*;
    use crate::residency::find;

    const MIB: usize = 1 << 20;

    #[test]
    fn cached_pages_are_counted_by_node_without_loading() {
        if crate::sys::kernel_release() < Some((5, 14)) {
            return test_support::skip("this kernel maps no pages on request");
        }
        // Files in a temporary folder may be in memory.
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp");
        std::fs::create_dir_all(&target).expect("a folder");
        let folder = Folder::within(&target, "residency-placement");
        let here = folder.write("here", vec![1; 8 * MIB]);
        let gone = folder.write("gone", vec![2; 8 * MIB]);
        drop_cached(&gone).expect("to drop it");
        std::fs::read(&here).expect("to read it");
        let found = find(&[folder.path().to_owned()]).expect("files");
        let nodes = placement(&found.files);
        let sum: u64 = nodes.values().sum();
        assert_eq!(sum, 8 * MIB as u64, "{nodes:?}");
        for node in nodes.keys() {
            let path = format!("/sys/devices/system/node/node{node}");
            assert!(*node == 0 || Path::new(&path).exists(), "{nodes:?}");
        }
        drop_cached(&here).expect("to drop it");
        assert_eq!(placement(&found.files), BTreeMap::new());
    }

    #[test]
    fn many_small_files_are_sampled_together() {
        let folder = Folder::new("residency-placement-small");
        for number in 0..3 * SAMPLES {
            folder.write(&number.to_string(), "x");
        }
        let found = find(&[folder.path().to_owned()]).expect("files");
        let nodes = placement(&found.files);
        assert!(nodes.values().sum::<u64>() <= 3 * SAMPLES, "{nodes:?}");
    }
}
