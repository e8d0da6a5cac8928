//! Detects this machine's topology: hwloc lists PCI devices and the nodes near them, drivers number and
//! name their devices. Pure functions draw the conclusions.

use std::path::Path;

use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::distance::DistancesKind;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};

use super::{CpuSet, Kind, Node, PciAddress, Topology, Xpu, nvidia, sysfs};
use crate::{Error, Result};

/// The upper 16 bits of PCI classes.
const VGA: u16 = 0x0300;
const ACCELERATED_3D: u16 = 0x0302;
const OTHER_DISPLAY: u16 = 0x0380;
const PROCESSING: std::ops::RangeInclusive<u16> = 0x1200..=0x12ff;

const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;
const ASCEND: u16 = 0x19e5;

/// ATI's chips for the consoles of servers, Rage XL and ES1000, which draw only in 2D.
const CONSOLES: [u16; 4] = [0x4752, 0x5969, 0x515e, 0x5159];

/// A PCI device, as hwloc reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PciDevice {
    pub(super) kind: Kind,
    pub(super) pci: PciAddress,
    /// The nodes of the hwloc object that it is attached to.
    pub(super) near: Vec<u16>,
}

/// Nodes and XPUs, as hwloc reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) nodes: Vec<Node>,
    pub(super) found: Vec<PciDevice>,
    /// Distances between each two nodes, in the order of `nodes`; empty if unknown.
    pub(super) distances: Vec<Vec<u64>>,
}

pub(super) fn detect(proc: &Path, sys: &Path) -> Result<Topology> {
    let mut seen = look(builder()?)?;
    seen.found
        .retain(|found| !sysfs::is_virtual_function(found.pci, sys));
    let mut xpus: Vec<_> = seen
        .found
        .iter()
        .map(|found| {
            let mut xpu = Xpu {
                kind: found.kind,
                pci: found.pci,
                node: nearest(&seen, &found.near, sysfs::numa_node(found.pci, sys)),
                device: None,
                ordinal: None,
                uuid: None,
                name: None,
            };
            sysfs::describe(&mut xpu, proc, sys);
            xpu
        })
        .collect();
    if cuda_decides(&xpus) {
        ask_cuda(&mut xpus);
    }
    number(&mut xpus);
    Topology::new(seen.nodes, xpus)
}

/// Whether only CUDA knows the order of its GPUs: it puts the fastest first, and equal ones in the order of their
/// addresses. Otherwise CUDA is left alone: it takes 0.2 s to start, and more where no program keeps the driver awake,
/// and a service that starts CUDA meanwhile waits for the driver's locks.
pub(super) fn cuda_decides(xpus: &[Xpu]) -> bool {
    let of_nvidia = || xpus.iter().filter(|xpu| xpu.kind == Kind::Nvidia);
    let Some(first) = of_nvidia().next() else {
        return false;
    };
    let alike = |xpu: &Xpu| xpu.name.is_some() && xpu.name == first.name;
    of_nvidia().count() > 1 && !of_nvidia().all(alike)
}

/// Asks for PCI devices and nodes only, so that hwloc has no reason to call its own plugins for GPUs.
pub(super) fn builder() -> Result<TopologyBuilder> {
    TopologyBuilder::new()
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .map_err(|error| unable(&error))?
        .with_cpu_cache_type_filter(TypeFilter::KeepNone)
        .map_err(|error| unable(&error))?
        .with_type_filter(ObjectType::PCIDevice, TypeFilter::KeepAll)
        .map_err(|error| unable(&error))
}

fn unable(error: &dyn std::fmt::Display) -> Error {
    Error::Topology(format!("hwloc: {error}"))
}

/// Reads nodes, XPUs and distances from hwloc.
pub(super) fn look(builder: TopologyBuilder) -> Result<Seen> {
    let hwloc = builder.build().map_err(|error| unable(&error))?;
    let mut objects: Vec<_> = hwloc
        .objects_with_type(ObjectType::NUMANode)
        .filter_map(|object| Some((u16::try_from(object.os_index()?).ok()?, object)))
        .collect();
    objects.sort_by_key(|(id, _)| *id);

    let memory = |object: &TopologyObject| match object.attributes() {
        Some(ObjectAttributes::NUMANode(node)) => node.local_memory().is_some(),
        _ => false,
    };
    // If hwloc reports no memory at all, every node counts as having some.
    let told = objects.iter().any(|(_, object)| memory(object));
    let mut nodes: Vec<_> = objects
        .iter()
        .map(|&(id, object)| Node {
            id,
            cpus: cpus(object),
            memory: !told || memory(object),
        })
        .collect();
    own_cpus(&mut nodes);

    let matrix = hwloc
        .distances_with_type(Some(DistancesKind::MEANS_LATENCY), ObjectType::NUMANode)
        .unwrap_or_default();
    let between = |a, b| Some(matrix.first()?.object_pair_distance((a, b))?.0);
    let distances = objects
        .iter()
        .map(|(_, a)| objects.iter().map(|(_, b)| between(a, b)).collect())
        .collect::<Option<_>>()
        .unwrap_or_default();

    Ok(Seen {
        nodes,
        found: hwloc.pci_devices().filter_map(found).collect(),
        distances,
    })
}

fn cpus(object: &TopologyObject) -> CpuSet {
    let Some(set) = object.complete_cpuset() else {
        return CpuSet::default();
    };
    set.iter_set()
        .filter_map(|cpu| u16::try_from(usize::from(cpu)).ok())
        .collect()
}

