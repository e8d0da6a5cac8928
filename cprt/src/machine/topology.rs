//! The machine: its NUMA nodes, its accelerators (XPUs), and which process works on which of them.
//!
//! Threads near an accelerator load what it needs into the memory nearest to it. So the worker has to
//! know where accelerators are, and which of them the reading process is going to feed. Where they are
//! does not change while the machine runs: [`Topology::detect`] looks once. It brings hwloc and the
//! drivers' libraries into memory, so it runs in a child that prints the result and ends. Workers receive
//! that text; parsing it needs nothing but this module. [`Topology::process_xpu`] finds the accelerator
//! of a process when the process first appears.
//!
//! XPUs are numbered from 0, as in `ppc.h`: by kind in the order of [`Kind`], and within a kind as
//! applications see them by default: NVIDIA's by PCI address, which is CUDA's `PCI_BUS_ID` order, AMD's
//! and Ascend's by the number that their runtime gives them, or by address where that is not known.
//!
//! # The text
//!
//! A line for each node and each XPU, in the order of their numbers. Empty lines and lines that begin
//! with `#` are ignored. Parsing a printed topology gives the same topology.
//!
//! ```text
//! node 0 cpus=0-27,56-83
//! node 1 cpus=28-55,84-111
//! node 2 cpus=112-119 memoryless
//! xpu 0 amd 0000:18:00.0 node=0 device=dri/renderD128 ordinal=0 uuid=GPU-8b53639f name=MI300X OAM
//! xpu 1 other 0000:c1:00.0
//! ```
//!
//! A node has its number and a list of CPUs in Linux's notation, which may be empty. `memoryless`
//! says that nothing can be loaded there. An XPU has its number, kind and PCI address; the rest is
//! left out where it is not known. `node` is the nearest node with memory; `device` is the XPU's file
//! below `/dev`; `ordinal` is its number among those of its kind unless the environment sets another;
//! `name` is last and goes on to the end of the line.

mod child;
mod choice;
mod cpus;
mod detect;
mod nvidia;
mod plain;
mod processes;
mod sysfs;
#[cfg(test)]
mod tests;
mod text;

use std::fmt;
use std::path::Path;

pub(crate) use child::TopologyChild;
pub use choice::Evidence;
pub use cpus::CpuSet;
pub use nvidia::compute_processes;
pub use processes::{Compute, Processes};

use crate::{Error, Result};

/// Those parts of the machine that loading depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Node>,
    xpus: Vec<Xpu>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number for it; numbers may have gaps.
    pub id: u16,
    /// Its CPUs. Empty if the node is only memory: high-bandwidth memory, CXL, a GPU's.
    pub cpus: CpuSet,
    /// Whether it has memory; otherwise loads have to go elsewhere.
    pub memory: bool,
}

/// An accelerator. Its number is its index in [`Topology::xpus`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xpu {
    /// Its kind, by vendor.
    pub kind: Kind,
    /// Its PCI address.
    pub pci: PciAddress,
    /// The nearest NUMA node with memory; `None` if all are equally near or it is not known.
    pub node: Option<u16>,
    /// Its file below `/dev`: `nvidia0`, `davinci3`, `dri/renderD128`.
    pub device: Option<String>,
    /// The number that its runtime (CUDA, which puts the fastest first, `ROCm` or CANN) gives it when no
    /// variable says otherwise.
    pub ordinal: Option<u16>,
    /// Its runtime's name for it in lists of visible devices, beginning with `GPU-`.
    pub uuid: Option<String>,
    /// A name for people to read.
    pub name: Option<String>,
}

/// The vendor of an accelerator, which determines the runtime that applications use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// CUDA.
    Nvidia,
    /// `ROCm`.
    Amd,
    /// Huawei's, with CANN.
    Ascend,
    /// A device for computing or drawing about which no more is known.
    Other,
}

/// The place of a device on the PCI buses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The segment; some host bridges number them beyond 16 bits.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The slot.
    pub device: u8,
    /// The function.
    pub function: u8,
}

impl Topology {
    /// A machine with these nodes and XPUs.
    ///
    /// # Errors
    ///
    /// There is no node, nodes are not in the order of their numbers, or an XPU's nearest node does not
    /// exist or has no memory.
    pub fn new(nodes: Vec<Node>, xpus: Vec<Xpu>) -> Result<Self> {
        let problem = if nodes.is_empty() {
            Some("there is no NUMA node".to_owned())
        } else if !nodes.is_sorted_by(|a, b| a.id < b.id) {
            Some("NUMA nodes are not in the order of their numbers".to_owned())
        } else if xpus.len() > usize::from(u16::MAX) {
            Some("there are too many XPUs".to_owned())
        } else {
            xpus.iter().find_map(|xpu| {
                let id = xpu.node?;
                let fits = nodes.iter().any(|node| node.id == id && node.memory);
                (!fits).then(|| format!("{}: node {id} is none that has memory", xpu.pci))
            })
        };
        match problem {
            Some(problem) => Err(Error::Topology(problem)),
            None => Ok(Self { nodes, xpus }),
        }
    }

    /// Detects this machine's topology. The libraries that it needs stay in memory, and one of them may
    /// have started threads: call it in a process that ends soon after, without `CUDA_VISIBLE_DEVICES`
    /// and `CUDA_DEVICE_ORDER` in its environment.
    ///
    /// # Errors
    ///
    /// hwloc fails. Missing drivers are not an error.
    pub fn detect() -> Result<Self> {
        detect::detect(Path::new("/proc"), Path::new("/sys"))
    }

    /// The NUMA nodes in the order of their numbers; at least one.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The accelerators in the order of their numbers.
    #[must_use]
    pub fn xpus(&self) -> &[Xpu] {
        &self.xpus
    }

    /// The node with this number.
    #[must_use]
    pub fn node(&self, id: u16) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The node nearest to an XPU. It has memory, but may have no CPUs.
    #[must_use]
    pub fn node_of(&self, xpu: u16) -> Option<u16> {
        self.xpus.get(usize::from(xpu))?.node
    }

    /// The XPU that a process works on; `None` if that is not known, though it may be later. `pid` is the
    /// process's number in `processes.proc`.
    ///
    /// The answer is the first single XPU that one of these gives: NVML and amdkfd, which know what each
    /// process computes on; the device files that it has open; the variables that say which devices it may
    /// see; its rank among the processes of the machine.
    #[must_use]
    pub fn process_xpu(&self, pid: u32, processes: &Processes) -> Option<u16> {
        // Most machines that this runs on have XPUs; without any, /proc is left alone.
        if self.xpus.is_empty() {
            return None;
        }
        let anonymous = |xpu: &Xpu| xpu.kind == Kind::Nvidia && xpu.uuid.is_none();
        if !self.xpus.iter().any(anonymous) {
            return self.choose(&processes.evidence(self, pid));
        }
        // The driver reports a GPU's UUID only once a process has used it.
        let mut named = self.clone();
        for xpu in named.xpus.iter_mut().filter(|xpu| anonymous(xpu)) {
            sysfs::describe(xpu, &processes.proc, &processes.sys);
        }
        named.choose(&processes.evidence(&named, pid))
    }

    /// The XPUs with their numbers.
    fn numbered(&self) -> impl Iterator<Item = (u16, &Xpu)> {
        (0..).zip(&self.xpus)
    }
}

impl Kind {
    const ALL: [Self; 4] = [Self::Nvidia, Self::Amd, Self::Ascend, Self::Other];

    fn name(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Amd => "amd",
            Self::Ascend => "ascend",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
