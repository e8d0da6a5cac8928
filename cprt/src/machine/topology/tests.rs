//! Machines as text, processes as made-up trees: only the last test looks at this machine.

mod choice;
mod detect;
mod processes;
mod tree;

use super::*;

/// The names and texts of the machines to test with.
const FIXTURES: [(&str, &str); 8] = [
    (
        "nvidia-8-on-4-nodes",
        include_str!("fixtures/nvidia-8-on-4-nodes.txt"),
    ),
    (
        "nvidia-8-on-2-nodes",
        include_str!("fixtures/nvidia-8-on-2-nodes.txt"),
    ),
    (
        "ascend-8-on-4-nodes",
        include_str!("fixtures/ascend-8-on-4-nodes.txt"),
    ),
    (
        "amd-8-on-2-nodes",
        include_str!("fixtures/amd-8-on-2-nodes.txt"),
    ),
    (
        "hbm-and-memoryless",
        include_str!("fixtures/hbm-and-memoryless.txt"),
    ),
    ("one-gpu", include_str!("fixtures/one-gpu.txt")),
    ("nothing", include_str!("fixtures/nothing.txt")),
    ("vm", include_str!("fixtures/vm.txt")),
];

/// The machine of a fixture.
fn machine(name: &str) -> Topology {
    let (_, text) = FIXTURES
        .iter()
        .find(|(it, _)| *it == name)
        .unwrap_or_else(|| panic!("no fixture {name}"));
    text.parse()
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn without_comments(text: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines.filter(|line| !line.starts_with('#')).collect()
}

#[test]
fn machines_read_as_they_print() {
    for (name, text) in FIXTURES {
        let topology = machine(name);
        assert_eq!(topology.to_string(), without_comments(text), "{name}");
    }
}

#[test]
fn machines_have_their_nodes() {
    type Expected<'a> = (&'a str, &'a [u16], &'a [Option<u16>]);
    let by_four = |nodes: [u16; 8]| nodes.map(Some);
    let expected: [Expected; 8] = [
        (
            "nvidia-8-on-4-nodes",
            &[0, 1, 2, 3],
            &by_four([1, 1, 0, 0, 3, 3, 2, 2]),
        ),
        (
            "nvidia-8-on-2-nodes",
            &[0, 1],
            &by_four([0, 0, 0, 0, 1, 1, 1, 1]),
        ),
        (
            "ascend-8-on-4-nodes",
            &[0, 1, 2, 3],
            &by_four([3, 0, 3, 0, 2, 1, 2, 1]),
        ),
        (
            "amd-8-on-2-nodes",
            &[0, 1],
            &by_four([0, 0, 0, 0, 1, 1, 1, 1]),
        ),
        (
            "hbm-and-memoryless",
            &[0, 1, 2, 3],
            &[Some(0), Some(0), None],
        ),
        ("one-gpu", &[0], &[Some(0), None]),
        ("nothing", &[0], &[None]),
        ("vm", &[0, 1], &[Some(0), Some(1), None]),
    ];
    for (name, nodes, xpus) in expected {
        let topology = machine(name);
        let ids: Vec<_> = topology.nodes().iter().map(|node| node.id).collect();
        assert_eq!(ids, nodes, "{name}");
        for (xpu, node) in (0..).zip(xpus) {
            assert_eq!(topology.node_of(xpu), *node, "{name}, XPU {xpu}");
        }
        assert_eq!(topology.node_of(u16::MAX), None);
    }
}

#[test]
fn topology_omits_unknown_fields_and_comments() -> Result<()> {
    let text = "\n# a comment\n\n  node 3 cpus=1,5-6\nxpu 0 other 10000:e1:1f.7   \n";
    let topology: Topology = text.parse()?;
    assert_eq!(
        topology.to_string(),
        "node 3 cpus=1,5-6\nxpu 0 other 10000:e1:1f.7\n"
    );
    assert_eq!(topology.node(3).map(|node| node.cpus.len()), Some(3));
    assert_eq!(topology.node(0), None);
    Ok(())
}

