//! Other workers of this machine. They open and read the files that they are to load, and are no readers: a worker that
//! took them for readers would load what no service has asked for.

use std::collections::HashMap;
use std::fs;

use ppc::Event;

/// The program and the first argument of each worker.
pub(super) const PROGRAM: &str = "/proc/self/exe";
pub(super) const WORD: &str = "worker";

/// Upper bound on remembered processes.
const MOST: usize = 4096;

/// Which processes are workers, each found out once.
#[derive(Debug, Default)]
pub(super) struct OtherWorkers {
    known: HashMap<u32, bool>,
}

impl OtherWorkers {
    /// Removes their events.
    pub(super) fn leave_out(&mut self, events: &mut Vec<Event>) {
        let mut last = (0, false);
        events.retain(|event| {
            if event.process != last.0 {
                last = (event.process, self.has(event.process));
            }
            !last.1
        });
    }

    fn has(&mut self, process: u32) -> bool {
        // The kernel reuses process numbers.
        if self.known.len() > MOST {
            self.known.clear();
        }
        *self.known.entry(process).or_insert_with(|| {
            let words = fs::read(format!("/proc/{process}/cmdline"));
            words.is_ok_and(|words| is_worker(&words))
        })
    }
}

/// Whether these arguments, each ended by a zero byte, are a worker's.
fn is_worker(words: &[u8]) -> bool {
    let mut words = words.split(|&byte| byte == 0);
    [PROGRAM, WORD]
        .iter()
        .all(|word| words.next() == Some(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use ppc::{FileId, Kind};

    use super::*;

    #[test]
    fn worker_is_recognised_by_its_command_line() {
        for (words, is) in [
            (&b"/proc/self/exe\0worker\0/srv/models\0"[..], true),
            (b"/proc/self/exe\0worker\0", true),
            (b"/proc/self/exe\0become\0", false),
            (b"worker\0", false),
            (b"cat\0/proc/self/exe\0worker\0", false),
            (b"", false),
        ] {
            assert_eq!(is_worker(words), is, "{words:?}");
        }
    }

    #[test]
    fn only_their_events_are_left_out() {
        let own = std::process::id();
        let event = |process| Event::new(Kind::Open, FileId(1), 0, 0).by(process);
        let mut others = OtherWorkers::default();
        others.known.insert(7, true);
        let mut events = vec![event(7), event(own), event(7), event(7), event(0)];
        others.leave_out(&mut events);
        let left: Vec<u32> = events.iter().map(|it| it.process).collect();
        assert_eq!(left, [own, 0]);
    }
}
