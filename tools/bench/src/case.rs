//! The cases to measure: combinations of policies, readers and amounts of memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::reader::{Access, Mode, Order, Profile};

/// What reads ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Policy {
    /// The kernel, with its defaults.
    Native,
    /// The kernel, with the largest reasonable readahead.
    #[serde(rename = "native-4096k")]
    Native4096,
    /// The policy that loads everything at the first event.
    Eager,
    /// Threads, as built into frameworks.
    Framework,
    /// The policy that loads everything before the clock starts, as far as there is room.
    Precache,
    /// MAIO, which only knows the headers.
    MaioFirst,
    /// MAIO, which has seen a load like this.
    MaioReplay,
    /// MAIO, with a template of readers that read in the opposite order.
    MaioWrong,
    /// MAIO, with a template of readers that read the same in file order.
    MaioStale,
}

impl Policy {
    pub(crate) fn is_maio(self) -> bool {
        matches!(
            self,
            Self::MaioFirst | Self::MaioReplay | Self::MaioWrong | Self::MaioStale
        )
    }

    /// The kernel's readahead in KiB, given the usual one.
    pub(crate) fn read_ahead(self, usual: u64) -> u64 {
        match self {
            Self::Native4096 => 4096,
            _ => usual,
        }
    }
}

impl Policy {
    /// A name that needs no explanation.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Native => "the kernel alone",
            Self::Native4096 => "kernel, 4 MiB ahead",
            Self::Eager => "eager policy",
            Self::Framework => "framework's threads",
            Self::Precache => "all loaded before",
            Self::MaioFirst => "MAIO, first load",
            Self::MaioReplay => "MAIO, second load",
            Self::MaioWrong => "MAIO, misled",
            Self::MaioStale => "MAIO, out of order",
        }
    }

    /// A description for the page, in a sentence.
    pub(crate) fn says(self) -> &'static str {
        match self {
            Self::Native => "The default: Linux reads 128 KiB ahead of each reader.",
            Self::Native4096 => {
                "The same Linux, set to read 4 MiB ahead, which is the most that is reasonable for all \
                 files of a disk."
            }
            Self::Eager => {
                "A simple policy: at the first read of any file, it loads every file from end to end."
            }
            Self::Framework => {
                "As built into frameworks: eight threads read all files, 16 MiB at a time, ahead of \
                 the workers."
            }
            Self::Precache => {
                "Everything, as far as there is room, was loaded before the clock started: the time that \
                 loading takes without waiting for a disk."
            }
            Self::MaioFirst => {
                "MAIO has never seen this model: it predicts reads from the headers of the files, and \
                 records what each worker reads."
            }
            Self::MaioReplay => {
                "MAIO knows from an earlier load what each worker reads, and in which order: it brings it \
                 into memory just before, and drops it just after."
            }
            Self::MaioWrong => {
                "MAIO has a record of workers that read in the opposite order: the cost of a mistake."
            }
            Self::MaioStale => {
                "MAIO has a record of workers that read the same in file order: the cost of another order."
            }
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Native => "native",
            Self::Native4096 => "native-4096k",
            Self::Eager => "eager",
            Self::Framework => "framework",
            Self::Precache => "precache",
            Self::MaioFirst => "maio-first",
            Self::MaioReplay => "maio-replay",
            Self::MaioWrong => "maio-wrong",
            Self::MaioStale => "maio-stale",
        })
    }
}

/// The state of memory and device that readers find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Regime {
    /// Nothing is cached, and there is memory for everything.
    Ample,
    /// Nothing is cached, and there is memory for less than half of it.
    Limited,
    /// Everything is cached.
    Cached,
    /// Nothing is cached, and the device is slow.
    Slow,
    /// Nothing is cached, and the device is the one that this machine has.
    OwnDisk,
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ample => "ample",
            Self::Limited => "limited",
            Self::Cached => "cached",
            Self::Slow => "slow",
            Self::OwnDisk => "own-disk",
        })
    }
}

/// One policy, reader and regime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) policy: Policy,
    pub(crate) reader: Profile,
    pub(crate) regime: Regime,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.policy, self.reader, self.regime)
    }
}

const ALL_BUT_WRONG: [Policy; 7] = [
    Policy::Native,
    Policy::Native4096,
    Policy::Eager,
    Policy::Framework,
    Policy::Precache,
    Policy::MaioFirst,
    Policy::MaioReplay,
];
/// The policies on this machine's own disk, whose settings are not to be changed.
const OWN_DISK: [Policy; 3] = [Policy::Native, Policy::MaioFirst, Policy::MaioReplay];
const FEW: [Policy; 3] = [Policy::Native, Policy::Native4096, Policy::MaioReplay];

fn cell(policies: &[Policy], reader: Profile, regime: Regime) -> Vec<Case> {
    let case = |&policy: &Policy| Case {
        policy,
        reader,
        regime,
    };
    policies.iter().map(case).collect()
}

/// The cases that suffice to see it work.
pub(crate) fn quick() -> Vec<Case> {
    let full = Profile::full();
    [
        cell(&ALL_BUT_WRONG, full, Regime::Ample),
        cell(&ALL_BUT_WRONG, full.by(Access::Dropped), Regime::Limited),
        cell(&OWN_DISK, full.with(1), Regime::OwnDisk),
    ]
    .concat()
}