#[test]
fn a_name_may_say_anything() -> Result<()> {
    let text = "node 0 cpus=0\nxpu 0 nvidia 0000:01:00.0 name=A node=7 name=B # C\n";
    let topology: Topology = text.parse()?;
    assert_eq!(
        topology.xpus()[0].name.as_deref(),
        Some("A node=7 name=B # C")
    );
    assert_eq!(topology.to_string(), text);
    Ok(())
}

#[test]
fn text_that_makes_no_sense_is_refused() {
    for (text, told) in [
        ("", "there is no NUMA node"),
        ("xpu 0 amd 0000:01:00.0", "there is no NUMA node"),
        ("gpu 0", "line 1: neither a node nor an xpu"),
        ("node 0", "line 1: cpus= is missing"),
        ("node x cpus=", "line 1: \"x\" is not a number"),
        ("node 70000 cpus=", "line 1: \"70000\" is not a number"),
        ("node 0 cpus=a", "line 1: \"a\" is not a list of CPUs"),
        ("node 0 cpus=0 full", "line 1: \"full\" is unknown here"),
        (
            "node 0 cpus=0 memoryless 1",
            "line 1: \"1\" is unknown here",
        ),
        ("node 1 cpus=0\nnode 0 cpus=1", "not in the order"),
        ("node 1 cpus=0\nnode 1 cpus=1", "not in the order"),
        (
            "node 0 cpus=0\nxpu 1 amd 0000:01:00.0",
            "line 2: XPU 0 must come first",
        ),
        (
            "node 0 cpus=0\nxpu 0 amd 0000:01:00.0\nxpu 0 amd 0000:02:00.0",
            "line 3: XPU 1 must come first",
        ),
        (
            "node 0 cpus=0\nxpu 0 tpu 0000:01:00.0",
            "\"tpu\" is not a kind",
        ),
        (
            "node 0 cpus=0\nxpu 0 amd 1.0",
            "\"1.0\" is not a PCI address",
        ),
        (
            "node 0 cpus=0\nxpu 0 amd 0000:01:20.0",
            "is not a PCI address",
        ),
        (
            "node 0 cpus=0\nxpu 0 amd 0000:01:00.0 colour=red",
            "\"colour=red\" is unknown here",
        ),
        (
            "node 0 cpus=0\nxpu 0 amd 0000:01:00.0 node=1",
            "node 1 is none that has memory",
        ),
        (
            "node 0 cpus=0\nnode 1 cpus= memoryless\nxpu 0 amd 0000:01:00.0 node=1",
            "node 1 is none that has memory",
        ),
    ] {
        let Err(error) = text.parse::<Topology>() else {
            panic!("{text:?} was read");
        };
        let error = error.to_string();
        assert!(error.contains(told), "{text:?}: {error}");
    }
}

#[test]
fn pci_addresses_read_as_drivers_write_them() -> Result<(), String> {
    for (text, printed) in [
        ("0000:18:00.0", "0000:18:00.0"),
        ("00000000:18:00.0", "0000:18:00.0"),
        ("00010000:E1:1F.7", "10000:e1:1f.7"),
        ("c1:00.0", "0000:c1:00.0"),
    ] {
        assert_eq!(text.parse::<PciAddress>()?.to_string(), printed);
    }
    for text in ["", "18:00", "0000:18:00", "0:18:00.8", "x:18:00.0"] {
        assert!(text.parse::<PciAddress>().is_err(), "{text:?}");
    }
    Ok(())
}

#[test]
fn topology_of_this_machine_is_detected_and_parsed() -> Result<()> {
    let topology = Topology::detect()?;
    println!("{topology}");
    assert!(!topology.nodes().is_empty());
    assert_eq!(topology.to_string().parse::<Topology>()?, topology);
    Ok(())
}
