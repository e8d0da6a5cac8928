//! Which bytes of a tensor a worker reads.

use std::ops::Range;

use super::heads::Heads;
use super::names::Cut;
use super::safetensors::Tensor;
use crate::PAGE;

/// Lower bound on the length of separate pieces of rows: the kernel reads around a fault, so the gaps between
/// shorter pieces come along anyway, and a template of millions of ranges would be useless.
const SHORTEST: u64 = 16 * PAGE;

/// One of the workers that share a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) rank: u64,
    /// The number of workers.
    pub(super) of: u64,
    pub(super) heads: Heads,
    /// The number of words is rounded up to a multiple of this before they are shared.
    pub(super) padding: u64,
}

/// Pieces of equal length at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) step: u64,
    pub(super) count: u64,
}

impl Run {
    /// One piece.
    const fn single(bytes: &Range<u64>) -> Self {
        Self {
            start: bytes.start,
            length: bytes.end - bytes.start,
            step: 0,
            count: 1,
        }
    }

    /// The pieces.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let Self {
            start,
            length,
            step,
            count,
        } = *self;
        (0..count).map(move |at| start + at * step..start + at * step + length)
    }

    /// From the start of the first piece to the end of the last.
    pub(super) const fn span(&self) -> Range<u64> {
        let last = self.count.saturating_sub(1) * self.step;
        self.start..self.start + last + self.length
    }
}

/// What a worker reads of a tensor, in order; all of it if the shape does not fit the cut.
pub(super) fn of(tensor: &Tensor, split: Cut, share: &Share) -> Vec<Run> {
    let cut = if share.of > 1 {
        cut(tensor, split, share)
    } else {
        None
    };
    cut.unwrap_or_else(|| vec![Run::single(&tensor.bytes)])
}

fn cut(tensor: &Tensor, split: Cut, share: &Share) -> Option<Vec<Run>> {
    match split {
        Cut::Whole => None,
        Cut::Rows { fused } => fused_rows(&Rows::of(tensor)?, fused, share),
        Cut::Keys => keys(&Rows::of(tensor)?, share).map(|run| vec![run]),
        Cut::Attention => attention(tensor, share),
        Cut::Words => words(&Rows::of(tensor)?, share),
        Cut::Columns => columns(tensor, share).map(|run| vec![run]),
    }
}

/// A tensor, or a part of one, as rows of equal length.
#[derive(Clone, Copy)]
struct Rows {
    start: u64,
    count: u64,
    /// The length of one row, in bytes.
    length: u64,
}

impl Rows {
    /// `None` with more dimensions, as stacked experts have them: their order differs.
    fn of(tensor: &Tensor) -> Option<Self> {
        let Range { start, end } = tensor.bytes;
        let count = match *tensor.shape {
            [count] | [count, _] if count > 0 => count,
            _ => return None,
        };
        let length = (end - start) / count;
        (length * count == end - start).then_some(Self {
            start,
            count,
            length,
        })
    }

    /// Some of the rows, which must exist.
    const fn some(&self, rows: &Range<u64>) -> Self {
        Self {
            start: self.start + rows.start * self.length,
            count: rows.end - rows.start,
            length: self.length,
        }
    }

    /// One of several equal parts; `None` if they would not be equal.
    fn part(&self, at: u64, of: u64) -> Option<Self> {
        let count = self.count.checked_div(of)?;
        (count * of == self.count).then(|| self.some(&(at * count..(at + 1) * count)))
    }

    const fn run(&self) -> Run {
        Run::single(&(self.start..self.start + self.count * self.length))
    }
}

fn fused_rows(rows: &Rows, fused: u64, share: &Share) -> Option<Vec<Run>> {
    let part = |at| Some(rows.part(at, fused)?.part(share.rank, share.of)?.run());
    (0..fused).map(part).collect()
}

/// If workers outnumber heads, several workers hold the same head.
fn keys(rows: &Rows, share: &Share) -> Option<Run> {
    let parts = match share.heads.keys {
        Some(heads) if !heads.is_multiple_of(share.of) => heads,
        // Also if the number of heads is unknown: most models have enough.
        _ => share.of,
    };
    if !parts.is_multiple_of(share.of) && !share.of.is_multiple_of(parts) {
        return None;
    }
    let at = share.rank.checked_mul(parts)? / share.of;
    Some(rows.part(at, parts)?.run())
}

