//! Recognises a plain machine, with one node and no accelerator, quickly from the kernel's own files.

use std::fs;
use std::path::Path;

use super::detect::kind;
use super::{Node, Topology, sysfs};

impl Topology {
    /// The topology, if the machine is plain.
    pub(super) fn plain(sys: &Path) -> Option<Self> {
        let nodes = sysfs::read(&sys.join("devices/system/node/online"))?;
        if nodes != "0" || fs::read_dir(sys.join("bus/pci/devices")).is_ok_and(has_xpu) {
            return None;
        }
        let cpus = sysfs::read(&sys.join("devices/system/node/node0/cpulist"))?;
        let node = Node {
            id: 0,
            cpus: cpus.parse().ok()?,
            memory: true,
        };
        Self::new(vec![node], Vec::new()).ok()
    }
}

fn has_xpu(devices: fs::ReadDir) -> bool {
    let is_xpu = |device: &Path| {
        let number = |name| {
            let text = sysfs::read(&device.join(name))?;
            u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
        };
        let word = |name| number(name).and_then(|it| u16::try_from(it).ok());
        let class = number("class").and_then(|it| u16::try_from(it >> 8).ok());
        // A device that does not identify itself needs a closer look.
        match (class, word("vendor"), word("device")) {
            (Some(class), Some(vendor), Some(device)) => kind(class, vendor, device).is_some(),
            _ => true,
        }
    };
    devices
        .filter_map(Result::ok)
        .any(|device| is_xpu(&device.path()))
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

        fn device(&self, class: &str) {
            let device = "bus/pci/devices/0000:00:01.0";
            for (name, text) in [("class", class), ("vendor", "0x10de"), ("device", "0x2330")] {
                self.write(&format!("{device}/{name}"), text);
            }
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            // If this fails, the rest stays in the directory for temporary files.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn one_node_without_an_accelerator_is_plain() {
        let sys = Sys::new("plain", "0\n");
        let plain = Topology::plain(&sys.0).expect("plain");
        assert_eq!(plain.to_string(), "node 0 cpus=0-3\n");
        sys.device("0x010802\n");
        assert_eq!(Topology::plain(&sys.0), Some(plain), "a disk");
        sys.device("0x030200\n");
        assert_eq!(Topology::plain(&sys.0), None, "a GPU");
        sys.device("?");
        assert_eq!(Topology::plain(&sys.0), None, "who knows");
    }

    #[test]
    fn two_nodes_have_to_be_looked_at() {
        let sys = Sys::new("two", "0-1\n");
        assert_eq!(Topology::plain(&sys.0), None);
    }

    #[test]
    fn this_machine_is_the_same_either_way() {
        if let Some(plain) = Topology::plain(Path::new("/sys")) {
            assert_eq!(Topology::detect().expect("a topology"), plain);
        }
    }
}
