//! A directory with a file for each load of this node that is under way. Its lock says that the service
//! that wrote it is alive.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// No claims of a node are larger: 64 TiB of files.
const LARGEST: u64 = 8 << 20;
/// More services than this do not load at once.
const MOST: usize = 64;

/// Ours. Gone when it is dropped, and not believed any more when this process is gone.
#[derive(Debug)]
pub(crate) struct Lease {
    directory: PathBuf,
    name: String,
    file: File,
}

impl Lease {
    /// Makes one, which says nothing yet.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o755).create(directory)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}", std::process::id());
        let path = directory.join(&name);
        let hidden = directory.join(format!(".{name}"));
        // One that was left by a process of the same number.
        let _ = fs::remove_file(&hidden);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600);
        let file = file.open(&hidden)?;
        file.lock()?;
        // Nobody is to see it without its lock.
        fs::rename(&hidden, &path)?;
        Ok(Self {
            directory: directory.to_owned(),
            name,
            file,
        })
    }

    /// Takes the place of what was said before.
    pub(crate) fn publish(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, 0)?;
        self.file.set_len(bytes.len() as u64)
    }

    /// What the others say. Files of those that are gone are removed.
    pub(crate) fn read_others(&self) -> Vec<Vec<u8>> {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        let others = entries.filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            !name.starts_with('.') && *name != *self.name
        });
        let others = others
            .take(MOST)
            .filter_map(|entry| read_lease(&entry.path()));
        others.collect()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Without it the next one that looks removes it.
        let _ = fs::remove_file(self.directory.join(&self.name));
    }
}

fn read_lease(path: &Path) -> Option<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .ok()?;
    if file.try_lock_shared().is_ok() {
        let _ = fs::remove_file(path);
        return None;
    }
    let length = file.metadata().ok()?.len().min(LARGEST);
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let read = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(read);
    Some(bytes)
}

/// Where they are unless that is said: none for a user without a directory of that kind.
pub(crate) fn default_directory() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some(PathBuf::from("/run/ppc/leases"));
    }
    let runtime = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    runtime.is_absolute().then(|| runtime.join("ppc/leases"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_there_is_heard_and_who_is_gone_is_cleared_away() {
        let number = std::process::id();
        let directory = std::env::temp_dir().join(format!("maio-leases-{number}"));
        let _ = fs::remove_dir_all(&directory);
        let here = directory.join("sub");
        let one = Lease::create(&here).expect("one");
        let other = Lease::create(&here).expect("other");
        assert_eq!(one.read_others(), [b""], "it has said nothing yet");
        other.publish(b"long words").expect("said");
        other.publish(b"words").expect("said");
        assert_eq!(one.read_others(), [b"words"]);
        assert_eq!(other.read_others(), [b""]);
        // Its owner has crashed.
        let left = here.join("1-1");
        fs::write(&left, "stale").expect("written");
        std::os::unix::fs::symlink("/etc/passwd", here.join("link")).expect("a link");
        assert_eq!(one.read_others(), [b"words"]);
        assert!(!left.exists());
        drop(other);
        assert!(one.read_others().is_empty());
        drop(one);
        fs::remove_dir_all(&directory).expect("cleared");
    }
}
