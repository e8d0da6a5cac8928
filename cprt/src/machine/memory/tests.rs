//! The watch, tested on trees of files and on this machine.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::*;

const MIB: u64 = 1 << 20;
const STEP: Duration = Duration::from_secs(2);

/// A machine made of plain files.
pub(in crate::machine::memory) struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "cprt-memory-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Relaxed)
        );
        let temporary = std::env::temp_dir().canonicalize().expect("there is one");
        let tree = Self(temporary.join(name));
        // 1000 MiB, of which 900 are available and 500 are cache.
        tree.meminfo(1000, 900, 500);
        tree
    }

    /// A machine with cgroups v2 alone.
    pub(in crate::machine::memory) fn v2() -> Self {
        let tree = Self::new();
        tree.write("cgroup/cgroup.procs", "");
        let point = tree.path("cgroup");
        tree.mountinfo(&[(&format!("/ {}", point.display()), "cgroup2", "nsdelegate")]);
        tree
    }

    /// A machine with the memory controller in v1.
    pub(in crate::machine::memory) fn hybrid() -> Self {
        let tree = Self::new();
        tree.write("cgroup/memory/cgroup.procs", "");
        tree.write("cgroup/unified/cgroup.procs", "");
        let point = |name| tree.path(name).display().to_string();
        tree.mountinfo(&[
            (&format!("/ {}", point("cgroup/memory")), "cgroup", "memory"),
            (&format!("/ {}", point("cgroup/unified")), "cgroup2", ""),
        ]);
        tree
    }

    pub(in crate::machine::memory) fn roots(&self) -> Roots {
        Roots {
            proc: self.path("proc"),
            cgroup: self.path("cgroup"),
            kubelet: self.path("kubelet/config.yaml"),
            drivers: self.path("drivers"),
        }
    }

    pub(in crate::machine::memory) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(in crate::machine::memory) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("is below")).expect("makes it");
        // Changes files in place, as the kernel does: an open one stays the same file.
        fs::write(path, text).expect("writes");
    }

    pub(in crate::machine::memory) fn process(&self, pid: u32, cgroup: &str) {
        self.write(&format!("proc/{pid}/cgroup"), cgroup);
    }

    /// Writes the list of mounts: root and mount point, type, and options of each.
    pub(in crate::machine::memory) fn mountinfo(&self, mounts: &[(&str, &str, &str)]) {
        let line = |(place, kind, options): &(&str, &str, &str)| {
            format!("35 31 0:32 {place} rw,relatime shared:9 - {kind} {kind} rw,{options}\n")
        };
        let text: String = mounts.iter().map(line).collect();
        self.write("proc/self/mountinfo", &text);
    }

    fn meminfo(&self, total: u64, available: u64, cache: u64) {
        self.meminfo_of(total, available, [cache, 0]);
    }

    /// `cache` is what is active and inactive; the rest of what is available is free.
    pub(in crate::machine::memory) fn meminfo_of(
        &self,
        total: u64,
        available: u64,
        cache: [u64; 2],
    ) {
        let [active, inactive] = cache;
        let text = format!(
            "MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\nActive(file): {} kB\n\
             Inactive(file): {} kB\nDirty: 0 kB\nWriteback: 0 kB\n",
            total << 10,
            available.saturating_sub(active + inactive) << 10,
            available << 10,
            active << 10,
            inactive << 10
        );
        self.write("proc/meminfo", &text);
    }

    /// Makes a cgroup with 100 MiB in use and `cache` of page cache beside.
    pub(in crate::machine::memory) fn cgroup_v2(
        &self,
        name: &str,
        max: &str,
        cache: u64,
    ) -> PathBuf {
        let dir = format!("cgroup/{name}");
        self.write(&format!("{dir}/cgroup.procs"), "");
        self.write(&format!("{dir}/memory.max"), &format!("{max}\n"));
        self.write(&format!("{dir}/memory.high"), "max\n");
        self.write(
            &format!("{dir}/memory.current"),
            &format!("{}\n", 100 * MIB + cache),
        );
        self.write(
            &format!("{dir}/memory.stat"),
            &format!("file_dirty 0\ninactive_file {cache}\nactive_file 0\n"),
        );
        // Without the slash that an empty name leaves behind.
        self.path(&dir).components().collect()
    }

    /// Makes a cgroup with `usage` in use, of which `cache` is page cache.
    pub(in crate::machine::memory) fn cgroup_v1(
        &self,
        name: &str,
        limit: u64,
        usage: u64,
        cache: u64,
    ) -> PathBuf {
        let dir = format!("cgroup/memory/{name}");
        self.write(&format!("{dir}/cgroup.procs"), "");
        self.write(
            &format!("{dir}/memory.limit_in_bytes"),
            &format!("{limit}\n"),
        );
        self.write(
            &format!("{dir}/memory.usage_in_bytes"),
            &format!("{usage}\n"),
        );
        self.write(
            &format!("{dir}/memory.stat"),
            &format!("inactive_file 1\ntotal_inactive_file {cache}\ntotal_active_file 0\n"),
        );
        self.path(&dir).components().collect()
    }

    fn watch(&self) -> Watch {
        Watch::new(config::MemoryConfig::default(), self.roots())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // If this fails, the tree stays in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(in crate::machine::memory) fn mib(state: &MemoryState) -> [u64; 4] {
    [state.limit, state.used, state.threshold, state.available].map(|bytes| bytes / MIB)
}