/// Queries, keys and values in one tensor, in this order, each with the same number of rows per head.
fn attention(tensor: &Tensor, share: &Share) -> Option<Vec<Run>> {
    let rows = Rows::of(tensor)?;
    let (queries, keys_count) = (share.heads.queries?, share.heads.keys?);
    let heads = keys_count.checked_mul(2)?.checked_add(queries)?;
    let head = rows.count.checked_div(heads)?;
    // In a transposed tensor, as in GPT-2, outputs are columns.
    let turned = matches!(*tensor.shape, [inputs, outputs] if outputs > inputs);
    if head.checked_mul(heads)? != rows.count || turned {
        return None;
    }
    let (end, values) = (queries * head, (queries + keys_count) * head);
    Some(vec![
        rows.some(&(0..end)).part(share.rank, share.of)?.run(),
        keys(&rows.some(&(end..values)), share)?,
        keys(&rows.some(&(values..rows.count)), share)?,
    ])
}

/// The last workers have fewer words, or none: the padding is in no file.
fn words(rows: &Rows, share: &Share) -> Option<Vec<Run>> {
    let padded = rows.count.checked_next_multiple_of(share.padding)?;
    let each = padded / share.of;
    if each * share.of != padded {
        return None;
    }
    let end = |rank: u64| (rank * each).min(rows.count);
    let mine = end(share.rank)..end(share.rank + 1);
    let run = (!mine.is_empty()).then(|| rows.some(&mine).run());
    Some(run.into_iter().collect())
}

