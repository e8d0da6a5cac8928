//! How much memory a service's load takes, as it publishes it to those that share the memory. Pure.

use std::mem::size_of;

/// Bytes that a load takes, and the memory that it takes them from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// What it holds, or may hold by now.
    pub(crate) held: u64,
    /// What it would hold if there were room.
    pub(crate) total: u64,
    /// The limit that is nearest to it, and the control group that has it. Services with the same share it.
    pub(crate) limit: u64,
    pub(crate) group: u64,
    pub(crate) priority: i32,
}

/// The first word of the file; it includes the version.
const MAGIC: u64 = u64::from_le_bytes(*b"maioDEM2");
const WORDS: usize = 6;

impl Demand {
    pub(crate) fn to_bytes(self) -> [u8; WORDS * size_of::<u64>()] {
        let priority = i64::from(self.priority).cast_unsigned();
        let words = [
            MAGIC, self.held, self.total, self.limit, self.group, priority,
        ];
        let mut bytes = [0; WORDS * size_of::<u64>()];
        for (word, place) in words.into_iter().zip(bytes.as_chunks_mut().0) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// What another service has published, and what follows it; `None` if that is of another version.
    pub(super) fn split(said: &[u8]) -> Option<(Self, &[u8])> {
        let (first, rest) = said.split_first_chunk::<{ WORDS * size_of::<u64>() }>()?;
        let words = first.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it));
        let [MAGIC, held, total, limit, group, priority] = *words.collect::<Vec<_>>() else {
            return None;
        };
        let demand = Self {
            held,
            total,
            limit,
            group,
            priority: priority.cast_signed().try_into().ok()?,
        };
        Some((demand, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_demand_is_parsed_and_garbage_is_rejected() {
        let demand = Demand {
            held: 1,
            total: u64::MAX,
            limit: 3,
            group: 9,
            priority: -4,
        };
        let said = [&demand.to_bytes()[..], b"rest"].concat();
        assert_eq!(Demand::split(&said), Some((demand, &b"rest"[..])));
        assert_eq!(Demand::split(&said[..30]), None);
        assert_eq!(Demand::split(&[7; 64]), None);
    }
}
