//! Memory cgroups, of both versions.

use std::fs;
use std::path::{Path, PathBuf};

use crate::files::drop_caches;
use crate::outcome::{For as _, Outcome, Stop, skip, wait_until};

const V2: &str = "/sys/fs/cgroup";
/// Where PID 1 of the guest mounts it, on machines for tests that need it.
const V1: &str = "/tmp/cgroup1";
/// Prefix of these tests' groups, by which they are found again.
const PREFIX: &str = "cprt_";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

/// A group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    version: Version,
    pub(crate) path: PathBuf,
}

impl Group {
    /// Makes an empty group without a limit.
    pub(crate) fn new(version: Version, name: &str) -> Outcome<Self> {
        let root = match version {
            Version::V1 => {
                if !Path::new(V1).exists() {
                    skip!("the memory controller is not in the old hierarchy");
                }
                V1
            }
            Version::V2 => {
                let control = Path::new(V2).join("cgroup.subtree_control");
                // With the old hierarchies mounted there, this is an ordinary folder.
                if !control.exists() || fs::write(&control, "+memory").is_err() {
                    skip!("no memory controller of cgroup2");
                }
                V2
            }
        };
        let path = Path::new(root).join(format!("{PREFIX}{name}"));
        fs::create_dir(&path).of(path.display())?;
        Ok(Self { version, path })
    }

    fn file(&self, v1: &str, v2: &str) -> PathBuf {
        self.path.join(match self.version {
            Version::V1 => v1,
            Version::V2 => v2,
        })
    }

    pub(crate) fn limit(&self, bytes: u64) -> Outcome {
        let path = self.file("memory.limit_in_bytes", "memory.max");
        fs::write(&path, bytes.to_string()).of(path.display())
    }

    /// Bytes charged to it.
    pub(crate) fn current(&self) -> Outcome<u64> {
        let path = self.file("memory.usage_in_bytes", "memory.current");
        let text = fs::read_to_string(&path).of(path.display())?;
        text.trim().parse().of(path.display())
    }

    /// Bytes of anonymous memory in it.
    pub(crate) fn anon(&self) -> Outcome<u64> {
        self.word("memory.stat", self.either("rss", "anon"))
    }

    /// Bytes of page cache in it.
    pub(crate) fn cache(&self) -> Outcome<u64> {
        self.word("memory.stat", self.either("cache", "file"))
    }

    /// How many of its processes the OOM killer has killed.
    pub(crate) fn oom_kills(&self) -> Outcome<u64> {
        self.word(
            self.either("memory.oom_control", "memory.events"),
            "oom_kill",
        )
    }

    fn either<'a>(&self, v1: &'a str, v2: &'a str) -> &'a str {
        match self.version {
            Version::V1 => v1,
            Version::V2 => v2,
        }
    }

    fn word(&self, file: &str, word: &str) -> Outcome<u64> {
        let path = self.path.join(file);
        let text = fs::read_to_string(&path).of(path.display())?;
        text.lines()
            .find_map(|line| line.strip_prefix(word)?.strip_prefix(' ')?.parse().ok())
            .ok_or_else(|| Stop::fail(format_args!("{} has no {word}", path.display())))
    }

    /// The file that a process writes its id to when it joins.
    pub(crate) fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Its processes.
    pub(crate) fn members(&self) -> Outcome<Vec<u32>> {
        let text = fs::read_to_string(self.procs())?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }
}

/// Removes the groups of these tests, whose processes are already gone.
pub(crate) fn clear() -> Outcome {
    for root in [V1, V2] {
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            let path = entry.path();
            if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
                continue;
            }
            // Pages that it pays for would keep it, and the controller, from going.
            let _ = fs::write(path.join("memory.force_empty"), "0");
            drop_caches()?;
            let what = format!("{} to be empty", path.display());
            wait_until(5, &what, || Ok(fs::remove_dir(&path).ok()))?;
        }
    }
    let control = Path::new(V2).join("cgroup.subtree_control");
    if control.exists() {
        let _ = fs::write(control, "-memory");
    }
    Ok(())
}
