//! Which backend would be used, and why not a better one.

use super::{chosen, rank};
use crate::doctor::facts::Facts;
use crate::doctor::finding::{Finding, Group, Severity};
use cprt::backend::select::Verdict;
use cprt::control::kind::BackendKind;

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![used(facts)];
    let chosen = chosen(facts);
    for candidate in &facts.candidates {
        match &candidate.verdict {
            Verdict::Unusable { why, remedy } => {
                // Backends worse than the one used do not matter.
                if chosen.is_some_and(|chosen| rank(chosen) < rank(candidate.kind)) {
                    continue;
                }
                findings.push(unusable(candidate.kind, why, remedy.as_deref()));
            }
            Verdict::Usable { limits } if Some(candidate.kind) == chosen => {
                let of = candidate.kind.name();
                let limit = |limit| note("backend-limit", format!("{of}: {limit}"));
                findings.extend(limits.iter().map(limit));
            }
            Verdict::Usable { .. } => {}
        }
    }
    findings
}

fn note(code: &'static str, text: String) -> Finding {
    Finding::new(Group::Backend, Severity::Note, code, text)
}

fn used(facts: &Facts) -> Finding {
    let finding = |severity, code, text: &str| Finding::new(Group::Backend, severity, code, text);
    match chosen(facts) {
        Some(BackendKind::Module) => finding(
            Severity::Ok,
            "backend-module",
            "module would be used: rfs.ko reports all misses, and there is no better backend",
        ),
        Some(BackendKind::Observe) => finding(
            Severity::Ok,
            "backend-observe",
            "observe would be used: the kernel's tracepoints report what is read, and nothing has to be \
             mounted",
        ),
        Some(BackendKind::Fuse) => finding(
            Severity::Warning,
            "backend-fuse",
            "fuse would be used: readers go through a mirror, which costs them more than the other \
             backends",
        )
        .remedy("The findings below say why the others cannot be used"),
        None => finding(
            Severity::Problem,
            "backend-none",
            "No backend works here: reads work as without PPC, and nothing is loaded ahead",
        )
        .remedy("The findings below say why each of them cannot be used; one is enough"),
    }
}

fn unusable(kind: BackendKind, why: &str, remedy: Option<&str>) -> Finding {
    let code = match kind {
        BackendKind::Module => "no-module",
        BackendKind::Observe => "no-observe",
        BackendKind::Fuse => "no-fuse",
    };
    let finding = note(code, format!("{} cannot be used: {why}", kind.name()));
    match remedy {
        Some(remedy) => finding.remedy(capital(remedy)),
        None => finding,
    }
}

/// Makes a phrase the beginning of a sentence.
fn capital(phrase: &str) -> String {
    let mut letters = phrase.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
