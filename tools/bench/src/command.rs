//! Runs other programs.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use crate::error::{Failure, Result};

/// Runs a program and returns its output, if it succeeded.
pub(crate) fn run(program: &'static str, words: &[&OsStr]) -> Result<String> {
    // Root by sudo may lack these directories in its path.
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(OsString::from(":/usr/sbin:/sbin"));
    let output = Command::new(program).args(words).env("PATH", path).output();
    let output = output.map_err(|error| Failure::Said(format!("Starting {program}: {error}")))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        let (status, said) = (output.status, text(&output.stderr));
        Err(Failure::Said(format!("{program}: {status}: {said}")))
    }
}
