//! What a round does. Pure.
//!
//! A node holds what is in the storage, the newest first, within its budget. It puts there what the storage lacks; what
//! is there it replaces only by what a load has proven, only if it has examined that version, and seldom.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use maio::template::MAX_BYTES;

use crate::known::{Content, Known, Listed, Own, Version};
use crate::quality::Quality;
use crate::slot::Place;

/// Upper bound on the objects of a storage that are looked at,
pub const MOST_LISTED: usize = 20_000;
/// on those that a node holds,
const MOST_HELD: usize = 8192;
/// and on the places of a service: what never comes twice alike would have ever more of them.
const MOST_SLOTS: usize = 32;
/// How long a proven template stays before another proven one replaces it: two kinds of nodes that each find the
/// other's wrong are to take turns by the day and not by the minute.
pub const SETTLED: Duration = Duration::from_hours(6);
/// How long after it was put a template is removed. Nodes that have it and use it put it there again.
pub const EXPIRES: Duration = Duration::from_hours(90 * 24);

/// What to bring from the storage.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// To fetch, the newest first.
    pub fetch: Vec<Listed>,
    /// To drop from the fleet's folder.
    pub drop: Vec<Place>,
    /// How many are left where they are, for they are too large or beyond the budget.
    pub left: usize,
}

/// What to bring from the storage, given all of its objects, what is known of them, and what is held.
#[must_use]
pub fn incoming(listed: &[Listed], known: &Known, held: &BTreeSet<Place>, budget: u64) -> Incoming {
    let mut newest: Vec<&Listed> = listed.iter().collect();
    newest.sort_by(|one, other| {
        let key = (other.modified_s, &other.place);
        key.cmp(&(one.modified_s, &one.place))
    });
    let mut plan = Incoming::default();
    let mut wanted = BTreeSet::new();
    let mut left = budget;
    for object in newest {
        let fits = object.size <= MAX_BYTES as u64 && wanted.len() < MOST_HELD;
        let Some(rest) = left.checked_sub(object.size).filter(|_| fits) else {
            plan.left += 1;
            continue;
        };
        left = rest;
        wanted.insert(&object.place);
        let is_held = match known.seen(object).map(|seen| &seen.content) {
            Some(Content::Template(_)) => held.contains(&object.place),
            Some(Content::Refused(_) | Content::Later) => true,
            None => false,
        };
        if !is_held {
            plan.fetch.push(object.clone());
        }
    }
    plan.drop = held
        .iter()
        .filter(|it| !wanted.contains(it))
        .cloned()
        .collect();
    plan
}

/// What to put into the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The template of this node.
    pub own: Own,
    /// The version that it replaces; `None` if no object may exist there.
    pub instead: Option<Version>,
}

/// What to put into the storage, in the order of places. `alike` says whether this node's template says nearly the same
/// as the fleet's; it is asked only where that matters.
pub fn outgoing(
    now_s: u64,
    listed: &[Listed],
    known: &Known,
    own: &[Own],
    mut alike: impl FnMut(&Own, &Listed) -> bool,
) -> Vec<Put> {
    let there: BTreeMap<&Place, &Listed> = listed.iter().map(|it| (&it.place, it)).collect();
    let mut slots: BTreeMap<&str, usize> = BTreeMap::new();
    for object in listed {
        *slots.entry(&object.place.service).or_default() += 1;
    }
    let mut puts = Vec::new();
    for own in best(own) {
        let Some(object) = there.get(&own.place) else {
            let slots = slots.entry(&own.place.service).or_default();
            if *slots < MOST_SLOTS {
                *slots += 1;
                puts.push(Put {
                    own: own.clone(),
                    instead: None,
                });
            }
            continue;
        };
        // What has not been examined may be better.
        let Some(seen) = known.seen(object) else {
            continue;
        };
        let replaces = own.quality.is_proven()
            && match &seen.content {
                Content::Later => false,
                Content::Refused(_) => true,
                Content::Template(theirs) if !theirs.is_proven() => true,
                Content::Template(theirs) => {
                    let age = now_s.saturating_sub(object.modified_s);
                    is_fresher(&own.quality, theirs)
                        && age >= SETTLED.as_secs()
                        && !alike(own, object)
                }
            };
        if replaces {
            puts.push(Put {
                own: own.clone(),
                instead: Some(seen.version.clone()),
            });
        }
    }
    puts
}

const fn is_fresher(own: &Quality, theirs: &Quality) -> bool {
    own.made_s > theirs.made_s
}

/// This node's best template of each place, of those that are good.
fn best(own: &[Own]) -> impl Iterator<Item = &Own> {
    let mut best: BTreeMap<&Place, &Own> = BTreeMap::new();
    for own in own.iter().filter(|own| own.quality.is_good()) {
        let now = best.entry(&own.place).or_insert(own);
        if own.quality.rank() > now.quality.rank() {
            *now = own;
        }
    }
    best.into_values()
}

/// What has been in the storage for too long.
pub fn expired(now_s: u64, listed: &[Listed]) -> impl Iterator<Item = &Listed> {
    let age = move |object: &Listed| now_s.saturating_sub(object.modified_s);
    listed
        .iter()
        .filter(move |object| age(object) > EXPIRES.as_secs())
}

#[cfg(test)]
mod tests;
