//! Missing features of kernels.

use super::*;

fn old(facts: &mut Facts, release: &str, version: (u32, u32)) {
    facts.kernel.release = release.to_owned();
    facts.kernel.version = Some(version);
    facts.kernel.tracepoints = None;
}

#[test]
fn an_old_kernel() {
    let mut facts = fine();
    facts.candidates = candidates(&[BackendKind::Observe]);
    old(&mut facts, "5.10.0-34-amd64", (5, 10));
    let parts = [
        "Linux 5.10.0-34-amd64 has no tracepoints",
        "Boot Linux 6.12",
    ];
    names(&facts, "kernel-no-tracepoints", Severity::Warning, &parts);
    for (code, since) in [
        ("kernel-no-passthrough", "6.9"),
        ("kernel-no-pagemap-scan", "6.7"),
        ("kernel-no-cachestat", "6.5"),
    ] {
        let parts = [&format!("Boot Linux {since} or later")[..]];
        names(&facts, code, Severity::Note, &parts);
    }
    assert!(!has(&facts, "kernel"));
    // The module needs none of these.
    facts.candidates = candidates(&[BackendKind::Module]);
    names(&facts, "kernel-no-tracepoints", Severity::Note, &[]);
}

#[test]
fn kernels_have_what_came_before_them() {
    for (version, codes) in [
        ((6, 4), 4),
        ((6, 5), 3),
        ((6, 7), 2),
        ((6, 9), 1),
        ((6, 12), 0),
        ((7, 2), 0),
    ] {
        let mut facts = fine();
        old(&mut facts, "x", version);
        let findings = examine::examine(&facts);
        let missing = findings
            .iter()
            .filter(|it| it.code.starts_with("kernel-no-"));
        assert_eq!(missing.count(), codes, "{version:?}");
    }
}

#[test]
fn probed_tracepoints_override_the_kernel_version() {
    let mut facts = fine();
    facts.candidates = candidates(&[BackendKind::Observe]);
    facts.kernel.tracepoints = Some(false);
    names(&facts, "kernel-no-tracepoints", Severity::Warning, &[]);
    old(&mut facts, "6.1.0-backported", (6, 1));
    facts.kernel.tracepoints = Some(true);
    assert!(!has(&facts, "kernel-no-tracepoints"));
}

#[test]
fn fuse_without_passthrough() {
    let mut facts = fine();
    facts.candidates = candidates(&[BackendKind::Fuse]);
    old(&mut facts, "6.8.0", (6, 8));
    names(&facts, "kernel-no-passthrough", Severity::Warning, &[]);
}

#[test]
fn a_kernel_without_a_version() {
    let mut facts = fine();
    facts.kernel = Kernel::default();
    names(&facts, "kernel-unknown", Severity::Note, &[]);
}

#[test]
fn a_module_that_is_not_loaded() {
    let mut facts = fine();
    facts.candidates = candidates(&[BackendKind::Fuse]);
    facts.kernel.rfs = false;
    names(
        &facts,
        "module-not-loaded",
        Severity::Warning,
        &["dkms/rfs.ko", "modprobe rfs"],
    );
    facts.kernel.module = None;
    names(
        &facts,
        "module-missing",
        Severity::Warning,
        &["make install"],
    );
    facts.kernel.headers = false;
    names(
        &facts,
        "module-missing",
        Severity::Warning,
        &["linux-headers-6.18.1"],
    );
    facts.kernel.version = Some((5, 4));
    names(
        &facts,
        "module-missing",
        Severity::Warning,
        &["Boot Linux 5.10"],
    );
    // Observe works without the module.
    facts.candidates = candidates(&[BackendKind::Observe]);
    names(&facts, "module-missing", Severity::Note, &[]);
}

#[test]
fn a_kernel_that_is_locked_down() {
    let mut facts = fine();
    facts.candidates = candidates(&[BackendKind::Fuse]);
    for (lockdown, severity) in [
        ("integrity", Severity::Note),
        ("confidentiality", Severity::Warning),
    ] {
        facts.kernel.lockdown = Some(lockdown.to_owned());
        names(&facts, "kernel-lockdown", severity, &[lockdown, "mokutil"]);
    }
    facts.kernel.lockdown = Some("none".to_owned());
    assert!(!has(&facts, "kernel-lockdown"));
}