#[test]
fn host_alone() {
    let tree = Tree::v2();
    let state = tree.watch().sample(0);
    assert_eq!(mib(&state), [1000, 100, 800, 700]);
    assert_eq!(ppc::Memory::from(&state).group, 0);
    assert_eq!((state.over, state.source), (false, LimitSource::Host));
    assert_eq!(state.pressure, None);
    let state = tree.watch().sample(300 * MIB);
    assert_eq!(mib(&state), [1000, 400, 800, 400]);
}

#[test]
fn cgroup_of_a_process() {
    let tree = Tree::v2();
    let dir = tree.cgroup_v2("a", "419430400", 250 * MIB);
    tree.process(7, "0::/a\n");
    let watch = tree.watch();
    assert_eq!(watch.follow_process(7), Some(dir.clone()));
    let state = watch.sample(50 * MIB);
    assert_eq!(mib(&state), [400, 150, 320, 170]);
    let inode = dir.metadata().expect("a directory").ino();
    assert_eq!(ppc::Memory::from(&state).group, inode);
    assert_eq!(state.source, LimitSource::Cgroup(dir.as_path().into()));
    let memory = ppc::Memory::from(&state);
    assert_eq!(memory.available, state.available);
}

#[test]
fn lower_of_high_and_max() {
    let tree = Tree::v2();
    let dir = tree.cgroup_v2("a", "419430400", 0);
    tree.write("cgroup/a/memory.high", "209715200\n");
    let watch = tree.watch();
    watch.follow_cgroup(&dir);
    assert_eq!(mib(&watch.sample(0)), [200, 100, 160, 60]);
}

#[test]
fn ancestors_count() {
    let tree = Tree::v2();
    let dir = tree.cgroup_v2("pod/box", "209715200", 0);
    // Its siblings fill the pod: a larger limit, and less left.
    let pod = tree.cgroup_v2("pod", "838860800", 500 * MIB);
    tree.write("cgroup/pod/memory.current", &(620 * MIB).to_string());
    tree.write("cgroup/pod/memory.stat", "active_file 0\ninactive_file 0\n");
    let watch = tree.watch();
    watch.follow_cgroup(&dir);
    let state = watch.sample(0);
    assert_eq!(mib(&state), [800, 620, 640, 20]);
    assert_eq!(state.source, LimitSource::Cgroup(pod.into()));
}

#[test]
fn cgroup_of_v1() {
    let tree = Tree::hybrid();
    tree.cgroup_v1("", 9_223_372_036_854_771_712, 900 * MIB, 0);
    tree.cgroup_v1("pod/box", 200 * MIB, 190 * MIB, 150 * MIB);
    tree.process(7, "5:memory:/pod/box\n0::/\n");
    let watch = tree.watch();
    assert!(watch.follow_process(7).is_some());
    assert_eq!(mib(&watch.sample(10 * MIB)), [200, 50, 160, 110]);
}

#[test]
fn v1_limit_out_of_sight() {
    let tree = Tree::hybrid();
    let dir = tree.cgroup_v1("a", u64::MAX, 190 * MIB, 150 * MIB);
    tree.write(
        "cgroup/memory/a/memory.stat",
        "hierarchical_memory_limit 209715200\ntotal_inactive_file 157286400\n\
         total_active_file 0\n",
    );
    let watch = tree.watch();
    watch.follow_cgroup(&dir);
    assert_eq!(mib(&watch.sample(0)), [200, 40, 160, 120]);
}

#[test]
fn unlimited_cgroups_leave_the_host() {
    let tree = Tree::v2();
    let dir = tree.cgroup_v2("a", "max", 0);
    let watch = tree.watch();
    let start = Instant::now();
    watch.follow_cgroup(&dir);
    assert_eq!(watch.sample_at(start, 0).source, LimitSource::Host);
    // A limit that is set later is found.
    tree.write("cgroup/a/memory.max", "209715200\n");
    let state = watch.sample_at(start + STEP, 0);
    assert_eq!(mib(&state), [200, 100, 160, 60]);
}

