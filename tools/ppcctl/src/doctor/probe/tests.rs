//! Probing machines made of files, and this one.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use test_support::skip;

use super::*;
use crate::doctor::facts::{Layer, PagingOut};

/// A directory that is removed when its value is dropped.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let name = format!("cprt-doctor-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a free name");
        Self(path.canonicalize().expect("it is there"))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn parent(&self, path: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("it is below")).expect("it is ours");
        path
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.parent(path), text).expect("it is ours");
    }

    fn link(&self, path: &str, target: &str) {
        symlink(target, self.parent(path)).expect("it is ours");
    }

    fn roots(&self) -> Roots {
        Roots::below(&self.0)
    }

    /// Makes the root a mount of this device and type.
    fn mounted(&self, device: &str, kind: &str) {
        let line = format!("22 1 {device} / / rw - {kind}\n");
        self.write("proc/self/mountinfo", &line);
    }

    fn device(&self) -> crate::doctor::facts::Device {
        let roots = self.roots();
        let mounts = Mounts::read(&roots.proc);
        let here = mounts.of(&roots.proc, &self.0).expect("the root");
        device::of(&roots, here)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_partition_is_of_its_disk() {
    let tree = Tree::new("partition");
    tree.mounted("8:1", "ext4 /dev/sda1 rw");
    tree.link("sys/dev/block/8:1", "../../devices/sda/sda1");
    tree.write("sys/devices/sda/sda1/partition", "1\n");
    tree.write("sys/devices/sda/queue/rotational", "1\n");
    tree.write(
        "sys/devices/sda/queue/scheduler",
        "none [mq-deadline] bfq\n",
    );
    tree.write("sys/devices/sda/queue/read_ahead_kb", "128\n");
    tree.link("sys/block/sda", "../devices/sda");
    let device = tree.device();
    let path = tree.path("sys/block/sda/queue/read_ahead_kb");
    assert_eq!(device.readahead, Some((path, 128)));
    let disk = Layer {
        name: "sda".to_owned(),
        rotational: Some(true),
        scheduler: Some("mq-deadline".to_owned()),
        ..Layer::default()
    };
    assert_eq!(device.layers, [disk]);
}

#[test]
fn a_stack_is_followed_down() {
    let tree = Tree::new("stack");
    tree.mounted("253:0", "xfs /dev/mapper/a-b rw");
    tree.link("sys/dev/block/253:0", "../../devices/dm-0");
    tree.write("sys/devices/dm-0/dm/uuid", "LVM-abc-def\n");
    tree.link("sys/devices/dm-0/slaves/md0", "../../md0");
    tree.write("sys/devices/md0/md/level", "raid0\n");
    tree.link("sys/devices/md0/slaves/sdb", "../../sdb");
    tree.link("sys/devices/md0/slaves/sda1", "../../sda/sda1");
    tree.write("sys/devices/sda/sda1/partition", "1\n");
    tree.write("sys/devices/sdb/queue/rotational", "0\n");
    let layers = tree.device().layers;
    let told: Vec<_> = layers
        .iter()
        .map(|layer| (layer.name.as_str(), layer.made.as_deref()))
        .collect();
    assert_eq!(
        told,
        [
            ("dm-0", Some("dm LVM")),
            ("md0", Some("md raid0")),
            ("sda", None),
            ("sdb", None)
        ]
    );
    assert_eq!(layers[3].rotational, Some(false));
}

#[test]
fn btrfs_is_found_by_its_source() {
    let tree = Tree::new("btrfs");
    tree.mounted("0:40", "btrfs /dev/mapper/data rw");
    tree.link("dev/mapper/data", "../dm-3");
    tree.write("dev/dm-3", "");
    tree.link("sys/class/block/dm-3", "../../devices/dm-3");
    tree.write("sys/devices/dm-3/dm/uuid", "CRYPT-LUKS2-x\n");
    tree.write("sys/fs/btrfs/1-2/devices/sda", "");
    tree.write("sys/fs/btrfs/3-4/devices/dm-3", "");
    tree.write("sys/fs/btrfs/3-4/bdi/read_ahead_kb", "4096\n");
    let device = tree.device();
    let path = tree.path("sys/fs/btrfs/3-4/bdi/read_ahead_kb");
    assert_eq!(device.readahead, Some((path, 4096)));
    assert_eq!(device.layers[0].made.as_deref(), Some("dm CRYPT"));
}

#[test]
fn a_server_has_a_readahead_and_no_device() {
    let tree = Tree::new("nfs");
    tree.mounted("0:50", "nfs4 host:/models rw");
    tree.write("sys/class/bdi/0:50/read_ahead_kb", "128\n");
    let device = tree.device();
    assert_eq!(device.readahead.map(|(_, kib)| kib), Some(128));
    assert_eq!(device.layers, []);
}

#[test]
fn loop_device_without_direct_io_is_detected() {
    let tree = Tree::new("loop");
    tree.mounted("7:0", "erofs /dev/loop0 ro");
    tree.link("sys/dev/block/7:0", "../../devices/loop0");
    tree.write("sys/devices/loop0/loop/dio", "0\n");
    let layer = tree.device().layers.remove(0);
    assert_eq!(
        (layer.made.as_deref(), layer.direct),
        (Some("loop"), Some(false))
    );
}

#[test]
fn a_tree_is_gone_through() {
    let tree = Tree::new("walk");
    tree.write("out/blobs/1", "outside");
    tree.write("out/other/2", "as well");
    tree.write("m/a", "12345");
    tree.write("m/sub/b", "123");
    fs::hard_link(tree.path("m/a"), tree.path("m/sub/a")).expect("the same file system");
    tree.write("m/mounted/c", "not counted");
    tree.link("m/1", "../out/blobs/1");
    tree.link("m/1-again", "../out/blobs/1");
    tree.link("m/gone", "../out/blobs/gone");
    tree.link("m/circle", "circle");
    tree.link("m/inner", "sub/b");
    tree.link("m/whole", &tree.path("m/a").display().to_string());
    let files = tree::walk(&tree.path("m"), vec![tree.path("m/mounted")]);
    assert_eq!((files.count, files.bytes), (2, 8));
    let links = &files.links;
    assert_eq!((links.leaving.count, links.leaving_bytes), (2, 7));
    assert_eq!(links.outside, Some(tree.path("out/blobs")));
    assert_eq!(links.broken.count, 2);
    assert_eq!(links.absolute.count, 1);
    assert_eq!(links.absolute.first, Some(tree.path("m/whole")));

    tree.link("m/2", "../out/other/2");
    let links = tree::walk(&tree.path("m"), Vec::new()).links;
    assert_eq!(links.outside, Some(tree.path("out")));
    tree.link("m/3", "../out/other");
    let links = tree::walk(&tree.path("m"), Vec::new()).links;
    assert_eq!((links.leaving.count, links.leaving_bytes), (4, 14));
}

#[test]
fn lfs_pointers_and_incomplete_downloads_are_found() {
    let tree = Tree::new("parts");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 13\n";
    tree.write("m/a.safetensors", pointer);
    tree.write("m/b.json", "version https://");
    tree.write("m/c.safetensors", &format!("{pointer}{:1024}", ""));
    tree.write("m/blobs/d.incomplete", "1");
    tree.write("m/incomplete", "1");
    let files = tree::walk(&tree.path("m"), Vec::new());
    assert_eq!(files.pointers.first, Some(tree.path("m/a.safetensors")));
    assert_eq!(files.parts.first, Some(tree.path("m/blobs/d.incomplete")));
    assert_eq!((files.pointers.count, files.parts.count), (1, 1));
}

#[test]
fn a_dead_mount_is_named() {
    let dead = io::Error::from_raw_os_error(libc::ENOTCONN);
    let text = refusal(Path::new("/m"), dead).to_string();
    assert!(text.contains("umount -l /m"), "{text}");
    let closed = io::Error::from_raw_os_error(libc::EACCES);
    assert_eq!(refusal(Path::new("/m"), closed).to_string(), "Reading /m");
}

#[test]
fn unreadable_files_and_directories_are_counted() {
    if nix::unistd::geteuid().is_root() {
        skip("nothing is closed to root; ppcctl's tests do it as another user");
        return;
    }
    let tree = Tree::new("closed");
    tree.write("m/a", "1");
    tree.write("m/sub/b", "1");
    let set = |path, mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(tree.path(path), mode).expect("it is ours");
    };
    set("m/a", 0o200);
    tree.write("closed/c", "1");
    tree.link("m/link", "../closed/c");
    set("closed", 0);
    set("m/sub", 0o100);
    let files = tree::walk(&tree.path("m"), Vec::new());
    set("m/sub", 0o700);
    set("closed", 0o700);
    assert_eq!((files.unreadable.count, files.closed.count), (2, 1));
    assert_eq!(files.links.broken.count, 0);
}

