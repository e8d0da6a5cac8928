//! The device that files are read from, and its settings.

use crate::doctor::facts::{Device, Facts, Layer};
use crate::doctor::finding::{Finding, Group, Severity};

/// Least readahead, in KiB. With less, the loader's pieces of 1 MiB are split into several, or silently truncated.
const ENOUGH: u64 = 1024;
/// The readahead to recommend, in KiB. More was not faster.
const GOOD: u64 = 8192;

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let device = &facts.device;
    let mut findings = vec![what(device)];
    findings.extend(readahead(device));
    findings.extend(device.layers.iter().filter_map(cached_twice));
    findings.extend(disks(device).filter_map(scheduler));
    findings.extend(disks(device).filter_map(rotational));
    findings
}

fn finding(severity: Severity, code: &'static str, text: String) -> Finding {
    Finding::new(Group::Device, severity, code, text)
}

/// The devices that are not made of others.
fn disks(device: &Device) -> impl Iterator<Item = &Layer> {
    device.layers.iter().filter(|layer| layer.made.is_none())
}

fn what(device: &Device) -> Finding {
    let name = |layer: &Layer| match &layer.made {
        Some(made) => format!("{} ({made})", layer.name),
        None => layer.name.clone(),
    };
    let Some(top) = device.layers.first() else {
        let text = "The block device of the directory is not known".to_owned();
        return finding(Severity::Note, "device-unknown", text);
    };
    let below: Vec<_> = device.layers.iter().skip(1).map(name).collect();
    let text = if below.is_empty() {
        format!("The directory is on {}", name(top))
    } else {
        format!(
            "The directory is on {}, made of {}",
            name(top),
            below.join(", ")
        )
    };
    finding(Severity::Ok, "device", text)
}

fn readahead(device: &Device) -> Option<Finding> {
    let (path, kib) = device.readahead.as_ref()?;
    if *kib >= ENOUGH {
        let text = format!("The kernel reads ahead up to {kib} KiB");
        return Some(finding(Severity::Ok, "readahead", text));
    }
    let text =
        format!("The kernel reads ahead at most {kib} KiB, which splits loads into small pieces");
    let finding = finding(Severity::Warning, "readahead-small", text);
    Some(finding.remedy(format!(
        "As root: 'echo {GOOD} > {}', and a udev rule to keep it",
        path.display()
    )))
}

fn cached_twice(layer: &Layer) -> Option<Finding> {
    if layer.direct? {
        return None;
    }
    let name = &layer.name;
    let text =
        format!("{name} reads its file through the page cache, so everything is cached twice");
    let finding = finding(Severity::Warning, "loop-cached-twice", text);
    Some(finding.remedy(format!("As root: 'losetup --direct-io=on /dev/{name}'")))
}

fn scheduler(layer: &Layer) -> Option<Finding> {
    let scheduler = layer.scheduler.as_deref()?;
    // On a device without a head to move, it costs throughput.
    if layer.rotational? || !["bfq", "cfq"].contains(&scheduler) {
        return None;
    }
    let name = &layer.name;
    let text = format!("{name} uses the I/O scheduler {scheduler}, which suits slower devices");
    let finding = finding(Severity::Warning, "scheduler-slow", text);
    Some(finding.remedy(format!(
        "As root: 'echo none > /sys/block/{name}/queue/scheduler'"
    )))
}

fn rotational(layer: &Layer) -> Option<Finding> {
    if !layer.rotational? {
        return None;
    }
    let name = &layer.name;
    let text =
        format!("{name} is marked as a rotating disk: several readers at once make it slower");
    let finding = finding(Severity::Note, "device-rotational", text);
    Some(finding.remedy(format!(
        "If it is not, as root: 'echo 0 > /sys/block/{name}/queue/rotational'"
    )))
}
