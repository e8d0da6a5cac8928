//! How readers read.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::model::Shape;
use crate::units::{MB, MIB};

/// What of each tensor a worker touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// Every byte, though it keeps its share only.
    Full,
    /// Its share: tensor parallelism by slices.
    Tp,
}

/// How bytes come to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Access {
    /// Through mappings that stay until the end.
    Kept,
    /// Through mappings, one file at a time.
    Dropped,
    /// By `read`.
    Pread,
    /// By `read`, past the page cache.
    Direct,
}

/// In which order a worker takes tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// File after file, by name.
    Natural,
    /// Each worker in another order, the same one each time.
    Shuffled,
    /// From the last to the first.
    Backwards,
    /// Each third one, then those behind them.
    Strided,
    /// Each worker in another order, and in another one each time.
    Reshuffled,
    /// File after file, and all of it once more, as those who check sums first.
    Twice,
    /// Several files at once, each by one of a worker's threads.
    Pool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Profile {
    pub(crate) mode: Mode,
    pub(crate) access: Access,
    pub(crate) order: Order,
    pub(crate) workers: u32,
}

impl Profile {
    pub(crate) const fn full() -> Self {
        Self {
            mode: Mode::Full,
            access: Access::Kept,
            order: Order::Natural,
            workers: 4,
        }
    }

    pub(crate) const fn tp() -> Self {
        let mode = Mode::Tp;
        Self {
            mode,
            ..Self::full()
        }
    }

    pub(crate) const fn by(self, access: Access) -> Self {
        Self { access, ..self }
    }

    pub(crate) const fn in_order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    pub(crate) const fn with(self, workers: u32) -> Self {
        Self { workers, ..self }
    }

    /// How many workers share a layer.
    pub(crate) fn tp_size(self) -> u32 {
        match self.mode {
            Mode::Full => 1,
            Mode::Tp => self.workers,
        }
    }
}

impl Profile {
    /// What such workers do, as a phrase.
    pub(crate) fn says(self) -> String {
        let each = match self.mode {
            Mode::Full => "every byte",
            Mode::Tp => "its share",
        };
        let how = match self.access {
            Access::Kept => "through mappings that stay until the end",
            Access::Dropped => "through mappings, one file at a time",
            Access::Pread => "by read into a buffer",
            Access::Direct => "past the page cache (O_DIRECT)",
        };
        let order = match self.order {
            Order::Natural => "",
            Order::Shuffled => ", in an order of its own",
            Order::Backwards => ", backwards",
            Order::Strided => ", each third tensor and then the others",
            Order::Reshuffled => ", in another order each time",
            Order::Twice => ", and all of it once more",
            Order::Pool => ", several files at once by a pool of threads",
        };
        match self.workers {
            1 => format!("one worker takes {each} {how}{order}"),
            many => format!("{many} workers, each takes {each} {how}{order}"),
        }
    }
}

impl fmt::Display for Profile {
    /// A word, as in `tp-dropped` or `full-kept-8w`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Full => "full",
            Mode::Tp => "tp",
        };
        let access = match self.access {
            Access::Kept => "kept",
            Access::Dropped => "dropped",
            Access::Pread => "pread",
            Access::Direct => "direct",
        };
        write!(f, "{mode}-{access}")?;
        match self.order {
            Order::Natural => {}
            Order::Shuffled => write!(f, "-shuffled")?,
            Order::Backwards => write!(f, "-backwards")?,
            Order::Strided => write!(f, "-strided")?,
            Order::Reshuffled => write!(f, "-reshuffled")?,
            Order::Twice => write!(f, "-twice")?,
            Order::Pool => write!(f, "-pool")?,
        }
        match self.workers {
            4 => Ok(()),
            workers => write!(f, "-{workers}w"),
        }
    }
}

/// All that a driver has to know, and its workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) folder: PathBuf,
    pub(crate) shape: Shape,
    pub(crate) profile: Profile,
    /// The memory cgroup that all of them are in.
    pub(crate) cgroup: Option<PathBuf>,
    /// Of the framework's start, after the configuration has been read.
    pub(crate) start_ms: u64,
    /// Of each tensor, besides what is read and copied.
    pub(crate) tensor_us: u64,
    /// From the host to the device, in bytes per second, of each worker.
    pub(crate) copy: u64,
    /// What a framework's prefetcher reads at once.
    pub(crate) piece: u64,
    /// Which load it is, for those who do each in another order.
    pub(crate) turn: u64,
}

impl Task {
    /// With the times that the testbed is made for.
    pub(crate) fn new(shape: Shape, profile: Profile, folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            shape,
            profile,
            cgroup: None,
            start_ms: 2000,
            tensor_us: 5000,
            copy: 600 * MB,
            piece: 16 * MIB,
            turn: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_have_names() {
        let name = |profile: Profile| profile.to_string();
        assert_eq!(name(Profile::full()), "full-kept");
        assert_eq!(name(Profile::tp().by(Access::Dropped)), "tp-dropped");
        let many = Profile::full().in_order(Order::Shuffled).with(8);
        assert_eq!(name(many), "full-kept-shuffled-8w");
        assert!(
            many.says()
                .starts_with("8 workers, each takes every byte through")
        );
        assert!(
            Profile::tp()
                .with(1)
                .says()
                .starts_with("one worker takes its share")
        );
        assert_eq!((many.tp_size(), Profile::tp().tp_size()), (1, 4));
    }
}
