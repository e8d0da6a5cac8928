//! Detects the topology in a child, unless it is plain: drivers' libraries are large and stay in memory.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::Topology;

/// A child that detects the topology, while its parent does something else.
#[derive(Debug)]
pub(crate) enum TopologyChild {
    Looks(io::Result<Child>),
    /// No child was needed.
    Plain(Topology),
}

impl TopologyChild {
    /// Starts this program as `cprtd topology`, in its own process.
    pub(crate) fn start() -> Self {
        if let Some(plain) = Topology::plain(Path::new("/proc"), Path::new("/sys")) {
            return Self::Plain(plain);
        }
        let child = Command::new("/proc/self/exe")
            .arg("topology")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("CUDA_DEVICE_ORDER")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn();
        Self::Looks(child)
    }

    /// The child's result. If it failed, all memory counts as equally near.
    pub(crate) fn finish(self) -> Topology {
        let child = match self {
            Self::Plain(topology) => return topology,
            Self::Looks(child) => child,
        };
        let text = child
            .and_then(Child::wait_with_output)
            .ok()
            .filter(|output| output.status.success())
            .and_then(|output| String::from_utf8(output.stdout).ok());
        text.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
            log::warn!("The machine's topology is unknown; all memory counts as equally near");
            Topology::flat()
        })
    }
}

impl Topology {
    /// The topology as detected by a child of this program.
    #[must_use]
    pub fn by_child() -> Self {
        TopologyChild::start().finish()
    }

    fn flat() -> Self {
        let node = super::Node {
            id: 0,
            cpus: super::CpuSet::default(),
            memory: true,
        };
        Self {
            nodes: vec![node],
            xpus: Vec::new(),
        }
    }
}