#[test]
fn a_kernel_is_read() {
    let tree = Tree::new("kernel");
    tree.write("proc/sys/kernel/osrelease", "6.12.9+deb13-amd64\n");
    tree.write("proc/filesystems", "nodev\tsysfs\nnodev\ttracefs\n\text4\n");
    tree.write(
        "lib/modules/6.12.9+deb13-amd64/modules.dep",
        "kernel/fs/xrfs.ko: \nupdates/dkms/rfs.ko.xz:\n",
    );
    tree.write(
        "sys/kernel/security/lockdown",
        "none [integrity] confidentiality\n",
    );
    tree.write("sys/kernel/tracing/events/filemap/enable", "");
    let found = kernel(&tree.roots());
    let module = tree.path("lib/modules/6.12.9+deb13-amd64/updates/dkms/rfs.ko.xz");
    let expected = Kernel {
        release: "6.12.9+deb13-amd64".to_owned(),
        version: Some((6, 12)),
        rfs: false,
        module: Some(module),
        headers: false,
        tracepoints: Some(false),
        lockdown: Some("integrity".to_owned()),
        paging_out: None,
    };
    assert_eq!(found, expected);

    tree.write("proc/filesystems", "nodev\trfs\n");
    fs::create_dir(tree.path("sys/kernel/tracing/events/filemap/mm_filemap_get_pages"))
        .expect("it is ours");
    let found = kernel(&tree.roots());
    assert!(found.rfs);
    assert_eq!(found.tracepoints, Some(true));
    assert_eq!(
        kernel(&Roots::below(Path::new("/nowhere"))),
        Kernel::default()
    );
}

