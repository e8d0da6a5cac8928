//! The steps of a worker.

use std::ops::Range;

use super::profile::{Mode, Order, Profile};
use crate::model::{Model, Placed, Split};

/// A tensor, or a worker's part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The number of the model's shard.
    pub(crate) shard: usize,
    /// The range that it touches: one number in each page is checked.
    pub(crate) touch: Range<u64>,
    /// The range that it takes completely, within the touched one: the sum of all numbers is checked.
    pub(crate) take: Range<u64>,
    /// Number of bytes copied to its device.
    pub(crate) copied: u64,
}

/// Number of seeds reserved for each load.
const TURNS: u64 = 1 << 16;

/// The steps of one of a profile's workers; `turn` is the number of the load, for readers that use another order for
/// each.
pub(crate) fn steps(model: &Model, profile: Profile, rank: u32, turn: u64) -> Vec<Step> {
    let of_shards = model.shards.iter().enumerate();
    let tensors =
        of_shards.flat_map(|(number, shard)| shard.tensors.iter().map(move |it| (number, it)));
    let count = tensors.clone().count();
    let of_rank = |(at, (number, tensor))| {
        let own = share(profile, rank, at, count)?;
        Some(step(number, tensor, profile.mode, own))
    };
    let mut all: Vec<_> = tensors.enumerate().filter_map(of_rank).collect();
    match profile.order {
        // Each thread of a pool takes a file.
        Order::Natural | Order::Pool => {}
        Order::Shuffled => shuffle(&mut all, u64::from(rank)),
        Order::Reshuffled => shuffle(&mut all, u64::from(rank) + TURNS * (turn + 1)),
        Order::Twice => all.extend_from_within(..),
        Order::Backwards => all.reverse(),
        Order::Strided => {
            let thirds = (0..3).flat_map(|from| all.iter().skip(from).step_by(3));
            all = thirds.cloned().collect();
        }
    }
    all
}

/// A worker's share of a tensor: of how many equal parts it has which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    parts: u32,
    part: u32,
}

/// The share of a worker in a tensor, which is number `at` of `count`; `None` if others have all of it.
fn share(profile: Profile, rank: u32, at: usize, count: usize) -> Option<Share> {
    let among = |parts: u32| Share {
        parts,
        part: rank % parts,
    };
    let pair = among(profile.tp_size());
    match profile.mode {
        Mode::Full => Some(among(profile.workers)),
        Mode::Tp | Mode::Replicas => Some(pair),
        Mode::Stages => {
            let stage = usize::from(rank >= profile.workers / 2);
            (at * 2 / count == stage).then_some(pair)
        }
        // Two of three tensors are experts, each of which one worker has.
        Mode::Experts if at.is_multiple_of(3) => Some(among(profile.workers)),
        Mode::Experts => {
            let owner = at % profile.workers as usize;
            (owner == rank as usize).then_some(Share { parts: 1, part: 0 })
        }
    }
}

fn step(shard: usize, tensor: &Placed, mode: Mode, of: Share) -> Step {
    let all = tensor.bytes.clone();
    // Shapes are chosen so that this divides evenly.
    let each = (all.end - all.start) / u64::from(of.parts);
    let begin = all.start + u64::from(of.part) * each;
    let own = begin..begin + each;
    let (touch, take) = match (mode, tensor.split) {
        (_, Split::Whole) => (all.clone(), all),
        // Touches a part of each row, or everything; a range of the size of its share stands for what it takes.
        (Mode::Full, _) | (_, Split::Columns) => (all, own),
        (_, Split::Rows) => (own.clone(), own),
    };
    Step {
        shard,
        copied: take.end - take.start,
        touch,
        take,
    }
}

