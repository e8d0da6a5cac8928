//! Looking at the machine in a child, where it has to be looked at: drivers' libraries are large and stay.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::Topology;

/// A child that looks at the machine, while others do something else.
#[derive(Debug)]
pub(crate) enum TopologyChild {
    Looks(io::Result<Child>),
    /// There was no need.
    Plain(Topology),
}

impl TopologyChild {
    /// Has this program look at the machine, called as `topology`, in a process of its own.
    pub(crate) fn start() -> Self {
        if let Some(plain) = Topology::plain(Path::new("/sys")) {
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

    /// What it has seen. If that did not work, all memory counts as equally near.
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
            log::warn!("The machine's topology cannot be told; all memory counts as equally near");
            Topology::flat()
        })
    }
}

impl Topology {
    /// As a child of this program sees it.
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
