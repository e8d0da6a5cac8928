//! The inputs that are worth changing: those that had a program do what none before them did.
//!
//! An edge of the program that was passed 1, 2, 3, 4, 8, 16, 32 or 128 times is a feature each. An input
//! with a new one is kept, and one that has it with fewer bytes gets it; those that are the shortest of
//! some feature are changed most. Nothing in here knows where counters come from.

use crate::mutate::{self, Material};
use crate::random::Random;

/// An input that is kept.
#[derive(Debug)]
struct Kept {
    bytes: Vec<u8>,
    /// Of how many features it is the shortest.
    owned: usize,
}

/// All that has been found.
#[derive(Debug)]
pub(crate) struct Engine {
    random: Random,
    words: &'static [&'static [u8]],
    kept: Vec<Kept>,
    /// For each feature the shortest that has it, counted from 1; 0 is none.
    owners: Vec<u32>,
    /// What is still to be run as it is.
    seeds: Vec<Vec<u8>>,
}

impl Engine {
    pub(crate) fn new(seed: u64, words: &'static [&'static [u8]], seeds: Vec<Vec<u8>>) -> Self {
        Self {
            random: Random(seed),
            words,
            kept: Vec::new(),
            owners: Vec::new(),
            seeds,
        }
    }

    /// What is to be run next.
    pub(crate) fn next_input(&mut self, compared: fn(u64) -> [u64; 2]) -> Vec<u8> {
        if let Some(seed) = self.seeds.pop() {
            return seed;
        }
        let (one, other) = (self.pick(), self.pick());
        let bytes = |at: usize| self.kept.get(at).map_or(&[][..], |kept| &kept.bytes);
        let mut input = bytes(one).to_vec();
        let material = Material {
            words: self.words,
            other: bytes(other),
            compared,
        };
        mutate::change(&mut input, &mut self.random, &material);
        input
    }

    fn pick(&mut self) -> usize {
        let kept = self.kept.len();
        for _ in 0..8 {
            // What was found last has been changed least.
            let back = if self.random.once_in(2) {
                kept
            } else {
                kept.min(16)
            };
            let at = kept - back + self.random.below(back);
            if self.kept.get(at).is_some_and(|kept| kept.owned > 0) {
                return at;
            }
        }
        self.random.below(kept)
    }

    /// Keeps an input if it did what none before it did, or with fewer bytes. Says so if it did.
    pub(crate) fn learn(&mut self, input: &[u8], counts: &[u8]) -> bool {
        self.owners.resize(counts.len() * 8, 0);
        let Self { kept, owners, .. } = self;
        let number = u32::try_from(kept.len() + 1).unwrap_or(u32::MAX);
        let mut shortest_of = 0;
        let mut is_new = false;
        for feature in features(counts) {
            let owner = owners[feature];
            let before = (owner as usize).checked_sub(1).map(|at| &mut kept[at]);
            match before {
                Some(before) if before.bytes.len() <= input.len() => continue,
                Some(before) => before.owned -= 1,
                None => is_new = true,
            }
            owners[feature] = number;
            shortest_of += 1;
        }
        if shortest_of > 0 {
            let (bytes, owned) = (input.to_vec(), shortest_of);
            self.kept.push(Kept { bytes, owned });
        }
        is_new
    }

    /// How many edges have been passed, and how many inputs are worth something.
    pub(crate) fn found(&self) -> (usize, usize) {
        let passed = |edge: &&[u32]| edge.iter().any(|&owner| owner > 0);
        let edges = self.owners.chunks_exact(8).filter(passed).count();
        let inputs = self.kept.iter().filter(|kept| kept.owned > 0).count();
        (edges, inputs)
    }
}

/// The features of a run. Most edges are not passed, so eight are looked at together.
fn features(counts: &[u8]) -> impl Iterator<Item = usize> {
    let some = |(_, chunk): &(usize, &[u8])| match <[u8; 8]>::try_from(*chunk) {
        Ok(chunk) => u64::from_ne_bytes(chunk) != 0,
        Err(_) => true,
    };
    let passed = counts.chunks(8).enumerate().filter(some);
    let edges = passed.flat_map(|(at, chunk)| (at * 8..).zip(chunk));
    edges.filter_map(|(edge, &count)| Some(edge * 8 + class(count)?))
}

fn class(count: u8) -> Option<usize> {
    match count {
        0 => None,
        1..=3 => Some(usize::from(count) - 1),
        4..=7 => Some(3),
        8..=15 => Some(4),
        16..=31 => Some(5),
        32..=127 => Some(6),
        128.. => Some(7),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with a bug behind four comparisons, and the counters of its edges.
    fn planted(input: &[u8], counts: &mut [u8; 4]) -> bool {
        let mut rest = input.iter();
        for (count, wanted) in counts.iter_mut().zip(b"bug!") {
            if rest.next() != Some(wanted) {
                return false;
            }
            *count += 1;
        }
        true
    }

    /// After how many inputs the bug is found, if counters are told or not.
    fn search(seed: u64, told: bool) -> Option<usize> {
        let mut engine = Engine::new(seed, &[], vec![vec![0; 8]]);
        (0..200_000).find(|_| {
            let input = engine.next_input(|_| [0, 0]);
            let mut counts = [0; 4];
            let found = planted(&input, &mut counts);
            engine.learn(&input, if told { &counts } else { &[1; 4] });
            found
        })
    }

    #[test]
    fn counters_lead_to_a_bug_that_is_not_found_by_luck() {
        for seed in 0..5 {
            let after = search(seed, true);
            println!("seed {seed}: after {after:?} inputs");
            assert!(after.is_some(), "{seed}");
            assert_eq!(search(seed, false), None, "{seed}");
        }
    }

    #[test]
    fn one_seed_makes_the_same_inputs() {
        let inputs = || {
            let mut engine = Engine::new(7, &[b"word"], vec![b"some bytes".to_vec()]);
            let mut input = || {
                let input = engine.next_input(|pick| [pick, 1]);
                engine.learn(&input, &[input.len().to_le_bytes()[0]; 3]);
                input
            };
            (0..1000).map(|_| input()).collect::<Vec<_>>()
        };
        let all = inputs();
        assert_eq!(all, inputs());
        assert!(all.iter().all(|input| input.len() <= mutate::LONGEST));
    }

    #[test]
    fn the_shortest_input_has_a_feature() {
        let mut engine = Engine::new(1, &[], Vec::new());
        assert!(engine.learn(b"long", &[1, 0, 0]));
        assert!(!engine.learn(b"longer", &[1, 0, 0]));
        assert!(!engine.learn(b"s", &[1, 0, 0]));
        assert!(engine.learn(b"other", &[1, 4, 0]));
        assert!(engine.learn(b"other", &[1, 8, 0]));
        assert_eq!(engine.found(), (2, 3));
    }
}
