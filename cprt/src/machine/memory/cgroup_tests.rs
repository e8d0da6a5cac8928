//! Processes and names on trees like those of machines and containers.

use super::*;
use crate::machine::memory::tests::Tree;

/// The text of an error with its cause.
fn text(error: &Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

#[test]
fn process_of_v2() {
    let tree = Tree::v2();
    let service = tree.cgroup_v2("system.slice/a.service", "max", 0);
    tree.process(7, "0::/system.slice/a.service\n");
    assert_eq!(tree.roots().cgroup_of(7).expect("reads"), Some(service));
    tree.process(8, "0::/\n");
    assert_eq!(tree.roots().cgroup_of(8).expect("reads"), None);
    let error = tree.roots().cgroup_of(9).expect_err("is none");
    assert!(matches!(error, Error::Read { .. }), "{error}");
}

#[test]
fn process_below_what_controls_memory() {
    let tree = Tree::v2();
    let service = tree.cgroup_v2("a.service", "max", 0);
    tree.write("cgroup/a.service/part/cgroup.procs", "");
    tree.process(7, "0::/a.service/part\n");
    assert_eq!(tree.roots().cgroup_of(7).expect("reads"), Some(service));
    // After a cgroup is removed, the one above it counts.
    tree.process(8, "0::/a.service/other (deleted)\n");
    let above = tree.roots().cgroup_of(8).expect("reads");
    assert!(above.is_some_and(|dir| dir.ends_with("a.service")));
}

#[test]
fn process_of_hybrid() {
    let tree = Tree::hybrid();
    let memory = tree.cgroup_v1("pods/one", u64::MAX, 0, 0);
    tree.write("cgroup/unified/slice/cgroup.procs", "");
    tree.process(7, "5:memory:/pods/one\n1:name=systemd:/slice\n0::/slice\n");
    let place = tree.roots().place(7).expect("reads");
    assert_eq!(place.memory, Some(memory));
    let unified = place.unified.expect("is there");
    assert!(unified.ends_with("unified/slice"));
}

#[test]
fn process_that_ends_in_v1() {
    let tree = Tree::hybrid();
    let root = tree.cgroup_v1("", u64::MAX, 0, 0);
    let process = |pid, flags| {
        tree.process(pid, "5:memory:/\n0::/\n");
        let stat = format!("{pid} (a) R b) Z 1 1 1 0 -1 {flags} 0 0\n");
        tree.write(&format!("proc/{pid}/stat"), &stat);
    };
    process(7, 0x0040_0040);
    process(8, 0x0040_0044);
    assert_eq!(tree.roots().cgroup_of(7).expect("reads"), Some(root));
    tree.roots()
        .cgroup_of(8)
        .expect_err("it has left its cgroup");
}

#[test]
fn process_in_a_container() {
    let tree = Tree::v2();
    let own = tree.cgroup_v2("", "1000", 0);
    tree.process(1, "0::/\n");
    tree.process(2, "0::/../neighbour\n");
    assert_eq!(tree.roots().cgroup_of(1).expect("reads"), Some(own));
    assert_eq!(tree.roots().cgroup_of(2).expect("reads"), None);
}

#[test]
fn container_that_sees_a_part_of_v1() {
    let tree = Tree::hybrid();
    let point = tree.path("cgroup/memory");
    tree.mountinfo(&[(
        &format!("/docker/abc {}", point.display()),
        "cgroup",
        "memory",
    )]);
    tree.process(1, "5:memory:/docker/abc\n0::/\n");
    tree.process(2, "5:memory:/docker/other\n0::/\n");
    tree.cgroup_v1("", 1000, 0, 0);
    assert_eq!(tree.roots().cgroup_of(1).expect("reads"), Some(point));
    assert_eq!(tree.roots().cgroup_of(2).expect("reads"), None);
}

#[test]
fn mount_that_shows_most_is_taken() {
    let tree = Tree::v2();
    let service = tree.cgroup_v2("a/b", "max", 0);
    tree.write("part/cgroup.procs", "");
    let point = |name| tree.path(name).display().to_string();
    tree.mountinfo(&[
        (&format!("/a {}", point("part")), "cgroup2", "nsdelegate"),
        (&format!("/ {}", point("nowhere")), "cgroup2", ""),
        (&format!("/ {}", point("cgroup")), "cgroup2", ""),
    ]);
    tree.process(7, "0::/a/b\n");
    assert_eq!(tree.roots().cgroup_of(7).expect("reads"), Some(service));
}

#[test]
fn usual_places_without_mountinfo() {
    let tree = Tree::hybrid();
    std::fs::remove_file(tree.path("proc/self/mountinfo")).expect("is there");
    let memory = tree.cgroup_v1("a", 1000, 0, 0);
    tree.process(7, "5:memory:/a\n");
    assert_eq!(tree.roots().cgroup_of(7).expect("reads"), Some(memory));
}

#[test]
fn names_of_people() {
    let tree = Tree::v2();
    let service = tree.cgroup_v2("system.slice/a.service", "max", 0);
    let roots = tree.roots();
    for name in ["/system.slice/a.service", "system.slice/a.service"] {
        assert_eq!(roots.resolve(Path::new(name)).expect("is there"), service);
    }
    assert_eq!(roots.resolve(&service).expect("is there"), service);
}

#[test]
fn names_of_hybrid_are_of_memory() {
    let tree = Tree::hybrid();
    let memory = tree.cgroup_v1("a", 1000, 0, 0);
    tree.write("cgroup/unified/a/cgroup.procs", "");
    let roots = tree.roots();
    assert_eq!(roots.resolve(Path::new("/a")).expect("is there"), memory);
    let other = roots.resolve(&tree.path("cgroup/unified/a"));
    let error = text(&other.expect_err("has no memory"));
    assert!(error.contains("does not control memory"), "{error}");
}

#[test]
fn names_that_are_none() {
    let tree = Tree::v2();
    tree.cgroup_v2("a", "max", 0);
    tree.write("cgroup/part/cgroup.procs", "");
    tree.write("cgroup/plain/file", "");
    tree.write("outside/cgroup.procs", "");
    tree.write("outside/memory.current", "0\n");
    std::os::unix::fs::symlink(tree.path("outside"), tree.path("cgroup/link")).expect("links");
    let table = [
        ("a/../a", "must not contain '..'"),
        ("b", "'systemd-cgls' lists"),
        ("part", "try 'echo +memory'"),
        ("", "it is the root"),
        ("/", "it is the root"),
        ("plain", "is not a cgroup"),
        ("plain/file", "is not a cgroup"),
        ("link", "is not a cgroup"),
    ];
    for (name, expected) in table {
        let error = tree.roots().resolve(Path::new(name));
        let error = text(&error.expect_err(name));
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn joining() {
    let tree = Tree::v2();
    let service = tree.cgroup_v2("a", "max", 0);
    join(&service, 42).expect("is a file");
    let written = std::fs::read_to_string(service.join("cgroup.procs"));
    assert_eq!(written.expect("reads"), "42");
    let error = join(&tree.path("cgroup/b"), 42).expect_err("is none");
    let expected = "this cgroup no longer exists; start the service, or name another";
    assert!(text(&error).contains(expected), "{error}");
    assert!(!tree.path("cgroup/b").exists());
}

#[test]
fn every_refusal_names_its_remedy() {
    let table = [
        (libc::EBUSY, "name one of these"),
        (libc::EOPNOTSUPP, "cgroup.type is 'domain'"),
        (libc::ENOENT, "start the service"),
        (libc::ENODEV, "start the service"),
        (libc::EACCES, "run as root"),
        (libc::EPERM, "run as root"),
        (libc::ESRCH, "has ended"),
        (libc::EINVAL, "cannot be moved"),
    ];
    for (errno, expected) in table {
        let error = Error::Cgroup {
            path: "/sys/fs/cgroup/a".into(),
            problem: remedy(&io::Error::from_raw_os_error(errno)),
            source: Some(io::Error::from_raw_os_error(errno)),
        };
        let error = text(&error);
        assert!(error.starts_with("/sys/fs/cgroup/a: "), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

/// Nothing may fail, whatever this machine has.
#[test]
fn own_cgroup_is_resolved_on_this_machine() {
    let roots = Roots::default();
    let own = std::process::id();
    if let Some(dir) = roots.cgroup_of(own).expect("we are there") {
        assert!(charges(&dir));
        assert_eq!(roots.resolve(&dir).expect("is one"), dir);
        assert!(lineage(&dir).count() >= 1);
    }
    assert!(roots.cgroup_of(u32::MAX).is_err());
}
