//! A machine without any problem, and one for each problem.
//!
//! [`fine`] is a machine with everything as it should be; a test breaks one part of it and expects the
//! finding for that.

use std::collections::BTreeMap;

use std::path::{Path, PathBuf};

use super::diagnosis::Diagnosis;
use super::facts::{
    Device, Facts, Files, FuseDevice, Kernel, Layer, Links, Machine, Memory, Namespaces, PagingOut,
    Place, Sample, Tracefs, User,
};
use super::*;
use cprt::backend::select::{Candidate, Verdict};
use cprt::control::kind::BackendKind;
use cprt::machine::memory::{Eviction, EvictionOrigin, LimitSource};

mod backend;
mod kernel;
mod model;
mod privileges;
mod storage;

const GIB: u64 = 1 << 30;
/// All capabilities of Linux 6.18.
const ALL: u64 = 0x1ff_ffff_ffff;

fn usable(kind: BackendKind) -> Candidate {
    Candidate {
        kind,
        verdict: Verdict::Usable { limits: Vec::new() },
    }
}

fn unusable(kind: BackendKind) -> Candidate {
    Candidate {
        kind,
        verdict: Verdict::Unusable {
            why: "it is broken".to_owned(),
            remedy: Some("mend it".to_owned()),
        },
    }
}

/// Makes only these backends usable.
fn candidates(kinds: &[BackendKind]) -> Vec<Candidate> {
    let all = [BackendKind::Module, BackendKind::Observe, BackendKind::Fuse];
    all.map(|kind| {
        if kinds.contains(&kind) {
            usable(kind)
        } else {
            unusable(kind)
        }
    })
    .into()
}

fn sample(count: u64, first: &str) -> Sample {
    Sample {
        count,
        first: Some(first.into()),
    }
}

fn fine() -> Facts {
    Facts {
        directory: "/srv/models/llama".into(),
        link: None,
        candidates: candidates(&[BackendKind::Module, BackendKind::Observe, BackendKind::Fuse]),
        files: Files {
            count: 4,
            bytes: 16 * GIB,
            allocated: 16 * GIB,
            direct: Some(true),
            ..Files::default()
        },
        place: Some(place("ext4")),
        device: Device {
            readahead: Some(("/sys/block/nvme0n1/queue/read_ahead_kb".into(), 8192)),
            layers: vec![disk()],
        },
        memory: Some(Memory {
            limit: 64 * GIB,
            threshold: 51 * GIB,
            available: 40 * GIB,
            source: LimitSource::Host,
            knob: None,
        }),
        machine: machine("node 0 cpus=0-7\nxpu 0 nvidia 0000:18:00.0 node=0 name=H100\n"),
        kernel: Kernel {
            release: "6.18.1".to_owned(),
            version: Some((6, 18)),
            rfs: true,
            module: Some("/lib/modules/6.18.1/updates/dkms/rfs.ko".into()),
            headers: true,
            tracepoints: Some(true),
            lockdown: None,
            paging_out: None,
        },
        user: root(),
    }
}

fn place(kind: &str) -> Place {
    Place {
        kind: kind.to_owned(),
        source: "/dev/nvme0n1p1".to_owned(),
        point: "/srv".into(),
        options: "rw".to_owned(),
    }
}

fn disk() -> Layer {
    Layer {
        name: "nvme0n1".to_owned(),
        made: None,
        rotational: Some(false),
        scheduler: Some("none".to_owned()),
        direct: None,
    }
}

fn machine(topology: &str) -> Machine {
    Machine {
        topology: Some(topology.parse().expect("a topology")),
        homes: Vec::new(),
        mems: Some("0-1".parse().expect("a list")),
        cached: BTreeMap::new(),
    }
}

fn root() -> User {
    User {
        uid: 0,
        capabilities: ALL,
        initial: true,
        paranoid: Some(2),
        tracefs: Tracefs::Open("/sys/kernel/tracing".into()),
        fuse: FuseDevice::Open,
        helper: Some(("/usr/bin/fusermount3".into(), true)),
        namespaces: Namespaces {
            max: Some(10_000),
            clone: Some(true),
            apparmor: Some(false),
        },
    }
}

