//! How a Rust test reports that it cannot run here.
//!
//! The harness hides the output of a passing test, but a skipped test must not look like one that passed:
//! these lines bypass the harness, and `total.py` counts them.

use std::io::{self, Write as _};

/// Reports that the whole running test was skipped.
pub fn skip(why: &str) {
    say(&format!("skipped: {}: {why}", name()));
}

/// Reports that a part of the running test was skipped: one of several ways to run it.
pub fn skip_part(why: &str) {
    say(&format!("skipped in part: {}: {why}", name()));
}

/// Reports that the running test passes only because it tries more than once; `make test` lists these before its sum.
pub(crate) fn flaky(why: &str) {
    say(&format!("flaky  {}: {why}", name()));
}

/// The test's name, which the harness gives to its thread.
fn name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

fn say(line: &str) {
    // In one write, as other tests write at the same time.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_test_is_named() {
        assert_eq!(name(), "skip::tests::the_running_test_is_named");
    }
}
