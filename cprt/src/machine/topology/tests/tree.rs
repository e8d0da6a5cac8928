//! Trees of files for made-up machines and processes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// A directory that is removed when the value is dropped.
pub(super) struct Tree(PathBuf);

impl Tree {
    pub(super) fn new(name: &str) -> Self {
        let name = format!("cprt-topology-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{error}"));
        Self(path)
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn parent(&self, path: &str) -> PathBuf {
        let path = self.0.join(path);
        let parent = path.parent().unwrap_or(&self.0);
        fs::create_dir_all(parent).unwrap_or_else(|error| panic!("{error}"));
        path
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        fs::write(self.parent(path), text).unwrap_or_else(|error| panic!("{error}"));
    }

    pub(super) fn link(&self, path: &str, target: &str) {
        symlink(target, self.parent(path)).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Adds a node of amdkfd.
    pub(super) fn kfd(&self, node: u32, gpu: u64, properties: &str) {
        let node = format!("sys/class/kfd/kfd/topology/nodes/{node}");
        self.write(&format!("{node}/gpu_id"), &format!("{gpu}\n"));
        self.write(&format!("{node}/properties"), properties);
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
