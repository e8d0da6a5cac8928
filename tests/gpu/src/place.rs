//! Where memory is, and where a thread runs.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use cprt::machine::topology::{Kind, Topology};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// The CUDA ordinal of each NVIDIA GPU that has one, and the node nearest to the GPU.
#[must_use]
pub fn nodes_of(topology: &Topology) -> Vec<(u16, Option<u16>)> {
    let gpus = topology
        .xpus()
        .iter()
        .filter(|xpu| xpu.kind == Kind::Nvidia);
    gpus.filter_map(|xpu| Some((xpu.ordinal?, xpu.node)))
        .collect()
}

/// Calls `what` in a thread that runs on a node, so that the memory it fills is there.
///
/// # Errors
///
/// The node has no CPU on which this process may run, or `what` fails.
pub fn on_node<T: Send>(
    topology: &Topology,
    node: u16,
    what: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, Box<dyn Error>> {
    let node = topology.node(node).ok_or("there is no such node")?;
    let mut set = CpuSet::new();
    for cpu in node.cpus.iter() {
        set.set(usize::from(cpu))?;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            sched_setaffinity(Pid::from_raw(0), &set).map_err(|error| error.to_string())?;
            what()
        });
        thread
            .join()
            .map_err(|_| "a thread has panicked")?
            .map_err(Into::into)
    })
}

/// Number of a mapped file's pages on each node, by `/proc/self/numa_maps`.
#[must_use]
pub fn pages_by_node(numa_maps: &str, file: &Path) -> BTreeMap<u16, u64> {
    let wanted = format!("file={}", file.display());
    let mut pages = BTreeMap::new();
    let lines = numa_maps
        .lines()
        .filter(|line| line.split(' ').any(|word| word == wanted));
    for word in lines.flat_map(|line| line.split(' ')) {
        let entry = word.strip_prefix('N').and_then(|rest| rest.split_once('='));
        if let Some((node, count)) = entry
            && let (Ok(node), Ok(count)) = (node.parse(), count.parse::<u64>())
        {
            *pages.entry(node).or_default() += count;
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use nix::sched::sched_getaffinity;

    use super::*;

    #[test]
    fn pages_are_counted_of_one_file_only() {
        let maps = "7f00 default file=/m/a mapped=300 N0=200 N1=100 kernelpagesize_kB=4\n\
            7f10 default file=/m/ab mapped=9 N1=9 kernelpagesize_kB=4\n\
            7f20 default file=/m/a mapped=1 N1=1 kernelpagesize_kB=4\n\
            7f30 default heap anon=3 dirty=3 N0=3 kernelpagesize_kB=4\n";
        let pages = pages_by_node(maps, Path::new("/m/a"));
        assert_eq!(pages, BTreeMap::from([(0, 200), (1, 101)]));
        assert!(pages_by_node("", Path::new("/m/a")).is_empty());
    }

    #[test]
    fn only_cudas_numbers_count() {
        let text = "node 0 cpus=0-1\nnode 1 cpus=2-3\n\
            xpu 0 nvidia 0000:18:00.0 node=1 ordinal=0\nxpu 1 nvidia 0000:19:00.0\nxpu 2 other 0000:c1:00.0\n";
        let topology: Topology = text.parse().expect("it is sound");
        assert_eq!(nodes_of(&topology), [(0, Some(1))]);
    }

    #[test]
    fn thread_runs_on_the_requested_node() {
        let topology = Topology::detect().expect("this machine");
        let myself = || sched_getaffinity(Pid::from_raw(0)).map_err(|error| error.to_string());
        let allowed = myself().expect("the CPUs that this process may run on");
        let has = |set: &CpuSet, cpu: usize| set.is_set(cpu).unwrap_or(false);
        let cpus = |set: &CpuSet| -> Vec<usize> {
            let all = 0..CpuSet::count();
            all.filter(|&cpu| has(set, cpu)).collect()
        };
        for node in topology.nodes() {
            let its: Vec<usize> = node.cpus.iter().map(usize::from).collect();
            let done = on_node(&topology, node.id, myself);
            // A container may not have the CPUs of that node.
            if !its.iter().any(|&cpu| has(&allowed, cpu)) {
                assert!(done.is_err(), "node {} has no CPU for us", node.id);
                continue;
            }
            let ran = cpus(&done.expect("a CPU of the node"));
            assert!(!ran.is_empty(), "no CPU at all");
            assert!(
                ran.iter().all(|cpu| its.contains(cpu)),
                "node {} has {its:?}, the thread ran on {ran:?}",
                node.id
            );
        }
        // The node of a single-node machine has all its CPUs; this one has a single CPU.
        let one = cpus(&allowed)[0];
        let small: Topology = format!("node 0 cpus={one}\n").parse().expect("it is sound");
        let ran = on_node(&small, 0, myself).expect("a CPU that we may run on");
        assert_eq!(cpus(&ran), [one]);
        assert!(on_node(&topology, 9999, || Ok(())).is_err());
    }
}
