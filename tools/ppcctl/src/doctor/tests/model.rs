//! Files and links, memory, nodes and accelerators.

use super::*;

#[test]
fn an_empty_directory() {
    let mut facts = fine();
    facts.files = Files::default();
    let parts = ["/srv/models/llama has no files to load", "findmnt -T"];
    names(&facts, "files-none", Severity::Problem, &parts);
}

#[test]
fn a_tree_that_is_no_model() {
    let mut facts = fine();
    facts.files.cut = true;
    names(&facts, "files-many", Severity::Warning, &["one model"]);
}

#[test]
fn a_directory_that_is_a_link() {
    let mut facts = fine();
    facts.link = Some("/m".into());
    let parts = ["/m is a link to /srv/models/llama"];
    names(&facts, "directory-link", Severity::Note, &parts);
}

#[test]
fn files_with_holes() {
    let mut facts = fine();
    facts.files.allocated = GIB;
    let parts = ["take 1 GiB of their 16 GiB"];
    names(&facts, "files-sparse", Severity::Note, &parts);
    facts.files.allocated = 0;
    names(&facts, "files-sparse", Severity::Note, &["take 0 B"]);
    // FUSE does not report blocks.
    facts.place = Some(place("fuse.sshfs"));
    assert!(!has(&facts, "files-sparse"));
}

#[test]
fn links_that_leave_as_in_a_cache_of_downloads() {
    let mut facts = fine();
    let model = "/home/a/.cache/huggingface/hub/models--x";
    facts.directory = format!("{model}/snapshots/0f").into();
    facts.files = Files::default();
    facts.files.links = Links {
        leaving: sample(5, &format!("{model}/snapshots/0f/a.safetensors")),
        leaving_bytes: 16 * GIB,
        outside: Some(format!("{model}/blobs").into()),
        ..Links::default()
    };
    let parts = [
        "5 links, such as ",
        "a.safetensors, lead out of ",
        "/blobs: ",
        &format!("Name {model}, which contains both"),
    ];
    names(&facts, "links-leave", Severity::Problem, &parts);
    assert!(!has(&facts, "files-none"));
    assert_eq!(Diagnosis::of(&facts).bytes, 16 * GIB);
}

#[test]
fn links_that_leave_to_somewhere_else() {
    let mut facts = fine();
    facts.files.links = Links {
        leaving: sample(1, "/srv/models/llama/a"),
        leaving_bytes: GIB,
        outside: Some("/data/blobs".into()),
        ..Links::default()
    };
    let parts = [
        "1 link, /srv/models/llama/a, leads out of",
        "Name /data/blobs instead",
        "into /srv/models/llama with 'cp -L'",
    ];
    names(&facts, "links-leave", Severity::Warning, &parts);
    // The directory that contains both may hold half of the machine's files.
    facts.files.links.outside = Some("/srv/blobs".into());
    let parts = ["Name /srv/blobs instead"];
    names(&facts, "links-leave", Severity::Warning, &parts);
}

#[test]
fn broken_links() {
    let mut facts = fine();
    facts.files.links.broken = sample(2, "/srv/models/llama/b");
    let parts = [
        "2 links, such as /srv/models/llama/b, lead to nothing",
        "-xtype l",
    ];
    names(&facts, "links-broken", Severity::Problem, &parts);
}

#[test]
fn weights_that_git_has_not_fetched() {
    let mut facts = fine();
    facts.files.pointers = sample(2, "/srv/models/llama/f");
    let parts = [
        "2 files are Git LFS pointers instead of the contents",
        "git -C /srv/models/llama lfs pull",
    ];
    names(&facts, "files-pointers", Severity::Problem, &parts);
}

#[test]
fn downloads_that_are_not_finished() {
    let mut facts = fine();
    facts.files.parts = sample(1, "/srv/models/llama/g.incomplete");
    let parts = ["1 file has not been downloaded completely, /srv"];
    names(&facts, "files-incomplete", Severity::Warning, &parts);
}

