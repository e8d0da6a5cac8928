//! Runs the simulated SSD: it is made, compared with its model, lent to another program, taken down.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ppc-bench");
/// Only one ppc-bench can run at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Where the SSD is not possible, an error has to say so, which is checked, too.
#[test]
fn simulated_ssd_matches_its_model_and_is_taken_down() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(PROGRAM).arg("selfcheck").output();
    let output = output.expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return skip_if_it_may_not(&said);
    }
    assert_it_keeps_to_its_model(&said);
    assert_nothing_is_left();
}

/// The throughput of requests according to the model, in MB/s: each waits 1,500 us and then takes its time
/// on a bus of 350 MB/s, which limits the last two.
const MODEL: [(&str, f64); 5] = [
    ("4 KiB random, 1 at a time", 2.7),
    ("128 KiB in order, 1 at a time", 69.9),
    ("4 KiB random, 32 at a time", 86.5),
    ("128 KiB in order, 8 at a time", 347.1),
    ("1 MiB in order, 32 at a time", 349.1),
];

/// Checks the figures of `selfcheck`. The device must never be faster than its model, however busy the
/// machine is. Readers on a busy machine send requests late, so a lower bound is checked only where many
/// requests wait for the bus, and for the device's own lateness.
fn assert_it_keeps_to_its_model(said: &str) {
    for (what, expected) in MODEL {
        let line = said.lines().find_map(|it| it.trim().strip_prefix(what));
        let line = line.unwrap_or_else(|| panic!("no {what}: {said}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let [measured, "MB/s", "of", model, part] = words[..] else {
            panic!("{line}");
        };
        let figure = |text: &str| -> f64 {
            let text = text.trim_end_matches(',');
            text.parse().unwrap_or_else(|_| panic!("{text}: {line}"))
        };
        let (measured, model, part) = (figure(measured), figure(model), figure(part));
        assert!((model - expected).abs() < 0.1, "{what}: {line}");
        // Figures have one digit after the point.
        assert!(measured <= expected * 1.02 + 0.05, "{what}: {line}");
        assert!((measured / model - part).abs() < 0.03, "{what}: {line}");
    }
    let (_, bus) = said.split_once(MODEL[4].0).expect("it was just there");
    let bus: f64 = bus.split_whitespace().next().map_or(0.0, |text| {
        text.parse().unwrap_or_else(|_| panic!("{text}: {said}"))
    });
    assert!(bus >= MODEL[4].1 * 0.9, "the bus is not filled: {said}");
    let (_, late) = said.split_once("late by ").expect("how late it answers");
    let late = late.split(' ').next().and_then(|text| text.parse().ok());
    assert!(late.is_some_and(|us: u64| us < 500), "{said}");
}

#[test]
fn simulated_ssd_is_lent_with_a_copy_of_a_folder() {
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
    let node = Path::new(lent["node"].as_str().expect("a node"));
    let name = node.file_name().expect("a name");
    let ahead = Path::new("/sys/block")
        .join(name)
        .join("queue/read_ahead_kb");
    let read_ahead = || fs::read_to_string(&ahead).expect("to look");
    assert_eq!(
        read_ahead().trim(),
        "128",
        "whatever had {} before",
        node.display()
    );
    order(&mut orders, &mut words, "reset");
    let begin = Instant::now();
    let read = fs::read(&path).expect("the file is there");
    let took = begin.elapsed();
    let counted = order(&mut orders, &mut words, "read");
    let other = order(&mut orders, &mut words, "be filer");
    assert_eq!(other["latency_us"], 4000, "{other}");
    // Dropping the device has to restore this for the next simulator.
    fs::write(&ahead, "4096").expect("to set");
    drop(orders);
    assert!(child.wait().expect("it ends").success());
    fs::remove_dir_all(&folder).expect("it goes");
    assert!(read == bytes, "what is read is not what was put there");
    let counted = counted["bytes"].as_u64().expect("a number");
    // Including a little of the file system's own.
    let all = 3_000_000..3_300_000;
    assert!(all.contains(&counted), "{counted} bytes were counted");
    assert_eq!(read_ahead().trim(), "128");
    // 3 MB on a bus of 350 MB/s.
    assert!(took >= Duration::from_millis(8), "it took {took:?}");
    assert_nothing_is_left();
}

fn order(to: &mut ChildStdin, from: &mut impl BufRead, word: &str) -> serde_json::Value {
    writeln!(to, "{word}").expect("it takes the event");
    let mut line = String::new();
    from.read_line(&mut line).expect("it answers");
    serde_json::from_str(&line).expect("JSON")
}

fn skip_if_it_may_not(said: &str) {
    assert!(
        said.contains("is not available") || said.contains("Another ppc-bench"),
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
