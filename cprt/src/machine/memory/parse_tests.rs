//! Files as kernels have written them, and as no kernel does.

use super::*;

const MEMINFO: &str = "\
MemTotal:       24684084 kB
MemFree:        21895556 kB
MemAvailable:   23718936 kB
Buffers:           20392 kB
Cached:          1747996 kB
SwapCached:            0 kB
Active:           533872 kB
Inactive:        1491576 kB
Active(anon):       1668 kB
Inactive(anon):   264400 kB
Active(file):     532204 kB
Inactive(file):  1227176 kB
Unevictable:       14776 kB
Dirty:             11952 kB
Writeback:             8 kB
HugePages_Total:       1
Hugepagesize:       2048 kB
Hugetlb:            2048 kB
";

const STAT_V2: &str = "\
anon 1687552
file 1300000
kernel 4096
shmem 50000
file_mapped 10000
file_dirty 8192
file_writeback 4096
inactive_anon 1667072
active_anon 12288
inactive_file 1000000
active_file 250000
unevictable 0
";

const STAT_V1: &str = "\
cache 495616
dirty 1
writeback 1
inactive_file 245760
active_file 249856
hierarchical_memory_limit 9223372036854771712
hierarchical_memsw_limit 9223372036854771712
total_cache 991232
total_dirty 32768
total_writeback 4096
total_inactive_file 491520
total_active_file 499712
total_unevictable 0
";

/// Cutting a file anywhere may hide what is found in it, but must not change it.
fn cut<T: PartialEq + std::fmt::Debug>(text: &str, parse: impl Fn(&str) -> Option<T>) {
    let whole = parse(text);
    assert!(whole.is_some());
    for length in 0..text.len() {
        if let Some(found) = parse(&text[..length]) {
            assert_eq!(Some(found), whole, "cut at {length}");
        }
    }
}

#[test]
fn meminfo_in_bytes() {
    let info = Meminfo {
        total: 24_684_084 << 10,
        available: 23_718_936 << 10,
        free: 21_895_556 << 10,
        file: (532_204 + 1_227_176) << 10,
        inactive: 1_227_176 << 10,
        dirty: (11_952 + 8) << 10,
        hugetlb: 2048 << 10,
    };
    assert_eq!(meminfo(MEMINFO), Some(info));
    let small = MEMINFO.replace("Hugetlb", "Smalltlb");
    assert_eq!(meminfo(&small), Some(Meminfo { hugetlb: 0, ..info }));
}

#[test]
fn meminfo_that_makes_no_sense() {
    for text in ["", "\n", "MemTotal: many kB\n", "\0\0\0\0", "MemTotal"] {
        assert_eq!(meminfo(text), None, "{text:?}");
    }
    for line in [
        "MemTotal:",
        "MemFree:",
        "MemAvailable:",
        "Active(file):",
        "Dirty:",
    ] {
        assert_eq!(meminfo(&MEMINFO.replace(line, "Other:")), None, "{line}");
    }
    let huge = MEMINFO.replace("24684084", "18446744073709551615");
    assert_eq!(meminfo(&huge), None);
    let cut = MEMINFO.find("Hugetlb").expect("is there");
    assert!((0..cut).all(|length| {
        meminfo(&MEMINFO[..length]).is_none_or(|info| info.dirty == (11_952 + 8) << 10)
    }));
}

const BUDDYINFO: &str = "\
Node 0, zone      DMA      1      1      1      0      2      1      1      0      1      1      3
Node 0, zone   Normal   4381   2207    790    348    139     59     32     12      8      5    100
";

