//! The caller's privileges, which a worker started by the caller inherits.

use super::{list, prevents};
use crate::doctor::facts::{Capability, Facts, FuseDevice, Namespaces, Tracefs, User};
use crate::doctor::finding::{Finding, Group, Severity};
use cprt::backend::select::Verdict;
use cprt::control::kind::BackendKind;

/// A capability that a worker needs: `any` of these will do; `without` them, this is lost.
struct Need {
    name: &'static str,
    any: &'static [Capability],
    without: &'static str,
}

const NEEDS: [Need; 5] = [
    Need {
        name: "CAP_SYS_ADMIN",
        any: &[Capability::SysAdmin],
        without: "no opens are reported and no starts recorded",
    },
    Need {
        name: "CAP_PERFMON",
        any: &[Capability::Perfmon, Capability::SysAdmin],
        without: "nothing is observed",
    },
    Need {
        name: "CAP_BPF",
        any: &[Capability::Bpf, Capability::SysAdmin],
        without: "observation costs readers more",
    },
    Need {
        name: "CAP_SYS_PTRACE",
        any: &[Capability::SysPtrace],
        without: "mappings of other users' processes are not examined",
    },
    Need {
        name: "CAP_SYS_NICE",
        any: &[Capability::SysNice],
        without: "loads wait longer for a CPU",
    },
];

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = capabilities(facts);
    findings.extend(paranoid(facts));
    findings.push(tracefs(facts));
    findings.extend(fuse(facts));
    findings
}

fn finding(severity: Severity, code: &'static str, text: impl Into<String>) -> Finding {
    Finding::new(Group::Privileges, severity, code, text)
}

fn missing(user: &User) -> Vec<&'static Need> {
    let missing = NEEDS
        .iter()
        .filter(|need| !need.any.iter().any(|&one| user.holds(one)));
    missing.collect()
}

/// The options to start a container with. `CAP_SYS_ADMIN`, if missing, is added instead of those it can replace.
fn cap_add(missing: &[&Need]) -> String {
    let has_first = missing
        .iter()
        .any(|need| need.any == [Capability::SysAdmin]);
    let asked = missing.iter().filter(|need| {
        let by_first = need.any.len() > 1 && need.any.contains(&Capability::SysAdmin);
        !(has_first && by_first)
    });
    let add = asked.map(|need| format!("--cap-add={}", need.name.trim_start_matches("CAP_")));
    add.collect::<Vec<_>>().join(" ")
}

fn capabilities(facts: &Facts) -> Vec<Finding> {
    let user = &facts.user;
    let missing = missing(user);
    let of_observe = missing
        .iter()
        .any(|need| need.any.contains(&Capability::SysAdmin));
    let severity = if of_observe {
        prevents(facts, BackendKind::Observe)
    } else {
        Severity::Note
    };
    let mut findings = Vec::new();
    if !user.initial {
        let text = "This is a user namespace, as in a rootless container: root here has no access to the kernel's \
                    tracepoints and modules";
        findings.push(
            finding(
                prevents(facts, BackendKind::Observe),
                "user-namespace",
                text,
            )
            .remedy("Run ppcctl outside, or have cprtd run there for this directory"),
        );
    }
    if missing.is_empty() {
        let text = format!("User {} has all capabilities that PPC uses", user.uid);
        findings.push(finding(Severity::Ok, "capabilities", text));
        return findings;
    }
    let names = list(&missing.iter().map(|need| need.name).collect::<Vec<_>>());
    let without = missing.iter().map(|need| need.without);
    let without = without.collect::<Vec<_>>().join("; ");
    findings.push(if user.uid == 0 {
        let text = format!("This is root without {names}, as in a container: {without}");
        finding(severity, "capabilities-missing", text)
            .remedy(format!("Start the container with {}", cap_add(&missing)))
    } else {
        let text = format!("User {} is not root, and lacks {names}", user.uid);
        finding(severity, "not-root", text)
            .remedy("Run ppcctl as root, or use cprtd, which runs as root")
    });
    findings
}

/// The level that only kernels of Debian and Ubuntu have, which requires more.
const DISTRIBUTIONS_OWN: i32 = 3;

fn paranoid(facts: &Facts) -> Option<Finding> {
    let level = facts.user.paranoid?;
    let is_own = level >= DISTRIBUTIONS_OWN;
    let enough: &[_] = if is_own {
        &[Capability::SysAdmin]
    } else {
        &[Capability::Perfmon, Capability::SysAdmin]
    };
    if level < 0 || facts.user.has(enough) {
        return None;
    }
    let lacks = if is_own {
        "CAP_SYS_ADMIN; on kernels of Debian and Ubuntu, CAP_PERFMON is not enough"
    } else {
        "CAP_PERFMON"
    };
    let text = format!(
        "kernel.perf_event_paranoid is {level}, which denies tracepoints to users without {lacks}"
    );
    // eBPF programs can still be attached to tracepoints.
    let severity = prevents(facts, BackendKind::Observe);
    let finding = finding(severity, "perf-event-paranoid", text);
    Some(finding.remedy("As root: 'sysctl kernel.perf_event_paranoid=-1', or run as root"))
}

