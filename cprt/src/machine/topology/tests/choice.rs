//! Which XPU is chosen by which evidence.

use super::*;

/// Variables from text of the form `NAME=value NAME=value`.
fn environment(text: &str) -> std::collections::BTreeMap<String, String> {
    let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| {
            assert!(Evidence::wants(name), "{name} is not read");
            (name.to_owned(), value.to_owned())
        })
        .collect()
}

fn by_environment(text: &str) -> Evidence {
    Evidence {
        environment: environment(text),
        ..Evidence::default()
    }
}

/// The UUID of an XPU, or the beginning of it.
fn uuid(topology: &Topology, xpu: usize, length: usize) -> String {
    let uuid = topology.xpus()[xpu].uuid.clone().unwrap_or_default();
    uuid[..length].to_owned()
}

#[test]
fn witnesses_are_heard_in_their_order() {
    // The XPUs that it computes on, those that it has open, its environment; the answer.
    type Case<'a> = (&'a [u16], &'a [u16], &'a str, Option<u16>);
    let topology = machine("nvidia-8-on-2-nodes");
    let all: Vec<u16> = (0..8).collect();
    let rank = "LOCAL_RANK=5";
    let cases: &[Case] = &[
        (&[], &[], "", None),
        (&[3], &all, rank, Some(3)),
        (&[3], &[4], rank, Some(3)),
        (&[], &[4], rank, Some(4)),
        // rank 5 has created a context on the first GPU as well
        (&[0, 5], &all, rank, Some(5)),
        (&[0, 5], &all, "CUDA_VISIBLE_DEVICES=5,6", Some(5)),
        (&[0, 5], &[5], "", Some(5)),
        // nothing says which of them it is
        (&[0, 5], &all, "", None),
        (&all, &all, "", None),
        // evidence that contradicts better evidence does not count
        (&[0, 3], &all, rank, None),
        (&[0, 3], &all, "CUDA_VISIBLE_DEVICES=6", None),
        (&[], &all, "", None),
        (&[], &all, rank, Some(5)),
        (&[], &[0, 1], "CUDA_VISIBLE_DEVICES=1,2", Some(1)),
        (&[], &[], rank, Some(5)),
    ];
    for (computes, open, text, expected) in cases {
        let evidence = Evidence {
            computes: computes.to_vec(),
            open: open.to_vec(),
            environment: environment(text),
            ..Evidence::default()
        };
        assert_eq!(topology.choose(&evidence), *expected, "{evidence:?}");
    }
}

