//! Medians of several runs.

/// The median of some numbers, and the distance of the farthest from it, as a fraction of the median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Median {
    pub(crate) value: f64,
    pub(crate) spread: f64,
}

/// The median; `None` without numbers.
pub(crate) fn median(numbers: impl IntoIterator<Item = f64>) -> Option<Median> {
    let mut all: Vec<f64> = numbers.into_iter().collect();
    all.sort_by(f64::total_cmp);
    let (low, high) = (*all.first()?, *all.last()?);
    let middle = all.len() / 2;
    let value = if all.len().is_multiple_of(2) {
        f64::midpoint(all[middle - 1], all[middle])
    } else {
        all[middle]
    };
    let far = (high - value).max(value - low);
    let spread = if value > 0.0 { far / value } else { 0.0 };
    Some(Median { value, spread })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_one_counts() {
        let of = |numbers: &[f64]| median(numbers.iter().copied()).map(|it| (it.value, it.spread));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[4.0]), Some((4.0, 0.0)));
        assert_eq!(of(&[9.0, 4.0, 2.0]), Some((4.0, 1.25)));
        assert_eq!(of(&[4.0, 2.0]), Some((3.0, 1.0 / 3.0)));
        assert_eq!(of(&[0.0]), Some((0.0, 0.0)));
    }
}
