//! Topologies as text; the module above describes the format.

use std::fmt;
use std::str::FromStr;

use super::{Kind, Node, PciAddress, Topology, Xpu};
use crate::{Error, Result};

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            let memoryless = if node.memory { "" } else { " memoryless" };
            writeln!(f, "node {} cpus={}{memoryless}", node.id, node.cpus)?;
        }
        for (number, xpu) in self.numbered() {
            write!(f, "xpu {number} {} {}", xpu.kind, xpu.pci)?;
            word(f, "node", xpu.node.as_ref())?;
            word(f, "device", xpu.device.as_ref())?;
            word(f, "ordinal", xpu.ordinal.as_ref())?;
            word(f, "uuid", xpu.uuid.as_ref())?;
            word(f, "name", xpu.name.as_ref())?;
            writeln!(f)?;
        }
        Ok(())
    }
}

fn word(f: &mut fmt::Formatter<'_>, key: &str, value: Option<&impl fmt::Display>) -> fmt::Result {
    match value {
        Some(value) => write!(f, " {key}={value}"),
        None => Ok(()),
    }
}

impl FromStr for Topology {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (mut nodes, mut xpus) = (Vec::new(), Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match line.split_once(' ') {
                Some(("node", rest)) => node(rest).map(|node| nodes.push(node)),
                Some(("xpu", rest)) => xpu(rest, xpus.len()).map(|xpu| xpus.push(xpu)),
                _ => Err("neither a node nor an xpu".to_owned()),
            }
            .map_err(|problem| Error::Topology(format!("line {number}: {problem}")))?;
        }
        Self::new(nodes, xpus)
    }
}

fn node(rest: &str) -> Result<Node, String> {
    let mut words = rest.split_whitespace();
    let id = number(words.next().unwrap_or_default())?;
    let cpus = words
        .next()
        .and_then(|word| word.strip_prefix("cpus="))
        .ok_or("cpus= is missing")?
        .parse()?;
    let memory = match words.next() {
        None => true,
        Some("memoryless") => false,
        Some(word) => return Err(format!("{word:?} is unknown here")),
    };
    match words.next() {
        Some(word) => Err(format!("{word:?} is unknown here")),
        None => Ok(Node { id, cpus, memory }),
    }
}

fn xpu(rest: &str, expected: usize) -> Result<Xpu, String> {
    // A name may contain anything, so it is taken off first.
    let (rest, name) = match rest.split_once(" name=") {
        Some((rest, name)) => (rest, Some(name.trim().to_owned())),
        None => (rest, None),
    };
    let mut words = rest.split_whitespace();
    if usize::from(number(words.next().unwrap_or_default())?) != expected {
        return Err(format!("XPU {expected} must come first"));
    }
    let mut xpu = Xpu {
        kind: words.next().unwrap_or_default().parse()?,
        pci: words.next().unwrap_or_default().parse()?,
        node: None,
        device: None,
        ordinal: None,
        uuid: None,
        name: name.filter(|name| !name.is_empty()),
    };
    for word in words {
        match word.split_once('=') {
            Some(("node", value)) => xpu.node = Some(number(value)?),
            Some(("device", value)) => xpu.device = Some(value.to_owned()),
            Some(("ordinal", value)) => xpu.ordinal = Some(number(value)?),
            Some(("uuid", value)) => xpu.uuid = Some(value.to_owned()),
            _ => return Err(format!("{word:?} is unknown here")),
        }
    }
    Ok(xpu)
}

fn number(text: &str) -> Result<u16, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a number"))
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("{text:?} is not a kind of XPU"))
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
    }
}

impl FromStr for PciAddress {
    type Err = String;

    /// Some drivers leave out the domain: then it is 0.
    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (rest, function) = text.trim().split_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            Some(Self {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device: u8::from_str_radix(device, 16).ok().filter(|&n| n < 32)?,
                function: u8::from_str_radix(function, 16).ok().filter(|&n| n < 8)?,
            })
        };
        parse().ok_or_else(|| format!("{text:?} is not a PCI address such as 0000:18:00.0"))
    }
}
