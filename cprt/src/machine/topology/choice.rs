//! Decides which XPU a process works on, from the evidence about it. Pure.
//!
//! There are several kinds of evidence, the best first; the first that names a single XPU decides.
//! Evidence that names several still counts: weaker evidence may only choose among them.
//!
//! 1. The driver, which knows which process has memory on which XPU, once the process has some.
//! 2. Open device files. CUDA and `ROCm` open all that they may see, so often all files are open.
//! 3. The devices that a process may see: those of its container, restricted to those that a variable names.
//! 4. Its rank among the processes of this machine: every launcher takes it as an index into that list.

use std::collections::BTreeMap;

use ppc::ranks::{self, Ranks};

use super::{Kind, Topology, Xpu};

/// The evidence about a process. Numbers are those of XPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The XPUs on which it computes, according to the driver.
    pub computes: Vec<u16>,
    /// The XPUs whose device files it has open.
    pub open: Vec<u16>,
    /// The XPUs whose device files are in its `/dev`; `None` if that cannot be seen.
    pub reach: Option<Vec<u16>>,
    /// Those of its environment variables that are evidence.
    pub environment: BTreeMap<String, String>,
    /// Its title, the first word of its command line.
    pub title: String,
}

/// The variable that sets the order in which CUDA numbers GPUs.
const CUDA_ORDER: &str = "CUDA_DEVICE_ORDER";

impl Evidence {
    /// Whether a variable of this name is evidence.
    pub(super) fn wants(name: &str) -> bool {
        name == CUDA_ORDER
            || ranks::is_told_by(name)
            || Kind::ALL.iter().any(|kind| {
                kind.variables()
                    .iter()
                    .copied()
                    .flatten()
                    .any(|it| *it == name)
            })
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(|value| value.trim())
    }

    /// An index into the list of visible XPUs. With pipelines or replicas, a title gives none.
    fn rank(&self) -> Option<usize> {
        let by_title = || {
            let ranks = Ranks::in_title(&self.title)?;
            let only_tensor = ranks.data.is_none() && ranks.pipeline.is_none() && !ranks.others;
            ranks.tensor.filter(|_| only_tensor)
        };
        let rank = ranks::local(|name| self.variable(name)).or_else(by_title)?;
        usize::try_from(rank).ok()
    }
}

impl Kind {
    /// The variables that say which XPUs are visible. Each group selects among the XPUs that the previous
    /// one left; within a group, the first variable that is set counts.
    fn variables(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Nvidia => &[&["CUDA_VISIBLE_DEVICES"]],
            // HIP falls back to CUDA's variable.
            Self::Amd => &[
                &["ROCR_VISIBLE_DEVICES"],
                &[
                    "HIP_VISIBLE_DEVICES",
                    "GPU_DEVICE_ORDINAL",
                    "CUDA_VISIBLE_DEVICES",
                ],
            ],
            Self::Ascend => &[&["ASCEND_RT_VISIBLE_DEVICES"]],
            Self::Other => &[],
        }
    }
}

/// The XPUs that a process may see, in the order in which it numbers them.
struct Visible {
    xpus: Vec<u16>,
    /// Whether the process is restricted to some of the XPUs.
    chosen: bool,
}

impl Topology {
    /// The XPU of a process with this evidence.
    #[must_use]
    pub fn choose(&self, evidence: &Evidence) -> Option<u16> {
        let Evidence { computes, open, .. } = evidence;
        for witness in [computes, open] {
            if let [only] = witness[..] {
                return Some(only);
            }
        }
        let seen = if computes.is_empty() { open } else { computes };
        let fits = |xpu: &u16| seen.is_empty() || seen.contains(xpu);
        let kind = self.kind_of(seen, evidence)?;
        let Visible { xpus, chosen } = self.visible(kind, evidence)?;
        let mut fitting = xpus.iter().copied().filter(fits);
        if let (true, Some(only), None) = (chosen, fitting.next(), fitting.next()) {
            return Some(only);
        }
        xpus.get(evidence.rank()?).copied().filter(fits)
    }