#[test]
fn free_blocks_by_size() {
    let large = |block| large_blocks(BUDDYINFO, block, 4096);
    // Orders 9 and 10.
    assert_eq!(large(2 << 20), Some((1 + 5) * (2 << 20) + 103 * (4 << 20)));
    assert_eq!(large(4 << 20), Some(103 * (4 << 20)));
    assert_eq!(large(8 << 20), Some(0));
    // With pages of 64 KiB, 2 MiB is order 5.
    let zone = "Node 0, zone Normal 9 9 9 9 9 2 1\n";
    assert_eq!(large_blocks(zone, 2 << 20, 64 << 10), Some(8 << 20));
    // The first zone alone, as an answer that was cut would be.
    let (first, _) = BUDDYINFO.split_at(BUDDYINFO.find('\n').expect("two lines") + 1);
    assert_eq!(large_blocks(first, 2 << 20, 4096), Some(14 << 20));
    for text in [
        "",
        "\n",
        "Node 0, zone",
        "Node 0, zone Normal x\n",
        "\0\0\n",
    ] {
        assert_eq!(large_blocks(text, 1, 1), None, "{text:?}");
    }
    let huge = "Node 0, zone Normal 1 18446744073709551615\n";
    assert_eq!(large_blocks(huge, 1, 4096), None);
}

#[test]
fn stat_of_v2() {
    let found = Stat {
        file: 1_250_000,
        inactive: 1_000_000,
        dirty: 12_288,
        limit: None,
    };
    assert_eq!(stat(STAT_V2, Version::V2), Some(found));
    cut(STAT_V2, |text| stat(text, Version::V2));
}

#[test]
fn stat_of_v1_counts_children() {
    let found = Stat {
        file: 991_232,
        inactive: 491_520,
        dirty: 36_864,
        limit: None,
    };
    assert_eq!(stat(STAT_V1, Version::V1), Some(found));
    cut(STAT_V1, |text| stat(text, Version::V1));
}

#[test]
fn stat_of_v1_knows_limits_out_of_sight() {
    let limited = STAT_V1.replace(
        "hierarchical_memory_limit 9223372036854771712",
        "hierarchical_memory_limit 1073741824",
    );
    let found = stat(&limited, Version::V1).expect("parses");
    assert_eq!(found.limit, Some(1 << 30));
}

#[test]
fn stat_that_makes_no_sense() {
    for text in ["", "active_file", "active_file x\ninactive_file 1\n"] {
        assert_eq!(stat(text, Version::V2), None, "{text:?}");
    }
    let huge = "active_file 18446744073709551615\ninactive_file 1\n";
    assert_eq!(stat(huge, Version::V2), None);
    // Statistics of v2 are not those of v1.
    assert_eq!(stat(STAT_V2, Version::V1), None);
}

#[test]
fn limits() {
    let table = [
        ("max\n", Some(None)),
        ("max", Some(None)),
        ("-1\n", Some(None)),
        ("0\n", Some(Some(0))),
        ("1073741824\n", Some(Some(1 << 30))),
        // No limit, with pages of 4 KiB and of 64 KiB.
        ("9223372036854771712\n", Some(None)),
        ("9223372036854710272\n", Some(None)),
        ("18446744073709551615\n", Some(None)),
        ("18446744073709551616\n", None),
        ("", None),
        ("\n", None),
        ("maximum\n", None),
        ("12 34\n", None),
        ("-2\n", None),
    ];
    for (text, expected) in table {
        assert_eq!(limit(text), expected, "{text:?}");
    }
}

#[test]
fn numbers() {
    assert_eq!(number("3227648\n"), Some(3_227_648));
    for text in ["", "\n", "x", "-1", "1.5", "1 2"] {
        assert_eq!(number(text), None, "{text:?}");
    }
}

#[test]
fn pressure() {
    let text = "some avg10=12.34 avg60=5.00 avg300=1.00 total=123456\n\
                full avg10=99.00 avg60=5.00 avg300=1.00 total=7\n";
    let found = Psi {
        avg10: 1234,
        total: 123_456,
    };
    assert_eq!(psi(text), Some(found));
    cut(text, psi);
    let whole = psi("some avg10=100.00 avg60=0.00 avg300=0.00 total=0\n");
    assert_eq!(whole.map(|psi| psi.avg10), Some(10_000));
}

