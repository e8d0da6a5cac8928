//! Opens of processes that are not known yet to belong to the start. Pure.
//!
//! A process becomes known with its first read. On a slow device that comes long after the open, and other
//! processes report many times in between.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::record::Key;
use super::paths::Opened;

/// How long after an open a process that has read nothing no longer counts as one of the start's.
const LONG: Duration = Duration::from_secs(30);
/// Upper bound on opens remembered; with more, the machine is busy with something else.
const MOST: usize = 1 << 16;

/// An open, and the kernel's name of the file; directories need none.
type EarlyOpen = (Opened, Option<Key>);

/// Opens, by process.
#[derive(Debug, Default)]
pub(super) struct EarlyOpens {
    by_process: HashMap<u32, (Instant, Vec<EarlyOpen>)>,
    count: usize,
}

impl EarlyOpens {
    pub(super) fn keep(&mut self, opened: Opened, key: Option<Key>, now: Instant) {
        if self.count >= MOST {
            self.forget(now);
        }
        let (last, opens) = self
            .by_process
            .entry(opened.process)
            .or_insert_with(|| (now, Vec::new()));
        *last = now;
        opens.push((opened, key));
        self.count += 1;
    }

    /// Takes the opens of a process that belongs to the start.
    pub(super) fn take(&mut self, process: u32) -> Vec<EarlyOpen> {
        let (_, opens) = self.by_process.remove(&process).unzip();
        let opens = opens.unwrap_or_default();
        self.count -= opens.len();
        opens
    }

    /// Forgets processes with old opens, or at least the half with the oldest.
    fn forget(&mut self, now: Instant) {
        let mut times: Vec<_> = self.by_process.values().map(|&(last, _)| last).collect();
        times.sort_unstable();
        let half = times.get(times.len() / 2).copied().unwrap_or(now);
        let since = now
            .checked_sub(LONG)
            .map_or(half, |long_ago| half.max(long_ago));
        self.by_process.retain(|_, (last, _)| *last > since);
        self.count = self.by_process.values().map(|(_, opens)| opens.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::mappings::Identity;

    fn opened(process: u32, inode: u64) -> (Opened, Option<Key>) {
        let opened = Opened {
            process,
            path: "/a".into(),
            identity: Identity { device: 1, inode },
            size: 1,
        };
        (opened, Some(Key { device: 1, inode }))
    }

    #[test]
    fn opens_before_the_first_read_are_kept_per_process() {
        let (mut early, now) = (EarlyOpens::default(), Instant::now());
        for inode in 0..3 {
            let (open, key) = opened(1 + (inode & 1) as u32, inode);
            early.keep(open, key, now);
        }
        let inodes = |opens: Vec<EarlyOpen>| {
            opens
                .iter()
                .map(|it| it.0.identity.inode)
                .collect::<Vec<_>>()
        };
        assert_eq!(inodes(early.take(1)), [0, 2]);
        assert!(early.take(1).is_empty());
        assert_eq!((inodes(early.take(2)), early.count), (vec![1], 0));
    }

    #[test]
    fn oldest_early_opens_are_dropped_at_the_limit() {
        let (mut early, now) = (EarlyOpens::default(), Instant::now());
        for number in 0..MOST as u64 {
            let (open, key) = opened(u32::from(number >= 1000), number);
            early.keep(open, key, now + Duration::from_nanos(number));
        }
        let (open, key) = opened(7, 7);
        early.keep(open, key, now + Duration::from_secs(1));
        assert_eq!((early.take(0).len(), early.take(7).len()), (0, 1));
    }
}