/// The cases behind the claims.
pub(crate) fn standard() -> Vec<Case> {
    let (full, tp) = (Profile::full(), Profile::tp());
    let dropped = |reader: Profile| reader.by(Access::Dropped);
    let harmless = [Policy::Native, Policy::MaioReplay];
    [
        cell(&ALL_BUT_WRONG, full, Regime::Ample),
        cell(&ALL_BUT_WRONG, tp, Regime::Ample),
        cell(&ALL_BUT_WRONG, dropped(full), Regime::Limited),
        cell(&ALL_BUT_WRONG, dropped(tp), Regime::Limited),
        cell(&ALL_BUT_WRONG, full, Regime::Limited),
        cell(&harmless, full, Regime::Cached),
        cell(&harmless, full.by(Access::Direct), Regime::Ample),
        cell(&[Policy::MaioWrong], full, Regime::Ample),
        cell(&harmless, full, Regime::Slow),
        cell(&OWN_DISK, full.with(1), Regime::OwnDisk),
        // The natural order is among the cases above.
        orders()
            .into_iter()
            .filter(|case| case.reader.order != Order::Natural)
            .collect(),
    ]
    .concat()
}

/// Cases with other readers.
pub(crate) fn more() -> Vec<Case> {
    let (full, tp) = (Profile::full(), Profile::tp());
    let shuffled = tp.in_order(Order::Shuffled);
    [
        cell(&FEW, full.by(Access::Pread), Regime::Ample),
        cell(&FEW, full.by(Access::Pread), Regime::Limited),
        cell(&FEW, shuffled, Regime::Ample),
        cell(&FEW, full.with(1), Regime::Ample),
        cell(&FEW, full.with(1).by(Access::Dropped), Regime::Limited),
        cell(&FEW, tp.with(8), Regime::Ample),
        cell(&FEW, tp.with(8).by(Access::Dropped), Regime::Limited),
        ranks(),
    ]
    .concat()
}

/// Cases with workers whose rank has more than one dimension.
fn ranks() -> Vec<Case> {
    let policies = [Policy::Native, Policy::MaioFirst, Policy::MaioReplay];
    let modes = [Mode::Stages, Mode::Replicas, Mode::Experts];
    let readers = modes.map(|mode| Profile::full().of(mode).by(Access::Dropped));
    let cells = readers.map(|reader| cell(&policies, reader, Regime::Limited));
    cells.concat()
}

/// The cases of MAIO for workers that share a model, and of the kernel.
pub(crate) fn maio(access: Access) -> Vec<Case> {
    let tp = Profile::tp().by(access);
    let first = [
        Policy::Native,
        Policy::MaioFirst,
        Policy::MaioReplay,
        Policy::MaioWrong,
    ];
    [
        cell(&first, tp, Regime::Ample),
        cell(&[Policy::Native, Policy::MaioReplay], tp, Regime::Limited),
        cell(
            &[Policy::Native, Policy::MaioStale],
            tp.in_order(Order::Shuffled),
            Regime::Ample,
        ),
    ]
    .concat()
}

/// Cases with the same readers in each order.
pub(crate) fn orders() -> Vec<Case> {
    let loads = [Policy::Native4096, Policy::MaioFirst, Policy::MaioReplay];
    let orders = [
        Order::Natural,
        Order::Backwards,
        Order::Shuffled,
        Order::Reshuffled,
        Order::Strided,
        Order::Twice,
        Order::Pool,
    ];
    let readers = orders.map(|order| Profile::full().in_order(order));
    let cells = readers.map(|reader| cell(&loads, reader, Regime::Ample));
    cells.concat()
}

/// The cases whose names contain one of these words; all, if there are no words.
pub(crate) fn matching(cases: Vec<Case>, words: &[String]) -> Vec<Case> {
    let wanted = |case: &Case| {
        let name = case.to_string();
        words.is_empty() || words.iter().any(|word| name.contains(word))
    };
    cases.into_iter().filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_that_are_theirs_alone() {
        let all = [standard(), more()].concat();
        let names: std::collections::BTreeSet<_> = all.iter().map(Case::to_string).collect();
        assert_eq!(names.len(), all.len());
        assert!(names.contains("maio-replay/tp-dropped/limited"));
        assert!(names.contains("native-4096k/full-kept/ample"));
        for case in [quick(), orders()].concat() {
            assert!(names.contains(&case.to_string()), "{case}");
        }
    }

    #[test]
    fn every_maio_case_has_a_native_counterpart() {
        for access in [Access::Kept, Access::Pread] {
            let all = maio(access);
            for case in all.iter().filter(|case| case.policy.is_maio()) {
                let policy = Policy::Native;
                assert!(all.contains(&Case { policy, ..*case }), "{case}");
                assert_eq!(case.reader.tp_size(), 4);
            }
        }
    }

    #[test]
    fn words_choose() {
        let words = ["maio-replay/tp".to_owned(), "slow".to_owned()];
        let chosen = matching(standard(), &words);
        assert_eq!(chosen.len(), 4);
        assert_eq!(matching(quick(), &[]).len(), quick().len());
    }

    #[test]
    fn names_in_json_are_those_that_are_shown() {
        for policy in [
            ALL_BUT_WRONG.as_slice(),
            &[Policy::MaioWrong, Policy::MaioStale],
        ]
        .concat()
        {
            let json = serde_json::to_string(&policy).expect("a word");
            assert_eq!(json, format!("\"{policy}\""));
        }
    }
}
