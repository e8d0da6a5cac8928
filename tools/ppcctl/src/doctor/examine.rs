//! Turns facts into findings. Nothing here looks at the machine.
//!
//! There is a function for each group, in the order in which they are reported.

use std::path::Path;

use super::facts::{Facts, Sample};
use crate::doctor::finding::{Finding, Severity};
use cprt::backend::select::Verdict;
use cprt::control::kind::BackendKind;

mod backend;
mod device;
mod files;
mod kernel;
mod machine;
mod memory;
mod place;
mod privileges;

/// All findings.
pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let groups = [
        backend::examine,
        files::examine,
        place::examine,
        device::examine,
        memory::examine,
        machine::examine,
        kernel::examine,
        privileges::examine,
    ];
    groups.iter().flat_map(|examine| examine(facts)).collect()
}

/// The backend that would be used.
pub(super) fn chosen(facts: &Facts) -> Option<BackendKind> {
    let usable = |verdict: &Verdict| matches!(verdict, Verdict::Usable { .. });
    let mut candidates = facts.candidates.iter();
    let best = candidates.find(|candidate| usable(&candidate.verdict));
    best.map(|candidate| candidate.kind)
}

/// The rank of a backend: the lower, the better.
fn rank(kind: BackendKind) -> u8 {
    match kind {
        BackendKind::Module => 0,
        BackendKind::Observe => 1,
        BackendKind::Fuse => 2,
    }
}

/// The severity of something that keeps a backend from being used: a note if that backend is used all
/// the same, or a better one.
fn prevents(facts: &Facts, kind: BackendKind) -> Severity {
    match chosen(facts) {
        Some(chosen) if rank(chosen) <= rank(kind) => Severity::Note,
        _ => Severity::Warning,
    }
}

/// The severity of something that makes a backend do less than it could: a note if a better one is used.
fn degrades(facts: &Facts, kind: BackendKind) -> Severity {
    match chosen(facts) {
        Some(chosen) if rank(chosen) < rank(kind) => Severity::Note,
        _ => Severity::Warning,
    }
}

/// `1 file`, `2 files`
fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// `, such as /x`, or `, /x` if it is the only one.
fn such_as(sample: &Sample) -> String {
    match &sample.first {
        Some(path) if sample.count == 1 => format!(", {}", path.display()),
        Some(path) => format!(", such as {}", path.display()),
        None => String::new(),
    }
}

/// A path as a word of a command that is shown between single quotes.
fn word(path: &Path) -> String {
    let path = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+:=@,".contains(c);
    if path.chars().all(plain) {
        return path;
    }
    let mut word = String::from('"');
    for c in path.chars() {
        if "\"\\$`".contains(c) {
            word.push('\\');
        }
        word.push(c);
    }
    word + "\""
}

/// `a, b and c`
fn list<T: AsRef<str>>(words: &[T]) -> String {
    let (last, before) = match words {
        [] => return String::new(),
        [only] => return only.as_ref().to_owned(),
        [before @ .., last] => (last.as_ref(), before),
    };
    let before: Vec<_> = before.iter().map(AsRef::as_ref).collect();
    format!("{} and {last}", before.join(", "))
}
