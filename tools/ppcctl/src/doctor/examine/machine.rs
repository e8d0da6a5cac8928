//! Which memory is near which accelerator.

use std::collections::BTreeSet;

use super::{count, list, word};
use crate::doctor::facts::{Facts, Machine};
use crate::doctor::finding::{Finding, Group, Severity};
use cprt::control::config::Bytes;
use cprt::machine::topology::{Topology, Xpu};

/// Far pages are reported unless they are less than this part of all.
const SMALL_PART: u64 = 20;

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let machine = &facts.machine;
    let Some(topology) = &machine.topology else {
        let text = "The topology of accelerators is not known; all memory counts as equally near";
        let finding = finding(Severity::Note, "topology-unknown", text);
        return vec![finding.remedy("Check the output of hwloc's 'lstopo'")];
    };
    let mut findings = vec![nodes(topology)];
    for (number, xpu) in topology.xpus().iter().enumerate() {
        findings.push(of_xpu(machine, topology, number, xpu));
    }
    findings.extend(far(facts, topology));
    if topology.xpus().is_empty() {
        let text = "There is no accelerator; files are loaded into any node";
        findings.push(finding(Severity::Note, "gpu-none", text).remedy(
            "If there should be one, check whether 'lspci' lists it; a container needs access to it",
        ));
    }
    findings
}

fn finding(severity: Severity, code: &'static str, text: impl Into<String>) -> Finding {
    Finding::new(Group::Machine, severity, code, text)
}

fn nodes(topology: &Topology) -> Finding {
    let nodes = topology.nodes();
    let all: Vec<_> = nodes
        .iter()
        .map(|node| {
            let memory = if node.memory { "" } else { ", without memory" };
            if node.cpus.is_empty() {
                format!("node {} (no CPUs{memory})", node.id)
            } else {
                format!("node {} (CPUs {}{memory})", node.id, node.cpus)
            }
        })
        .collect();
    let number = u64::try_from(nodes.len()).unwrap_or(u64::MAX);
    let text = format!(
        "{}: {}",
        count(number, "NUMA node", "NUMA nodes"),
        list(&all)
    );
    finding(Severity::Ok, "numa", text)
}

/// What a former run, or another program, has brought in on nodes that are near no accelerator.
fn far(facts: &Facts, topology: &Topology) -> Option<Finding> {
    let cached = &facts.machine.cached;
    let near: Option<BTreeSet<u16>> = topology.xpus().iter().map(|xpu| xpu.node).collect();
    let near = near.filter(|near| !near.is_empty())?;
    let is_far = |(node, _): &(&u16, &u64)| !near.contains(node);
    let all: u64 = cached.values().sum();
    let far: u64 = cached.iter().filter(is_far).map(|(_, bytes)| bytes).sum();
    if far == 0 || far < all / SMALL_PART {
        return None;
    }
    let named = |nodes: &[String]| match nodes {
        [node] => format!("node {node}"),
        nodes => format!("nodes {}", list(nodes)),
    };
    let nodes = cached.iter().filter(is_far);
    let nodes: Vec<_> = nodes.map(|(node, _)| node.to_string()).collect();
    let near_them: Vec<_> = near.iter().map(ToString::to_string).collect();
    let text = format!(
        "About {} of the cached {} are on {}, but the accelerators are near {}: each read of them crosses the \
         interconnect",
        Bytes(far),
        Bytes(all),
        named(&nodes),
        named(&near_them)
    );
    let remedy = format!(
        "'ppcctl warm --node {} {}' moves them there, unless a process maps them",
        near_them.first()?,
        word(&facts.directory)
    );
    Some(finding(Severity::Warning, "cache-far", text).remedy(remedy))
}

fn of_xpu(machine: &Machine, topology: &Topology, number: usize, xpu: &Xpu) -> Finding {
    let model = xpu.name.clone().unwrap_or_else(|| xpu.kind.to_string());
    let who = format!("Accelerator {number} ({model}, {})", xpu.pci);
    let home = machine.homes.iter().find(|(pci, _)| *pci == xpu.pci);
    let home = home.and_then(|(_, node)| topology.node(*node));
    if let (Some(home), Some(near)) = (home, xpu.node)
        && !home.memory
    {
        let text = format!(
            "{who} is attached to node {}, which has no memory: its data comes from node {near}, farther away",
            home.id
        );
        return finding(Severity::Warning, "gpu-node-without-memory", text)
            .remedy("Put memory into that socket's slots, or move the card to another socket");
    }
    let Some(near) = xpu.node else {
        if topology.nodes().len() == 1 {
            return finding(Severity::Ok, "gpu", format!("{who} is near all memory"));
        }
        let text = format!("{who}: the nearest node is not known");
        return finding(Severity::Warning, "gpu-node-unknown", text).remedy(
            "Have the firmware report it: check its NUMA settings (NPS, SNC), or update it",
        );
    };
    if let Some(mems) = &machine.mems
        && !mems.contains(near)
    {
        let text =
            format!("{who} is near node {near}, but this process may only use memory of {mems}");
        return finding(Severity::Warning, "gpu-node-forbidden", text).remedy(
            "Allow the node by AllowedMemoryNodes= of the unit, or --cpuset-mems of the container",
        );
    }
    finding(Severity::Ok, "gpu", format!("{who} is near node {near}"))
}