#[test]
fn a_user_is_read() {
    let tree = Tree::new("user");
    tree.write(
        "proc/self/status",
        "Name:\tx\nUid:\t1\t1000\t1\t1\nCapEff:\t0000004000000000\nMems_allowed_list:\t0-1\n",
    );
    tree.write("proc/self/uid_map", "         0       1000          1\n");
    tree.write("proc/sys/kernel/perf_event_paranoid", "-1\n");
    tree.write("proc/sys/user/max_user_namespaces", "0\n");
    tree.write(
        "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1\n",
    );
    tree.write("proc/filesystems", "nodev\ttracefs\n");
    tree.write("usr/bin/fusermount3", "");
    tree.write("dev/fuse", "");
    fs::create_dir_all(tree.path("sys/kernel/tracing")).expect("it is ours");
    let found = user(&tree.roots());
    let expected = User {
        uid: 1000,
        capabilities: 1 << Capability::Perfmon as u64,
        initial: false,
        paranoid: Some(-1),
        tracefs: Tracefs::Unmounted,
        fuse: FuseDevice::Open,
        helper: Some((tree.path("usr/bin/fusermount3"), false)),
        namespaces: Namespaces {
            max: Some(0),
            clone: None,
            apparmor: Some(true),
        },
    };
    assert_eq!(found, expected);
    let mems = machine(&tree.roots(), None, Path::new("/nothing")).mems;
    assert_eq!(mems.map(|mems| mems.to_string()).as_deref(), Some("0-1"));

    tree.write("sys/kernel/tracing/events/filemap/enable", "");
    tree.write("proc/self/uid_map", "         0          0 4294967295\n");
    let found = user(&tree.roots());
    let at = tree.path("sys/kernel/tracing");
    assert_eq!((found.tracefs, found.initial), (Tracefs::Open(at), true));
    let unknown = user(&Roots::below(Path::new("/nowhere")));
    assert_eq!(
        (unknown.tracefs, unknown.fuse, unknown.helper),
        (Tracefs::Unmounted, FuseDevice::Missing, None)
    );
    tree.write("proc/filesystems", "nodev\tproc\n");
    fs::remove_dir_all(tree.path("sys/kernel")).expect("it is ours");
    assert_eq!(user(&tree.roots()).tracefs, Tracefs::Absent);
}

#[test]
fn the_lower_limit_of_a_cgroup_is_set_by_its_file() {
    let tree = Tree::new("knob");
    for (name, high, max, expected) in [
        ("max", "max", "100", "memory.max"),
        ("high", "50", "100", "memory.high"),
        ("none", "max", "max", "memory.max"),
    ] {
        tree.write(&format!("{name}/memory.high"), high);
        tree.write(&format!("{name}/memory.max"), max);
        let cgroup = tree.path(name);
        assert_eq!(knob(&cgroup), cgroup.join(expected));
    }
    tree.write("v1/memory.limit_in_bytes", "100");
    let cgroup = tree.path("v1");
    assert_eq!(knob(&cgroup), cgroup.join("memory.limit_in_bytes"));
}

