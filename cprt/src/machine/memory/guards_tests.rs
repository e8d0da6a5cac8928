//! Nodes of Kubernetes and machines with unified memory, as trees of files.

use super::super::tests::{Tree, mib};
use super::super::{EvictionOrigin, LimitSource, MemoryState, Watch};
use super::*;
use crate::control::guard::Amount;

const MIB: u64 = 1 << 20;

fn sample(tree: &Tree, config: MemoryConfig, ours: u64) -> MemoryState {
    Watch::new(config, tree.roots()).sample(ours * MIB)
}

/// A node of 1000 MiB with 880 MiB available: 780 of them are cache in frequent use, 50 are not.
fn node() -> Tree {
    let tree = Tree::v2();
    tree.meminfo_of(1000, 880, [780, 50]);
    tree
}

#[test]
fn without_kubelet_its_thresholds_do_not_count() {
    let state = sample(&node(), MemoryConfig::default(), 0);
    assert_eq!(mib(&state), [1000, 120, 800, 680]);
    assert_eq!(state.source, LimitSource::Host);
}

#[test]
fn cache_in_frequent_use_brings_the_node_near_eviction() {
    let tree = node();
    tree.write(
        "kubelet/config.yaml",
        "evictionHard:\n  memory.available: \"50Mi\"\n",
    );
    let state = sample(&tree, MemoryConfig::default(), 0);
    // 50 MiB are free, 50 are inactive: kubelet sees 100 available, wants 50, and 20 are the margin.
    assert_eq!(mib(&state), [1000, 900, 930, 30]);
    let LimitSource::Kubelet(eviction) = state.source else {
        panic!("{}", state.source);
    };
    let expected = (50 * MIB, EvictionOrigin::Hard);
    assert_eq!((eviction.below, eviction.origin), expected);
    // Loaded pages may become active.
    let state = sample(&tree, MemoryConfig::default(), 35);
    assert_eq!(mib(&state), [1000, 935, 930, 0]);
    assert!(state.over);
    let off = MemoryConfig {
        kubelet: KubeletGuard::Off,
        ..MemoryConfig::default()
    };
    assert_eq!(sample(&tree, off, 0).source, LimitSource::Host);
}

#[test]
fn pods_show_that_kubelet_runs_and_a_setting_replaces_it() {
    for pods in [
        "cgroup/kubepods.slice/cgroup.procs",
        "cgroup/kubepods/cgroup.procs",
    ] {
        let tree = node();
        tree.write(pods, "");
        let state = sample(&tree, MemoryConfig::default(), 0);
        assert_eq!(mib(&state), [1000, 900, 880, 0], "{pods}");
    }
    let set = MemoryConfig {
        kubelet: KubeletGuard::Below(Amount::Part(300)),
        ..MemoryConfig::default()
    };
    let state = sample(&node(), set, 0);
    assert_eq!(mib(&state), [1000, 900, 950, 50]);
    let LimitSource::Kubelet(eviction) = state.source else {
        panic!("{}", state.source);
    };
    assert_eq!(eviction.origin, EvictionOrigin::Setting);
}

#[test]
fn kubelet_that_starts_later_is_noticed() {
    let tree = node();
    let roots = tree.roots();
    let mut guards = Guards::default();
    let start = Instant::now();
    guards.update(start, &MemoryConfig::default(), &roots);
    assert_eq!(guards.kubelet, None);
    tree.write("kubelet/config.yaml", "evictionHard: {}\n");
    guards.update(start + FRESH / 2, &MemoryConfig::default(), &roots);
    assert_eq!(guards.kubelet, None);
    guards.update(start + FRESH, &MemoryConfig::default(), &roots);
    assert_eq!(guards.kubelet, Some(Thresholds::default_ones()));
}

#[test]
fn a_pod_has_a_working_set_of_its_own() {
    let tree = Tree::v2();
    // 400 MiB, of which 100 are of processes, and 250 are cache in use.
    let name = "kubepods.slice/pod";
    let dir = tree.cgroup_v2(name, "419430400", 250 * MIB);
    let stat = format!("file_dirty 0\ninactive_file 0\nactive_file {}\n", 250 * MIB);
    tree.write(&format!("cgroup/{name}/memory.stat"), &stat);
    let watch = Watch::new(MemoryConfig::default(), tree.roots());
    watch.follow_cgroup(&dir);
    let state = watch.sample(0);
    // The limit less 2 %; without what it uses, 220 would be left below 80 %.
    assert_eq!(mib(&state), [400, 350, 392, 42]);
    assert_eq!(state.source, LimitSource::WorkingSet(dir.as_path().into()));
}

