//! Missing privileges of callers.

use super::*;

#[test]
fn not_root() {
    let mut facts = fine();
    ordinary(&mut facts);
    let parts = [
        "User 1000 is not root",
        "CAP_PERFMON",
        "CAP_SYS_NICE",
        "as root",
    ];
    names(&facts, "not-root", Severity::Warning, &parts);
    // It does not matter if a better backend works anyway.
    facts.candidates = candidates(&[BackendKind::Observe]);
    names(&facts, "not-root", Severity::Note, &[]);
}

#[test]
fn capabilities_that_were_given_to_a_user() {
    let mut facts = fine();
    ordinary(&mut facts);
    // PERFMON, BPF, SYS_PTRACE, SYS_NICE
    facts.user.capabilities = 1 << 38 | 1 << 39 | 1 << 19 | 1 << 23;
    let parts = ["lacks CAP_SYS_ADMIN"];
    names(&facts, "not-root", Severity::Warning, &parts);
    assert!(!has(&facts, "perf-event-paranoid"));
}

#[test]
fn root_of_a_container() {
    let mut facts = fine();
    facts.candidates = candidates(&[BackendKind::Fuse]);
    // The default capabilities of Docker.
    facts.user.capabilities = 0xa804_25fb;
    let parts = [
        "root without CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF, CAP_SYS_PTRACE and CAP_SYS_NICE",
        "no opens are reported and no starts recorded; nothing is observed",
        "with --cap-add=SYS_ADMIN --cap-add=SYS_PTRACE --cap-add=SYS_NICE",
    ];
    names(&facts, "capabilities-missing", Severity::Warning, &parts);
    // PERFMON and SYS_NICE
    facts.user.capabilities |= 1 << 38 | 1 << 23;
    let parts = ["root without CAP_SYS_ADMIN, CAP_BPF and CAP_SYS_PTRACE"];
    names(&facts, "capabilities-missing", Severity::Warning, &parts);
    // All but an optional one.
    facts.user.capabilities |= 1 << 21;
    let parts = [
        "root without CAP_SYS_PTRACE, as",
        "with --cap-add=SYS_PTRACE",
    ];
    names(&facts, "capabilities-missing", Severity::Note, &parts);
}

#[test]
fn root_of_a_user_namespace() {
    let mut facts = fine();
    facts.candidates = candidates(&[BackendKind::Fuse]);
    facts.user.initial = false;
    facts.user.tracefs = Tracefs::Unmounted;
    names(&facts, "user-namespace", Severity::Warning, &["cprtd"]);
    names(&facts, "tracefs-unmounted", Severity::Warning, &[]);
    names(&facts, "perf-event-paranoid", Severity::Warning, &[]);
    names(&facts, "fuse", Severity::Ok, &[]);
}

#[test]
fn a_paranoid_kernel() {
    let mut facts = fine();
    ordinary(&mut facts);
    facts.user.paranoid = Some(3);
    let parts = ["kernel.perf_event_paranoid is 3", "Debian", "paranoid=-1"];
    names(&facts, "perf-event-paranoid", Severity::Warning, &parts);
    // PERFMON
    facts.user.capabilities |= 1 << 38;
    names(&facts, "perf-event-paranoid", Severity::Warning, &parts);
    facts.user.paranoid = Some(2);
    assert!(!has(&facts, "perf-event-paranoid"));
    facts.user.paranoid = Some(-1);
    assert!(!has(&facts, "perf-event-paranoid"));
}

#[test]
fn inaccessible_tracefs_is_reported_to_ordinary_users() {
    let mut facts = fine();
    ordinary(&mut facts);
    for (tracefs, code, part) in [
        (
            Tracefs::Closed("/sys/kernel/tracing".into()),
            "tracefs-closed",
            "denies access to user 1000",
        ),
        (Tracefs::Unmounted, "tracefs-unmounted", "mount -t tracefs"),
        (Tracefs::Absent, "tracefs-missing", "CONFIG_FTRACE"),
    ] {
        facts.user.tracefs = tracefs;
        names(&facts, code, Severity::Warning, &[part]);
    }
    // Root can open it while it is not mounted.
    let mut facts = fine();
    facts.user.tracefs = Tracefs::Unmounted;
    names(&facts, "tracefs", Severity::Ok, &["not mounted"]);
}

#[test]
fn missing_dev_fuse_is_reported_with_remedies() {
    let mut facts = fine();
    facts.candidates = candidates(&[]);
    facts.user.fuse = FuseDevice::Missing;
    let parts = ["no /dev/fuse", "modprobe fuse", "--device=/dev/fuse"];
    names(&facts, "fuse-device-missing", Severity::Warning, &parts);
}

#[test]
fn missing_fusermount_and_user_namespaces_are_reported() {
    let mut facts = fine();
    ordinary(&mut facts);
    facts.candidates = candidates(&[]);
    facts.user.helper = None;
    for (namespaces, remedy) in [
        (
            Namespaces {
                max: Some(0),
                ..root().namespaces
            },
            "sysctl user.max_user_namespaces=15000",
        ),
        (
            Namespaces {
                clone: Some(false),
                ..root().namespaces
            },
            "sysctl kernel.unprivileged_userns_clone=1",
        ),
        (
            Namespaces {
                apparmor: Some(true),
                ..root().namespaces
            },
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ] {
        facts.user.namespaces = namespaces;
        names(&facts, "fusermount-missing", Severity::Warning, &["fuse3"]);
        names(
            &facts,
            "user-namespaces-closed",
            Severity::Warning,
            &[remedy],
        );
        assert!(!has(&facts, "fuse"));
    }
}

#[test]
fn one_way_to_mount_is_enough() {
    let mut facts = fine();
    ordinary(&mut facts);
    facts.user.namespaces.max = Some(0);
    names(&facts, "fuse", Severity::Ok, &["through fusermount3"]);
    names(&facts, "user-namespaces-closed", Severity::Note, &[]);

    facts.user.namespaces = root().namespaces;
    facts.user.helper = None;
    names(&facts, "fuse", Severity::Ok, &["user namespace"]);
    names(&facts, "fusermount-missing", Severity::Note, &[]);

    // FUSE was tried, and failed.
    facts.candidates = candidates(&[]);
    assert!(!has(&facts, "fuse"));
}

#[test]
fn a_fusermount_without_its_bit() {
    let mut facts = fine();
    ordinary(&mut facts);
    facts.candidates = candidates(&[]);
    facts.user.namespaces.max = Some(0);
    facts.user.helper = Some(("/opt/bin/fusermount3".into(), false));
    let parts = ["chmod u+s /opt/bin/fusermount3"];
    names(&facts, "fusermount-powerless", Severity::Warning, &parts);
}

#[test]
fn a_fuse_device_for_root_only() {
    let mut facts = fine();
    ordinary(&mut facts);
    facts.candidates = candidates(&[]);
    facts.user.fuse = FuseDevice::Closed;
    facts.user.helper = None;
    let parts = ["chmod 666 /dev/fuse"];
    names(&facts, "fuse-device-closed", Severity::Warning, &parts);
    assert!(!has(&facts, "fuse"));
}