#[test]
fn fresh_readings_are_kept() {
    let tree = Tree::v2();
    let watch = tree.watch();
    let start = Instant::now();
    watch.sample_at(start, 100 * MIB);
    tree.meminfo(1000, 500, 500);
    let same = watch.sample_at(start + Duration::from_millis(4), 100 * MIB);
    assert_eq!(same.used, 200 * MIB);
    // What is loaded meanwhile counts even before the next reading.
    let grown = watch.sample_at(start + Duration::from_millis(4), 650 * MIB);
    assert_eq!(grown.used, 750 * MIB);
    let read = watch.sample_at(start + STEP, 100 * MIB);
    assert_eq!(read.used, 600 * MIB);
}

#[test]
fn over_until_below_the_band() {
    let tree = Tree::v2();
    let watch = tree.watch();
    let mut now = Instant::now();
    for (available, over) in [
        (201, false),
        (200, true),
        (249, true),
        (251, false),
        (201, false),
    ] {
        tree.meminfo(1000, available, 0);
        now += STEP;
        let state = watch.sample_at(now, 0);
        assert_eq!(state.over, over, "{available} MiB available");
        assert_eq!(state.available == 0, over);
    }
}

#[test]
fn same_cgroup_followed_again_stays_over() {
    let tree = Tree::v2();
    let one = tree.cgroup_v2("pod/one", "max", 0);
    let two = tree.cgroup_v2("pod/two", "max", 0);
    tree.cgroup_v2("pod", "125829120", 0);
    let watch = tree.watch();
    watch.follow_cgroup(&one);
    assert!(watch.sample(0).over);
    // Within the band.
    tree.write("cgroup/pod/memory.current", &(92 * MIB).to_string());
    watch.follow_cgroup(&two);
    assert!(watch.sample(0).over);
    tree.write("cgroup/pod/memory.current", &(80 * MIB).to_string());
    watch.follow_cgroup(&two);
    assert!(!watch.sample(0).over);
}

#[test]
fn removed_cgroup_leaves_its_ancestors_and_may_come_back() {
    let tree = Tree::v2();
    let dir = tree.cgroup_v2("pod/box", "209715200", 0);
    let pod = tree.cgroup_v2("pod", "314572800", 0);
    let watch = tree.watch();
    let start = Instant::now();
    watch.follow_cgroup(&dir);
    assert_eq!(watch.sample_at(start, 0).limit, 200 * MIB);
    // Open files of a removed cgroup fail with ENODEV; here they read as empty.
    tree.write("cgroup/pod/box/memory.max", "");
    fs::remove_dir_all(&dir).expect("is there");
    for round in 1..4 {
        let state = watch.sample_at(start + round * STEP, 0);
        assert_eq!(state.source, LimitSource::Cgroup(pod.as_path().into()));
    }
    tree.cgroup_v2("pod/box", "104857600", 0);
    let back = watch.sample_at(start + 4 * STEP, 0);
    assert_eq!(back.limit, 100 * MIB);
}

#[test]
fn garbage_falls_back_to_the_host() {
    for (name, text) in [
        ("max", "many\n"),
        ("current", ""),
        ("stat", "active_file 1\n"),
        ("stat", "\0\0\0"),
    ] {
        let tree = Tree::v2();
        let dir = tree.cgroup_v2("a", "209715200", 0);
        tree.write(&format!("cgroup/a/memory.{name}"), text);
        let watch = tree.watch();
        watch.follow_cgroup(&dir);
        assert_eq!(watch.sample(0).source, LimitSource::Host, "{name} {text:?}");
    }
}

#[test]
fn cgroup_that_is_not_there_yet() {
    let tree = Tree::v2();
    let watch = tree.watch();
    let start = Instant::now();
    watch.follow_cgroup(&tree.path("cgroup/a"));
    assert_eq!(watch.sample_at(start, 0).source, LimitSource::Host);
    tree.cgroup_v2("a", "209715200", 0);
    assert_eq!(watch.sample_at(start + STEP, 0).limit, 200 * MIB);
}

#[test]
fn process_that_is_gone_changes_nothing() {
    let tree = Tree::v2();
    let dir = tree.cgroup_v2("a", "209715200", 0);
    let watch = tree.watch();
    watch.follow_cgroup(&dir);
    assert_eq!(watch.follow_process(7), None);
    assert_eq!(watch.sample(0).limit, 200 * MIB);
    // A process in the root cgroup does.
    tree.process(8, "0::/\n");
    assert_eq!(watch.follow_process(8), None);
    assert_eq!(watch.sample(0).source, LimitSource::Host);
}

