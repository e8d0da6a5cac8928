//! The backend that is used, and why no better one.

use super::*;

#[test]
fn the_first_that_works_is_used() {
    for (kinds, backend, code, severity) in [
        (
            &[BackendKind::Module, BackendKind::Fuse][..],
            Some("module"),
            "backend-module",
            Severity::Ok,
        ),
        (
            &[BackendKind::Observe, BackendKind::Fuse],
            Some("observe"),
            "backend-observe",
            Severity::Ok,
        ),
        (
            &[BackendKind::Fuse],
            Some("fuse"),
            "backend-fuse",
            Severity::Warning,
        ),
        (&[], None, "backend-none", Severity::Problem),
    ] {
        let mut facts = fine();
        facts.candidates = candidates(kinds);
        names(&facts, code, severity, &[]);
        assert_eq!(Diagnosis::of(&facts).backend, backend);
    }
}

#[test]
fn only_backends_better_than_the_chosen_are_explained() {
    let mut facts = fine();
    facts.candidates = candidates(&[BackendKind::Observe]);
    let parts = ["module cannot be used: it is broken", "Mend it"];
    names(&facts, "no-module", Severity::Note, &parts);
    assert!(!has(&facts, "no-observe"));
    assert!(!has(&facts, "no-fuse"));
    facts.candidates = candidates(&[]);
    for code in ["no-module", "no-observe", "no-fuse"] {
        names(&facts, code, Severity::Note, &["Mend it"]);
    }
}

#[test]
fn limits_are_those_of_what_is_used() {
    let mut facts = fine();
    facts.candidates = candidates(&[]);
    for (candidate, limit) in facts.candidates.iter_mut().skip(1).zip(["this", "that"]) {
        candidate.verdict = Verdict::Usable {
            limits: vec![limit.to_owned()],
        };
    }
    names(&facts, "backend-limit", Severity::Note, &["observe: this"]);
}