/// An ordinary user, on the same machine: nothing but fuse works.
fn ordinary(facts: &mut Facts) {
    facts.candidates = candidates(&[BackendKind::Fuse]);
    facts.user = User {
        uid: 1000,
        capabilities: 0,
        tracefs: Tracefs::Closed("/sys/kernel/tracing".into()),
        ..root()
    };
}

/// Expects a finding with this code, whose text and remedy contain these parts.
#[track_caller]
fn names(facts: &Facts, code: &str, severity: Severity, parts: &[&str]) {
    let findings = examine::examine(facts);
    let mut of_code = findings.iter().filter(|finding| finding.code == code);
    let finding = of_code
        .next()
        .unwrap_or_else(|| panic!("no {code}: {findings:#?}"));
    assert_eq!(of_code.next(), None);
    assert_eq!(finding.severity, severity, "{finding:?}");
    let all = format!(
        "{} {}",
        finding.text,
        finding.remedy.as_deref().unwrap_or("-")
    );
    for part in parts {
        assert!(all.contains(part), "{part:?}: {finding:?}");
    }
}

fn has(facts: &Facts, code: &str) -> bool {
    let findings = examine::examine(facts);
    findings.iter().any(|finding| finding.code == code)
}

#[test]
fn healthy_machine_has_no_warnings_or_remedies() {
    let diagnosis = Diagnosis::of(&fine());
    let wrong = diagnosis
        .findings
        .iter()
        .find(|finding| finding.severity > Severity::Ok || finding.remedy.is_some());
    assert_eq!(wrong, None);
    assert_eq!(diagnosis.severity, Severity::Ok);
    assert_eq!(diagnosis.backend, Some("module"));
    assert_eq!(diagnosis.bytes, 16 * GIB);
}

#[test]
fn findings_are_sorted_by_group_and_cover_all_groups() {
    let mut facts = fine();
    ordinary(&mut facts);
    facts.files.links.broken = sample(1, "/srv/models/llama/x");
    let diagnosis = Diagnosis::of(&facts);
    assert_eq!(diagnosis.severity, Severity::Problem);
    assert!(diagnosis.findings.is_sorted_by_key(|finding| finding.group));
    let groups: std::collections::BTreeSet<_> =
        diagnosis.findings.iter().map(|it| it.group).collect();
    assert_eq!(groups.len(), 8);
}

#[test]
fn warnings_have_a_remedy_and_texts_no_final_period() {
    let mut facts = fine();
    ordinary(&mut facts);
    facts.kernel.version = Some((5, 10));
    facts.kernel.tracepoints = Some(false);
    facts.user.helper = None;
    facts.user.namespaces.max = Some(0);
    facts.device.readahead = Some(("/r".into(), 128));
    for finding in examine::examine(&facts) {
        let code = finding.code;
        assert!(
            finding
                .text
                .chars()
                .next()
                .is_some_and(|c| !c.is_whitespace()),
            "{code}"
        );
        assert!(!finding.text.ends_with('.'), "{code}");
        if finding.severity >= Severity::Warning {
            assert!(finding.remedy.is_some(), "{code}");
        }
    }
}

#[test]
fn json_is_what_is_promised() {
    let mut facts = fine();
    facts.directory = "/m".into();
    let mut diagnosis = Diagnosis::of(&facts);
    diagnosis.findings.truncate(1);
    diagnosis.findings[0].remedy = Some("Do".into());
    diagnosis.findings[0].text = "It is".into();
    assert_eq!(
        serde_json::to_string(&diagnosis).expect("it has text only"),
        r#"{"directory":"/m","backend":"module","bytes":17179869184,"severity":"ok","#.to_owned()
            + r#""findings":[{"group":"backend","code":"backend-module","severity":"ok","#
            + r#""text":"It is","remedy":"Do"}]}"#
    );
}

#[test]
fn severities_have_the_names_of_json() {
    for severity in [
        Severity::Ok,
        Severity::Note,
        Severity::Warning,
        Severity::Problem,
    ] {
        let json = serde_json::to_string(&severity).expect("a name");
        assert_eq!(json, format!("{:?}", severity.name()));
    }
}
