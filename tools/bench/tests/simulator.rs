//! The simulated SSD for real: made, compared with its model, taken down.

#[path = "../../../tests/skip.rs"]
mod skip;

use std::path::Path;
use std::process::Command;

/// Who may not, or has nothing to do it with, is told so; that is checked, too.
#[test]
fn it_is_made_compared_and_taken_down() {
    let program = env!("CARGO_BIN_EXE_ppc-bench");
    let output = Command::new(program).arg("selfcheck").output();
    let output = output.expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        assert!(
            said.contains("cannot be had here") || said.contains("Another ppc-bench"),
            "{said}"
        );
        let why = said.lines().last().unwrap_or_default();
        return skip::skip(why);
    }
    assert!(said.contains("1 MiB in order, 32 at a time"), "{said}");
    assert!(said.contains("late by"), "{said}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("to list mounts");
    assert!(!mounts.contains("/run/ppc-bench/"), "{mounts}");
    for entry in std::fs::read_dir("/sys/block").expect("to list").flatten() {
        let file = entry.path().join("loop/backing_file");
        let file = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            !Path::new(file.trim()).starts_with("/run/ppc-bench"),
            "{file}"
        );
    }
}
