//! Evidence about processes, in made-up trees.

use super::tree::Tree;
use super::*;

impl Tree {
    /// Adds process 7 with these files open, beside those that every process has.
    fn process(&self, open: &[&str], environment: &str) {
        self.link("proc/7/fd/0", "/dev/null");
        self.link("proc/7/fd/1", "pipe:[1234]");
        self.link("proc/7/fd/2", "/dev/nvidiactl");
        for (at, target) in (3..).zip(open) {
            self.link(&format!("proc/7/fd/{at}"), target);
        }
        self.write("proc/7/environ", &environment.replace(' ', "\0"));
        self.write("proc/7/cmdline", "python3\0serve.py\0");
    }

    fn initial_namespace(&self) {
        self.link("proc/self/ns/pid", "pid:[4026531836]");
    }

    fn processes(&self, computes: fn() -> Vec<Compute>) -> Processes {
        Processes {
            proc: self.path("proc"),
            sys: self.path("sys"),
            computes,
        }
    }
}

const ALL: [&str; 8] = [
    "/dev/nvidia0",
    "/dev/nvidia1",
    "/dev/nvidia2",
    "/dev/nvidia3",
    "/dev/nvidia4",
    "/dev/nvidia5",
    "/dev/nvidia6",
    "/dev/nvidia7",
];

fn compute(pid: u32, address: &str) -> Compute {
    let pci = address.parse().unwrap_or_else(|error| panic!("{error}"));
    Compute { pid, pci }
}

/// Process 7 computes on XPU 5 of the machine with four nodes.
fn busy() -> Vec<Compute> {
    vec![
        compute(8, "0000:07:00.0"),
        compute(7, "0000:8b:00.0"),
        compute(7, "0000:ff:00.0"),
    ]
}

fn unasked() -> Vec<Compute> {
    panic!("NVML was asked without need");
}

#[test]
fn one_open_device_is_the_answer() {
    let tree = Tree::new("one-open");
    tree.initial_namespace();
    tree.process(&["/dev/nvidia-uvm", "/dev/nvidia6", "/dev/nvidia6"], "");
    let topology = machine("nvidia-8-on-4-nodes");
    // The device with minor number 6 is the fifth by address.
    let found = topology.process_xpu(7, &tree.processes(unasked));
    assert_eq!(found, Some(4));
}

#[test]
fn nvml_decides_where_all_are_open() {
    let tree = Tree::new("nvml");
    tree.initial_namespace();
    tree.process(&ALL, "LOCAL_RANK=2");
    let topology = machine("nvidia-8-on-4-nodes");
    assert_eq!(topology.process_xpu(7, &tree.processes(busy)), Some(5));
    // Before it has a context there, its rank decides.
    assert_eq!(topology.process_xpu(7, &tree.processes(Vec::new)), Some(2));
}

#[test]
fn numbers_of_other_namespaces_are_confirmed() {
    let tree = Tree::new("namespace");
    tree.link("proc/self/ns/pid", "pid:[4026532555]");
    tree.process(&ALL, "");
    let topology = machine("nvidia-8-on-4-nodes");
    assert_eq!(topology.process_xpu(7, &tree.processes(busy)), Some(5));

    let tree = Tree::new("namespace-other");
    tree.link("proc/self/ns/pid", "pid:[4026532555]");
    tree.process(&["/dev/nvidia0", "/dev/nvidia1"], "");
    assert_eq!(topology.process_xpu(7, &tree.processes(busy)), None);
}

#[test]
fn environments_and_containers_are_looked_into() {
    let tree = Tree::new("container");
    tree.initial_namespace();
    tree.process(&[], "PATH=/bin CUDA_VISIBLE_DEVICES=1 HOME=/root");
    for device in ["null", "nvidia0", "nvidia5"] {
        tree.write(&format!("proc/7/root/dev/{device}"), "");
    }
    let topology = machine("nvidia-8-on-4-nodes");
    let processes = tree.processes(unasked);
    let evidence = processes.evidence(&topology, 7);
    assert_eq!(evidence.environment.len(), 1);
    assert_eq!(evidence.title, "python3");
    assert_eq!(evidence.reach, Some(vec![2, 7]));
    // Minor numbers 0 and 5 are XPUs 2 and 7; in the container they are devices 0 and 1.
    assert_eq!(topology.process_xpu(7, &processes), Some(7));
}

#[test]
fn amdkfd_knows_who_computes_where() {
    let tree = Tree::new("kfd");
    tree.initial_namespace();
    tree.process(
        &["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD136"],
        "",
    );
    tree.kfd(0, 0, "cpu_cores_count 96\n");
    tree.kfd(2, 4711, "location_id 1280\ndomain 0\n");
    tree.kfd(3, 4712, "location_id 5376\ndomain 0\n");
    let process = "sys/class/kfd/kfd/proc/7";
    tree.write(&format!("{process}/vram_4711"), "0\n");
    tree.write(&format!("{process}/vram_4712"), "1073741824\n");
    let topology = machine("amd-8-on-2-nodes");
    assert_eq!(topology.process_xpu(7, &tree.processes(unasked)), Some(1));
}

#[test]
fn davinci_devices_are_found() {
    let tree = Tree::new("davinci");
    tree.initial_namespace();
    tree.process(&["/dev/davinci_manager", "/dev/davinci5"], "");
    let topology = machine("ascend-8-on-4-nodes");
    assert_eq!(topology.process_xpu(7, &tree.processes(unasked)), Some(5));
}

#[test]
fn unknown_process_has_no_xpu() {
    let tree = Tree::new("no-process");
    tree.initial_namespace();
    let processes = tree.processes(Vec::new);
    for (name, _) in FIXTURES {
        assert_eq!(machine(name).process_xpu(7, &processes), None, "{name}");
    }
}

#[test]
fn a_machine_without_xpus_asks_no_driver() {
    let tree = Tree::new("without");
    tree.process(&ALL, "LOCAL_RANK=0");
    let topology = machine("nothing");
    assert_eq!(topology.process_xpu(7, &tree.processes(unasked)), None);
}

#[test]
fn evidence_is_collected_for_this_process() {
    let processes = Processes {
        computes: Vec::new,
        ..Processes::default()
    };
    let topology = machine("nvidia-8-on-2-nodes");
    let evidence = processes.evidence(&topology, std::process::id());
    assert!(evidence.computes.is_empty());
    assert!(!evidence.title.is_empty());
    assert!(evidence.reach.is_some());
}

#[test]
fn a_gpu_has_its_uuid_once_it_is_used() {
    let tree = Tree::new("uuid-later");
    tree.initial_namespace();
    tree.process(&ALL[..2], "CUDA_VISIBLE_DEVICES=GPU-5c0ffee5");
    // With one node, the driver's own answer would decide nothing.
    let text = "node 0 cpus=0-7\nxpu 0 nvidia 0000:01:00.0 node=0 device=nvidia0\n\
                xpu 1 nvidia 0000:02:00.0 node=0 device=nvidia1\n";
    let topology: Topology = text.parse().expect("a topology");
    let processes = tree.processes(unasked);
    assert_eq!(topology.process_xpu(7, &processes), None);
    for (address, uuid) in [("0000:01:00.0", "0badcafe"), ("0000:02:00.0", "5c0ffee5")] {
        let path = format!("proc/driver/nvidia/gpus/{address}/information");
        tree.write(&path, &format!("GPU UUID: \t GPU-{uuid}-0000\n"));
    }
    assert_eq!(topology.process_xpu(7, &processes), Some(1));
}