#[test]
fn unknown_limit_leaves_no_memory_available() {
    let tree = Tree::v2();
    fs::remove_file(tree.path("proc/meminfo")).expect("is there");
    let watch = tree.watch();
    let start = Instant::now();
    let state = watch.sample_at(start, 0);
    assert_eq!((state.over, state.available), (true, 0));
    assert_eq!(state.source, LimitSource::Unknown);
    tree.meminfo(1000, 900, 500);
    assert!(!watch.sample_at(start + STEP, 0).over);
}

fn pressure(total: u64) -> String {
    format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n")
}

#[test]
fn pressure_of_the_cgroup_before_that_of_the_host() {
    let tree = Tree::v2();
    let dir = tree.cgroup_v2("a", "max", 0);
    tree.write("proc/pressure/memory", &pressure(0));
    tree.write("cgroup/a/memory.pressure", &pressure(0));
    let watch = tree.watch();
    let start = Instant::now();
    watch.follow_cgroup(&dir);
    assert!(!watch.sample_at(start, 0).over);
    tree.write("proc/pressure/memory", &pressure(2_000_000));
    assert!(!watch.sample_at(start + STEP, 0).over);
    tree.write("cgroup/a/memory.pressure", &pressure(1_000_000));
    let state = watch.sample_at(start + 2 * STEP, 0);
    assert_eq!((state.over, state.available), (true, 0));
    assert!(
        state
            .pressure
            .is_some_and(|pressure| pressure.share == 5000)
    );
    // Without pressure of its own, or without a cgroup, the host's counts.
    fs::remove_file(tree.path("cgroup/a/memory.pressure")).expect("is there");
    tree.process(8, "0::/\n");
    watch.follow_process(8);
    assert!(!watch.sample_at(start + 3 * STEP, 0).over);
    tree.write("proc/pressure/memory", &pressure(4_000_000));
    assert!(watch.sample_at(start + 4 * STEP, 0).over);
}

#[test]
fn pressure_of_hybrid_is_of_v2() {
    let tree = Tree::hybrid();
    tree.cgroup_v1("a", 200 * MIB, 0, 0);
    tree.write("cgroup/unified/s/cgroup.procs", "");
    let text = "some avg10=42.00 avg60=0.00 avg300=0.00 total=0\n";
    tree.write("cgroup/unified/s/memory.pressure", text);
    tree.process(7, "5:memory:/a\n0::/s\n");
    let watch = tree.watch();
    watch.follow_process(7);
    let pressure = watch.sample(0).pressure.expect("is there");
    assert_eq!((pressure.share, pressure.over), (4200, true));
}

#[test]
fn pressure_that_is_switched_off() {
    let tree = Tree::v2();
    let text = "some avg10=100.00 avg60=0.00 avg300=0.00 total=0\n";
    tree.write("proc/pressure/memory", text);
    let config = config::MemoryConfig {
        pressure: 100,
        ..config::MemoryConfig::default()
    };
    let state = Watch::new(config, tree.roots()).sample(0);
    assert_eq!((state.pressure, state.over), (None, false));
    assert!(tree.watch().sample(0).over);
}

#[test]
fn long_files_are_read_whole() {
    let tree = Tree::v2();
    let dir = tree.cgroup_v2("a", "209715200", 0);
    let many = "workingset_something 1\n".repeat(5000);
    let stat = format!("{many}active_file 0\ninactive_file {}\n", 40 * MIB);
    tree.write("cgroup/a/memory.stat", &stat);
    let watch = tree.watch();
    watch.follow_cgroup(&dir);
    assert_eq!(watch.sample(0).used, 60 * MIB);
}

#[test]
fn threads_may_sample_and_follow() {
    let tree = Tree::v2();
    let dir = tree.cgroup_v2("a", "209715200", 0);
    let watch = tree.watch();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..100 {
                    if round % 10 == 0 {
                        watch.follow_cgroup(&dir);
                    }
                    assert!(watch.sample(round * MIB).limit > 0);
                }
            });
        }
    });
}

/// Works with whatever this machine has.
#[test]
fn watch_finds_the_limits_of_this_machine() {
    let watch = Watch::new(config::MemoryConfig::default(), Roots::default());
    let host = watch.sample(0);
    assert!(host.limit > 0 && host.threshold < host.limit);
    assert_eq!(host.source, LimitSource::Host);
    let followed = watch.follow_process(std::process::id());
    let state = watch.sample(u64::MAX);
    assert_eq!(state.over, state.available == 0);
    assert_ne!(state.source, LimitSource::Unknown);
    if let LimitSource::Cgroup(dir) = &state.source {
        assert!(followed.is_some_and(|followed| followed.starts_with(dir)));
    }
}
