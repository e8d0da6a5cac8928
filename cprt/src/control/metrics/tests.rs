//! The whole text: by a strict parser, by hand, and against the documentation.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use test_support::{Sample, metrics};

use super::*;
use crate::control::keep::{KeepState, KeepStatus};
use crate::control::loads::LoadTotals;
use crate::control::protocol::{
    MountState, MountStatus, PolicyStatus, ServiceStatus, ServicesStatus, StartPhase, StartStatus,
    StartTotals,
};
use crate::control::stats::Stats;

fn mount(path: &Path, state: MountState) -> MountStatus {
    let policy = PolicyStatus {
        name: "maio".into(),
        version: "0.1.0".into(),
        backend: "observe".into(),
        worker: Some(4711),
        crashes: 2,
        ..PolicyStatus::default()
    };
    MountStatus {
        path: path.into(),
        lower: path.into(),
        device: String::new(),
        state,
        reason: None,
        policy: (state != MountState::Native).then_some(policy),
    }
}

fn service(name: &str, totals: StartTotals) -> ServiceStatus {
    ServiceStatus {
        name: name.into(),
        learnt: false,
        running: vec![1, 2],
        starts: 3,
        totals,
        left_out: None,
        last: Some(StartStatus {
            start: "start-x".into(),
            process: 1,
            began_s: 1_700_000_000,
            phase: StartPhase::Over,
            loaded_bytes: 1,
            cached_bytes: 2,
            said: None,
        }),
    }
}

fn loads() -> LoadTotals {
    LoadTotals {
        service: "llama".into(),
        loads: 2,
        asked_bytes: 60,
        used_bytes: 30,
        late_bytes: 20,
        unread_bytes: 10,
        own_bytes: 5,
        waiting_us: 1_000_000,
        loading_us: 2_000_000,
        held_us: 500_000,
        reading_us: 250_000,
        resting_us: 250_000,
        whole_us: 4_000_000,
    }
}

fn kept() -> KeepStatus {
    KeepStatus {
        name: "llama".into(),
        configured: false,
        paths: vec!["/srv/llama".into()],
        priority: 0,
        budget_bytes: None,
        state: KeepState::Loading,
        reason: None,
        files: 2,
        whole_bytes: 4 << 30,
        wanted_bytes: 3 << 30,
        cached_bytes: 1 << 30,
        loaded_bytes: 1 << 30,
        released_bytes: 0,
        reclaimed_bytes: 4096,
        left_out: vec![],
        incomplete: false,
    }
}

/// A daemon with a mount at each of these paths, whose workers have counted.
fn daemon(paths: &[PathBuf]) -> (Status, Vec<MountStats>) {
    let totals = StartTotals {
        left_alone: 1,
        over: 2,
        failed: 1,
        loaded_bytes: 1 << 30,
        cached_bytes: 1 << 20,
        beginning_us: 250_000,
        loading_us: 1_250_000,
        reading_us: 2_000_000,
        whole_us: 3_500_000,
    };
    let mounts = paths.iter().map(|path| mount(path, MountState::Running));
    let native = mount(Path::new("/native"), MountState::Native);
    let status = Status {
        version: "0.1.0".into(),
        pid: 1,
        uptime_s: 60,
        mounts: mounts.chain([native]).collect(),
        services: Some(ServicesStatus {
            off: None,
            learn: false,
            known: vec![
                service("llama", totals),
                service("b", StartTotals::default()),
            ],
        }),
        loads: vec![loads()],
        kept: vec![kept()],
    };
    let counters = Stats {
        loaded_bytes: 4096,
        policy_ns: 1_500_000_000,
        worker_cpu_ms: 20,
        ..Stats::default()
    };
    let counted = paths.iter().map(|path| MountStats {
        path: path.clone(),
        policy: "maio".into(),
        stats: counters.clone(),
    });
    (status, counted.collect())
}

fn samples(paths: &[PathBuf], format: Format) -> Vec<Sample> {
    let (status, counted) = daemon(paths);
    let text = text(&status, &counted, format);
    metrics(&text, format == Format::OpenMetrics).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let is_it = |sample: &&Sample| {
        let has =
            |(name, value): &(&str, &str)| sample.labels.get(*name).is_some_and(|it| it == value);
        sample.name == name && labels.iter().all(has)
    };
    let found = samples.iter().find(is_it);
    found.unwrap_or_else(|| panic!("{name} {labels:?}")).value
}

#[test]
fn values_are_in_base_units_in_both_formats() {
    for format in [Format::Prometheus, Format::OpenMetrics] {
        let samples = samples(&["/srv/models".into()], format);
        let value = |name, labels: &[_]| value(&samples, name, labels);
        let at = [("mount", "/srv/models"), ("policy", "maio")];
        for (name, labels, expected) in [
            ("ppc_build_info", &[("version", "0.1.0")][..], 1.0),
            ("ppc_uptime_seconds", &[], 60.0),
            ("ppc_mounts", &[("state", "running")], 1.0),
            ("ppc_mounts", &[("state", "native")], 1.0),
            ("ppc_mounts", &[("state", "failed")], 0.0),
            ("ppc_policy_info", &[("backend", "observe")], 1.0),
            ("ppc_worker_up", &at, 1.0),
            ("ppc_policy_failures_total", &at, 2.0),
            ("ppc_loaded_bytes_total", &at, 4096.0),
            ("ppc_policy_seconds_total", &at, 1.5),
            ("ppc_worker_cpu_seconds_total", &at, 0.02),
            ("ppc_services_followed", &[], 1.0),
            ("ppc_service_starts_total", &[("service", "llama")], 3.0),
            (
                "ppc_keep_wanted_bytes",
                &[("set", "llama")],
                3_221_225_472.0,
            ),
            // Without a budget, all of it.
            (
                "ppc_keep_budget_bytes",
                &[("set", "llama")],
                4_294_967_296.0,
            ),
            (
                "ppc_keep_reclaimed_bytes_total",
                &[("set", "llama")],
                4096.0,
            ),
        ] {
            let found = value(name, labels);
            assert!((found - expected).abs() < 1e-9, "{name}: {found}");
        }
    }
}

