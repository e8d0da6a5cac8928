//! The memory cgroup that readers share with the process that prefetches for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Failure, Result, file};

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";
const PREFIX: &str = "ppc-bench-";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A group, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Group {
    version: Version,
    pub(crate) path: PathBuf,
}

/// Bytes charged to a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) cache: u64,
    pub(crate) anonymous: u64,
}

impl Group {
    /// Makes an empty group, with a limit if one is given.
    pub(crate) fn make(name: &str, limit: Option<u64>) -> Result<Self> {
        let (version, root) = hierarchy()?;
        let path = root.join(format!("{PREFIX}{name}"));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            done => done.map_err(file("Making", &path))?,
        }
        let group = Self { version, path };
        if let Some(bytes) = limit {
            let path = group.path.join(match version {
                Version::V1 => "memory.limit_in_bytes",
                Version::V2 => "memory.max",
            });
            fs::write(&path, bytes.to_string()).map_err(file("Writing", &path))?;
        }
        Ok(group)
    }

    /// Bytes charged to the group now.
    pub(crate) fn charged(&self) -> Charged {
        let text = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        charged(&text, self.version)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.path.join("memory.force_empty"), "0");
        // Its last process may not have ended completely.
        for _ in 0..50 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Moves the calling process into the group; processes that it starts later are in it, too.
pub(crate) fn join(group: &Path) -> Result<()> {
    let path = group.join("cgroup.procs");
    fs::write(&path, std::process::id().to_string()).map_err(file("Writing", &path))
}

/// Removes groups left by processes that were killed.
pub(crate) fn clear() {
    for root in [V1, V2] {
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

fn hierarchy() -> Result<(Version, &'static Path)> {
    if Path::new(V1).join("memory.limit_in_bytes").exists() {
        return Ok((Version::V1, Path::new(V1)));
    }
    let root = Path::new(V2);
    match fs::write(root.join("cgroup.subtree_control"), "+memory") {
        Ok(()) => Ok((Version::V2, root)),
        Err(error) => Err(Failure::Unavailable {
            what: "A memory cgroup",
            why: format!("{}: {error}", root.display()),
            remedy: "mount cgroup2 there, with the memory controller, and let root change it",
        }),
    }
}

fn charged(stat: &str, version: Version) -> Charged {
    let word = |name: &str| {
        let mut lines = stat.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    match version {
        Version::V1 => Charged {
            cache: word("total_cache"),
            anonymous: word("total_rss"),
        },
        Version::V2 => Charged {
            cache: word("file"),
            anonymous: word("anon"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_tell_what_is_charged() {
        let v1 = "cache 1\nrss 2\nrss_huge 9\ntotal_cache 10\ntotal_rss 20\ntotal_rss_huge 90\n";
        let expected = Charged {
            cache: 10,
            anonymous: 20,
        };
        assert_eq!(charged(v1, Version::V1), expected);
        assert_eq!(
            charged("anon 20\nfile 10\nfile_mapped 5\n", Version::V2),
            expected
        );
        assert_eq!(charged("", Version::V2), Charged::default());
    }
}
