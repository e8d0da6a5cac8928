//! What guards the node that this is: whether kubelet runs here, and whether a GPU shares the memory.
//!
//! Neither changes often, but kubelet and drivers may start after us, so it is looked at again now and then.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::cgroup::Roots;
use super::kubelet::{self, Thresholds};
use crate::control::config::MemoryConfig;
use crate::control::guard::{KubeletGuard, UnifiedGuard};

/// How long a look is valid.
const FRESH: Duration = Duration::from_mins(1);

/// The names of the cgroup that kubelet makes for its pods, by the driver of cgroups.
const KUBEPODS: [&str; 2] = ["kubepods", "kubepods.slice"];

/// Drivers of GPUs, and their vendor and devices without memory of their own: GB10 and its kin N1X; MI300A.
///
/// GPUs with memory of their own are not meant, even if it is coherent and a NUMA node, as in GH200.
const UNIFIED: [(&str, &str, &[&str]); 2] = [
    ("nvidia", "0x10de", &["0x2e12", "0x2e03"]),
    ("amdgpu", "0x1002", &["0x74a0"]),
];

/// What guards this node.
#[derive(Debug, Default)]
pub(super) struct Guards {
    /// Kubelet's thresholds, if it runs here.
    pub(super) kubelet: Option<Thresholds>,
    /// A GPU shares the memory.
    pub(super) unified: bool,
    until: Option<Instant>,
    /// A problem is logged once.
    told: bool,
}

impl Guards {
    pub(super) fn update(&mut self, now: Instant, config: &MemoryConfig, roots: &Roots) {
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        self.until = Some(now + FRESH);
        self.kubelet = match config.kubelet {
            KubeletGuard::Off => None,
            KubeletGuard::Below(amount) => Some(Thresholds::set(amount)),
            KubeletGuard::Auto => self.thresholds(roots),
        };
        self.unified = match config.unified {
            UnifiedGuard::Off => false,
            UnifiedGuard::On => true,
            UnifiedGuard::Auto => self.unified || is_unified(roots),
        };
    }

    fn thresholds(&mut self, roots: &Roots) -> Option<Thresholds> {
        let Ok(text) = kubelet::read(&roots.kubelet) else {
            // Distributions of their own keep it elsewhere, and others hide it from ordinary users.
            return has_pods(roots).then(Thresholds::default_ones);
        };
        let (thresholds, problems) = Thresholds::of(&text);
        if !problems.is_empty() && !std::mem::replace(&mut self.told, true) {
            log::warn!(
                "{}: {}; using kubelet's default; memory.kubelet in /etc/cprt.toml overrides it",
                roots.kubelet.display(),
                problems.join("; ")
            );
        }
        Some(thresholds)
    }
}

fn has_pods(roots: &Roots) -> bool {
    let mut points = roots.points();
    points.any(|point| KUBEPODS.iter().any(|name| point.join(name).is_dir()))
}

/// Whether this cgroup is that of all pods.
pub(super) fn is_kubepods(dir: &Path) -> bool {
    dir.file_name()
        .is_some_and(|name| KUBEPODS.iter().any(|pods| name == *pods))
}

/// Whether this cgroup is that of all pods, or one in it.
pub(super) fn is_in_kubepods(dir: &Path) -> bool {
    dir.ancestors().any(is_kubepods)
}

fn is_unified(roots: &Roots) -> bool {
    // Boards such as Jetson, whose GPU is not a PCI device.
    let board = fs::read(roots.proc.join("device-tree/compatible")).unwrap_or_default();
    let mut names = board.split(|&byte| byte == 0);
    if names.any(|name| name.starts_with(b"nvidia,tegra")) {
        return true;
    }
    UNIFIED.iter().any(|(driver, vendor, devices)| {
        let Ok(bound) = fs::read_dir(roots.drivers.join(driver)) else {
            return false;
        };
        bound.filter_map(Result::ok).any(|device| {
            let is = |name: &str, values: &[&str]| {
                let text = fs::read_to_string(device.path().join(name)).unwrap_or_default();
                values.contains(&text.trim_end())
            };
            is("vendor", &[vendor]) && is("device", devices)
        })
    })
}

#[cfg(test)]
#[path = "guards_tests.rs"]
mod tests;