fn tracefs(facts: &Facts) -> Finding {
    let severity = prevents(facts, BackendKind::Observe);
    let mount = "As root: 'mount -t tracefs -o mode=755 tracefs /sys/kernel/tracing'; start a container with \
                 --volume=/sys/kernel/tracing:/sys/kernel/tracing:ro";
    match &facts.user.tracefs {
        Tracefs::Open(at) => {
            let text = format!("tracefs is readable at {}", at.display());
            finding(Severity::Ok, "tracefs", text)
        }
        Tracefs::Unmounted if facts.user.has(&[Capability::SysAdmin]) => finding(
            Severity::Ok,
            "tracefs",
            "tracefs is not mounted, but can be opened without a mount",
        ),
        Tracefs::Unmounted => {
            finding(severity, "tracefs-unmounted", "tracefs is not mounted").remedy(mount)
        }
        Tracefs::Closed(at) => {
            let text = format!(
                "tracefs at {} denies access to user {}",
                at.display(),
                facts.user.uid
            );
            finding(severity, "tracefs-closed", text).remedy(format!(
                "Run ppcctl as root, or as root: 'mount -o remount,mode=755 {}'",
                at.display()
            ))
        }
        Tracefs::Absent => finding(
            severity,
            "tracefs-missing",
            "This kernel has no tracefs, or this container hides it",
        )
        .remedy("Boot a kernel with CONFIG_FTRACE, as distributions' kernels have"),
    }
}

fn fuse(facts: &Facts) -> Vec<Finding> {
    let severity = prevents(facts, BackendKind::Fuse);
    match facts.user.fuse {
        FuseDevice::Missing => vec![
            finding(severity, "fuse-device-missing", "There is no /dev/fuse")
                .remedy("As root: 'modprobe fuse'; start a container with --device=/dev/fuse"),
        ],
        // Root of a user namespace may mount FUSE, in its own mount namespace.
        FuseDevice::Open if facts.user.holds(Capability::SysAdmin) => {
            let text = "FUSE can be mounted: root needs no helper for that";
            mountable(facts, text).into_iter().collect()
        }
        device => by_others(facts, severity, device),
    }
}

/// `None` if FUSE was tried and did not work, such as where system calls are filtered.
fn mountable(facts: &Facts, text: &str) -> Option<Finding> {
    let works = facts.candidates.iter().any(|candidate| {
        matches!(candidate.kind, BackendKind::Fuse)
            && matches!(candidate.verdict, Verdict::Usable { .. })
    });
    works.then(|| finding(Severity::Ok, "fuse", text))
}

/// An ordinary user mounts through fusermount3, or as root of a user namespace.
fn by_others(facts: &Facts, severity: Severity, device: FuseDevice) -> Vec<Finding> {
    let closed = namespaces_closed(facts.user.namespaces);
    // In a namespace there is no helper that opens the device.
    let by_namespace = closed.is_none() && device == FuseDevice::Open;
    let by_helper = matches!(facts.user.helper, Some((_, true)));
    let mut findings = Vec::new();
    if by_helper {
        findings.extend(mountable(facts, "FUSE can be mounted, through fusermount3"));
    } else if by_namespace {
        let text = "FUSE can be mounted, in its own user namespace";
        findings.extend(mountable(facts, text));
    }
    // One way is enough.
    let severity = if by_helper || by_namespace {
        Severity::Note
    } else {
        severity
    };
    match &facts.user.helper {
        None => {
            let text = "There is no fusermount3, which mounts FUSE for ordinary users";
            findings.push(
                finding(severity, "fusermount-missing", text)
                    .remedy("As root: 'apt-get install fuse3', or your system's equivalent"),
            );
        }
        Some((path, false)) => {
            let path = path.display();
            let text = format!("{path} is not set-user-ID root, so it cannot mount anything");
            findings.push(
                finding(severity, "fusermount-powerless", text).remedy(format!(
                    "As root: 'chown root {path} && chmod u+s {path}', unless a container forbids it"
                )),
            );
        }
        Some((_, true)) => {}
    }
    if device == FuseDevice::Closed {
        let text = "/dev/fuse cannot be opened by this user";
        let remedy = "As root: 'chmod 666 /dev/fuse', as udev does";
        findings.push(finding(severity, "fuse-device-closed", text).remedy(remedy));
    }
    if let Some((text, remedy)) = closed {
        findings.push(finding(severity, "user-namespaces-closed", text).remedy(remedy));
    }
    findings
}

/// The setting that keeps ordinary users from creating user namespaces, and its remedy.
fn namespaces_closed(namespaces: Namespaces) -> Option<(String, String)> {
    let (setting, value, open) = match namespaces {
        Namespaces { max: Some(0), .. } => ("user.max_user_namespaces", 0, 15_000),
        Namespaces {
            clone: Some(false), ..
        } => ("kernel.unprivileged_userns_clone", 0, 1),
        Namespaces {
            apparmor: Some(true),
            ..
        } => ("kernel.apparmor_restrict_unprivileged_userns", 1, 0),
        _ => return None,
    };
    Some((
        format!("{setting} is {value}: ordinary users cannot mount FUSE in user namespaces"),
        format!("As root: 'sysctl {setting}={open}'"),
    ))
}
