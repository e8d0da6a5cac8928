//! Whether the model fits into the memory that the page cache may use.

use super::word;
use crate::doctor::facts::{Facts, Memory};
use crate::doctor::finding::{Finding, Group, Severity};
use cprt::control::config::Bytes;

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let Some(memory) = &facts.memory else {
        let text = "The amount of memory cannot be read, and unknown memory is not used";
        let finding = Finding::new(Group::Memory, Severity::Warning, "memory-unknown", text);
        return vec![finding.remedy("Mount /proc and /sys/fs/cgroup, as containers do")];
    };
    vec![fits(memory, facts.files.model())]
}

fn fits(memory: &Memory, model: u64) -> Finding {
    let finding = |severity, code, text: String| Finding::new(Group::Memory, severity, code, text);
    let whose = match &memory.cgroup {
        Some(cgroup) => format!("the memory cgroup {}", cgroup.display()),
        None => "the machine".to_owned(),
    };
    let Memory {
        limit,
        threshold,
        available,
        ..
    } = *memory;
    let sizes = format!("{whose} limits memory to {}", Bytes(limit));
    if model > threshold {
        let text = format!(
            "The model has {}, and {sizes}, of which {} may be used: it is never cached completely",
            Bytes(model),
            Bytes(threshold)
        );
        return finding(Severity::Warning, "memory-small", text).remedy(more(memory, model));
    }
    if model > available {
        let text = format!(
            "The model has {}, and {sizes}, of which {} can be loaded now",
            Bytes(model),
            Bytes(available)
        );
        return finding(Severity::Note, "memory-tight", text)
            .remedy("End other processes that use memory; 'ps aux --sort -rss' lists them");
    }
    let text = format!(
        "The model fits: {sizes}, of which {} can be loaded now",
        Bytes(available)
    );
    finding(Severity::Ok, "memory", text)
}

fn more(memory: &Memory, model: u64) -> String {
    let policy = "register a policy that evicts behind the reader";
    match &memory.knob {
        // Half as much again: the model is then below the threshold, with some room for the process.
        Some(knob) => format!(
            "As root: 'echo {}G > {}' (MemoryMax= of a unit, --memory of a container), or {policy}",
            (model / 2 * 3).div_ceil(1 << 30),
            word(knob)
        ),
        None => format!("Add memory, or {policy}"),
    }
}