fn found(object: &TopologyObject) -> Option<PciDevice> {
    let Some(ObjectAttributes::PCIDevice(pci)) = object.attributes() else {
        return None;
    };
    let nodes = object.first_non_io_ancestor()?.nodeset()?;
    Some(PciDevice {
        kind: kind(pci.class_id(), pci.vendor_id(), pci.device_id())?,
        pci: PciAddress {
            domain: pci.domain().into(),
            bus: pci.bus_id(),
            device: pci.bus_device(),
            function: pci.function(),
        },
        near: nodes
            .iter_set()
            .filter_map(|node| u16::try_from(usize::from(node)).ok())
            .collect(),
    })
}

/// The kind of XPU that a PCI device is, if it is one. A VGA controller is one only if it belongs to a
/// GPU: servers have others for their consoles.
pub(super) fn kind(class: u16, vendor: u16, device: u16) -> Option<Kind> {
    let kind = match vendor {
        NVIDIA => Kind::Nvidia,
        AMD => Kind::Amd,
        ASCEND => Kind::Ascend,
        _ => Kind::Other,
    };
    let is_xpu = match class {
        VGA => match kind {
            Kind::Nvidia => true,
            Kind::Amd => !CONSOLES.contains(&device),
            Kind::Ascend | Kind::Other => false,
        },
        ACCELERATED_3D | OTHER_DISPLAY => true,
        _ => PROCESSING.contains(&class),
    };
    is_xpu.then_some(kind)
}

/// Leaves each CPU only to the first node that has it: hwloc gives nodes without CPUs those near them. In
/// Linux, a CPU belongs to one node, and nodes with CPUs come first.
pub(super) fn own_cpus(nodes: &mut [Node]) {
    for at in 1..nodes.len() {
        let (before, rest) = nodes.split_at_mut(at);
        let taken = |cpu: &u16| before.iter().any(|node| node.cpus.contains(*cpu));
        rest[0].cpus = rest[0].cpus.iter().filter(|cpu| !taken(cpu)).collect();
    }
}

/// The node to load into for an XPU that is attached near these nodes; `None` if all are equally good.
/// `told` is the kernel's own answer.
pub(super) fn nearest(seen: &Seen, near: &[u16], told: Option<u16>) -> Option<u16> {
    let with_memory: Vec<&Node> = seen.nodes.iter().filter(|node| node.memory).collect();
    if let [only] = with_memory[..] {
        return Some(only.id);
    }
    let mut candidates = with_memory.clone();
    candidates.retain(|node| near.contains(&node.id));
    // The nodes near a whole package include its high-bandwidth memory and the like, which is for something
    // better than a page cache.
    if candidates.iter().any(|node| !node.cpus.is_empty()) {
        candidates.retain(|node| !node.cpus.is_empty());
    }
    if candidates.is_empty() {
        return least_distant(seen, &with_memory, near.first().copied().or(told)?);
    }
    let everywhere = with_memory
        .iter()
        .filter(|node| !node.cpus.is_empty())
        .all(|node| near.contains(&node.id));
    let named = |node: &&&Node| Some(node.id) == told;
    match (candidates.iter().find(named), everywhere) {
        (Some(node), _) => Some(node.id),
        (None, true) if candidates.len() > 1 => None,
        (None, _) => candidates.first().map(|node| node.id),
    }
}

/// The nearest of these nodes to a node without memory.
fn least_distant(seen: &Seen, nodes: &[&Node], from: u16) -> Option<u16> {
    let place = |id| seen.nodes.iter().position(|node| node.id == id);
    let row = seen.distances.get(place(from)?)?;
    let distance = |node: &&&Node| place(node.id).and_then(|at| row.get(at));
    let nearest = nodes.iter().min_by_key(|node| {
        let unknown = distance(node).is_none();
        (unknown, distance(node), node.cpus.is_empty(), node.id)
    })?;
    Some(nearest.id)
}

fn ask_cuda(xpus: &mut [Xpu]) {
    // These variables hide GPUs from CUDA, and change their order.
    let told = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];
    let as_usual = told.iter().all(|name| std::env::var_os(name).is_none());
    for device in nvidia::cuda_devices() {
        let Some(xpu) = xpus.iter_mut().find(|xpu| xpu.pci == device.pci) else {
            continue;
        };
        xpu.ordinal = as_usual.then_some(device.ordinal);
        if xpu.uuid.is_none() {
            xpu.uuid = device.uuid;
        }
    }
}

/// Puts XPUs in the order of their numbers. CUDA's default order depends on the other devices plugged in, and is
/// unknown without CUDA where they differ; the order of addresses is always known, and is what users usually set.
pub(super) fn number(xpus: &mut [Xpu]) {
    xpus.sort_by_key(|xpu| {
        let ordinal = xpu.ordinal.filter(|_| xpu.kind != Kind::Nvidia);
        (xpu.kind, ordinal.is_none(), ordinal, xpu.pci)
    });
    if !cuda_decides(xpus) {
        let of_nvidia = xpus.iter_mut().filter(|xpu| xpu.kind == Kind::Nvidia);
        for (ordinal, xpu) in (0..).zip(of_nvidia) {
            xpu.ordinal = Some(ordinal);
        }
    }
}