/// Shuffles deterministically (Fisher-Yates, with Knuth's constants).
fn shuffle(steps: &mut [Step], seed: u64) {
    let mut state = seed.wrapping_add(1);
    for left in (1..steps.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let number = state >> 33;
        let at = number % (left as u64 + 1);
        steps.swap(left, crate::units::index(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SMALL;

    fn bytes(steps: &[Step], of: impl Fn(&Step) -> u64) -> u64 {
        steps.iter().map(of).sum()
    }

    #[test]
    fn all_workers_together_take_every_byte_once() {
        let model = Model::new(&SMALL);
        let of = |mode| Profile::full().of(mode);
        for (profile, workers) in [
            (Profile::full(), 4),
            (Profile::tp().with(8), 8),
            (of(Mode::Stages), 4),
            (of(Mode::Replicas), 4),
            (of(Mode::Experts), 4),
        ] {
            let mut taken: Vec<_> = (0..workers)
                .flat_map(|rank| steps(&model, profile, rank, 0))
                .map(|step| (step.shard, step.take.start, step.take.end))
                .collect();
            taken.sort_unstable();
            // Tensors that each worker takes whole are listed once for each.
            taken.dedup();
            for (number, shard) in model.shards.iter().enumerate() {
                let mut end = shard.header.len() as u64;
                for &(_, from, to) in taken.iter().filter(|(it, ..)| *it == number) {
                    assert_eq!(from, end);
                    end = to;
                }
                assert_eq!(end, shard.size);
            }
        }
    }

    #[test]
    fn stages_share_nothing_and_replicas_read_the_same() {
        let model = Model::new(&SMALL);
        let of = |mode, rank| steps(&model, Profile::full().of(mode), rank, 0);
        let ends = |steps: Vec<Step>| {
            let place = |step: &Step| (step.shard, step.touch.start);
            (steps.first().map(place), steps.last().map(place))
        };
        let (_, last) = ends(of(Mode::Stages, 1));
        let (first, _) = ends(of(Mode::Stages, 2));
        assert!(last < first, "{last:?} {first:?}");
        assert_eq!(of(Mode::Replicas, 0), of(Mode::Replicas, 2));
        assert_ne!(of(Mode::Replicas, 0), of(Mode::Replicas, 1));
    }

    #[test]
    fn slice_reader_touches_less_but_copies_as_much() {
        let model = Model::new(&SMALL);
        let full = steps(&model, Profile::full(), 1, 0);
        let tp = steps(&model, Profile::tp(), 1, 0);
        let touched = |steps: &[Step]| bytes(steps, |it| it.touch.end - it.touch.start);
        let copied = |steps: &[Step]| bytes(steps, |it| it.copied);
        assert!(touched(&tp) * 2 < touched(&full));
        assert_eq!(copied(&tp), copied(&full));
        assert!(touched(&full) > model.bytes() - 100_000);
    }

    #[test]
    fn an_order_is_the_same_each_time_and_another_for_each() {
        let model = Model::new(&SMALL);
        let shuffled = Profile::full().in_order(Order::Shuffled);
        let one = steps(&model, shuffled, 1, 0);
        assert_eq!(one, steps(&model, shuffled, 1, 7));
        let order = |steps: Vec<Step>| steps.into_iter().map(|it| it.touch).collect::<Vec<_>>();
        assert_ne!(order(one.clone()), order(steps(&model, shuffled, 2, 0)));
        let mut sorted = one;
        sorted.sort_by_key(|it| (it.shard, it.touch.start));
        let natural = steps(&model, Profile::full(), 1, 0);
        assert_eq!(sorted, natural);
        let mut backwards = steps(&model, Profile::full().in_order(Order::Backwards), 1, 0);
        backwards.reverse();
        assert_eq!(backwards, natural);
        let strided = steps(&model, Profile::full().in_order(Order::Strided), 1, 0);
        assert_eq!((&strided[1], strided.len()), (&natural[3], natural.len()));
    }
    #[test]
    fn reshuffling_reorders_steps_and_twice_repeats_them() {
        let model = Model::new(&SMALL);
        let anew = Profile::full().in_order(Order::Reshuffled);
        let of = |rank, turn| steps(&model, anew, rank, turn);
        assert_eq!(of(1, 3), of(1, 3));
        assert!(of(1, 3) != of(1, 4) && of(1, 3) != of(2, 3));
        let mut sorted = of(1, 3);
        sorted.sort_by_key(|it| (it.shard, it.touch.start));
        let natural = steps(&model, Profile::full(), 1, 0);
        assert_eq!(sorted, natural);
        let twice = steps(&model, Profile::full().in_order(Order::Twice), 1, 0);
        assert_eq!(twice, [natural.clone(), natural].concat());
    }
}
