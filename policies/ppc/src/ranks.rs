//! Which worker of an inference service a process is, by the variables and titles that launchers and frameworks
//! set. Pure, and the only place that knows their spelling.
//!
//! A worker has a rank in each dimension over which its model is split: data, pipeline, tensor and expert
//! parallelism. Launchers set variables; workers of vLLM and `SGLang` get their ranks through a pipe and
//! name themselves after them, as in `VLLM::Worker_PP1_TP0`.

mod layout;

use std::fmt;

pub use layout::Layout;

/// Variables with the rank among all workers of a service, wherever they run, and the variable with their
/// number: the only rank of a service belongs to the process that starts the workers.
const GLOBAL: [(&str, &str); 4] = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// Variables with the rank among the processes of the machine, and the variable with their number where there
/// is one. If a launcher starts a single process, all of that process's children inherit its variables, so the
/// only rank means nothing.
const LOCAL: [(&str, Option<&str>); 5] = [
    ("LOCAL_RANK", None),
    (
        "OMPI_COMM_WORLD_LOCAL_RANK",
        Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    (
        "MV2_COMM_WORLD_LOCAL_RANK",
        Some("MV2_COMM_WORLD_LOCAL_SIZE"),
    ),
    ("MPI_LOCALRANKID", Some("MPI_LOCALNRANKS")),
    ("SLURM_LOCALID", Some("SLURM_STEP_TASKS_PER_NODE")),
];

/// Bits of a number that hold the tensor rank, and those of it and the pipeline rank.
const TENSOR_BITS: u32 = 12;
const STAGE_BITS: u32 = 22;
/// Upper bound on each.
const MOST: [u32; 3] = [
    1 << TENSOR_BITS,
    1 << (STAGE_BITS - TENSOR_BITS),
    1 << (u32::BITS - STAGE_BITS),
];

/// The prefixes of such titles.
const TITLES: [&str; 2] = ["VLLM::Worker_", "sglang::scheduler_"];

/// The ranks of a worker; `None` where its model is not split, or the rank is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ranks {
    /// Among replicas.
    pub data: Option<u32>,
    /// Among the stages of a pipeline.
    pub pipeline: Option<u32>,
    /// Among those that share each layer.
    pub tensor: Option<u32>,
    /// Among those that share the experts.
    pub expert: Option<u32>,
    /// Whether the model is split in dimensions besides these.
    pub others: bool,
}

impl Ranks {
    /// The ranks in a process's title; `None` if the title is another program's.
    #[must_use]
    pub fn in_title(title: &str) -> Option<Self> {
        let name = title.split([' ', '\0']).next()?;
        let parts = TITLES.iter().find_map(|start| name.strip_prefix(start))?;
        let mut ranks = Self::default();
        let mut parts = parts.split('_').peekable();
        while let Some(part) = parts.next() {
            let Some(digits) = part.find(|c: char| c.is_ascii_digit()) else {
                // The first word of a dimension of two, as in `ATTN_CP0`.
                parts.peek()?;
                ranks.others = true;
                continue;
            };
            let (dimension, number) = part.split_at(digits);
            let number = number.parse().ok()?;
            match dimension {
                "DP" => ranks.data = Some(number),
                "PP" => ranks.pipeline = Some(number),
                "TP" => ranks.tensor = Some(number),
                "EP" => ranks.expert = Some(number),
                _ => ranks.others = true,
            }
        }
        Some(ranks)
    }

    /// One number for all of them, the tensor rank where there is nothing else; `None` where they do not
    /// identify a worker. A worker that has experts of its own is identified by the other ranks, which
    /// distinguish the workers that share the experts.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        let known = [self.tensor.or(self.expert), self.pipeline, self.data];
        if self.others || known == [None; 3] {
            return None;
        }
        let ranks = known.map(Option::unwrap_or_default);
        let fit = ranks.iter().zip(MOST).all(|(&rank, most)| rank < most);
        let [tensor, pipeline, data] = ranks;
        fit.then_some(data << STAGE_BITS | pipeline << TENSOR_BITS | tensor)
    }

    /// The ranks with this number.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        let some = |rank: u32| (rank > 0).then_some(rank);
        Self {
            data: some(number >> STAGE_BITS),
            pipeline: some(number >> TENSOR_BITS & (MOST[1] - 1)),
            tensor: Some(number & (MOST[0] - 1)),
            ..Self::default()
        }
    }
}

/// As in titles, such as `PP1 TP0`; the tensor rank alone is a number.
impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensor = self.tensor.unwrap_or_default();
        if let (None, None) = (self.data, self.pipeline) {
            return write!(f, "{tensor}");
        }
        if let Some(data) = self.data {
            write!(f, "DP{data} ")?;
        }
        if let Some(pipeline) = self.pipeline {
            write!(f, "PP{pipeline} ")?;
        }
        write!(f, "TP{tensor}")
    }
}

