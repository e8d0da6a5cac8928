//! What is known of a directory and of the machine. Plain data: tests write it down, `probe` finds it.

use std::path::{Path, PathBuf};

use cprt::backend::select::Candidate;
use cprt::machine::topology::{CpuSet, PciAddress, Topology};

/// Everything.
#[derive(Debug)]
pub(super) struct Facts {
    /// Without links.
    pub(super) directory: PathBuf,
    /// What was given, if that is a link.
    pub(super) link: Option<PathBuf>,
    /// Best first.
    pub(super) candidates: Vec<Candidate>,
    pub(super) files: Files,
    pub(super) place: Option<Place>,
    pub(super) device: Device,
    pub(super) memory: Option<Memory>,
    pub(super) machine: Machine,
    pub(super) kernel: Kernel,
    pub(super) user: User,
}

/// How many, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) count: u64,
    pub(super) first: Option<PathBuf>,
}

impl Sample {
    pub(super) fn add(&mut self, path: &Path) {
        self.count += 1;
        if self.first.is_none() {
            self.first = Some(path.to_owned());
        }
    }
}

/// What is in the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    /// Regular files, each once however many names it has.
    pub(super) count: u64,
    /// Their sizes.
    pub(super) bytes: u64,
    /// What they take on the device.
    pub(super) allocated: u64,
    pub(super) unreadable: Sample,
    /// Directories that do not list.
    pub(super) closed: Sample,
    /// Files that are still being downloaded, or were and will never be.
    pub(super) parts: Sample,
    /// Files that only say what git is to fetch in their place.
    pub(super) pointers: Sample,
    pub(super) links: Links,
    /// What else is mounted in the directory; nothing in there is counted.
    pub(super) mounts: Vec<PathBuf>,
    /// There is more than anybody would look at.
    pub(super) cut: bool,
    /// Whether a file opens with `O_DIRECT`; `None` if there is none to try.
    pub(super) direct: Option<bool>,
}

impl Files {
    /// Bytes that a reader of the directory can read.
    pub(super) fn model(&self) -> u64 {
        self.bytes.saturating_add(self.links.leaving_bytes)
    }
}

/// Where links lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    /// Out of the directory.
    pub(super) leaving: Sample,
    /// The sizes of the files that these lead to.
    pub(super) leaving_bytes: u64,
    /// The deepest directory that all of these files are in.
    pub(super) outside: Option<PathBuf>,
    /// To nothing.
    pub(super) broken: Sample,
    /// Within the directory, but by a path from the root.
    pub(super) absolute: Sample,
}

/// The deepest directory that both are in, or are.
pub(super) fn common(a: &Path, b: &Path) -> PathBuf {
    let both = a.components().zip(b.components());
    both.take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
}

/// The mount that the directory is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// As in `/proc/filesystems`, with what FUSE adds: `fuse.sshfs`.
    pub(super) kind: String,
    pub(super) source: String,
    pub(super) point: PathBuf,
    /// Of the file system, not of the mount.
    pub(super) options: String,
}

/// What is read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Device {
    /// The file that sets how far the kernel reads ahead, and what it says.
    pub(super) readahead: Option<(PathBuf, u64)>,
    /// Block devices: the one with the file system first, those beneath it after it.
    pub(super) layers: Vec<Layer>,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) name: String,
    /// Of a device that is made of others: `dm LVM`, `md raid0`, `loop`.
    pub(super) made: Option<String>,
    pub(super) rotational: Option<bool>,
    pub(super) scheduler: Option<String>,
    /// Of a loop device, whether it reads past the page cache of its file.
    pub(super) direct: Option<bool>,
}

/// What limits the page cache most, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) limit: u64,
    pub(super) threshold: u64,
    pub(super) available: u64,
    /// `None`: it is the host's.
    pub(super) cgroup: Option<PathBuf>,
    /// The file of that cgroup that sets it.
    pub(super) knob: Option<PathBuf>,
}

/// Nodes and accelerators.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    pub(super) topology: Option<Topology>,
    /// The nodes that accelerators hang on by the kernel's word, whether these have memory or not.
    pub(super) homes: Vec<(PciAddress, u16)>,
    /// Where the caller may take memory from.
    pub(super) mems: Option<CpuSet>,
}

/// The running kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) release: String,
    pub(super) version: Option<(u32, u32)>,
    /// rfs is loaded.
    pub(super) rfs: bool,
    /// rfs is installed for this kernel.
    pub(super) module: Option<PathBuf>,
    /// What is needed to build it is there.
    pub(super) headers: bool,
    /// Whether reads that the page cache answers have a tracepoint; `None` if that is out of sight.
    pub(super) tracepoints: Option<bool>,
    /// What the kernel keeps even from root: `none`, `integrity`, `confidentiality`.
    pub(super) lockdown: Option<String>,
}

/// The caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    /// Effective capabilities, a bit each.
    pub(super) capabilities: u64,
    /// Capabilities count for the whole machine, and not only in a container.
    pub(super) initial: bool,
    pub(super) paranoid: Option<i32>,
    pub(super) tracefs: Tracefs,
    pub(super) fuse: FuseDevice,
    /// fusermount3, and whether it is root's with the set-user-ID bit.
    pub(super) helper: Option<(PathBuf, bool)>,
    pub(super) namespaces: Namespaces,
}

impl User {
    /// Whether the kernel would let the caller do what takes one of these.
    pub(super) fn has(&self, any: &[Capability]) -> bool {
        self.initial && any.iter().any(|&one| self.holds(one))
    }

    /// Whether the caller has it, if only within a container.
    pub(super) fn holds(&self, one: Capability) -> bool {
        self.capabilities & (1 << one as u64) != 0
    }
}

/// By the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capability {
    SysPtrace = 19,
    SysAdmin = 21,
    SysNice = 23,
    Perfmon = 38,
    Bpf = 39,
}

/// The file system of the tracepoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tracefs {
    /// The kernel has none.
    Absent,
    Unmounted,
    /// It is there and does not let the caller in.
    Closed(PathBuf),
    Open(PathBuf),
}

/// `/dev/fuse`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FuseDevice {
    Missing,
    /// The caller may not open it.
    Closed,
    Open,
}

/// What keeps ordinary users from making user namespaces; `None` where the kernel has no such setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Namespaces {
    /// `user.max_user_namespaces`
    pub(super) max: Option<u64>,
    /// `kernel.unprivileged_userns_clone`
    pub(super) clone: Option<bool>,
    /// `kernel.apparmor_restrict_unprivileged_userns`
    pub(super) apparmor: Option<bool>,
}