/// A machine, the environment of a process on it, and the XPU it works on.
const ENVIRONMENTS: &[(&str, &str, Option<u16>)] = &[
    ("nvidia-8-on-2-nodes", "CUDA_VISIBLE_DEVICES=6", Some(6)),
    (
        "nvidia-8-on-2-nodes",
        "CUDA_VISIBLE_DEVICES=6,-1,2",
        Some(6),
    ),
    ("nvidia-8-on-2-nodes", "CUDA_VISIBLE_DEVICES=", None),
    ("nvidia-8-on-2-nodes", "CUDA_VISIBLE_DEVICES=-1", None),
    (
        "nvidia-8-on-2-nodes",
        "CUDA_VISIBLE_DEVICES=NoDevFiles",
        None,
    ),
    ("nvidia-8-on-2-nodes", "CUDA_VISIBLE_DEVICES=9", None),
    ("nvidia-8-on-2-nodes", "CUDA_VISIBLE_DEVICES=1,2", None),
    ("nvidia-8-on-2-nodes", "CUDA_VISIBLE_DEVICES=5,5", Some(5)),
    (
        "nvidia-8-on-2-nodes",
        "CUDA_VISIBLE_DEVICES=4,5,6,7 LOCAL_RANK=2",
        Some(6),
    ),
    (
        "nvidia-8-on-2-nodes",
        "CUDA_VISIBLE_DEVICES=7,3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
        Some(3),
    ),
    // each rank was given its own XPU, so its number is not an index
    (
        "nvidia-8-on-2-nodes",
        "CUDA_VISIBLE_DEVICES=7 LOCAL_RANK=7",
        Some(7),
    ),
    (
        "nvidia-8-on-2-nodes",
        "CUDA_VISIBLE_DEVICES=4,5 LOCAL_RANK=2",
        None,
    ),
    ("nvidia-8-on-2-nodes", "LOCAL_RANK=8", None),
    ("nvidia-8-on-2-nodes", "LOCAL_RANK=x", None),
    ("nvidia-8-on-2-nodes", "MPI_LOCALRANKID=4", Some(4)),
    ("nvidia-8-on-2-nodes", "SLURM_LOCALID=4", Some(4)),
    (
        "nvidia-8-on-2-nodes",
        "SLURM_LOCALID=4 SLURM_STEP_TASKS_PER_NODE=8(x2)",
        Some(4),
    ),
    // one task a node, which may have started several processes
    (
        "nvidia-8-on-2-nodes",
        "SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x2)",
        None,
    ),
    (
        "nvidia-8-on-2-nodes",
        "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 SLURM_LOCALID=2",
        Some(2),
    ),
    // variables for other kinds say nothing about this one
    ("nvidia-8-on-2-nodes", "HIP_VISIBLE_DEVICES=3", None),
    // CUDA puts the fastest first, unless a variable says otherwise
    ("hbm-and-memoryless", "CUDA_VISIBLE_DEVICES=0", Some(1)),
    (
        "hbm-and-memoryless",
        "CUDA_VISIBLE_DEVICES=0 CUDA_DEVICE_ORDER=PCI_BUS_ID",
        Some(0),
    ),
    ("hbm-and-memoryless", "LOCAL_RANK=1", Some(0)),
    ("amd-8-on-2-nodes", "HIP_VISIBLE_DEVICES=3", Some(3)),
    ("amd-8-on-2-nodes", "CUDA_VISIBLE_DEVICES=3", Some(3)),
    ("amd-8-on-2-nodes", "ROCR_VISIBLE_DEVICES=3", Some(3)),
    (
        "amd-8-on-2-nodes",
        "ROCR_VISIBLE_DEVICES=4,5,6,7 HIP_VISIBLE_DEVICES=2",
        Some(6),
    ),
    (
        "amd-8-on-2-nodes",
        "ROCR_VISIBLE_DEVICES=4,5 HIP_VISIBLE_DEVICES= LOCAL_RANK=1",
        Some(5),
    ),
    (
        "amd-8-on-2-nodes",
        "HIP_VISIBLE_DEVICES=1 CUDA_VISIBLE_DEVICES=2",
        Some(1),
    ),
    (
        "ascend-8-on-4-nodes",
        "ASCEND_RT_VISIBLE_DEVICES=4",
        Some(4),
    ),
    (
        "ascend-8-on-4-nodes",
        "ASCEND_RT_VISIBLE_DEVICES=4,5 LOCAL_RANK=1",
        Some(5),
    ),
    ("vm", "LOCAL_RANK=1", Some(1)),
    // the process may not use the only XPU at all
    ("one-gpu", "", None),
    ("one-gpu", "LOCAL_RANK=0", Some(0)),
    ("nothing", "LOCAL_RANK=0", None),
];

#[test]
fn environments_name_one() {
    for (name, text, expected) in ENVIRONMENTS {
        let found = machine(name).choose(&by_environment(text));
        assert_eq!(found, *expected, "{name}: {text}");
    }
}

#[test]
fn uuids_name_one() {
    let topology = machine("nvidia-8-on-4-nodes");
    for (list, expected) in [
        (uuid(&topology, 3, 40), Some(3)),
        (uuid(&topology, 3, 40).to_uppercase(), Some(3)),
        (uuid(&topology, 3, 12), Some(3)),
        // several begin like this
        ("GPU-".to_owned(), None),
        (format!("MIG-{}/1/0", uuid(&topology, 6, 40)), Some(6)),
        // the name does not say of which GPU it is a part
        ("MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f".to_owned(), None),
        ("GPU-00000000-0000-0000-0000-000000000000".to_owned(), None),
    ] {
        let evidence = by_environment(&format!("CUDA_VISIBLE_DEVICES={list}"));
        assert_eq!(topology.choose(&evidence), expected, "{list}");
    }
    let two = [uuid(&topology, 7, 40), uuid(&topology, 2, 40)].join(",");
    let evidence = by_environment(&format!("CUDA_VISIBLE_DEVICES={two} LOCAL_RANK=1"));
    assert_eq!(topology.choose(&evidence), Some(2));
}

