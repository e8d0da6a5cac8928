//! Memory cgroups by process and by name, and moving a process into one.
//!
//! A machine has memory in the one hierarchy of v2, in one of its own (v1), or has both, with memory
//! in v1 and little else than pressure in v2. `mountinfo` says where they are. In a container, only a
//! part of the tree may be mounted, and names may begin with `/..` for cgroups outside; the cgroup of a
//! process there cannot be known.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;

use super::parse::{self, Hierarchy, Membership, Version};
use crate::machine::mountinfo;
use crate::{Error, Result};

/// Where the kernel's own file systems are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// Of `proc`.
    pub proc: PathBuf,
    /// Where cgroups are, if `mountinfo` does not say otherwise.
    pub cgroup: PathBuf,
    /// Kubelet's configuration.
    pub kubelet: PathBuf,
    /// Of drivers of PCI devices.
    pub drivers: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            cgroup: "/sys/fs/cgroup".into(),
            kubelet: "/var/lib/kubelet/config.yaml".into(),
            drivers: "/sys/bus/pci/drivers".into(),
        }
    }
}

/// Those cgroups of a process that are visible here.
#[derive(Debug, Default)]
pub(super) struct CgroupPlace {
    /// The cgroup that is charged; none in the root of v2.
    pub(super) memory: Option<PathBuf>,
    /// The cgroup that may have `memory.pressure`.
    pub(super) unified: Option<PathBuf>,
}

impl Roots {
    /// The memory cgroup that is charged for what this process takes. `None`: it is the root, or
    /// not visible here, so that no limit but the host's is known.
    ///
    /// # Errors
    ///
    /// There is no such process, or we may not look at it.
    pub fn cgroup_of(&self, pid: u32) -> Result<Option<PathBuf>> {
        Ok(self.place(pid)?.memory)
    }

    /// The directory of the cgroup that a process is in, in the hierarchy that has memory, whether it controls that
    /// or not.
    /// `None` if that is not visible here.
    #[must_use]
    pub fn home_of(&self, pid: u32) -> Option<PathBuf> {
        let text = fs::read(self.proc.join(pid.to_string()).join("cgroup")).ok()?;
        let mounts = self.mounts();
        let Membership { memory, unified } = parse::membership(&text);
        let found = match memory {
            Some(path) => locate(&mounts, Version::V1, &path),
            None => locate(&mounts, Version::V2, &unified?),
        };
        found.map(|(dir, _)| dir).filter(|dir| is_cgroup(dir))
    }

    /// The directory of a memory cgroup that a user named: by its path below the mount point, or
    /// by its name from there on, as in `/system.slice/vllm.service`.
    ///
    /// # Errors
    ///
    /// No cgroup has this name; the text says what to do.
    pub fn resolve(&self, name: &Path) -> Result<PathBuf> {
        let problem = |problem, source| Error::Cgroup {
            path: name.to_owned(),
            problem,
            source,
        };
        if name.components().any(|part| part == Component::ParentDir) {
            return Err(problem("the name of a cgroup must not contain '..'", None));
        }
        let mounts = self.mounts();
        // Where v1 has memory, v2 does not.
        let memory = mounts
            .iter()
            .find(|mount| mount.version == Version::V1)
            .or_else(|| mounts.first())
            .ok_or_else(|| problem("no cgroup file system with memory is mounted", None))?;
        let relative = name.strip_prefix("/").unwrap_or(name);
        let dir = if mounts.iter().any(|mount| name.starts_with(&mount.point)) {
            name.to_owned()
        } else {
            memory.point.join(relative)
        };
        // A link must not lead out, as root writes there.
        let dir = dir.canonicalize().map_err(|error| {
            problem(
                "there is no such memory cgroup; 'systemd-cgls' lists them",
                Some(error),
            )
        })?;
        let inside = mounts.iter().any(|mount| dir.starts_with(&mount.point));
        if !inside || !is_cgroup(&dir) {
            return Err(problem("this directory is not a cgroup", None));
        }
        if !charges(&dir) {
            return Err(problem(
                "this cgroup does not control memory; it is the root, or try 'echo +memory' into \
                 cgroup.subtree_control of the one above, or MemoryAccounting=yes in its unit",
                None,
            ));
        }
        Ok(dir)
    }

