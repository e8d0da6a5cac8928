//! Facts about a directory and the machine. Plain data: tests write it down, `probe` finds it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cprt::backend::select::Candidate;
use cprt::machine::memory::LimitSource;
use cprt::machine::topology::{CpuSet, PciAddress, Topology};

/// All facts.
#[derive(Debug)]
pub(super) struct Facts {
    /// The directory's real path.
    pub(super) directory: PathBuf,
    /// The path that was given, if it is a link.
    pub(super) link: Option<PathBuf>,
    /// Backends, best first.
    pub(super) candidates: Vec<Candidate>,
    pub(super) files: Files,
    pub(super) place: Option<Place>,
    pub(super) device: Device,
    pub(super) memory: Option<Memory>,
    pub(super) machine: Machine,
    pub(super) kernel: Kernel,
    pub(super) user: User,
}

/// A number of paths, and the first of them.
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

/// The contents of the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    /// Number of regular files, each counted once however many names it has.
    pub(super) count: u64,
    /// Sum of their sizes.
    pub(super) bytes: u64,
    /// Bytes allocated to them on the device.
    pub(super) allocated: u64,
    pub(super) unreadable: Sample,
    /// Directories that cannot be listed.
    pub(super) closed: Sample,
    /// Partial files, of downloads in progress or abandoned.
    pub(super) parts: Sample,
    /// Git LFS pointers in the place of files.
    pub(super) pointers: Sample,
    pub(super) links: Links,
    /// Other mounts in the directory; their files are not counted.
    pub(super) mounts: Vec<PathBuf>,
    /// The tree has too many entries, and some were left out.
    pub(super) cut: bool,
    /// Whether a file opens with `O_DIRECT`; `None` if there is none to try.
    pub(super) direct: Option<bool>,
}

impl Files {
    /// Number of bytes that a reader of the directory can read.
    pub(super) fn model(&self) -> u64 {
        self.bytes.saturating_add(self.links.leaving_bytes)
    }
}

/// Where links lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    /// Links out of the directory.
    pub(super) leaving: Sample,
    /// Sum of the sizes of the files that these lead to.
    pub(super) leaving_bytes: u64,
    /// The deepest directory that contains all of these files.
    pub(super) outside: Option<PathBuf>,
    /// Links whose target does not exist.
    pub(super) broken: Sample,
    /// Links within the directory by an absolute path.
    pub(super) absolute: Sample,
}

/// The deepest directory that contains both, or is either of them.
pub(super) fn common(a: &Path, b: &Path) -> PathBuf {
    let both = a.components().zip(b.components());
    both.take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
}

/// The mount that the directory is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The type as in `/proc/filesystems`, with FUSE's subtype: `fuse.sshfs`.
    pub(super) kind: String,
    pub(super) source: String,
    pub(super) point: PathBuf,
    /// The options of the file system, not of the mount.
    pub(super) options: String,
}

/// The device that files are read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Device {
    /// The file that sets the kernel's readahead, and its value in KiB.
    pub(super) readahead: Option<(PathBuf, u64)>,
    /// Block devices: first the one with the file system, then those beneath it.
    pub(super) layers: Vec<Layer>,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) name: String,
    /// The kind of a device that is made of others: `dm LVM`, `md raid0`, `loop`.
    pub(super) made: Option<String>,
    pub(super) rotational: Option<bool>,
    pub(super) scheduler: Option<String>,
    /// For a loop device, whether it bypasses the page cache of its file.
    pub(super) direct: Option<bool>,
}

/// The tightest limit of the page cache, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) limit: u64,
    pub(super) threshold: u64,
    pub(super) available: u64,
    /// What sets the limit.
    pub(super) source: LimitSource,
    /// If it is a cgroup, the file of it that sets the limit.
    pub(super) knob: Option<PathBuf>,
}

/// NUMA nodes and accelerators.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    pub(super) topology: Option<Topology>,
    /// The nodes that accelerators are attached to according to the kernel, with or without memory.
    pub(super) homes: Vec<(PciAddress, u16)>,
    /// The nodes whose memory the caller may use.
    pub(super) mems: Option<CpuSet>,
    /// About how many bytes of the directory's files are cached on each node, if there are several.
    pub(super) cached: BTreeMap<u16, u64>,
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
    /// The headers to build rfs are installed.
    pub(super) headers: bool,
    /// Whether there is a tracepoint for reads that the page cache answers; `None` if that cannot be seen.
    pub(super) tracepoints: Option<bool>,
    /// The lockdown mode, which restricts even root: `none`, `integrity`, `confidentiality`.
    pub(super) lockdown: Option<String>,
    /// What pages out memory before memory is short.
    pub(super) paging_out: Option<PagingOut>,
}

/// A part of the kernel's DAMON that pages out memory which has not been accessed for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PagingOut {
    /// After how many seconds.
    pub(super) after: u64,
    /// The file that switches it off, and by which word.
    pub(super) switch: (PathBuf, &'static str),
}

/// The caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    /// Effective capabilities, one bit each.
    pub(super) capabilities: u64,
    /// Whether capabilities apply to the whole machine, and not only in a container.
    pub(super) initial: bool,
    pub(super) paranoid: Option<i32>,
    pub(super) tracefs: Tracefs,
    pub(super) fuse: FuseDevice,
    /// fusermount3, and whether it is set-user-ID root.
    pub(super) helper: Option<(PathBuf, bool)>,
    pub(super) namespaces: Namespaces,
}

impl User {
    /// Whether the caller has any of these for the whole machine.
    pub(super) fn has(&self, any: &[Capability]) -> bool {
        self.initial && any.iter().any(|&one| self.holds(one))
    }

    /// Whether the caller has this capability, if only within a container.
    pub(super) fn holds(&self, one: Capability) -> bool {
        self.capabilities & (1 << one as u64) != 0
    }
}

/// Capabilities, by the kernel's numbers.
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
    /// It is mounted, but denies access to the caller.
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

/// Settings that restrict user namespaces of ordinary users; `None` where the kernel has no such setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Namespaces {
    /// `user.max_user_namespaces`
    pub(super) max: Option<u64>,
    /// `kernel.unprivileged_userns_clone`
    pub(super) clone: Option<bool>,
    /// `kernel.apparmor_restrict_unprivileged_userns`
    pub(super) apparmor: Option<bool>,
}
