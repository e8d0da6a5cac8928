//! Finds the programs that start often and read much, among all that are executed. Pure; the time, and what a process
//! has read, come from outside.
//!
//! Loading ahead does not help a program that runs only for a moment, so a process is looked at when it is some seconds
//! old. Names, and processes to look at, are bounded: where more are executed, some are not learned of.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::facts::Life;
use super::known::Learnt;

/// The age at which a process is looked at.
const AGE: Duration = Duration::from_secs(3);
/// How many bytes a process has to have read by that age.
const MUCH: u64 = 64 << 20;
/// How many times it has to have done so.
const OFTEN: u32 = 3;
/// How long a time counts before the next.
const WITHIN: Duration = Duration::from_hours(7 * 24);
/// Upper bound on names remembered.
const NAMES: usize = 512;
/// Upper bound on young processes to look at.
const YOUNG: usize = 512;

/// A process that may turn out to read much.
#[derive(Debug)]
struct Young {
    name: String,
    program: String,
    life: Life,
    due: Instant,
}

/// A name that has read much before.
#[derive(Debug)]
struct Candidate {
    times: u32,
    last: Instant,
}

/// All that has been seen.
#[derive(Debug, Default)]
pub(super) struct Learning {
    young: VecDeque<Young>,
    candidates: HashMap<String, Candidate>,
}

impl Learning {
    /// A process has executed a program.
    pub(super) fn seen(&mut self, name: &str, program: &str, life: Life, now: Instant) {
        // It has replaced the program that it ran before.
        self.young.retain(|it| it.life != life);
        if self.young.len() < YOUNG {
            self.young.push_back(Young {
                name: name.to_owned(),
                program: program.to_owned(),
                life,
                due: now + AGE,
            });
        }
    }

    /// Looks at processes that are old enough, and returns those that have now read much often enough.
    pub(super) fn look(&mut self, now: Instant, read: impl Fn(Life) -> Option<u64>) -> Vec<Learnt> {
        let mut learnt = Vec::new();
        while self.young.front().is_some_and(|it| it.due <= now) {
            let Some(young) = self.young.pop_front() else {
                break;
            };
            if read(young.life).is_some_and(|bytes| bytes >= MUCH)
                && self.is_often(&young.name, now)
            {
                learnt.push(Learnt {
                    name: young.name,
                    program: young.program,
                });
            }
        }
        learnt
    }

    fn is_often(&mut self, name: &str, now: Instant) -> bool {
        let fresh = |it: &Candidate| now.saturating_duration_since(it.last) < WITHIN;
        self.candidates.retain(|_, it| fresh(it));
        if self.candidates.len() >= NAMES && !self.candidates.contains_key(name) {
            let oldest = self
                .candidates
                .iter()
                .min_by_key(|(_, it)| (it.times, it.last));
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.and_then(|name| self.candidates.remove(&name));
        }
        let candidate = self.candidates.entry(name.to_owned());
        let candidate = candidate.or_insert(Candidate {
            times: 0,
            last: now,
        });
        (candidate.times, candidate.last) = (candidate.times + 1, now);
        let often = candidate.times >= OFTEN;
        if often {
            self.candidates.remove(name);
        }
        often
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine {
        learning: Learning,
        now: Instant,
        life: Life,
    }

    impl Machine {
        fn new() -> Self {
            Self {
                learning: Learning::default(),
                now: Instant::now(),
                life: Life::of(std::process::id()).expect("this process"),
            }
        }

        /// Starts a process that has read `bytes` when it is old enough; `None`: it is gone by then.
        fn start(&mut self, name: &str, bytes: Option<u64>) -> Vec<String> {
            self.learning.seen(name, "/bin/p", self.life, self.now);
            assert!(
                self.learning.look(self.now, |_| bytes).is_empty(),
                "it is young"
            );
            self.now += AGE;
            let learnt = self.learning.look(self.now, |_| bytes);
            learnt.into_iter().map(|it| it.name).collect()
        }
    }

    #[test]
    fn program_that_starts_often_and_reads_much_is_learned() {
        let mut machine = Machine::new();
        for _ in 0..10 {
            assert!(machine.start("little", Some(MUCH - 1)).is_empty());
            assert!(machine.start("short", None).is_empty());
        }
        assert!(machine.start("much", Some(MUCH)).is_empty());
        assert!(machine.start("much", Some(MUCH)).is_empty());
        assert_eq!(machine.start("much", Some(MUCH)), ["much"]);
    }

    #[test]
    fn long_ago_is_not_often() {
        let mut machine = Machine::new();
        for _ in 0..10 {
            assert!(machine.start("rare", Some(MUCH)).is_empty());
            machine.now += WITHIN;
        }
    }

    #[test]
    fn a_program_that_executes_another_is_the_other() {
        let mut machine = Machine::new();
        let (life, now) = (machine.life, machine.now);
        machine.learning.seen("shell", "/bin/sh", life, now);
        for _ in 0..2 {
            assert!(machine.start("much", Some(MUCH)).is_empty());
        }
        assert_eq!(machine.start("much", Some(MUCH)), ["much"]);
        assert!(!machine.learning.candidates.contains_key("shell"));
    }

    #[test]
    fn memory_is_bounded() {
        let mut machine = Machine::new();
        for number in 0..5000 {
            let life = Life::at(number, 1);
            machine
                .learning
                .seen(&format!("n{number}"), "/bin/p", life, machine.now);
        }
        assert_eq!(machine.learning.young.len(), YOUNG);
        machine.now += AGE;
        assert!(
            machine
                .learning
                .look(machine.now, |_| Some(MUCH))
                .is_empty()
        );
        for number in 0..2 * NAMES {
            machine.start(&format!("m{number}"), Some(MUCH));
        }
        assert_eq!(machine.learning.candidates.len(), NAMES);
        // A name that has been seen twice stays.
        machine.start("m1023", Some(MUCH));
        for number in 0..2 * NAMES {
            machine.start(&format!("o{number}"), Some(MUCH));
        }
        assert_eq!(machine.start("m1023", Some(MUCH)), ["m1023"]);
    }
}
