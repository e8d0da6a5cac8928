//! Files in the page cache on purpose: loads them, has the daemon keep them, drops them, and compares them with the
//! device.
//!
//! ```text
//! paths ─ find ─┬─ order: by template, by headers ─┬─ warm
//!               │                                  └─ keep ─▶ cprtd
//!               ├─ release
//!               └─ hashes: a list, a hub's names ─ verify
//! ```
//!
//! `cprt::residency` does the work; what is decided and said is here.

use std::path::{Path, PathBuf};

use cprt::residency::{CacheFile, Found, LeftOut, find};

use crate::failure::{Failure, Result};
use crate::screen::{plain, remark};

mod hashes;
mod interrupt;
mod keep;
mod order;
mod release;
mod verify;
mod warm;

pub(crate) use keep::keep;
pub(crate) use release::release;
pub(crate) use verify::verify;
pub(crate) use warm::warm;

/// The files that the paths lead to. None at all is a mistake of the user's.
fn files(paths: &[PathBuf]) -> Result<Found> {
    let found = find(paths)?;
    if found.files.is_empty() && !is_failure(&found.left_out) {
        return Err(Failure::Usage(format!(
            "There is no file to be cached in {}{}",
            list(paths),
            found
                .left_out
                .first()
                .map_or_else(String::new, |left| format!("; {}", told(left)))
        )));
    }
    Ok(found)
}

fn list(paths: &[PathBuf]) -> String {
    let paths = paths.iter().map(|path| shown(path));
    paths.collect::<Vec<_>>().join(", ")
}

fn shown(path: &Path) -> String {
    plain(&path.display().to_string())
}

fn told(left: &LeftOut) -> String {
    format!("{} is {}", shown(&left.path), left.why)
}

/// Whether a file that a service reads may be among what was left out.
fn is_failure(left_out: &[LeftOut]) -> bool {
    left_out.iter().any(|left| left.why.is_failure())
}

/// Tells what was left out: all of it, or with `quiet` only what is wrong.
fn tell_left_out(left_out: &[LeftOut], quiet: bool) {
    for left in left_out {
        if !quiet || left.why.is_failure() {
            remark(&format!("{}: {}", shown(&left.path), left.why));
        }
    }
}

fn bytes(files: &[CacheFile]) -> u64 {
    files.iter().map(|file| file.size).sum()
}