/// Whether a variable of this name holds a rank, or the number of ranks.
#[must_use]
pub fn is_told_by(name: &str) -> bool {
    let local = |&(rank, size): &(&str, Option<&str>)| name == rank || Some(name) == size;
    let global = |&(rank, size): &(&str, &str)| name == rank || name == size;
    GLOBAL.iter().any(global) || LOCAL.iter().any(local)
}

/// The rank among all workers of the service, by the variables of a process.
pub fn global<'v>(variable: impl Fn(&str) -> Option<&'v str>) -> Option<u32> {
    GLOBAL.iter().find_map(|&(rank, size)| {
        let is_alone = variable(size).is_some_and(|size| size.trim() == "1");
        let rank = variable(rank)?.trim().parse().ok()?;
        (!is_alone).then_some(rank)
    })
}

/// The rank among the processes of the machine, by the variables of a process.
pub fn local<'v>(variable: impl Fn(&str) -> Option<&'v str>) -> Option<u32> {
    LOCAL.iter().find_map(|&(rank, size)| {
        let is_alone = size
            .and_then(&variable)
            // Slurm writes 4(x2) for four on each of two machines.
            .is_some_and(|size| size.trim().split('(').next() == Some("1"));
        let rank = variable(rank)?.trim().parse().ok()?;
        (!is_alone).then_some(rank)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(data: Option<u32>, pipeline: Option<u32>, tensor: Option<u32>) -> Ranks {
        Ranks {
            data,
            pipeline,
            tensor,
            ..Ranks::default()
        }
    }

    #[test]
    fn titles_tell_each_dimension() {
        let table = [
            ("VLLM::Worker_TP2", Some(ranks(None, None, Some(2)))),
            (
                "VLLM::Worker_PP1_TP12 ",
                Some(ranks(None, Some(1), Some(12))),
            ),
            (
                "VLLM::Worker_DP3_PP1_TP0\0x",
                Some(ranks(Some(3), Some(1), Some(0))),
            ),
            (
                "sglang::scheduler_DP1_TP0",
                Some(ranks(Some(1), None, Some(0))),
            ),
            ("VLLM::EngineCore", None),
            ("VLLM::Worker_TP", None),
            ("VLLM::Worker_TP99999999999", None),
            ("python VLLM::Worker_TP1", None),
            ("", None),
        ];
        for (title, expected) in table {
            assert_eq!(Ranks::in_title(title), expected, "{title}");
        }
        let expert = Ranks::in_title("VLLM::Worker_TP1_EP3").expect("a worker");
        assert_eq!((expert.tensor, expert.expert), (Some(1), Some(3)));
        let more = Ranks::in_title("VLLM::Worker_PCP0_TP1_DCP0").expect("a worker");
        assert_eq!((more.tensor, more.others), (Some(1), true));
        let more = Ranks::in_title("sglang::scheduler_TP1_ATTN_CP0").expect("a worker");
        assert_eq!((more.tensor, more.others), (Some(1), true));
    }

    #[test]
    fn every_worker_has_a_distinct_number() {
        let number = |title: &str| Ranks::in_title(title).and_then(|ranks| ranks.number());
        let mut seen = std::collections::HashSet::new();
        for (data, pipeline, tensor) in
            (0..3).flat_map(|d| (0..3).flat_map(move |p| (0..3).map(move |t| (d, p, t))))
        {
            let title = format!("VLLM::Worker_DP{data}_PP{pipeline}_TP{tensor}_EP{tensor}");
            assert!(seen.insert(number(&title).expect("a number")), "{title}");
        }
        assert_eq!(number("VLLM::Worker_TP7"), Some(7));
        assert_eq!(number("sglang::scheduler_TP1_EP1_PP2"), Some(2 << 12 | 1));
        assert_eq!(number("VLLM::Worker_TP1_DCP1"), None, "it is not all");
        assert_eq!(number("VLLM::Worker_TP4096"), None);
        let shown = |title: &str| Ranks::of_number(number(title).expect("a number")).to_string();
        assert_eq!(shown("VLLM::Worker_TP3"), "3");
        assert_eq!(shown("VLLM::Worker_PP1_TP0"), "PP1 TP0");
        assert_eq!(shown("VLLM::Worker_DP2_TP1_EP5"), "DP2 TP1");
    }

    #[test]
    fn launchers_tell_by_variables() {
        let of = |set: &[(&str, &'static str)], name: &str| {
            set.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| *value)
        };
        let set = [("RANK", " 3"), ("LOCAL_RANK", "x"), ("SLURM_LOCALID", "1")];
        assert_eq!(global(|name| of(&set, name)), Some(3));
        assert_eq!(local(|name| of(&set, name)), Some(1));
        let alone = [("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "1")];
        assert_eq!(local(|name| of(&alone, name)), None);
        assert_eq!(global(|name| of(&alone, name)), None);
        // What was given to the one process that starts all workers is inherited by each.
        let alone = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
        assert_eq!(global(|name| of(&alone, name)), None);
        assert!(is_told_by("PMI_RANK") && is_told_by("MPI_LOCALNRANKS") && !is_told_by("RANKS"));
    }
}
