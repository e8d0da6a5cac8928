//! How a Rust test says that it cannot run here; tests take this file in by its path.
//!
//! The harness keeps what tests print that pass, and a test that did nothing is not to look like one:
//! this goes past it, and `total.py` counts it.

use std::io::{self, Write as _};

/// All of the running test.
pub(crate) fn skip(why: &str) {
    say(&format!("skipped: {}: {why}", name()));
}

/// One of several ways to run it, when there is another.
#[allow(dead_code, reason = "not every test has several")]
pub(crate) fn skip_part(why: &str) {
    say(&format!("skipped in part: {}: {why}", name()));
}

/// Of the test: the harness gives it to the thread.
fn name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

fn say(line: &str) {
    // In one piece, as other tests say something at the same time.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
