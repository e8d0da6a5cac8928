//! Which worker of an inference service a process is, by what launchers and frameworks tell it. Pure, and
//! the one place that knows their words.
//!
//! A worker has a rank in each dimension over which its model is split: data, pipeline, tensor and expert
//! parallelism. Launchers set variables; workers of vLLM and `SGLang` get their ranks through a pipe and
//! name themselves after them, as in `VLLM::Worker_PP1_TP0`.

/// Variables with the rank among all workers of a service, wherever they run.
const GLOBAL: [&str; 4] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];

/// Variables with the rank among the processes of the machine, and where there is one, that which holds
/// their number. A launcher's variables are inherited by all that the one process it started starts
/// itself, so being the only one means nothing.
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

/// What such titles begin with.
const TITLES: [&str; 2] = ["VLLM::Worker_", "sglang::scheduler_"];

/// The ranks of a worker; `None` where its model is not split, or nothing tells.
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
    /// Those that a process names itself after; `None` if its title is another program's.
    #[must_use]
    pub fn in_title(title: &str) -> Option<Self> {
        let name = title.split([' ', '\0']).next()?;
        let parts = TITLES.iter().find_map(|start| name.strip_prefix(start))?;
        let mut ranks = Self::default();
        for part in parts.split('_') {
            let digits = part.find(|c: char| c.is_ascii_digit())?;
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
}

/// Whether a variable of this name tells a rank, or how many there are.
#[must_use]
pub fn is_told_by(name: &str) -> bool {
    let local = |&(rank, size): &(&str, Option<&str>)| name == rank || Some(name) == size;
    GLOBAL.contains(&name) || LOCAL.iter().any(local)
}

/// The rank among all workers of the service, by the variables of a process.
pub fn global<'v>(variable: impl Fn(&str) -> Option<&'v str>) -> Option<u32> {
    let told = |name: &&str| variable(name)?.trim().parse().ok();
    GLOBAL.iter().find_map(told)
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
        assert!(is_told_by("PMI_RANK") && is_told_by("MPI_LOCALNRANKS") && !is_told_by("RANKS"));
    }
}