#[test]
fn phases_of_starts_add_up_to_their_duration() {
    let samples = samples(&[], Format::OpenMetrics);
    let phases = samples.iter().filter(|it| {
        it.name == "ppc_service_start_phase_seconds_total" && it.labels["service"] == "llama"
    });
    let phases: Vec<_> = phases.map(|it| it.value).collect();
    assert_eq!(phases.len(), 3);
    let whole = value(
        &samples,
        "ppc_service_start_duration_seconds_sum",
        &[("service", "llama")],
    );
    assert!((phases.iter().sum::<f64>() - whole).abs() < 1e-9);
}

#[test]
fn load_phases_and_sources_add_up_to_their_totals() {
    let samples = samples(&[], Format::OpenMetrics);
    let sum = |name: &str, without: &str| {
        let series = samples.iter().filter(|it| it.name == name);
        let series = series.filter(|it| it.labels.get("source").is_none_or(|it| it != without));
        series.map(|it| it.value).sum::<f64>()
    };
    let of = [("service", "llama")];
    let whole = value(&samples, "ppc_model_load_duration_seconds_sum", &of);
    assert!((sum("ppc_model_load_phase_seconds_total", "") - whole).abs() < 1e-9);
    let asked = value(&samples, "ppc_model_load_asked_bytes_total", &of);
    let prefetched = sum("ppc_model_load_source_bytes_total", "reader");
    assert!((prefetched - asked).abs() < 1e-9);
}

#[test]
fn any_path_is_escaped_to_a_distinct_label() {
    let odd: Vec<PathBuf> = [
        &b"/a \"b\" \\ \n{},= \x1b"[..],
        b"/\xff",
        b"/\xfe",
        "/é\u{202e}".as_bytes(),
        b"/twice",
        b"/twice",
        b"/ends with\\",
    ]
    .map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)))
    .into();
    for format in [Format::Prometheus, Format::OpenMetrics] {
        let samples = samples(&odd, format);
        let ups = samples.iter().filter(|it| it.name == "ppc_worker_up");
        let mounts: Vec<_> = ups.map(|it| it.labels["mount"].as_str()).collect();
        assert_eq!(mounts.len(), 6, "{mounts:?}");
        assert_eq!(mounts[0], "/a \"b\" \\ \n{},= \\u{1b}");
    }
}

#[test]
fn a_daemon_without_mounts_and_services_has_metrics() {
    let (mut status, _) = daemon(&[]);
    (status.mounts, status.services) = (vec![], None);
    (status.loads, status.kept) = (vec![], vec![]);
    let text = text(&status, &[], Format::OpenMetrics);
    let samples = metrics(&text, true).expect("sound");
    assert_eq!(samples.len(), 2 + 4, "{text}");
}

/// As a `Family` is named there: what it counts, and its unit.
#[test]
fn names_keep_the_conventions() {
    let mut names = BTreeSet::new();
    for family in all() {
        let name = family.name;
        assert!(names.insert(name), "{name} comes twice");
        assert!(name.starts_with("ppc_"), "{name}");
        assert!(
            !name.ends_with("_total") && !name.ends_with("_info"),
            "{name}"
        );
        let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(name.chars().all(is_plain), "{name}");
        assert_eq!(
            family.unit,
            ["seconds", "bytes"]
                .into_iter()
                .find(|unit| name.ends_with(&format!("_{unit}")))
                .unwrap_or_default(),
            "{name}"
        );
        assert!(
            family
                .help
                .starts_with(|c: char| c.is_uppercase() || c == '1'),
            "{name}"
        );
        assert!(!family.help.ends_with('.') && !family.help.contains(['"', '\\', '|', '\n']));
    }
}

#[test]
fn the_text_has_each_metric_that_is_documented() {
    let samples = samples(&["/m".into()], Format::Prometheus);
    let names: BTreeSet<_> = samples.iter().map(|it| it.name.as_str()).collect();
    for family in all() {
        let shown = match family.kind {
            exposition::Kind::Summary => format!("{}_sum", family.name),
            _ => family.shown(),
        };
        assert!(names.contains(shown.as_str()), "{shown}");
    }
}

#[test]
fn the_readme_shows_these_metrics() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("metrics/README.md");
    let readme = std::fs::read_to_string(readme).expect("the README");
    let (_, rest) = readme
        .split_once("<!-- metrics -->\n")
        .expect("a beginning");
    let (text, _) = rest.split_once("<!-- /metrics -->").expect("an end");
    assert_eq!(text, table(), "'ppcctl generate' writes it to metrics.md");
}