#[test]
fn the_cgroup_of_all_pods_has_the_threshold_of_the_node() {
    let tree = Tree::v2();
    let pods = tree.cgroup_v2("kubepods.slice", "629145600", 200 * MIB);
    let stat = format!("file_dirty 0\ninactive_file 0\nactive_file {}\n", 200 * MIB);
    tree.write("cgroup/kubepods.slice/memory.stat", &stat);
    let dir = tree.cgroup_v2("kubepods.slice/pod", "max", 0);
    let watch = Watch::new(MemoryConfig::default(), tree.roots());
    watch.follow_cgroup(&dir);
    let state = watch.sample(0);
    assert_eq!(mib(&state), [600, 300, 488, 188]);
    assert_eq!(state.source, LimitSource::WorkingSet(pods.into()));
}

/// 1000 MiB with 900 available, of which 500 are cache; the free blocks are of 4 MiB.
fn unified(blocks: u64) -> Tree {
    let tree = Tree::v2();
    let zone = format!("Node 0, zone Normal 0 0 0 0 0 0 0 0 0 0 {blocks}\n");
    tree.write("proc/buddyinfo", &zone);
    tree
}

fn on() -> MemoryConfig {
    MemoryConfig {
        unified: UnifiedGuard::On,
        ..MemoryConfig::default()
    }
}

#[test]
fn unified_memory_is_available_while_it_is_free() {
    let tree = unified(100);
    let state = sample(&tree, on(), 0);
    assert_eq!(mib(&state), [1000, 600, 800, 200]);
    assert_eq!(state.source, LimitSource::Free);
    // Ours are among what is not free.
    assert_eq!(sample(&tree, on(), 300).used, 600 * MIB);
    tree.meminfo_of(1000, 900, [500, 250]);
    let state = sample(&tree, on(), 0);
    assert_eq!((state.available, state.over), (0, true));
    assert_eq!(
        sample(&tree, MemoryConfig::default(), 0).source,
        LimitSource::Host
    );
}

#[test]
fn unified_memory_has_to_be_free_in_large_blocks() {
    let page = crate::sys::page_size();
    if page != 4096 {
        // The blocks of this test would be of another size.
        return;
    }
    let state = sample(&unified(20), on(), 0);
    assert_eq!(mib(&state), [1000, 920, 950, 30]);
    assert_eq!(state.source, LimitSource::Blocks);
    assert!(sample(&unified(12), on(), 0).over);
    // Without the file, what is free counts alone.
    let tree = unified(0);
    tree.write("proc/buddyinfo", "");
    assert_eq!(sample(&tree, on(), 0).source, LimitSource::Free);
}

#[test]
fn bytes_loaded_since_a_reading_count_as_used() {
    let tree = unified(100);
    let watch = Watch::new(on(), tree.roots());
    watch.sample(0);
    assert_eq!(watch.sample(150 * MIB).used, 750 * MIB);
}

#[test]
fn gpus_that_share_memory_are_known() {
    for (driver, vendor, device, shared) in [
        ("nvidia", "0x10de", "0x2e12", true),
        ("amdgpu", "0x1002", "0x74a0", true),
        ("amdgpu", "0x1002", "0x74a1", false),
        ("nvidia", "0x10de", "0x2330", false),
        ("nvidia", "0x1002", "0x74a0", false),
        ("other", "0x10de", "0x2e12", false),
    ] {
        let tree = Tree::v2();
        tree.write(&format!("drivers/{driver}/bind"), "");
        let at = format!("drivers/{driver}/000f:01:00.0");
        tree.write(&format!("{at}/vendor"), &format!("{vendor}\n"));
        tree.write(&format!("{at}/device"), &format!("{device}\n"));
        assert_eq!(is_unified(&tree.roots()), shared, "{driver} {device}");
    }
    let tree = Tree::v2();
    tree.write(
        "proc/device-tree/compatible",
        "nvidia,p3737\0nvidia,tegra234\0",
    );
    assert!(is_unified(&tree.roots()));
    let off = MemoryConfig {
        unified: UnifiedGuard::Off,
        ..MemoryConfig::default()
    };
    assert_eq!(
        sample(&tree, MemoryConfig::default(), 0).source,
        LimitSource::Free
    );
    assert_eq!(sample(&tree, off, 0).source, LimitSource::Host);
}
