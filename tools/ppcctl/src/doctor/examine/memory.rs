//! Whether the model fits into the memory that the page cache may use.

use super::word;
use crate::doctor::facts::{Facts, Memory, PagingOut};
use crate::doctor::finding::{Finding, Group, Severity};
use cprt::control::config::Bytes;
use cprt::machine::memory::{Eviction, LimitSource};

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let Some(memory) = &facts.memory else {
        let text = "The amount of memory cannot be read, so PPC loads nothing";
        let finding = Finding::new(Group::Memory, Severity::Warning, "memory-unknown", text);
        return vec![finding.remedy("Mount /proc and /sys/fs/cgroup, as containers do")];
    };
    let mut findings = vec![fits(memory, facts.files.model())];
    findings.extend(facts.kernel.paging_out.as_ref().map(paged_out));
    findings
}

/// Neither the kernel nor a policy brings back what is reclaimed before its first read.
fn paged_out(by: &PagingOut) -> Finding {
    let (file, word) = &by.switch;
    let text = format!(
        "DAMON pages out memory that has not been accessed for {} s, even while memory is free: what is cached and not \
         read for so long is read from the device again",
        by.after
    );
    let remedy = format!("As root: 'echo {word} > {}'", file.display());
    Finding::new(Group::Memory, Severity::Warning, "memory-paged-out", text).remedy(remedy)
}

fn fits(memory: &Memory, model: u64) -> Finding {
    let finding = |severity, code, text: String| Finding::new(Group::Memory, severity, code, text);
    let Memory {
        limit,
        threshold,
        available,
        ..
    } = *memory;
    let sizes = format!("{} to {}", limits(&memory.source), Bytes(limit));
    if model > threshold {
        let text = format!(
            "The model has {}, and {sizes}, of which PPC may use {}: it is never cached completely",
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
        return finding(Severity::Note, "memory-tight", text).remedy(room(&memory.source));
    }
    let text = format!(
        "The model fits: {sizes}, which leaves {} for loads now",
        Bytes(available)
    );
    finding(Severity::Ok, "memory", text)
}

/// What limits memory, and where that comes from.
fn limits(source: &LimitSource) -> String {
    match source {
        LimitSource::Host | LimitSource::Unknown => "the machine limits memory".to_owned(),
        LimitSource::Cgroup(dir) => {
            format!("the memory cgroup {} limits memory", dir.display())
        }
        LimitSource::Kubelet(Eviction { below, origin }) => format!(
            "kubelet, which evicts pods below {} ({origin}) and counts recently used page cache as used, limits memory",
            Bytes(*below)
        ),
        LimitSource::WorkingSet(dir) => format!(
            "kubelet, which counts recently used page cache as used, limits the working set of the memory cgroup {}",
            dir.display()
        ),
        LimitSource::Free => {
            "a GPU shares the memory, which must be free for it; the machine limits it".to_owned()
        }
        LimitSource::Blocks => {
            "a GPU shares the memory, which must be in large free blocks for it; the machine limits it".to_owned()
        }
    }
}

/// How more of the limit becomes free.
fn room(source: &LimitSource) -> &'static str {
    match source {
        LimitSource::Host | LimitSource::Unknown | LimitSource::Cgroup(_) => {
            "End other processes that use memory; 'ps aux --sort -rss' lists them"
        }
        LimitSource::Kubelet(_) | LimitSource::WorkingSet(_) | LimitSource::Free => {
            "Release the page cache of files that are no longer needed: 'ppcctl drop DIRECTORY', or end processes"
        }
        LimitSource::Blocks => {
            "As root: 'echo 1 > /proc/sys/vm/compact_memory'; if that is not enough, release page cache by \
             'ppcctl drop DIRECTORY'"
        }
    }
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
