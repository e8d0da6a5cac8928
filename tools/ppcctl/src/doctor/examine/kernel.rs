//! The features of the running kernel.

use super::{degrades, prevents};
use crate::doctor::facts::{Facts, Kernel};
use crate::doctor::finding::{Finding, Group, Severity};
use cprt::control::kind::BackendKind;

/// A feature that came with a version, and the backend that works less well without it.
struct Feature {
    since: (u32, u32),
    code: &'static str,
    whose: BackendKind,
    without: &'static str,
}

const FEATURES: [Feature; 3] = [
    Feature {
        since: (6, 9),
        code: "kernel-no-passthrough",
        whose: BackendKind::Fuse,
        without: "FUSE has no passthrough, so a mirror reads files itself",
    },
    Feature {
        since: (6, 7),
        code: "kernel-no-pagemap-scan",
        whose: BackendKind::Observe,
        without: "PAGEMAP_SCAN is missing, so it costs more to find out how far a mapping was read",
    },
    Feature {
        since: (6, 5),
        code: "kernel-no-cachestat",
        whose: BackendKind::Observe,
        without: "cachestat is missing, so it costs more to find out what is cached",
    },
];

/// The first version with a tracepoint for reads that the page cache answers.
const TRACEPOINTS: (u32, u32) = (6, 12);
/// The oldest version that rfs.ko supports.
const OLDEST: (u32, u32) = (5, 10);

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let kernel = &facts.kernel;
    let Some(version) = kernel.version else {
        let text = format!("The kernel version {:?} cannot be parsed", kernel.release);
        return vec![finding(Severity::Note, "kernel-unknown", text)];
    };
    let mut findings = features(facts, version);
    if findings.is_empty() {
        let text = format!(
            "Linux {} has everything that PPC uses: tracepoints of the page cache, passthrough, \
             PAGEMAP_SCAN, cachestat",
            kernel.release
        );
        findings.push(finding(Severity::Ok, "kernel", text));
    }
    findings.push(module(facts, version));
    findings.extend(lockdown(facts));
    findings
}

fn finding(severity: Severity, code: &'static str, text: String) -> Finding {
    Finding::new(Group::Kernel, severity, code, text)
}

fn features(facts: &Facts, version: (u32, u32)) -> Vec<Finding> {
    let release = &facts.kernel.release;
    let mut findings = Vec::new();
    if !facts.kernel.tracepoints.unwrap_or(version >= TRACEPOINTS) {
        let text = format!(
            "Linux {release} has no tracepoints of reads that the page cache answers: observe reports only misses, \
             and polls mappings to see what is read through them"
        );
        let finding = finding(
            degrades(facts, BackendKind::Observe),
            "kernel-no-tracepoints",
            text,
        );
        findings.push(finding.remedy(newer(TRACEPOINTS)));
    }
    let missing = FEATURES.iter().filter(|feature| version < feature.since);
    findings.extend(missing.map(|feature| {
        // Only passthrough makes a difference to readers.
        let severity = match feature.whose {
            BackendKind::Fuse => degrades(facts, BackendKind::Fuse),
            _ => Severity::Note,
        };
        let text = format!("Linux {release}: {}", feature.without);
        finding(severity, feature.code, text).remedy(newer(feature.since))
    }));
    findings
}

fn newer((major, minor): (u32, u32)) -> String {
    format!("Boot Linux {major}.{minor} or later")
}

fn module(facts: &Facts, version: (u32, u32)) -> Finding {
    let Kernel {
        rfs,
        module,
        headers,
        release,
        ..
    } = &facts.kernel;
    let severity = prevents(facts, BackendKind::Observe);
    if *rfs {
        return finding(Severity::Ok, "module-loaded", "rfs.ko is loaded".to_owned());
    }
    if let Some(module) = module {
        let text = format!("rfs.ko is not loaded, but installed: {}", module.display());
        return finding(severity, "module-not-loaded", text).remedy("As root: 'modprobe rfs'");
    }
    let text = format!("There is no rfs.ko for Linux {release}");
    let finding = finding(severity, "module-missing", text);
    if version < OLDEST {
        return finding.remedy(newer(OLDEST));
    }
    finding.remedy(if *headers {
        "As root, in the sources of PPC: 'make install && depmod && modprobe rfs'".to_owned()
    } else {
        format!(
            "As root, in the sources of PPC: 'apt-get install linux-headers-{release}' or your system's \
             equivalent, then 'make install && depmod && modprobe rfs'"
        )
    })
}

fn lockdown(facts: &Facts) -> Option<Finding> {
    let (severity, text) = match facts.kernel.lockdown.as_deref()? {
        "integrity" => (
            Severity::Note,
            "The kernel is locked down (integrity): it loads only signed modules",
        ),
        "confidentiality" => (
            prevents(facts, BackendKind::Observe),
            "The kernel is locked down (confidentiality): it loads only signed modules, and gives \
             no access to its tracepoints",
        ),
        _ => return None,
    };
    let finding = finding(severity, "kernel-lockdown", text.to_owned());
    Some(finding.remedy(
        "Sign rfs.ko with a key that the firmware knows ('mokutil --import'), or boot without Secure \
         Boot and without lockdown=",
    ))
}
