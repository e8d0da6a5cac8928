//! Sets of bytes of a file, as ranges in order that do not touch. Pure.

use std::ops::Range;

/// A set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Of these, in any order.
    pub(super) fn of(mut ranges: Vec<Range<u64>>) -> Self {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_unstable_by_key(|range| range.start);
        let mut all: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match all.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => all.push(range),
            }
        }
        Self(all)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Bytes in it.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Adds a range and returns how many bytes of it are new.
    pub(super) fn insert(&mut self, range: &Range<u64>) -> u64 {
        if range.start >= range.end {
            return 0;
        }
        // Those that touch it become one with it.
        let from = self.0.partition_point(|old| old.end < range.start);
        let to = self.0.partition_point(|old| old.start <= range.end);
        let old = &self.0[from..to];
        let known = old.iter().map(|old| {
            let (start, end) = (old.start.max(range.start), old.end.min(range.end));
            end.saturating_sub(start)
        });
        let new = range.end - range.start - known.sum::<u64>();
        let start = old
            .first()
            .map_or(range.start, |old| old.start.min(range.start));
        let end = old.last().map_or(range.end, |old| old.end.max(range.end));
        self.0.splice(from..to, std::iter::once(start..end));
        new
    }

    /// What of a range is not in it, where only what is at least so long counts as being in it.
    pub(super) fn gaps(&self, within: &Range<u64>, least: u64) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = within.start;
        for range in self.0.iter().filter(|it| it.end - it.start >= least) {
            if at < range.start.min(within.end) {
                gaps.push(at..range.start.min(within.end));
            }
            at = at.max(range.end);
        }
        if at < within.end {
            gaps.push(at..within.end);
        }
        gaps
    }

    /// What is in it and not in the other.
    pub(super) fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        let mut others = other.0.iter().peekable();
        for range in &self.0 {
            let mut at = range.start;
            while at < range.end {
                match others.peek() {
                    Some(other) if other.end <= at => {
                        others.next();
                    }
                    Some(other) if other.start < range.end => {
                        if at < other.start {
                            left.push(at..other.start);
                        }
                        at = other.end;
                    }
                    _ => {
                        left.push(at..range.end);
                        at = range.end;
                    }
                }
            }
        }
        Self(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(u64, u64)]) -> Ranges {
        Ranges::of(ranges.iter().map(|&(from, to)| from..to).collect())
    }

    #[test]
    fn gaps_are_what_is_not_there_and_what_is_short() {
        let all = set(&[(10, 20), (30, 32), (40, 60)]);
        let gaps = |set: &Ranges, from, to, least| {
            let gaps = set.gaps(&(from..to), least).into_iter();
            gaps.map(|gap| (gap.start, gap.end)).collect::<Vec<_>>()
        };
        let every = [(0, 10), (20, 30), (32, 40), (60, 100)];
        assert_eq!(gaps(&all, 0, 100, 1), every);
        assert_eq!(gaps(&all, 0, 100, 5), [(0, 10), (20, 40), (60, 100)]);
        assert_eq!(gaps(&all, 15, 45, 5), [(20, 40)]);
        assert_eq!(gaps(&all, 42, 58, 5), []);
        assert_eq!(gaps(&all, 70, 80, 5), [(70, 80)]);
        assert_eq!(gaps(&set(&[]), 5, 6, 5), [(5, 6)]);
    }

    #[test]
    fn inserting_joins_and_counts_what_is_new() {
        let mut all = Ranges::default();
        let table = [
            (10, 20, 10),
            (30, 40, 10),
            (20, 30, 10),
            (15, 25, 0),
            (5, 50, 15),
            (60, 60, 0),
            (0, 5, 5),
        ];
        for (from, to, new) in table {
            assert_eq!(all.insert(&(from..to)), new, "{from}..{to}");
        }
        assert_eq!(all, set(&[(0, 50)]));
        assert_eq!(all.bytes(), 50);
    }

    #[test]
    fn it_behaves_as_a_set_of_bytes() {
        // Every pair of small sets, against the bits of a number.
        let ranges_of = |bits: u32| {
            let bits = (0..6_u64).filter(|bit| bits >> bit & 1 != 0);
            Ranges::of(bits.map(|bit| bit..bit + 1).collect())
        };
        for a in 0..64 {
            for b in 0..64 {
                let (one, other) = (ranges_of(a), ranges_of(b));
                assert_eq!(one.without(&other), ranges_of(a & !b), "{a:b} {b:b}");
                let mut both = one.clone();
                let new: u64 = other.iter().map(|range| both.insert(range)).sum();
                assert_eq!(both, ranges_of(a | b), "{a:b} {b:b}");
                assert_eq!(new, u64::from((b & !a).count_ones()));
            }
        }
    }
}
