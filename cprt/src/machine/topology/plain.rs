//! Recognises a plain machine, with one node and no accelerator that needs a driver's library, quickly from the kernel's
//! own files.

use std::fs;
use std::path::Path;

use super::detect::{cuda_decides, kind, number};
use super::{Node, Topology, Xpu, sysfs};

impl Topology {
    /// The topology, if the machine is plain.
    pub(super) fn plain(proc: &Path, sys: &Path) -> Option<Self> {
        if sysfs::read(&sys.join("devices/system/node/online"))? != "0" {
            return None;
        }
        let cpus = sysfs::read(&sys.join("devices/system/node/node0/cpulist"))?;
        let node = Node {
            id: 0,
            cpus: cpus.parse().ok()?,
            memory: true,
        };
        let mut xpus = xpus(sys)?;
        xpus.retain(|xpu| !sysfs::is_virtual_function(xpu.pci, sys));
        for xpu in &mut xpus {
            sysfs::describe(xpu, proc, sys);
        }
        if cuda_decides(&xpus) {
            return None;
        }
        number(&mut xpus);
        Self::new(vec![node], xpus).ok()
    }
}

/// The accelerators of a machine with one node; `None` if a device does not identify itself and needs a closer look.
fn xpus(sys: &Path) -> Option<Vec<Xpu>> {
    let mut xpus = Vec::new();
    let Ok(devices) = fs::read_dir(sys.join("bus/pci/devices")) else {
        return Some(xpus);
    };
    for device in devices.filter_map(Result::ok) {
        let (class, vendor, id) = identity(&device.path())?;
        let Some(kind) = kind(class, vendor, id) else {
            continue;
        };
        xpus.push(Xpu {
            kind,
            pci: device.file_name().to_str()?.parse().ok()?,
            node: Some(0),
            device: None,
            ordinal: None,
            uuid: None,
            name: None,
        });
    }
    Some(xpus)
}

/// The upper 16 bits of a device's class, its vendor and its number.
fn identity(device: &Path) -> Option<(u16, u16, u16)> {
    let number = |name| {
        let text = sysfs::read(&device.join(name))?;
        u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    let word = |name| number(name).and_then(|it| u16::try_from(it).ok());
    let class = u16::try_from(number("class")? >> 8).ok()?;
    Some((class, word("vendor")?, word("device")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up `/sys`, removed when the test ends.
    struct Sys(std::path::PathBuf);

    impl Sys {
        fn new(name: &str, nodes: &str) -> Self {
            let path = std::env::temp_dir().join(format!("cprt-{name}-{}", std::process::id()));
            let sys = Self(path);
            sys.write("devices/system/node/online", nodes);
            sys.write("devices/system/node/node0/cpulist", "0-3\n");
            sys
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        }

        fn device(&self, address: &str, class: &str) {
            let device = format!("bus/pci/devices/{address}");
            for (name, text) in [("class", class), ("vendor", "0x10de"), ("device", "0x2330")] {
                self.write(&format!("{device}/{name}"), text);
            }
        }

        fn told(&self, address: &str, text: &str) {
            let path = format!("proc/driver/nvidia/gpus/{address}/information");
            self.write(&path, text);
        }

        fn plain(&self) -> Option<String> {
            Topology::plain(&self.0.join("proc"), &self.0).map(|it| it.to_string())
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            // If this fails, the rest stays in the directory for temporary files.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const NODE: &str = "node 0 cpus=0-3\n";

    #[test]
    fn one_node_is_plain_with_and_without_a_gpu() {
        let sys = Sys::new("plain", "0\n");
        assert_eq!(sys.plain().as_deref(), Some(NODE));
        sys.device("0000:00:01.0", "0x010802\n");
        assert_eq!(sys.plain().as_deref(), Some(NODE), "a disk");
        sys.device("0000:00:01.0", "0x030200\n");
        let bare = format!("{NODE}xpu 0 nvidia 0000:00:01.0 node=0 ordinal=0\n");
        assert_eq!(sys.plain(), Some(bare), "a GPU whose driver is not loaded");
        sys.told(
            "0000:00:01.0",
            "Model: \t NVIDIA H200\nDevice Minor: \t 0\n",
        );
        let known = format!(
            "{NODE}xpu 0 nvidia 0000:00:01.0 node=0 device=nvidia0 ordinal=0 name=NVIDIA H200\n"
        );
        assert_eq!(sys.plain(), Some(known));
        sys.device("0000:00:01.0", "?");
        assert_eq!(sys.plain(), None, "it does not say what it is");
    }

    #[test]
    fn cuda_is_asked_only_where_gpus_differ() {
        let sys = Sys::new("gpus", "0\n");
        let about =
            |model, uuid| format!("Model: {model}\nGPU UUID: GPU-{uuid}\nDevice Minor: {uuid}\n");
        for (address, uuid) in [("0000:00:02.0", 1), ("0000:00:01.0", 0)] {
            sys.device(address, "0x030200\n");
            sys.told(address, &about("NVIDIA H200", uuid));
        }
        let equal = format!(
            "{NODE}xpu 0 nvidia 0000:00:01.0 node=0 device=nvidia0 ordinal=0 uuid=GPU-0 name=NVIDIA H200\n\
             xpu 1 nvidia 0000:00:02.0 node=0 device=nvidia1 ordinal=1 uuid=GPU-1 name=NVIDIA H200\n"
        );
        assert_eq!(sys.plain(), Some(equal));
        sys.told("0000:00:02.0", &about("NVIDIA T4", 1));
        assert_eq!(sys.plain(), None, "only CUDA knows the faster one");
        sys.told("0000:00:02.0", "GPU UUID: GPU-1\n");
        assert_eq!(sys.plain(), None, "nor is it known what the second one is");
    }

    #[test]
    fn two_nodes_have_to_be_looked_at() {
        let sys = Sys::new("two", "0-1\n");
        assert_eq!(sys.plain(), None);
    }

    #[test]
    fn plain_topology_equals_the_detected_one() {
        if let Some(plain) = Topology::plain(Path::new("/proc"), Path::new("/sys")) {
            assert_eq!(Topology::detect().expect("a topology"), plain);
        }
    }
}
