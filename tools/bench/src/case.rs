//! What is measured: policies, readers and how much memory there is, each with each other's.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::reader::{Access, Order, Profile};

/// Who reads ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Policy {
    /// The kernel, as it does by itself.
    Native,
    /// The kernel, as far as one may reasonably tell it to.
    #[serde(rename = "native-4096k")]
    Native4096,
    /// The policy that loads everything at the first event.
    Eager,
    /// What frameworks have built in.
    Framework,
    /// The policy that has loaded everything before, as far as there is room.
    Precache,
    /// MAIO, which knows the headers only.
    MaioFirst,
    /// MAIO, which has seen a load like this.
    MaioReplay,
    /// MAIO, with a template of readers that go the other way.
    MaioWrong,
    /// MAIO, with a template of readers that take the same in the order of the files.
    MaioStale,
}

impl Policy {
    pub(crate) fn is_maio(self) -> bool {
        matches!(
            self,
            Self::MaioFirst | Self::MaioReplay | Self::MaioWrong | Self::MaioStale
        )
    }

    /// How far the kernel reads ahead, in KiB, where it usually does so far.
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

    /// What it does, in a sentence.
    pub(crate) fn says(self) -> &'static str {
        match self {
            Self::Native => "What everybody has: Linux reads 128 KiB ahead of whoever reads.",
            Self::Native4096 => {
                "The same Linux, told to read 4 MiB ahead, as far as one may reasonably go for all \
                 files of a disk."
            }
            Self::Eager => {
                "A simple policy: at the first read of anything, it loads every file from end to end."
            }
            Self::Framework => {
                "What frameworks have built in: eight threads read all files, 16 MiB at a time, ahead of \
                 the workers."
            }
            Self::Precache => {
                "Everything, as far as there is room, was loaded before the clock started: what loading \
                 takes if no disk has to be waited for."
            }
            Self::MaioFirst => {
                "MAIO has never seen this model: it goes by what the headers of the files say, and records \
                 what each worker reads."
            }
            Self::MaioReplay => {
                "MAIO knows from an earlier load what each worker reads, and in which order: it has it in \
                 memory just before, and drops it just after."
            }
            Self::MaioWrong => {
                "MAIO has a record of workers that went the other way: what a mistake of its costs."
            }
            Self::MaioStale => {
                "MAIO has a record of workers that read the same, in the order of the files: what it costs \
                 that these do not."
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

/// What readers find.
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

/// One of each.
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
/// What is run on this machine's own disk, of which nothing is to be changed.
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

/// What is enough to see it work.
pub(crate) fn quick() -> Vec<Case> {
    let full = Profile::full();
    [
        cell(&ALL_BUT_WRONG, full, Regime::Ample),
        cell(&ALL_BUT_WRONG, full.by(Access::Dropped), Regime::Limited),
        cell(&OWN_DISK, full.with(1), Regime::OwnDisk),
    ]
    .concat()
}

/// What claims are made of.
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
        // That in order is among those above.
        orders()
            .into_iter()
            .filter(|case| case.reader.order != Order::Natural)
            .collect(),
    ]
    .concat()
}

/// What else readers do.
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
    ]
    .concat()
}

/// All that MAIO does for workers that share a model, and what the kernel does.
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

/// The same readers in each order.
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

/// Those of which the name has one of these words in it; all, if there are no words.
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
    fn each_way_of_maio_is_beside_what_the_kernel_does() {
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