#[test]
fn without_uuids_they_name_none() {
    let mut topology = machine("nvidia-8-on-4-nodes");
    let list = uuid(&topology, 3, 40);
    topology.xpus[5].uuid = None;
    let evidence = by_environment(&format!("CUDA_VISIBLE_DEVICES={list},0 LOCAL_RANK=0"));
    assert_eq!(topology.choose(&evidence), None);
}

#[test]
fn containers_count_what_they_have() {
    for (name, reach, text, expected) in [
        ("nvidia-8-on-2-nodes", &[6][..], "", Some(6)),
        ("nvidia-8-on-2-nodes", &[4, 6], "", None),
        (
            "nvidia-8-on-2-nodes",
            &[4, 6],
            "CUDA_VISIBLE_DEVICES=1",
            Some(6),
        ),
        ("nvidia-8-on-2-nodes", &[4, 6], "LOCAL_RANK=0", Some(4)),
        ("nvidia-8-on-2-nodes", &[], "LOCAL_RANK=0", None),
        (
            "ascend-8-on-4-nodes",
            &[3, 4, 5, 6, 7],
            "ASCEND_RT_VISIBLE_DEVICES=2",
            Some(5),
        ),
        ("one-gpu", &[0], "", None),
    ] {
        let evidence = Evidence {
            reach: Some(reach.to_vec()),
            ..by_environment(text)
        };
        let found = machine(name).choose(&evidence);
        assert_eq!(found, expected, "{name}: {reach:?} {text}");
    }
}

#[test]
fn device_index_counts_within_one_xpu_kind() -> Result<()> {
    let text = "node 0 cpus=0\n\
                xpu 0 nvidia 0000:01:00.0 device=nvidia0\n\
                xpu 1 nvidia 0000:02:00.0 device=nvidia1\n\
                xpu 2 amd 0000:0c:00.0 device=dri/renderD128\n\
                xpu 3 amd 0000:0d:00.0 device=dri/renderD129\n\
                xpu 4 other 0000:0e:00.0\n";
    let topology: Topology = text.parse()?;
    for (open, text, expected) in [
        (&[][..], "LOCAL_RANK=1", Some(1)),
        (&[], "CUDA_VISIBLE_DEVICES=1", Some(1)),
        (&[], "HIP_VISIBLE_DEVICES=1", Some(3)),
        (&[2, 3], "LOCAL_RANK=1", Some(3)),
        (&[2, 3], "CUDA_VISIBLE_DEVICES=0", Some(2)),
    ] {
        let evidence = Evidence {
            open: open.to_vec(),
            ..by_environment(text)
        };
        assert_eq!(topology.choose(&evidence), expected, "{open:?} {text}");
    }
    Ok(())
}

#[test]
fn titles_tell_ranks() {
    let topology = machine("nvidia-8-on-2-nodes");
    for (title, expected) in [
        ("VLLM::Worker_TP3", Some(3)),
        ("VLLM::Worker_TP3_EP3", Some(3)),
        ("sglang::scheduler_TP2", Some(2)),
        ("VLLM::Worker_PP1_TP3", None),
        ("VLLM::Worker_DP1_TP3", None),
        ("VLLM::Worker_TPx", None),
        ("VLLM::EngineCore", None),
        ("python3", None),
        ("", None),
    ] {
        let evidence = Evidence {
            title: title.to_owned(),
            ..Evidence::default()
        };
        assert_eq!(topology.choose(&evidence), expected, "{title}");
    }
}