    pub(super) fn place(&self, pid: u32) -> Result<CgroupPlace> {
        let path = self.proc.join(pid.to_string()).join("cgroup");
        let failed = |source| Error::Read {
            path: path.clone(),
            source,
        };
        let text = fs::read(&path).map_err(failed)?;
        let mounts = self.mounts();
        let Membership { memory, unified } = parse::membership(&text);
        if memory.as_deref() == Some(Path::new("/")) && self.is_ending(pid) {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        let unified = unified.and_then(|path| locate(&mounts, Version::V2, &path));
        // Nor in its hierarchy of v2, if memory is in v1 but not visible here.
        let memory = match memory {
            Some(path) => locate(&mounts, Version::V1, &path),
            None => unified.clone(),
        };
        Ok(CgroupPlace {
            // A cgroup of v2 that does not control memory has its processes charged to one above it.
            memory: memory.and_then(|(dir, top)| climb(&dir, &top, charges)),
            unified: unified.and_then(|(dir, top)| climb(&dir, &top, is_cgroup)),
        })
    }

    /// Whether a process is ending, or gone: the kernel then shows it in the root of each hierarchy of v1.
    fn is_ending(&self, pid: u32) -> bool {
        const PF_EXITING: u64 = 4;

        let folder = self.proc.join(pid.to_string());
        let Ok(text) = fs::read_to_string(folder.join("stat")) else {
            return !folder.exists();
        };
        // The name of the program, in brackets, may have any characters.
        let fields = text
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_whitespace());
        let flags = fields.and_then(|mut fields| fields.nth(6)?.parse::<u64>().ok());
        flags.is_some_and(|flags| flags & PF_EXITING != 0)
    }

    /// The roots of hierarchies that can have memory.
    pub(super) fn points(&self) -> impl Iterator<Item = PathBuf> {
        self.mounts().into_iter().map(|mount| mount.point)
    }

    /// Hierarchies that may have memory, those at the usual place first.
    fn mounts(&self) -> Vec<Hierarchy> {
        let mut mounts = mountinfo::read(&self.proc)
            .map(parse::hierarchies)
            .unwrap_or_default();
        // One may lie under another mount.
        mounts.retain(|mount| is_cgroup(&mount.point));
        if mounts.is_empty() {
            let usual = [
                (Version::V1, self.cgroup.join("memory")),
                (Version::V2, self.cgroup.clone()),
                (Version::V2, self.cgroup.join("unified")),
            ];
            mounts.extend(usual.into_iter().filter_map(|(version, point)| {
                is_cgroup(&point).then(|| Hierarchy {
                    version,
                    root: "/".into(),
                    point,
                })
            }));
        }
        mounts.sort_by_key(|mount| !mount.point.starts_with(&self.cgroup));
        mounts
    }
}

/// The directory of a cgroup and the mount point above it, by the mount that shows most of the way
/// there.
fn locate(mounts: &[Hierarchy], version: Version, path: &Path) -> Option<(PathBuf, PathBuf)> {
    mounts
        .iter()
        .filter(|mount| mount.version == version)
        .filter_map(|mount| Some((mount.below(path)?, mount)))
        // The first of equals.
        .min_by_key(|(rest, _)| std::cmp::Reverse(rest.components().count()))
        .map(|(rest, mount)| (mount.point.join(rest), mount.point.clone()))
}

/// The first directory that fits, from `dir` up to `top`.
fn climb(dir: &Path, top: &Path, fits: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    dir.ancestors()
        .take_while(|dir| dir.starts_with(top))
        .find(|dir| fits(dir))
        .map(Path::to_owned)
}

/// Every cgroup has this file, whatever it controls, and nothing else has it.
pub(super) fn is_cgroup(dir: &Path) -> bool {
    dir.join("cgroup.procs").is_file()
}

fn charges(dir: &Path) -> bool {
    dir.join("memory.current").is_file() || dir.join("memory.usage_in_bytes").is_file()
}

/// `dir` and those above it.
pub(super) fn lineage(dir: &Path) -> impl Iterator<Item = &Path> {
    // The directory itself is always followed: it may come later.
    let above = dir.ancestors().skip(1).filter(|dir| is_cgroup(dir));
    std::iter::once(dir).chain(above)
}

/// Moves a process, with all its threads, into a memory cgroup; 0 moves the caller.
///
/// Memory that it took before stays charged where it was.
///
/// # Errors
///
/// The cgroup does not take the process; the text says what to do.
pub fn join(dir: &Path, pid: u32) -> Result<()> {
    let procs = dir.join("cgroup.procs");
    fs::OpenOptions::new()
        .write(true)
        .open(&procs)
        .and_then(|mut file| io::Write::write_all(&mut file, pid.to_string().as_bytes()))
        .map_err(|source| Error::Cgroup {
            path: dir.to_owned(),
            problem: remedy(&source),
            source: Some(source),
        })
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EBUSY) => {
            "it has child cgroups that control resources, so it cannot contain processes itself; name one of these"
        }
        Some(Errno::EOPNOTSUPP) => {
            "it or a cgroup above it is threaded, and memory is not counted by thread; name one whose cgroup.type is \
             'domain'"
        }
        Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ENODEV) => {
            "this cgroup no longer exists; start the service, or name another"
        }
        Some(Errno::EACCES | Errno::EPERM | Errno::EROFS) => {
            "this user may not move processes into it; run as root, or delegate it (Delegate=yes in the unit) \
             together with the cgroup that the process leaves"
        }
        Some(Errno::ESRCH) => "the process to be moved there has ended",
        _ => "a process cannot be moved there",
    }
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
