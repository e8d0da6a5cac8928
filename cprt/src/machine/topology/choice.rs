//! Which XPU a process works on, decided from what was found out about it. Nothing is read here.
//!
//! Several witnesses are heard, the best informed first; the first that names a single XPU is
//! believed. One that names several is of use still: what the next ones say has to be among them.
//!
//! 1. The driver, which knows who has memory on which XPU. Knows nothing before that.
//! 2. Open device files. CUDA and `ROCm` open all that they may see, so often they are all.
//! 3. The devices a process may see: those that its container has, of these what a variable names.
//! 4. Its rank among the processes of this machine, which is an index into that list, as every
//!    launcher has it.

use std::collections::BTreeMap;

use ppc::ranks::{self, Ranks};

use super::{Kind, Topology, Xpu};

/// What was found out about a process. Numbers are those of XPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Where the driver says that it computes.
    pub computes: Vec<u16>,
    /// Whose device files it has open.
    pub open: Vec<u16>,
    /// Whose device files there are where it lives; `None` if that cannot be seen.
    pub reach: Option<Vec<u16>>,
    /// Those of its variables that matter.
    pub environment: BTreeMap<String, String>,
    /// What it calls itself.
    pub title: String,
}

/// Says in which order CUDA numbers.
const CUDA_ORDER: &str = "CUDA_DEVICE_ORDER";

impl Evidence {
    /// Whether a variable of this name is of use.
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

    /// An index into the list of XPUs. With pipelines or replicas, a title tells none.
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
    /// The variables that say which of its XPUs are visible: one list after another is applied to
    /// what the one before left, and of each the first that is set.
    fn variables(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Nvidia => &[&["CUDA_VISIBLE_DEVICES"]],
            // HIP takes CUDA's for its own if that is not set.
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

/// The XPUs that a process may see, in its own order.
struct Visible {
    xpus: Vec<u16>,
    /// The process was restricted to some of the XPUs.
    chosen: bool,
}

impl Topology {
    /// The XPU of a process, given this evidence.
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

    /// Of which kind the XPU is. In doubt the kind that the environment speaks of, and if it
    /// speaks of none, the first: what else there is next to a GPU is there for something else.
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

    /// `None` if a variable names something that is not known here.
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
                // To HIP an empty one is not set, to the others it means none.
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

/// What a list like `2,0` or `GPU-6f0d` picks. As with CUDA, what comes after something that there
/// is not is not seen; `None` if it cannot be told whether there is.
fn pick<'x>(from: &[(u16, &'x Xpu)], list: &str) -> Option<Vec<(u16, &'x Xpu)>> {
    let mut picked: Vec<(u16, &Xpu)> = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let found = if let Ok(index) = entry.parse::<usize>() {
            from.get(index)
        } else if entry.starts_with("GPU-") || entry.starts_with("MIG-") {
            // A slice of a GPU, as older drivers name it, says of which: MIG-GPU-6f0d/1/0. Newer
            // ones do not.
            let uuid = entry.strip_prefix("MIG-").unwrap_or(entry);
            let uuid = uuid.split('/').next().unwrap_or(uuid);
            let known = from.iter().all(|(_, xpu)| xpu.uuid.is_some());
            if !known || !uuid.starts_with("GPU-") {
                return None;
            }
            let mut same = from.iter().filter(|(_, xpu)| is_called(xpu, uuid));
            // It may be abbreviated, as long as it is one's only.
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
