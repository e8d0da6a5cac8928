//! Sets of CPUs, in the kernel's notation: `0-3,8`.

use std::fmt;
use std::str::FromStr;

/// A set of CPU numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(Vec<u16>);

impl CpuSet {
    /// The CPUs, from the lowest to the highest.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.0.iter().copied()
    }

    /// The same as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[u16] {
        &self.0
    }

    /// The number of CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u16) -> bool {
        self.0.binary_search(&cpu).is_ok()
    }
}

impl FromIterator<u16> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u16>>(cpus: I) -> Self {
        let mut cpus: Vec<_> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        Self(cpus)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|a, b| a + 1 == *b);
        for (at, run) in runs.enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match run {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [only] => write!(f, "{comma}{only}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a list of CPUs such as 0-3,8");
        let number = |text: &str| text.parse::<u16>().map_err(|_| wrong());
        let mut cpus = Vec::new();
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            cpus.extend(first..=last);
        }
        Ok(cpus.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_and_print() -> Result<(), String> {
        for (text, cpus, again) in [
            ("", vec![], ""),
            ("5", vec![5], "5"),
            ("0-3,8", vec![0, 1, 2, 3, 8], "0-3,8"),
            ("8,0-1\n", vec![0, 1, 8], "0-1,8"),
            ("1,2,2-4", vec![1, 2, 3, 4], "1-4"),
            ("65534-65535", vec![65534, 65535], "65534-65535"),
        ] {
            let set: CpuSet = text.parse()?;
            assert_eq!(set.as_slice(), cpus, "{text:?}");
            assert_eq!(set.to_string(), again);
        }
        Ok(())
    }

    #[test]
    fn malformed_cpu_list_is_rejected() {
        for text in ["a", "3-1", "1,", ",", "-", "0-", "1 2", "65536", "0-3:1/2"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
    }
}
