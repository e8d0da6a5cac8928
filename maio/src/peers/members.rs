//! Which service a process belongs to. A worker receives events of all readers of its directory, those of other
//! services and their workers as well: each service publishes the process that its policy runs in and the one from
//! which its readers descend, so that the others leave these alone.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::leases::Lease;

/// The first word of the file; it includes the version.
const MAGIC: u64 = u64::from_le_bytes(*b"maioSVC1");
/// The folder beside the leases of loads.
const FOLDER: &str = "services";
/// How long after the last other service has ended events of its readers may still arrive.
const LATELY: Duration = Duration::from_secs(10);
/// Upper bound on the ancestors that are looked at.
const ANCESTORS: usize = 64;

/// Whose reader a process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Belongs {
    /// This service's, or no service's.
    #[default]
    Here,
    /// Another service's.
    Elsewhere,
    /// It ended before that was found out, and there are other services, or have been recently.
    Unclear,
}

/// A service among the others of this node, as long as its policy runs.
#[derive(Debug)]
pub(crate) struct Members {
    lease: Lease,
    /// The process from which the service's readers descend, if that is known.
    own: Option<u32>,
    /// The PID namespace that process numbers are of: others' mean other processes.
    namespace: u64,
    /// When there were other services.
    others: Mutex<Option<Instant>>,
}

impl Members {
    /// Publishes the service's process in the directory of leases.
    pub(crate) fn join(directory: &Path, own: Option<u32>) -> io::Result<Self> {
        let members = Self {
            lease: Lease::create(&directory.join(FOLDER))?,
            own,
            namespace: fs::metadata("/proc/self/ns/pid")?.ino(),
            others: Mutex::default(),
        };
        let processes = [std::process::id(), own.unwrap_or(0)].map(u64::from);
        let words = [&[MAGIC, members.namespace], &processes[..]].concat();
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        members.lease.publish(&bytes)?;
        Ok(members)
    }

    /// Whose reader a process is: that of the service whose process is its nearest ancestor.
    pub(crate) fn owner(&self, process: u32, parent: impl Fn(u32) -> Option<u32>) -> Belongs {
        let said = self.lease.read_others();
        let others: Vec<u32> = said.iter().flat_map(|it| self.processes_of(it)).collect();
        if !self.are_there(!others.is_empty()) {
            return Belongs::Here;
        }
        let line = std::iter::successors(Some(process), |&process| parent(process));
        let known = |process: &u32| Some(*process) == self.own || others.contains(process);
        match line.take(ANCESTORS).find(known) {
            Some(nearest) if Some(nearest) != self.own => Belongs::Elsewhere,
            None if parent(process).is_none() => Belongs::Unclear,
            _ => Belongs::Here,
        }
    }

    /// Whether there are other services, given whether there are some now, or have been recently.
    fn are_there(&self, now: bool) -> bool {
        let mut last = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if now {
            *last = Some(Instant::now());
        }
        last.is_some_and(|last| last.elapsed() < LATELY)
    }

    /// The processes of another service.
    fn processes_of(&self, said: &[u8]) -> Vec<u32> {
        let words = said.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it));
        let words: Vec<u64> = words.collect();
        let Some(([MAGIC, namespace], processes)) = words.split_first_chunk() else {
            return Vec::new();
        };
        let there = processes
            .iter()
            .filter(|it| **it > 0 && *namespace == self.namespace);
        there.filter_map(|it| u32::try_from(*it).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_ancestor_that_is_a_services_decides() {
        let directory = std::env::temp_dir().join(format!("maio-members-{}", std::process::id()));
        let join = |own| Members::join(&directory, own).expect("a folder");
        // 1 ─ 10 ─ 11 ─ 20 ─ 21, and 1 ─ 30.
        let parent = |process| match process {
            1 => Some(0),
            10 | 30 => Some(1),
            11 => Some(10),
            20 => Some(11),
            21 => Some(20),
            _ => None,
        };
        let owners = |members: &Members| {
            let all = [1, 10, 11, 20, 21, 30, 99];
            all.map(|process| match members.owner(process, parent) {
                Belongs::Here => 'h',
                Belongs::Elsewhere => 'e',
                Belongs::Unclear => '?',
            })
        };
        let of = |members: &Members| owners(members).iter().collect::<String>();
        let outer = join(Some(10));
        assert_eq!(of(&outer), "hhhhhhh", "there is no other");
        let inner = join(Some(20));
        let any = join(None);
        assert_eq!(of(&outer), "hhheeh?");
        assert_eq!(of(&inner), "heehhh?");
        assert_eq!(of(&any), "heeeeh?");
        let elsewhere = Members {
            namespace: 7,
            ..join(None)
        };
        assert_eq!(of(&elsewhere), "hhhhhhh", "other numbers");
        drop(inner);
        assert_eq!(of(&outer), "hhhhhh?", "it may have been the other's");
        drop((outer, any, elsewhere));
        fs::remove_dir_all(&directory).expect("cleared");
    }
}
