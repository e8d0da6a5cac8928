//! Reads the numbers, files and names of devices from `/sys` and `/proc`, without any library. What a
//! driver does not report there stays unknown.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Kind, PciAddress, Xpu};

/// Fills in what the driver reports about an XPU.
pub(super) fn describe(xpu: &mut Xpu, proc: &Path, sys: &Path) {
    match xpu.kind {
        Kind::Nvidia => nvidia(xpu, proc),
        Kind::Amd => amd(xpu, sys),
        Kind::Ascend => ascend(xpu, sys),
        Kind::Other => xpu.device = render_node(xpu.pci, sys),
    }
}

/// Whether this is a virtual function. Those are for virtual machines: no process here works on them.
pub(super) fn is_virtual_function(pci: PciAddress, sys: &Path) -> bool {
    device(pci, sys).join("physfn").exists()
}

/// The nearest node according to the kernel.
pub(super) fn numa_node(pci: PciAddress, sys: &Path) -> Option<u16> {
    read(&device(pci, sys).join("numa_node"))?.parse().ok()
}

fn device(pci: PciAddress, sys: &Path) -> PathBuf {
    sys.join("bus/pci/devices").join(pci.to_string())
}

fn nvidia(xpu: &mut Xpu, proc: &Path) {
    let path = proc.join(format!("driver/nvidia/gpus/{}/information", xpu.pci));
    let Some(text) = read(&path) else { return };
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        match key.trim() {
            "Model" => xpu.name = line(value),
            // The driver shows question marks until a process has used it.
            "GPU UUID" if !value.contains('?') => xpu.uuid = line(value),
            "Device Minor" => {
                xpu.device = value.parse::<u16>().ok().map(|n| format!("nvidia{n}"));
            }
            _ => {}
        }
    }
}

fn amd(xpu: &mut Xpu, sys: &Path) {
    xpu.device = render_node(xpu.pci, sys);
    xpu.name = read(&device(xpu.pci, sys).join("product_name")).and_then(|name| line(&name));
    let gpus = kfd_gpus(sys);
    for (ordinal, gpu) in (0..).zip(&gpus).filter(|(_, gpu)| gpu.pci == xpu.pci) {
        // If a GPU is split into several, the first number counts.
        xpu.ordinal = xpu.ordinal.or(Some(ordinal));
        if gpu.unique != 0 && xpu.uuid.is_none() {
            xpu.uuid = Some(format!("GPU-{:016x}", gpu.unique));
        }
    }
}

/// The folder of each device has the driver's table of all devices, with lines like `c1:00.0 ---> 0`.
/// Numbers are not in the order of addresses.
fn ascend(xpu: &mut Xpu, sys: &Path) {
    let table = device(xpu.pci, sys).join("devdrv_sysfs_bdf_to_devid");
    let number = read(&table).and_then(|table| {
        table.lines().find_map(|line| {
            let (pci, number) = line.split_once("--")?;
            let pci: PciAddress = pci.parse().ok()?;
            // Older drivers leave out the domain.
            let same = PciAddress {
                domain: xpu.pci.domain,
                ..pci
            } == xpu.pci;
            let number = number.trim_start_matches(['-', '>', ' ']).trim();
            number.parse::<u16>().ok().filter(|_| same)
        })
    });
    xpu.ordinal = number;
    xpu.device = number.map(|number| format!("davinci{number}"));
}

fn render_node(pci: PciAddress, sys: &Path) -> Option<String> {
    let entries = fs::read_dir(device(pci, sys).join("drm")).ok()?;
    let mut names: Vec<_> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("renderD"))
        .collect();
    names.sort_unstable();
    Some(format!("dri/{}", names.first()?))
}

/// A GPU as amdkfd describes it.
pub(super) struct KfdGpu {
    /// Its id in the names of amdkfd's files.
    pub(super) id: u64,
    /// Its PCI address.
    pub(super) pci: PciAddress,
    unique: u64,
}

/// The GPUs in the order in which `ROCm` numbers them.
pub(super) fn kfd_gpus(sys: &Path) -> Vec<KfdGpu> {
    let Ok(entries) = fs::read_dir(sys.join("class/kfd/kfd/topology/nodes")) else {
        return Vec::new();
    };
    let mut nodes: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .collect();
    nodes.sort_unstable();
    nodes
        .into_iter()
        .filter_map(|(_, node)| kfd_gpu(&node))
        .collect()
}

fn kfd_gpu(node: &Path) -> Option<KfdGpu> {
    let id = read(&node.join("gpu_id"))?.parse().ok()?;
    let properties = read(&node.join("properties"))?;
    let property = |name| {
        properties.lines().find_map(|line| {
            let (key, value) = line.split_once(' ')?;
            value.trim().parse::<u64>().ok().filter(|_| key == name)
        })
    };
    // CPUs are nodes as well, with id 0.
    if id == 0 {
        return None;
    }
    let [.., bus, devfn] = property("location_id")?.to_be_bytes();
    Some(KfdGpu {
        id,
        pci: PciAddress {
            domain: u32::try_from(property("domain").unwrap_or(0)).ok()?,
            bus,
            device: devfn >> 3,
            function: devfn & 7,
        },
        unique: property("unique_id").unwrap_or(0),
    })
}

pub(super) fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// A name as one line of text; `None` if nothing remains of it.
pub(super) fn line(name: &str) -> Option<String> {
    let words: Vec<_> = name
        .split(|c: char| c.is_control() || c.is_whitespace())
        .filter(|word| !word.is_empty())
        .collect();
    (!words.is_empty()).then(|| words.join(" "))
}
