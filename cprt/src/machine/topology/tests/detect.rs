//! Which topology follows from the reports of hwloc and drivers.

use std::path::Path;

use hwlocality::topology::builder::TopologyBuilder;

use super::super::detect::{PciDevice, Seen, builder, kind, look, nearest, number, own_cpus};
use super::super::{nvidia, sysfs};
use super::tree::Tree;
use super::*;

fn pci(text: &str) -> PciAddress {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn node(id: u16, cpus: &str, memory: bool) -> Node {
    let cpus = cpus.parse().unwrap_or_else(|error| panic!("{error}"));
    Node { id, cpus, memory }
}

fn xpu(kind: Kind, address: &str) -> Xpu {
    Xpu {
        kind,
        pci: pci(address),
        node: None,
        device: None,
        ordinal: None,
        uuid: None,
        name: None,
    }
}

#[test]
fn xpu_is_distinguished_from_other_pci_devices() {
    for (what, class, vendor, device, expected) in [
        ("H200", 0x0302, 0x10de, 0x2335, Some(Kind::Nvidia)),
        ("RTX 4090", 0x0300, 0x10de, 0x2684, Some(Kind::Nvidia)),
        ("its audio", 0x0403, 0x10de, 0x22ba, None),
        ("NVSwitch", 0x0680, 0x10de, 0x22a3, None),
        ("MI300X", 0x1200, 0x1002, 0x74a1, Some(Kind::Amd)),
        ("MI250X", 0x0380, 0x1002, 0x7408, Some(Kind::Amd)),
        ("Radeon RX 7900", 0x0300, 0x1002, 0x744c, Some(Kind::Amd)),
        ("ES1000", 0x0300, 0x1002, 0x515e, None),
        ("Ascend 910B", 0x1200, 0x19e5, 0xd802, Some(Kind::Ascend)),
        ("Hi1710, a console", 0x0300, 0x19e5, 0x1711, None),
        ("AST2600, a console", 0x0300, 0x1a03, 0x2000, None),
        ("QEMU's VGA", 0x0300, 0x1234, 0x1111, None),
        ("QEMU's display", 0x0380, 0x1234, 0x1111, Some(Kind::Other)),
        ("Gaudi", 0x1200, 0x1da3, 0x1020, Some(Kind::Other)),
        (
            "Data Center GPU Max",
            0x0380,
            0x8086,
            0x0bd5,
            Some(Kind::Other),
        ),
        ("a network card", 0x0200, 0x15b3, 0x1021, None),
    ] {
        assert_eq!(kind(class, vendor, device), expected, "{what}");
    }
}

#[test]
fn cpus_are_of_one_node() {
    // How hwloc reports two packages with high-bandwidth memory, and memory far from both at the end.
    let mut nodes = [
        node(0, "0-3", true),
        node(1, "4-7", true),
        node(2, "0-3", true),
        node(3, "4-7", true),
        node(4, "0-7", true),
    ];
    own_cpus(&mut nodes);
    let cpus = nodes.map(|node| node.cpus.to_string());
    assert_eq!(cpus, ["0-3", "4-7", "", "", ""]);
}

#[test]
fn the_nearest_node_has_memory() {
    let two = Seen {
        nodes: vec![node(0, "0-3", true), node(1, "4-7", true)],
        found: vec![],
        distances: vec![],
    };
    let one = Seen {
        nodes: vec![node(0, "0-7", true)],
        ..two.clone()
    };
    let bandwidth = Seen {
        nodes: vec![
            node(0, "0-3", true),
            node(1, "4-7", true),
            node(2, "", true),
            node(3, "", true),
        ],
        ..two.clone()
    };
    let four = Seen {
        nodes: (0..4)
            .map(|id| node(id, &(2 * id).to_string(), true))
            .collect(),
        ..two.clone()
    };
    let memoryless = Seen {
        nodes: vec![
            node(0, "0-1", true),
            node(1, "2-3", false),
            node(4, "4-5", true),
        ],
        distances: vec![vec![10, 20, 30], vec![20, 10, 12], vec![30, 12, 10]],
        ..two.clone()
    };
    let blind = Seen {
        distances: vec![],
        ..memoryless.clone()
    };
    for (what, seen, near, told, expected) in [
        ("it hangs on one", &two, &[1][..], Some(1), Some(1)),
        ("the kernel does not say", &two, &[1], None, Some(1)),
        ("it hangs on the whole machine", &two, &[0, 1], None, None),
        ("but the kernel says where", &two, &[0, 1], Some(1), Some(1)),
        ("it hangs on nothing", &two, &[], None, None),
        ("there is but one", &one, &[0], None, Some(0)),
        ("and nothing says that it is near", &one, &[], None, Some(0)),
        ("fast memory beside it", &bandwidth, &[1, 3], None, Some(1)),
        ("all of it", &bandwidth, &[0, 1, 2, 3], None, None),
        ("half a machine", &four, &[2, 3], None, Some(2)),
        ("half, and told", &four, &[2, 3], Some(3), Some(3)),
        ("no memory there", &memoryless, &[1], Some(1), Some(4)),
        ("no CPUs and no memory", &memoryless, &[], Some(1), Some(4)),
        ("no distances", &blind, &[1], Some(1), None),
    ] {
        assert_eq!(nearest(seen, near, told), expected, "{what}");
    }
}

#[test]
fn numbers_go_by_kind_and_runtime() {
    let numbered = |mut xpus: Vec<Xpu>| -> Vec<String> {
        number(&mut xpus);
        xpus.iter().map(|xpu| xpu.pci.to_string()).collect()
    };
    let with = |kind, address, ordinal| Xpu {
        ordinal,
        ..xpu(kind, address)
    };
    // CUDA's own order, the fastest first, does not determine the numbers.
    let nvidia = vec![
        with(Kind::Nvidia, "0000:41:00.0", Some(0)),
        with(Kind::Nvidia, "0000:01:00.0", Some(1)),
        with(Kind::Amd, "0000:00:02.0", None),
    ];
    assert_eq!(
        numbered(nvidia),
        ["0000:01:00.0", "0000:41:00.0", "0000:00:02.0"]
    );
    let ascend = vec![
        with(Kind::Ascend, "0000:01:00.0", Some(1)),
        with(Kind::Ascend, "0000:c1:00.0", Some(0)),
        with(Kind::Ascend, "0000:02:00.0", None),
    ];
    assert_eq!(
        numbered(ascend),
        ["0000:c1:00.0", "0000:01:00.0", "0000:02:00.0"]
    );
}

#[test]
fn hwloc_finds_nodes_xpus_and_distances() -> Result<()> {
    // Two packages with their memory and CPUs, and node 2, memory only, beside node 1. Behind the
    // first: a GPU, a console, a network card. Behind the second: an NPU. Behind neither: a display
    // controller. This comment is here because hwloc's own parser knows none.
    let xml = include_str!("../fixtures/hwloc-two-nodes.xml");
    let from_xml = |builder: TopologyBuilder| builder.from_xml(xml);
    let seen = look(from_xml(builder()?).map_err(|error| Error::Topology(error.to_string()))?)?;
    let found = |kind, address, near: &[u16]| PciDevice {
        kind,
        pci: pci(address),
        near: near.to_vec(),
    };
    let mut found_there = seen.found.clone();
    found_there.sort_by_key(|found| found.pci);
    assert_eq!(
        seen.nodes,
        [
            node(0, "0-1", true),
            node(1, "2-3", true),
            node(2, "", true)
        ]
    );
    assert_eq!(
        found_there,
        [
            found(Kind::Nvidia, "0000:17:00.0", &[0]),
            found(Kind::Ascend, "0000:81:00.0", &[1, 2]),
            found(Kind::Other, "0000:c1:00.0", &[0, 1, 2]),
        ]
    );
    assert_eq!(seen.distances, [[10, 21, 24], [21, 10, 13], [24, 13, 10]]);
    let nodes: Vec<_> = found_there
        .iter()
        .map(|found| nearest(&seen, &found.near, None))
        .collect();
    assert_eq!(nodes, [Some(0), Some(1), None]);
    Ok(())
}

fn described(kind: Kind, address: &str, tree: &Tree) -> Xpu {
    let mut xpu = xpu(kind, address);
    sysfs::describe(&mut xpu, &tree.path("proc"), &tree.path("sys"));
    xpu
}

#[test]
fn drivers_tell_names_and_numbers() {
    let tree = Tree::new("drivers");
    tree.write(
        "proc/driver/nvidia/gpus/0000:18:00.0/information",
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 205\nGPU UUID: \t \
         GPU-8b53639f-152c-8fc6-ef30-802fde462ba0\nVideo BIOS: \t 96.00\nBus Location: \t \
         0000:18:00.0\nDevice Minor: \t 3\n",
    );
    tree.write(
        "proc/driver/nvidia/gpus/0000:2a:00.0/information",
        "GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t x\n",
    );
    let xpu = described(Kind::Nvidia, "0000:18:00.0", &tree);
    assert_eq!(xpu.name.as_deref(), Some("NVIDIA H200"));
    assert_eq!(xpu.device.as_deref(), Some("nvidia3"));
    assert_eq!(
        xpu.uuid.as_deref(),
        Some("GPU-8b53639f-152c-8fc6-ef30-802fde462ba0")
    );
    let unused = described(Kind::Nvidia, "0000:2a:00.0", &tree);
    assert_eq!((unused.uuid, unused.device), (None, None));

    let pci = "sys/bus/pci/devices";
    let table = "c1:00.0 ---> 0\n01:00.0 ---> 1\n";
    tree.write(
        &format!("{pci}/0000:01:00.0/devdrv_sysfs_bdf_to_devid"),
        table,
    );
    let xpu = described(Kind::Ascend, "0000:01:00.0", &tree);
    assert_eq!(
        (xpu.ordinal, xpu.device.as_deref()),
        (Some(1), Some("davinci1"))
    );
    let silent = described(Kind::Ascend, "0000:c1:00.0", &tree);
    assert_eq!((silent.ordinal, silent.device), (None, None));

    tree.write(&format!("{pci}/0000:65:00.0/drm/card2/x"), "");
    tree.write(&format!("{pci}/0000:65:00.0/drm/renderD136/x"), "");
    tree.write(
        &format!("{pci}/0000:65:00.0/product_name"),
        "AMD Instinct\tMI300X OAM \n",
    );
    tree.kfd(0, 0, "cpu_cores_count 96\n");
    tree.kfd(10, 222, "domain 0\nlocation_id 25856\nunique_id 5\n");
    tree.kfd(9, 111, "domain 0\nlocation_id 1280\nunique_id 4\n");
    let xpu = described(Kind::Amd, "0000:65:00.0", &tree);
    assert_eq!(xpu.device.as_deref(), Some("dri/renderD136"));
    assert_eq!(xpu.ordinal, Some(1));
    assert_eq!(xpu.uuid.as_deref(), Some("GPU-0000000000000005"));
    assert_eq!(xpu.name.as_deref(), Some("AMD Instinct MI300X OAM"));
}

#[test]
fn sysfs_gives_numa_node_and_virtual_function() {
    let tree = Tree::new("kernel");
    let devices = "sys/bus/pci/devices";
    tree.write(&format!("{devices}/0000:01:00.0/numa_node"), "1\n");
    tree.write(&format!("{devices}/0000:02:00.0/numa_node"), "-1\n");
    tree.write(&format!("{devices}/0000:02:00.0/physfn/x"), "");
    let sys = tree.path("sys");
    assert_eq!(sysfs::numa_node(pci("0000:01:00.0"), &sys), Some(1));
    assert_eq!(sysfs::numa_node(pci("0000:02:00.0"), &sys), None);
    assert_eq!(sysfs::numa_node(pci("0000:03:00.0"), &sys), None);
    assert!(!sysfs::is_virtual_function(pci("0000:01:00.0"), &sys));
    assert!(sysfs::is_virtual_function(pci("0000:02:00.0"), &sys));
    assert!(!sysfs::is_virtual_function(
        pci("0000:01:00.0"),
        Path::new("/nowhere")
    ));
}

#[test]
fn uuids_are_spelt_as_lists_have_them() {
    let mut bytes = [0; 16];
    for (at, byte) in (0..).zip(&mut bytes) {
        *byte = at * 0x11;
    }
    assert_eq!(
        nvidia::spell(bytes),
        "GPU-00112233-4455-6677-8899-aabbccddeeff"
    );
}

#[test]
fn libraries_that_are_not_there_say_nothing() {
    // With or without the libraries, neither call may panic.
    let _ = compute_processes();
    let _ = nvidia::cuda_devices();
}