#[test]
fn commands_are_right_for_any_path() {
    let mut facts = fine();
    facts.files.links.broken = sample(1, "/x");
    for (directory, word) in [
        ("/srv/llama-3.1_8B", "find /srv/llama-3.1_8B -x"),
        ("/srv/my \"models\"", r#"find "/srv/my \"models\"" -x"#),
        ("/srv/$HOME", r#"find "/srv/\$HOME" -x"#),
        ("/srv/modèles", "find /srv/modèles -x"),
    ] {
        facts.directory = directory.into();
        names(&facts, "links-broken", Severity::Problem, &[word]);
    }
}

#[test]
fn links_by_a_path_from_the_root() {
    let mut facts = fine();
    facts.files.links.absolute = sample(1, "/srv/models/llama/c");
    let parts = ["1 link, /srv/models/llama/c, leads within", "symlinks -cr"];
    names(&facts, "links-absolute", Severity::Note, &parts);
}

#[test]
fn files_that_a_worker_may_not_read() {
    let mut facts = fine();
    ordinary(&mut facts);
    facts.files.unreadable = sample(3, "/srv/models/llama/d");
    let parts = ["User 1000 may not read 3 files, such as", "chmod -R a+rX"];
    names(&facts, "files-unreadable", Severity::Problem, &parts);

    let mut facts = fine();
    facts.files.closed = sample(1, "/srv/models/llama/e");
    let parts = ["User 0 may not read 1 directory, /srv", "no_root_squash"];
    names(&facts, "files-unreadable", Severity::Problem, &parts);
}

#[test]
fn mounts_within_the_directory_are_reported() {
    let mut facts = fine();
    facts.files.mounts = vec!["/srv/models/llama/x".into(), "/srv/models/llama/y".into()];
    let parts = ["2 other file systems are mounted", "/x and 1 more"];
    names(&facts, "mounts-within", Severity::Warning, &parts);
}

#[test]
fn a_memory_limit_below_the_model() {
    let mut facts = fine();
    facts.memory = Some(Memory {
        limit: 16 * GIB,
        threshold: 12 * GIB,
        available: 11 * GIB,
        source: LimitSource::Cgroup(Path::new("/sys/fs/cgroup/pod").into()),
        knob: Some("/sys/fs/cgroup/pod/memory.max".into()),
    });
    let parts = [
        "The model has 16 GiB, and the memory cgroup /sys/fs/cgroup/pod limits memory to 16 GiB",
        "echo 24G > /sys/fs/cgroup/pod/memory.max",
    ];
    names(&facts, "memory-small", Severity::Warning, &parts);
}

#[test]
fn a_machine_smaller_than_the_model() {
    let mut facts = fine();
    facts.files.bytes = 100 * GIB;
    let parts = ["the machine limits memory to 64 GiB", "Add memory"];
    names(&facts, "memory-small", Severity::Warning, &parts);
}

#[test]
fn memory_that_others_have() {
    let mut facts = fine();
    facts.files.bytes = 45 * GIB;
    names(&facts, "memory-tight", Severity::Note, &["40 GiB can be"]);
}

/// A model of 16 GiB where little memory is left because of this.
fn little(source: LimitSource) -> Facts {
    let mut facts = fine();
    let memory = facts.memory.as_mut().expect("it is known");
    memory.available = 3 * GIB;
    memory.source = source;
    facts
}

#[test]
fn memory_that_kubelet_wants_to_be_available() {
    let eviction = Eviction {
        below: 500 << 20,
        origin: EvictionOrigin::Soft,
    };
    let facts = little(LimitSource::Kubelet(eviction));
    let parts = [
        "kubelet, which evicts pods below 500 MiB (evictionSoft in kubelet's configuration)",
        "limits memory to 64 GiB",
        "3 GiB can be",
        "ppcctl drop",
    ];
    names(&facts, "memory-tight", Severity::Note, &parts);
    let pod = Path::new("/sys/fs/cgroup/kubepods.slice/pod");
    let facts = little(LimitSource::WorkingSet(pod.into()));
    let parts = ["working set of the memory cgroup /sys/fs/cgroup/kubepods.slice/pod"];
    names(&facts, "memory-tight", Severity::Note, &parts);
}

#[test]
fn memory_that_a_gpu_needs_free() {
    let parts = ["a GPU shares the memory", "must be free", "ppcctl drop"];
    names(
        &little(LimitSource::Free),
        "memory-tight",
        Severity::Note,
        &parts,
    );
    let parts = ["in large free blocks", "compact_memory"];
    names(
        &little(LimitSource::Blocks),
        "memory-tight",
        Severity::Note,
        &parts,
    );
    let mut facts = little(LimitSource::Free);
    facts.memory.as_mut().expect("it is known").available = 40 * GIB;
    let parts = ["The model fits", "a GPU shares"];
    names(&facts, "memory", Severity::Ok, &parts);
}

#[test]
fn memory_that_damon_pages_out() {
    let mut facts = fine();
    assert!(!has(&facts, "memory-paged-out"));
    facts.kernel.paging_out = Some(PagingOut {
        after: 60,
        switch: ("/sys/kernel/mm/damon/admin/kdamonds/0/state".into(), "off"),
    });
    let parts = [
        "not been accessed for 60 s",
        "echo off > /sys/kernel/mm/damon/admin/kdamonds/0/state",
    ];
    names(&facts, "memory-paged-out", Severity::Warning, &parts);
}

#[test]
fn memory_that_cannot_be_read() {
    let mut facts = fine();
    facts.memory = None;
    names(&facts, "memory-unknown", Severity::Warning, &["/proc"]);
}

#[test]
fn missing_accelerator_is_reported_as_a_note() {
    let mut facts = fine();
    facts.machine = machine("node 0 cpus=0-7\n");
    names(&facts, "gpu-none", Severity::Note, &["lspci"]);
}

const TWO_SOCKETS: &str = "\
node 0 cpus=0-7
node 1 cpus=8-15 memoryless
xpu 0 nvidia 0000:18:00.0 node=0
xpu 1 nvidia 0000:c1:00.0 node=0 name=H100
";

#[test]
fn an_accelerator_on_a_node_without_memory() {
    let mut facts = fine();
    facts.machine = machine(TWO_SOCKETS);
    let home = |pci: &str, node| (pci.parse().expect("an address"), node);
    facts.machine.homes = vec![home("0000:18:00.0", 0), home("0000:c1:00.0", 1)];
    let parts = [
        "Accelerator 1 (H100, 0000:c1:00.0) is attached to node 1",
        "node 0",
    ];
    names(&facts, "gpu-node-without-memory", Severity::Warning, &parts);
    names(&facts, "gpu", Severity::Ok, &["Accelerator 0 (nvidia"]);
    let parts = ["2 NUMA nodes: node 0 (CPUs 0-7) and node 1 (CPUs 8-15, without memory)"];
    names(&facts, "numa", Severity::Ok, &parts);
}

#[test]
fn an_accelerator_that_is_near_to_nothing_known() {
    let mut facts = fine();
    facts.machine = machine("node 0 cpus=0\nnode 1 cpus=1\nxpu 0 amd 0000:18:00.0\n");
    names(&facts, "gpu-node-unknown", Severity::Warning, &["firmware"]);
}

#[test]
fn an_accelerator_whose_memory_is_forbidden() {
    let mut facts = fine();
    facts.machine.mems = Some("1".parse().expect("a list"));
    let parts = ["near node 0", "only use memory of 1", "--cpuset-mems"];
    names(&facts, "gpu-node-forbidden", Severity::Warning, &parts);
}

#[test]
fn a_machine_that_cannot_be_looked_at() {
    let mut facts = fine();
    facts.machine = Machine::default();
    names(&facts, "topology-unknown", Severity::Note, &["lstopo"]);
}

#[test]
fn pages_of_a_former_run_on_a_node_that_no_accelerator_is_near() {
    let two = "node 0 cpus=0\nnode 1 cpus=1\nxpu 0 amd 0000:18:00.0 node=1\n";
    let mut facts = fine();
    facts.machine = machine(two);
    assert!(!has(&facts, "cache-far"));
    facts.machine.cached = [(0, 12 * GIB), (1, 4 * GIB)].into();
    let parts = [
        "12 GiB of the cached 16 GiB are on node 0, but the accelerators are near node 1",
        "'ppcctl warm --node 1 /srv/models/llama'",
    ];
    names(&facts, "cache-far", Severity::Warning, &parts);
    // A few pages, such as of headers that another program has read.
    facts.machine.cached = [(0, GIB / 2), (1, 16 * GIB)].into();
    assert!(!has(&facts, "cache-far"));
    // One accelerator near each.
    facts.machine = machine(&format!("{two}xpu 1 amd 0000:19:00.0 node=0\n"));
    facts.machine.cached = [(0, 12 * GIB)].into();
    assert!(!has(&facts, "cache-far"));
    // It is not known which node is near, or nothing reads by an accelerator.
    for topology in ["xpu 0 amd 0000:18:00.0\n", ""] {
        facts.machine = machine(&format!("node 0 cpus=0\nnode 1 cpus=1\n{topology}"));
        facts.machine.cached = [(0, 12 * GIB)].into();
        assert!(!has(&facts, "cache-far"));
    }
}