#[test]
fn homes_of_accelerators_are_read() {
    let tree = Tree::new("homes");
    tree.write("sys/bus/pci/devices/0000:18:00.0/numa_node", "1\n");
    tree.write("sys/bus/pci/devices/0000:19:00.0/numa_node", "-1\n");
    let topology = "node 0 cpus=0\nxpu 0 amd 0000:18:00.0\nxpu 1 amd 0000:19:00.0\n";
    let machine = machine(&tree.roots(), topology.parse().ok(), Path::new("/nothing"));
    let homes: Vec<_> = machine
        .homes
        .iter()
        .map(|(pci, node)| (pci.to_string(), *node))
        .collect();
    assert_eq!(homes, [("0000:18:00.0".to_owned(), 1)]);
}

#[test]
fn the_tightest_limit_and_its_source() {
    let tree = Tree::new("limit");
    let meminfo = "MemTotal: 1024000 kB\nMemFree: 51200 kB\nMemAvailable: 901120 kB\n\
        Active(file): 798720 kB\nInactive(file): 51200 kB\nDirty: 0 kB\nWriteback: 0 kB\n";
    tree.write("proc/meminfo", meminfo);
    let source = || limit(&tree.roots()).expect("it is known").source;
    assert_eq!(source(), LimitSource::Host);
    let yaml = "evictionHard:\n  memory.available: 50Mi\n";
    tree.write("var/lib/kubelet/config.yaml", yaml);
    assert!(matches!(source(), LimitSource::Kubelet(it) if it.below == 50 << 20));
    // The daemon's configuration counts here, too.
    tree.write(
        "etc/cprt.toml",
        "[memory]\nkubelet = 'off'\nunified = 'on'\n",
    );
    assert_eq!(source(), LimitSource::Free);
    tree.write("etc/cprt.toml", "[memory]\nkubelet = 'perhaps'\n");
    assert!(matches!(source(), LimitSource::Kubelet(_)));
}

#[test]
fn probe_gathers_facts_on_this_machine() {
    let tree = Tree::new("here");
    tree.write("real/a", "12345");
    tree.link("link", "real");
    let given = tree.path("link/");
    let facts = look(&Roots::default(), &given, || None).expect("it is there");
    assert_eq!(facts.directory, tree.path("real"));
    assert_eq!(facts.link, Some(tree.path("link")));
    assert_eq!(facts.files.bytes, 5);
    assert_eq!(facts.user.uid, nix::unistd::geteuid().as_raw());
    assert!(facts.kernel.version.is_some());
    assert!(facts.place.is_some());
    assert!(facts.memory.is_some());
}

#[test]
fn path_that_is_not_a_directory_is_rejected() {
    let tree = Tree::new("none");
    tree.write("file", "");
    tree.link("to-nothing", "nothing");
    for (path, kind) in [
        ("nothing", io::ErrorKind::NotFound),
        ("to-nothing", io::ErrorKind::NotFound),
        ("file", io::ErrorKind::NotADirectory),
    ] {
        let path = tree.path(path);
        match look(&Roots::default(), &path, || None) {
            Err(Error::Read { path: told, source }) => {
                assert_eq!((told, source.kind()), (path, kind));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn schemes_and_the_module_that_page_out() {
    let tree = Tree::new("damon");
    assert_eq!(paging_out::of(&tree.roots()), None);
    let found = |after, path: &str, word| {
        let switch = (tree.path(path), word);
        Some(PagingOut { after, switch })
    };
    tree.write("sys/module/damon_reclaim/parameters/enabled", "N\n");
    tree.write("sys/module/damon_reclaim/parameters/min_age", "120000000\n");
    assert_eq!(paging_out::of(&tree.roots()), None);
    let enabled = "sys/module/damon_reclaim/parameters/enabled";
    tree.write(enabled, "Y\n");
    assert_eq!(paging_out::of(&tree.roots()), found(120, enabled, "N"));
    let state = "sys/kernel/mm/damon/admin/kdamonds/0/state";
    let context = "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0";
    let interval = format!("{context}/monitoring_attrs/intervals/aggr_us");
    tree.write(&interval, "5000000\n");
    for (scheme, action, age) in [
        (0, "stat", "1\n"),
        (1, "pageout", "24\n"),
        (2, "pageout", "12\n"),
    ] {
        let scheme = format!("{context}/schemes/{scheme}");
        tree.write(&format!("{scheme}/action"), action);
        tree.write(&format!("{scheme}/access_pattern/age/min"), age);
    }
    tree.write(state, "off\n");
    assert_eq!(paging_out::of(&tree.roots()), found(120, enabled, "N"));
    tree.write(state, "on\n");
    assert_eq!(paging_out::of(&tree.roots()), found(60, state, "off"));
}
