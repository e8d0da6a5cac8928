//! The machine: its NUMA nodes, its accelerators (XPUs), and which process works on which of them.
//!
//! A load goes into the memory nearest to the accelerator that it is for, by threads that run
//! there. So the worker has to know where accelerators are, and which of them the process that reads
//! is going to feed. The first does not change while the machine runs: [`Topology::detect`] looks
//! once, with hwloc and the drivers' libraries in its memory, so it runs in a child that prints
//! the result and ends. Workers receive that text; reading it needs nothing but this
//! module. [`Topology::process_xpu`] finds out the second, when a process first appears.
//!
//! XPUs are numbered from 0, as in `ppc.h`: kinds in the order of [`Kind`], and those of a kind as
//! applications see them by default: NVIDIA's by their PCI address, which is
//! CUDA's `PCI_BUS_ID` order, AMD's and Ascend's by the number their runtime gives them, and by
//! address where that is not known.
//!
//! # The text
//!
//! A line for each node and each XPU, in the order of their numbers. `#` at the beginning of a line
//! begins a comment; empty lines mean nothing. Parsing a printed topology gives the same topology.
//!
//! ```text
//! node 0 cpus=0-27,56-83
//! node 1 cpus=28-55,84-111
//! node 2 cpus=112-119 memoryless
//! xpu 0 amd 0000:18:00.0 node=0 device=dri/renderD128 ordinal=0 uuid=GPU-8b53639f name=MI300X OAM
//! xpu 1 other 0000:c1:00.0
//! ```
//!
//! A node has its number and CPUs, as Linux writes lists of them, which may be none. `memoryless`
//! says that nothing can be loaded there. An XPU has its number, kind and PCI address; the rest is
//! left out where it is not known. `node` is the nearest that has memory; `device` is its file
//! below `/dev`; `ordinal` is its number among those of its kind where the environment says nothing;
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

/// The machine, as far as loading depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Node>,
    xpus: Vec<Xpu>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number, as the kernel has it; there may be gaps.
    pub id: u16,
    /// Its CPUs. None, if it is memory only: high-bandwidth memory, CXL, that of a GPU.
    pub cpus: CpuSet,
    /// Whether it has memory. What is loaded has to go elsewhere if not.
    pub memory: bool,
}

/// An accelerator. Its number is its place in [`Topology::xpus`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xpu {
    /// Whose it is.
    pub kind: Kind,
    /// Where it is plugged in.
    pub pci: PciAddress,
    /// The nearest NUMA node that has memory; none if all are as near, or it is not known.
    pub node: Option<u16>,
    /// Its file below `/dev`: `nvidia0`, `davinci3`, `dri/renderD128`.
    pub device: Option<String>,
    /// The number its runtime gives it when no variable says otherwise: by CUDA, which puts the
    /// fastest first, by `ROCm`, by CANN.
    pub ordinal: Option<u16>,
    /// What its runtime calls it in lists of visible devices: `GPU-` and more.
    pub uuid: Option<String>,
    /// For people.
    pub name: Option<String>,
}

/// Whose an accelerator is, which decides on the runtime that applications use it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// CUDA.
    Nvidia,
    /// `ROCm`.
    Amd,
    /// Huawei's, CANN.
    Ascend,
    /// Something that computes or draws, and of which no more is known.
    Other,
}

/// Where on the PCI buses something is.
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
    /// The machine as it is said to be.
    ///
    /// # Errors
    ///
    /// There is no node, they are not in the order of their numbers, or an XPU is nearest to one
    /// that there is not or that has no memory.
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

    /// Looks at this machine. Libraries it needs stay in memory, and one of them may have started
    /// threads: do this in a process that ends soon after, without `CUDA_VISIBLE_DEVICES` and
    /// `CUDA_DEVICE_ORDER` in its environment.
    ///
    /// # Errors
    ///
    /// hwloc cannot tell. Drivers that are not there are no error.
    pub fn detect() -> Result<Self> {
        detect::detect(Path::new("/proc"), Path::new("/sys"))
    }

    /// The NUMA nodes by their numbers; at least one.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The accelerators by their numbers.
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

    /// The XPU a process works on, as far as can be told; it may be known later. `pid` is its
    /// number as in `processes.proc`.
    ///
    /// Asked are, until one answers with a single XPU: NVML and amdkfd, which know who computes
    /// where; the device files it has open; the variables that say which devices it may see; its
    /// rank among the processes of the machine.
    #[must_use]
    pub fn process_xpu(&self, pid: u32, processes: &Processes) -> Option<u16> {
        // Most machines that this runs on have XPUs; where there are none /proc is left alone.
        if self.xpus.is_empty() {
            return None;
        }
        self.choose(&processes.evidence(self, pid))
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