#[test]
fn pressure_that_makes_no_sense() {
    let table = [
        "",
        "some\n",
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "some avg60=0.00 total=0\n",
        "some avg10=0 total=0\n",
        "some avg10=0.100 total=0\n",
        "some avg10=nan total=0\n",
        "some avg10=4294967295.00 total=0\n",
        "some avg10=0.00 total=-1\n",
    ];
    for text in table {
        assert_eq!(psi(text), None, "{text:?}");
    }
}

#[test]
fn memberships() {
    let at = |path: &str| Some(PathBuf::from(path));
    let table = [
        // v2
        (
            "0::/system.slice/a.service\n",
            None,
            at("/system.slice/a.service"),
        ),
        // v1, with other controllers beside memory
        ("9:name=systemd:/a\n4:cpu,memory:/b\n", at("/b"), None),
        // hybrid
        (
            "8:memory:/x/y\n1:name=systemd:/z\n0::/z\n",
            at("/x/y"),
            at("/z"),
        ),
        // with a colon in the name; in a container's neighbour; of a process that has ended
        ("0::/a:b\n", None, at("/a:b")),
        ("0::/../b\n", None, at("/../b")),
        ("0::/gone (deleted)\n", None, at("/gone")),
        // a hierarchy that is named like the controller
        ("3:name=memory:/a\n", None, None),
        ("", None, None),
        ("0:\n::\n:::\nmemory\n4:memory:\n4:memory:x\n", None, None),
        ("0::/cut", None, at("/cut")),
    ];
    for (text, memory, unified) in table {
        let expected = Membership { memory, unified };
        assert_eq!(membership(text.as_bytes()), expected, "{text:?}");
    }
    let bytes = membership(b"0::/\xff\n").unified.expect("is there");
    assert_eq!(bytes.as_os_str().as_bytes(), b"/\xff");
}

const HYBRID: &[u8] = b"\
23 1 8:1 / / rw,relatime - ext4 /dev/root rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:7 master:2 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
42 31 0:39 /.. /mnt/with\\040space rw - cgroup2 none rw,nsdelegate
";

#[test]
fn mounts_of_memory() {
    let mount = |version, root: &str, point: &str| Hierarchy {
        version,
        root: root.into(),
        point: point.into(),
    };
    let expected = [
        mount(Version::V1, "/", "/sys/fs/cgroup/memory"),
        mount(Version::V2, "/", "/sys/fs/cgroup/unified"),
        mount(Version::V2, "/..", "/mnt/with space"),
    ];
    let mounts = |text: &[u8]| hierarchies(mountinfo::parse(text));
    assert_eq!(mounts(HYBRID), expected);
    for length in 0..HYBRID.len() {
        assert!(mounts(&HYBRID[..length]).len() <= 3);
    }
    assert_eq!(
        mounts(b"31 23 0:28 / /x rw cgroup2\n\n - \n- cgroup2 x"),
        []
    );
}

#[test]
fn cgroup_path_is_resolved_relative_to_the_mount_root() {
    let table = [
        ("/", "/", Some("")),
        ("/", "/a/b", Some("a/b")),
        ("/a", "/a/b", Some("b")),
        ("/a", "/ab", None),
        ("/a", "/b", None),
        // This process is in a namespace, and the cgroup is beside it.
        ("/", "/../b", None),
        ("/..", "/../b", Some("b")),
        ("/../..", "/../../b/c", Some("b/c")),
        ("/..", "/../../b", None),
        // The cgroup is below the mount, but under an unknown name.
        ("/..", "/b", None),
    ];
    for (root, path, expected) in table {
        let mount = Hierarchy {
            version: Version::V2,
            root: root.into(),
            point: "/x".into(),
        };
        let found = mount.below(Path::new(path));
        assert_eq!(
            found.as_deref(),
            expected.map(Path::new),
            "{path} in {root}"
        );
    }
}
