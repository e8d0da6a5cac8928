//! Runs `ppc-bench cost` on a small file, and checks that it measures what it says.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ppc-bench");
/// Number of attempts, as the machine may reclaim cached pages while they are read.
const TRIES: usize = 8;
/// Only one ppc-bench can run at a time.
static TURN: Mutex<()> = Mutex::new(());

/// The output of a measurement; `None`, with a line that says why, if it is not possible here.
fn cost(backend: &str) -> Option<Value> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // On the disk that has the build, as temporary files may be in memory.
    let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cost-{backend}"));
    let output = Command::new(PROGRAM)
        .args(["cost", "--json", "--mib", "16", "--rounds", "1"])
        .args(["--want", "none,miss,replay,record", "--backend", backend])
        .arg("--dir")
        .arg(&base)
        .output()
        .expect("the program starts");
    let left = std::fs::read_dir(&base).map_or(0, Iterator::count);
    assert_eq!(left, 0, "files are left in {}", base.display());
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Some(serde_json::from_slice(&output.stdout).expect("JSON"));
    }
    // Any other message is a failure.
    let needed = [
        "is not available",
        "Another ppc-bench is running",
        "not pass reads",
        "Operation not permitted",
        "Permission denied",
        "No such file or directory",
        "No such device",
    ];
    assert!(needed.iter().any(|text| said.contains(text)), "{said}");
    test_support::skip(said.trim());
    None
}

/// The number of events that the worker got, for a case and a want.
fn events(report: &Value, case: &str, want: &str) -> f64 {
    let cases = report["cases"].as_array().expect("cases");
    let case = cases.iter().find(|it| it["name"] == case).expect("it");
    let by = case["by"].as_array().expect("sides");
    let side = by.iter().find(|it| it["want"] == want).expect("it");
    assert!(side["ratio"].as_f64().expect("a ratio") > 0.0);
    side["events"].as_f64().expect("a number")
}

fn assert_is_heard(report: &Value, hits: bool) {
    assert_eq!(report["cases"].as_array().map(Vec::len), Some(6));
    for case in ["cold read 1 MiB", "cold mmap copy"] {
        assert!(events(report, case, "none") < 0.5, "{case}");
        for want in ["miss", "replay", "record"] {
            assert!(events(report, case, want) > 0.5, "{case}, {want}");
        }
    }
    assert_eq!(
        hears_hits(report),
        hits,
        "opens, closes and touches: {report}"
    );
}

/// Whether the events of a warm read are more than an open and a close.
fn hears_hits(report: &Value) -> bool {
    events(report, "warm read 1 MiB", "record") > 2.5
}

#[test]
fn observe_is_measured_with_the_worker_listening() {
    if let Some(report) = cost("observe") {
        assert_is_heard(&report, true);
    }
}

#[test]
fn passthrough_is_measured_with_the_worker_listening_below_it() {
    if let Some(report) = cost("passthrough") {
        assert_is_heard(&report, true);
    }
}

#[test]
fn fuse_is_measured_with_the_worker_listening() {
    // A machine that reclaims cached pages turns hits into misses, which are reported.
    for _ in 0..TRIES {
        let before = test_support::pages_taken_back();
        let Some(report) = cost("fuse") else { return };
        if !hears_hits(&report) || test_support::pages_taken_back() == before {
            return assert_is_heard(&report, false);
        }
    }
    panic!("{TRIES} times the machine has taken back what was cached");
}
