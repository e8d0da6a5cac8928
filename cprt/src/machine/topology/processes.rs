//! Collects the evidence about a process: from `/proc`, NVML and amdkfd.
//!
//! The caller gives the roots of all paths, so that a test can have processes of its own. What cannot
//! be read counts as unknown: processes often end meanwhile or belong to another user.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::choice::Evidence;
use super::{Kind, PciAddress, Topology, compute_processes, sysfs};

/// The places where processes are looked up.
#[derive(Clone, Debug)]
pub struct Processes {
    /// `/proc`
    pub proc: PathBuf,
    /// `/sys`
    pub sys: PathBuf,
    /// Asks the driver: [`compute_processes`], or a function that calls it in another process. It is called
    /// only if open device files leave a doubt.
    pub computes: fn() -> Vec<Compute>,
}

/// A process and an XPU on which it has memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compute {
    /// The process's number, in the driver's PID namespace.
    pub pid: u32,
    /// The XPU.
    pub pci: PciAddress,
}

/// The initial PID namespace, which has this fixed number on every kernel.
const INITIAL: &str = "pid:[4026531836]";

/// Upper bound on the bytes read of an environment, more than is usual.
const ENVIRONMENT: u64 = 1 << 20;

impl Default for Processes {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            computes: compute_processes,
        }
    }
}

impl Processes {
    /// The evidence about a process.
    #[must_use]
    pub fn evidence(&self, topology: &Topology, pid: u32) -> Evidence {
        let process = self.proc.join(pid.to_string());
        let open = open_devices(topology, &process.join("fd"));
        let mut computes = self.computes_by_kfd(topology, pid);
        // A process with at most one device file open computes nowhere else. NVML takes memory, seconds where no
        // program keeps the driver awake, and the driver's locks, for which a service that starts CUDA waits: it is
        // asked only where the answer decides where memory is.
        let decides = topology.nodes.iter().filter(|node| node.memory).count() > 1;
        if decides
            && open
                .as_deref()
                .is_none_or(|open| several(topology, open, Kind::Nvidia))
        {
            computes.extend(self.computes_by_nvml(topology, pid));
        }
        let open = open.unwrap_or_default();
        // Outside the initial namespace, the driver's numbers are those of another one; which depends on its
        // version. If this process also has the XPU open, the number is hardly another process's by chance.
        if !self.counts_as_the_kernel() {
            computes.retain(|xpu| open.contains(xpu));
        }
        Evidence {
            computes,
            open,
            reach: reach(topology, &process.join("root/dev")),
            environment: environment(&process.join("environ")),
            title: title(&process.join("cmdline")),
        }
    }

    fn counts_as_the_kernel(&self) -> bool {
        fs::read_link(self.proc.join("self/ns/pid")).is_ok_and(|it| it == Path::new(INITIAL))
    }

    fn computes_by_nvml(&self, topology: &Topology, pid: u32) -> Vec<u16> {
        if !topology.xpus.iter().any(|xpu| xpu.kind == Kind::Nvidia) {
            return Vec::new();
        }
        let computes = (self.computes)();
        let here = |pci| {
            computes
                .iter()
                .any(|compute| compute.pid == pid && compute.pci == pci)
        };
        topology
            .numbered()
            .filter(|(_, xpu)| here(xpu.pci))
            .map(|(number, _)| number)
            .collect()
    }

    /// The XPUs on which the process has memory by amdkfd's count.
    fn computes_by_kfd(&self, topology: &Topology, pid: u32) -> Vec<u16> {
        if !topology.xpus.iter().any(|xpu| xpu.kind == Kind::Amd) {
            return Vec::new();
        }
        let process = self.sys.join("class/kfd/kfd/proc").join(pid.to_string());
        let uses = |gpu: &sysfs::KfdGpu| {
            fs::read_to_string(process.join(format!("vram_{}", gpu.id)))
                .is_ok_and(|bytes| bytes.trim().parse::<u64>().is_ok_and(|bytes| bytes > 0))
        };
        let mut gpus = sysfs::kfd_gpus(&self.sys);
        gpus.retain(uses);
        topology
            .numbered()
            .filter(|(_, xpu)| gpus.iter().any(|gpu| gpu.pci == xpu.pci))
            .map(|(number, _)| number)
            .collect()
    }
}

fn several(topology: &Topology, xpus: &[u16], kind: Kind) -> bool {
    let of_kind = |&number: &u16| {
        let xpu = topology.xpus.get(usize::from(number));
        xpu.is_some_and(|xpu| xpu.kind == kind)
    };
    xpus.iter().copied().filter(of_kind).count() > 1
}

/// The XPUs whose device files are open; `None` if open files cannot be listed.
fn open_devices(topology: &Topology, fds: &Path) -> Option<Vec<u16>> {
    let mut open = Vec::new();
    for entry in fs::read_dir(fds).ok()?.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        let Ok(device) = target.strip_prefix("/dev") else {
            continue;
        };
        open.extend(
            topology
                .numbered()
                .filter(|(_, xpu)| xpu.device.as_deref().map(Path::new) == Some(device))
                .map(|(number, _)| number),
        );
    }
    open.sort_unstable();
    open.dedup();
    Some(open)
}

/// The XPUs whose files are in a `/dev`. A container may have only some of them, and its processes
/// number only these.
fn reach(topology: &Topology, dev: &Path) -> Option<Vec<u16>> {
    fs::symlink_metadata(dev).ok()?;
    let there = |device: &String| dev.join(device).symlink_metadata().is_ok();
    let reach = topology
        .numbered()
        .filter(|(_, xpu)| xpu.device.as_ref().is_none_or(there))
        .map(|(number, _)| number);
    Some(reach.collect())
}

fn environment(path: &Path) -> BTreeMap<String, String> {
    // Not read to its end: the process may make it as long as it likes.
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(ENVIRONMENT).read_to_end(&mut bytes));
    if read.is_err() {
        return BTreeMap::new();
    }
    bytes
        .split(|&byte| byte == 0)
        .filter_map(|variable| std::str::from_utf8(variable).ok()?.split_once('='))
        .filter(|(name, _)| Evidence::wants(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The first word of the command line, which a process may overwrite.
fn title(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(256).read_to_end(&mut bytes));
    let word = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    match read {
        Ok(_) => String::from_utf8_lossy(word).into_owned(),
        Err(_) => String::new(),
    }
}