    /// The kind of the process's XPU. In doubt, it is the kind that the environment mentions, or else the
    /// first: other devices beside a GPU are for other work.
    fn kind_of(&self, seen: &[u16], evidence: &Evidence) -> Option<Kind> {
        let reach = evidence.reach.as_deref();
        let mut kinds: Vec<_> = self
            .numbered()
            .filter(|(number, _)| seen.is_empty() || seen.contains(number))
            .filter(|(number, _)| reach.is_none_or(|reach| reach.contains(number)))
            .map(|(_, xpu)| xpu.kind)
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        let told = |kind: &&Kind| {
            let mut names = kind.variables().iter().copied().flatten();
            names.any(|name| evidence.variable(name).is_some())
        };
        kinds.iter().find(told).or(kinds.first()).copied()
    }

    /// The visible XPUs of this kind; `None` if a variable names a device that is not known here.
    fn visible(&self, kind: Kind, evidence: &Evidence) -> Option<Visible> {
        let reach = evidence.reach.as_deref();
        let all: Vec<_> = self
            .numbered()
            .filter(|(_, xpu)| xpu.kind == kind)
            .collect();
        let mut some = all.clone();
        some.retain(|(number, _)| reach.is_none_or(|reach| reach.contains(number)));
        let by_address = evidence.variable(CUDA_ORDER) == Some("PCI_BUS_ID");
        if !by_address && some.iter().all(|(_, xpu)| xpu.ordinal.is_some()) {
            some.sort_by_key(|(_, xpu)| xpu.ordinal);
        }
        let mut chosen = some.len() < all.len();
        for names in kind.variables() {
            let set = names.iter().find_map(|name| {
                let value = evidence.variable(name)?;
                // HIP takes an empty variable as unset, the others as no device.
                (names.len() == 1 || !value.is_empty()).then_some(value)
            });
            if let Some(list) = set {
                some = pick(&some, list)?;
                chosen = true;
            }
        }
        let xpus = some.into_iter().map(|(number, _)| number).collect();
        Some(Visible { xpus, chosen })
    }
}

/// The XPUs that a list like `2,0` or `GPU-6f0d` picks. As with CUDA, entries after one that does not
/// exist are ignored; `None` if it is unknown whether an entry exists.
fn pick<'x>(from: &[(u16, &'x Xpu)], list: &str) -> Option<Vec<(u16, &'x Xpu)>> {
    let mut picked: Vec<(u16, &Xpu)> = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let found = if let Ok(index) = entry.parse::<usize>() {
            from.get(index)
        } else if entry.starts_with("GPU-") || entry.starts_with("MIG-") {
            // Older drivers' names of a slice contain its GPU, as in MIG-GPU-6f0d/1/0; newer ones' do
            // not.
            let uuid = entry.strip_prefix("MIG-").unwrap_or(entry);
            let uuid = uuid.split('/').next().unwrap_or(uuid);
            let known = from.iter().all(|(_, xpu)| xpu.uuid.is_some());
            if !known || !uuid.starts_with("GPU-") {
                return None;
            }
            let mut same = from.iter().filter(|(_, xpu)| is_called(xpu, uuid));
            // A UUID may be abbreviated, as long as it is unique.
            same.next().filter(|_| same.next().is_none())
        } else {
            None
        };
        match found {
            Some(xpu) if picked.contains(xpu) => {}
            Some(xpu) => picked.push(*xpu),
            None => break,
        }
    }
    Some(picked)
}

fn is_called(xpu: &Xpu, uuid: &str) -> bool {
    xpu.uuid
        .as_deref()
        .and_then(|whole| whole.get(..uuid.len()))
        .is_some_and(|start| start.eq_ignore_ascii_case(uuid))
}
