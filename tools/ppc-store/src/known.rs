//! What a node remembers of the storage and of its own templates, so that nothing is read twice.

use std::collections::BTreeMap;

use maio::template::Stamp;
use serde::{Deserialize, Serialize};

use crate::quality::Quality;
use crate::slot::Place;

/// An object, as a listing of the storage shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where it is.
    pub place: Place,
    /// Which version it is.
    pub tag: String,
    /// Its size, in bytes.
    pub size: u64,
    /// When it was put there, in seconds since 1970.
    pub modified_s: u64,
}

/// A version of an object, in the form that the storage expects in a condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Of S3, Azure and HTTP.
    pub e_tag: Option<String>,
    /// Of Google's storage.
    pub version: Option<String>,
}

/// What a version of an object was found to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// A template; it is in the fleet's folder.
    Template(Quality),
    /// None: it is damaged, or was never one.
    Refused(String),
    /// Of a later version of MAIO, which this one cannot judge.
    Later,
}

/// A version of an object that this node has examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// As in [`Listed`].
    pub tag: String,
    /// The same, for conditions.
    pub version: Version,
    /// What it is.
    pub content: Content,
}

/// A template of the store itself, as it was when it was last read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Read {
    bytes: u64,
    modified_ns: u64,
    /// `None` if it cannot be used.
    own: Option<Own>,
}

/// A template of this store that may be put into the storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// Where it belongs.
    pub place: Place,
    /// The node that has recorded it.
    pub node: String,
    /// How good it is.
    pub quality: Quality,
}

/// All that is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Lists", into = "Lists")]
pub struct Known {
    seen: BTreeMap<Place, Seen>,
    read: BTreeMap<(String, String), Read>,
}

/// The same for JSON, whose maps have names alone.
#[derive(Serialize, Deserialize)]
struct Lists {
    seen: Vec<(Place, Seen)>,
    read: Vec<((String, String), Read)>,
}

impl From<Lists> for Known {
    fn from(lists: Lists) -> Self {
        Self {
            // Paths are made of them.
            seen: lists
                .seen
                .into_iter()
                .filter(|(place, _)| place.is_valid())
                .collect(),
            read: lists.read.into_iter().collect(),
        }
    }
}

impl From<Known> for Lists {
    fn from(known: Known) -> Self {
        Self {
            seen: known.seen.into_iter().collect(),
            read: known.read.into_iter().collect(),
        }
    }
}

impl Known {
    /// What the listed version of an object is, if this node has examined that one.
    #[must_use]
    pub fn seen(&self, listed: &Listed) -> Option<&Seen> {
        self.seen
            .get(&listed.place)
            .filter(|seen| seen.tag == listed.tag)
    }

    /// Notes what an object is.
    pub fn see(&mut self, place: Place, seen: Seen) {
        self.seen.insert(place, seen);
    }

    /// Forgets an object.
    pub fn forget(&mut self, place: &Place) {
        self.seen.remove(place);
    }

    /// Forgets all objects but these.
    pub fn retain(&mut self, listed: &[Listed]) {
        let listed: std::collections::BTreeSet<_> = listed.iter().map(|it| &it.place).collect();
        self.seen.retain(|place, _| listed.contains(place));
    }

    /// The templates of the store, of which those that have changed are read.
    pub fn own(
        &mut self,
        stamps: &[Stamp],
        mut read: impl FnMut(&Stamp) -> Option<Own>,
    ) -> Vec<Own> {
        let mut known = std::mem::take(&mut self.read);
        let mut all = Vec::new();
        for stamp in stamps {
            let key = (stamp.service.clone(), stamp.node.clone());
            let since = stamp.modified.duration_since(std::time::UNIX_EPOCH);
            let modified_ns =
                u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
            let before = known.remove(&key);
            let same = before.filter(|it| (it.bytes, it.modified_ns) == (stamp.bytes, modified_ns));
            let now = same.unwrap_or_else(|| Read {
                bytes: stamp.bytes,
                modified_ns,
                own: read(stamp),
            });
            all.extend(now.own.clone());
            self.read.insert(key, now);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn place(slot: &str) -> Place {
        Place {
            service: "s".to_owned(),
            slot: slot.to_owned(),
        }
    }

    #[test]
    fn known_objects_survive_json_except_invalid_places() {
        let mut known = Known::default();
        let seen = Seen {
            tag: "1".to_owned(),
            version: Version::default(),
            content: Content::Refused("no".to_owned()),
        };
        known.see(place("fleet-0123456789abcdef"), seen.clone());
        let stamp = Stamp {
            service: "s".to_owned(),
            node: "n".to_owned(),
            bytes: 10,
            modified: UNIX_EPOCH + Duration::from_nanos(1_790_000_000_123_456_789),
        };
        known.own(&[stamp], |_| None);
        let kept = known.clone();
        known.see(place("../../etc"), seen);
        let text = serde_json::to_string(&known).expect("JSON");
        assert_eq!(
            serde_json::from_str::<Known>(&text).expect("the same"),
            kept
        );
    }

    #[test]
    fn a_template_is_read_once_for_each_change() {
        let mut known = Known::default();
        let stamp = |seconds: u64| Stamp {
            service: "s".to_owned(),
            node: "n".to_owned(),
            bytes: 10,
            modified: UNIX_EPOCH + Duration::from_secs(seconds),
        };
        let mut reads = 0;
        let mut look = |known: &mut Known, stamps: &[Stamp]| {
            known.own(stamps, |_| {
                reads += 1;
                None
            });
            reads
        };
        assert_eq!(look(&mut known, &[stamp(1)]), 1);
        assert_eq!(look(&mut known, &[stamp(1)]), 1);
        assert_eq!(look(&mut known, &[stamp(2)]), 2);
        assert_eq!(look(&mut known, &[]), 2);
        assert_eq!(look(&mut known, &[stamp(2)]), 3, "it was gone in between");
    }
}
