//! The simulated SSD for real: made, compared with its model, lent to another program, taken down.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ppc-bench");
/// There is one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Who may not, or has nothing to do it with, is told so; that is checked, too.
#[test]
fn it_is_made_compared_and_taken_down() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(PROGRAM).arg("selfcheck").output();
    let output = output.expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return skip_if_it_may_not(&said);
    }
    assert!(said.contains("1 MiB in order, 32 at a time"), "{said}");
    assert!(said.contains("late by"), "{said}");
    assert_nothing_is_left();
}

#[test]
fn it_is_lent_with_somebody_elses_files_on_it() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = std::env::temp_dir().join(format!("ppc-bench-lent-{}", std::process::id()));
    fs::create_dir_all(folder.join("model")).expect("a folder");
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(folder.join("model/weights"), &bytes).expect("a file");
    let mut child = Command::new(PROGRAM)
        .args(["lend".as_ref(), folder.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut orders = child.stdin.take().expect("a pipe");
    let mut words = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    words.read_line(&mut line).expect("a line");
    if line.is_empty() {
        let mut said = String::new();
        let mut errors = child.stderr.take().expect("a pipe");
        errors.read_to_string(&mut said).expect("what it says");
        fs::remove_dir_all(&folder).expect("it goes");
        child.wait().expect("it ends");
        return skip_if_it_may_not(&said);
    }
    let lent: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let path = Path::new(lent["path"].as_str().expect("a path")).join("model/weights");
    order(&mut orders, &mut words, "reset");
    let read = fs::read(&path).expect("the file is there");
    let counted = order(&mut orders, &mut words, "read");
    drop(orders);
    assert!(child.wait().expect("it ends").success());
    fs::remove_dir_all(&folder).expect("it goes");
    assert!(read == bytes, "what is read is not what was put there");
    let counted = counted["bytes"].as_u64().expect("a number");
    assert!(counted >= 3_000_000, "{counted} bytes were counted");
    assert_nothing_is_left();
}

fn order(to: &mut ChildStdin, from: &mut impl BufRead, word: &str) -> serde_json::Value {
    writeln!(to, "{word}").expect("it hears");
    let mut line = String::new();
    from.read_line(&mut line).expect("it answers");
    serde_json::from_str(&line).expect("JSON")
}

fn skip_if_it_may_not(said: &str) {
    assert!(
        said.contains("cannot be had here") || said.contains("Another ppc-bench"),
        "{said}"
    );
    test_support::skip(said.lines().last().unwrap_or_default());
}

fn assert_nothing_is_left() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("to list mounts");
    assert!(!mounts.contains("/run/ppc-bench/"), "{mounts}");
    for entry in fs::read_dir("/sys/block").expect("to list").flatten() {
        let file = entry.path().join("loop/backing_file");
        let file = fs::read_to_string(file).unwrap_or_default();
        assert!(
            !Path::new(file.trim()).starts_with("/run/ppc-bench"),
            "{file}"
        );
    }
}