/// The worker's part of each row; `None` if parts are so short that rows are read whole anyway.
fn columns(tensor: &Tensor, share: &Share) -> Option<Run> {
    let rows = Rows::of(tensor)?;
    let [_, columns] = *tensor.shape else {
        return None;
    };
    let length = rows.length / share.of;
    let even = columns.is_multiple_of(share.of) && length * share.of == rows.length;
    (even && length >= SHORTEST).then_some(Run {
        start: rows.start + share.rank * length,
        length,
        step: rows.length,
        count: rows.count,
    })
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "one range is a result here"
)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tensor(start: u64, shape: &[u64], width: u64) -> Tensor {
        Tensor {
            name: String::new(),
            shape: shape.to_vec(),
            bytes: start..start + shape.iter().product::<u64>() * width,
        }
    }

    fn share(rank: u64, of: u64, queries: u64, keys: u64) -> Share {
        let heads = Heads {
            queries: Some(queries),
            keys: Some(keys),
        };
        Share {
            rank,
            of,
            heads,
            padding: 1,
        }
    }

    fn unknown(rank: u64, of: u64) -> Share {
        Share {
            rank,
            of,
            heads: Heads::default(),
            padding: 64,
        }
    }

    fn ranges(tensor: &Tensor, split: Cut, share: &Share) -> Vec<Range<u64>> {
        let runs = of(tensor, split, share);
        runs.iter().flat_map(Run::ranges).collect()
    }

    #[test]
    fn rows_are_shared_evenly_or_not_at_all() {
        let rows = Cut::Rows { fused: 1 };
        let even = tensor(100, &[8, 10], 2);
        assert_eq!(ranges(&even, rows, &unknown(0, 4)), [100..140]);
        assert_eq!(ranges(&even, rows, &unknown(3, 4)), [220..260]);
        let fused = Cut::Rows { fused: 2 };
        assert_eq!(ranges(&even, fused, &unknown(1, 4)), [120..140, 200..220]);
        for (shape, split) in [
            (&[7, 10][..], rows),
            (&[4, 10], fused),
            (&[8, 10, 10], rows),
            (&[], rows),
            (&[1], rows),
        ] {
            let tensor = tensor(100, shape, 2);
            let whole = tensor.bytes.clone();
            assert_eq!(ranges(&tensor, split, &unknown(2, 4)), [whole], "{shape:?}");
        }
        assert_eq!(ranges(&even, rows, &unknown(0, 1)), [100..260]);
    }

    #[test]
    fn few_heads_of_keys_are_held_by_several() {
        let keys = tensor(0, &[16, 1], 1);
        let of = |rank, of, heads| ranges(&keys, Cut::Keys, &share(rank, of, 32, heads));
        assert_eq!(of(1, 4, 8), [4..8]);
        assert_eq!(of(0, 4, 2), [0..8]);
        assert_eq!(of(1, 4, 2), [0..8]);
        assert_eq!(of(2, 4, 2), [8..16]);
        assert_eq!(of(3, 4, 1), [0..16]);
        assert_eq!(of(0, 4, 3), [0..16], "neither fits");
        assert_eq!(ranges(&keys, Cut::Keys, &unknown(1, 4)), [4..8]);
        assert_eq!(ranges(&keys, Cut::Keys, &unknown(1, 3)), [0..16]);
    }

    #[test]
    fn attention_in_one_tensor_is_cut_in_three() {
        let fused = tensor(0, &[16, 2], 1);
        let of =
            |rank, queries, keys| ranges(&fused, Cut::Attention, &share(rank, 4, queries, keys));
        assert_eq!(of(1, 4, 2), [4..8, 16..20, 24..28]);
        assert_eq!(of(3, 4, 2), [12..16, 20..24, 28..32]);
        assert_eq!(of(0, 5, 2), [0..32], "heads do not fit");
        assert_eq!(ranges(&fused, Cut::Attention, &unknown(0, 4)), [0..32]);
        let turned = tensor(0, &[12, 36], 1);
        assert_eq!(
            ranges(&turned, Cut::Attention, &share(0, 4, 4, 4)),
            [0..432]
        );
    }

    #[test]
    fn added_words_are_in_no_file() {
        let words = tensor(0, &[100, 1], 1);
        let of = |rank| ranges(&words, Cut::Words, &unknown(rank, 4));
        assert_eq!(
            (of(0), of(2), of(3)),
            (vec![0..32], vec![64..96], vec![96..100])
        );
        let few = tensor(0, &[20, 1], 1);
        assert_eq!(ranges(&few, Cut::Words, &unknown(3, 4)), []);
    }

    #[test]
    fn column_ranges_are_split_only_when_rows_are_long() {
        let long = tensor(0, &[3, 4 * SHORTEST], 1);
        let row = 4 * SHORTEST;
        let expected = [0, row, 2 * row].map(|at| at + SHORTEST..at + 2 * SHORTEST);
        assert_eq!(ranges(&long, Cut::Columns, &unknown(1, 4)), expected);
        let short = tensor(0, &[3, 4 * SHORTEST - 4], 1);
        assert_eq!(
            ranges(&short, Cut::Columns, &unknown(1, 4)),
            [0..short.bytes.end]
        );
    }

    fn splits() -> impl Strategy<Value = Cut> {
        prop_oneof![
            Just(Cut::Whole),
            (0_u64..4).prop_map(|fused| Cut::Rows { fused }),
            Just(Cut::Keys),
            Just(Cut::Attention),
            Just(Cut::Words),
            Just(Cut::Columns),
        ]
    }

    proptest! {
        /// For any shape and length that a header may claim.
        #[test]
        fn slices_stay_within_their_tensor(
            shape in prop::collection::vec(prop_oneof![0_u64..40, any::<u64>()], 0..4),
            (start, length) in (0_u64..1 << 60, prop_oneof![0_u64..10_000, 0_u64..1 << 60]),
            split in splits(),
            (of, rank) in (1_u64..9).prop_flat_map(|of| (Just(of), 0..of)),
            (queries, keys) in prop_oneof![(1_u64..9, 1_u64..9), any::<(u64, u64)>()],
        ) {
            let tensor = Tensor { name: String::new(), shape, bytes: start..start + length };
            let share = Share { padding: 64, ..share(rank, of, queries, keys) };
            for run in super::of(&tensor, split, &share) {
                let span = run.span();
                prop_assert!(tensor.bytes.start <= span.start && span.end <= tensor.bytes.end);
            }
        }

        /// Together, the workers leave out nothing.
        #[test]
        fn workers_share_all_of_a_tensor(
            (rows, columns) in (1_u64..100, 1_u64..4),
            split in splits(),
            of in 1_u64..9,
            (queries, keys) in (1_u64..9, 1_u64..9),
        ) {
            prop_assume!(split != Cut::Rows { fused: 0 });
            let tensor = tensor(7, &[rows, columns], 1);
            let mut seen = vec![false; usize::try_from(rows * columns).expect("small")];
            for rank in 0..of {
                for range in ranges(&tensor, split, &share(rank, of, queries, keys)) {
                    let place = |at: u64| usize::try_from(at - 7).expect("small");
                    seen[place(range.start)..place(range.end)].fill(true);
                }
            }
            prop_assert!(seen.iter().all(|&seen| seen));
        }
    }
}
