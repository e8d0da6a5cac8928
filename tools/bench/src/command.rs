//! Other programs.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use crate::error::{Failure, Result};

/// What it has written, if it ended well.
pub(crate) fn run(program: &'static str, words: &[&OsStr]) -> Result<String> {
    // Who is root by sudo does not have them all in the path.
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
