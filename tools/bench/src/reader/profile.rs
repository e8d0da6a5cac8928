//! How readers read.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::model::Shape;
use crate::units::{MB, MIB};

/// The part of each tensor that a worker touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// All of it, of which the worker then keeps its share.
    Full,
    /// Only its share: tensor parallelism by slices.
    Tp,
    /// The same in two pipeline stages, each half of the workers and half of the tensors.
    Stages,
    /// The same in two replicas, each half of the workers and all tensors.
    Replicas,
    /// Whole experts, and its share of what is no expert's.
    Experts,
}

/// How a worker reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Access {
    /// Through mappings that are kept until the end.
    Kept,
    /// Through mappings, one file at a time.
    Dropped,
    /// By `read`.
    Pread,
    /// By `read`, bypassing the page cache.
    Direct,
}

/// The order in which a worker takes tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// File after file, by name.
    Natural,
    /// Each worker in its own order, the same one in each load.
    Shuffled,
    /// From the last to the first.
    Backwards,
    /// Every third one, then those after them.
    Strided,
    /// Each worker in its own order, another one in each load.
    Reshuffled,
    /// File after file, and everything once more, like loaders that verify checksums first.
    Twice,
    /// Several files at once, one for each of a worker's threads.
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

    pub(crate) const fn of(self, mode: Mode) -> Self {
        Self { mode, ..self }
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

    /// The number of workers that share a layer.
    pub(crate) fn tp_size(self) -> u32 {
        match self.mode {
            Mode::Full | Mode::Experts => 1,
            Mode::Tp => self.workers,
            Mode::Stages | Mode::Replicas => self.workers / 2,
        }
    }

    /// The title of a worker's process, as vLLM sets it, where the rank alone does not tell what it reads.
    pub(crate) fn worker_title(self, rank: u32) -> Option<String> {
        let half = self.workers / 2;
        match self.mode {
            Mode::Full | Mode::Tp => None,
            Mode::Stages => Some(format!("VLLM::Worker_PP{}_TP{}", rank / half, rank % half)),
            Mode::Replicas => Some(format!("VLLM::Worker_DP{}_TP{}", rank / half, rank % half)),
            Mode::Experts => Some(format!("VLLM::Worker_TP{rank}_EP{rank}")),
        }
    }
}

impl Profile {
    /// A phrase that describes these workers.
    pub(crate) fn says(self) -> String {
        let each = match self.mode {
            Mode::Full => "every byte",
            Mode::Tp => "its share",
            Mode::Stages => "its share of its stage",
            Mode::Replicas => "its share of its replica",
            Mode::Experts => "its experts and its share of the rest",
        };
        let how = match self.access {
            Access::Kept => "through mappings that are kept until the end",
            Access::Dropped => "through mappings, one file at a time",
            Access::Pread => "by read into a buffer",
            Access::Direct => "bypassing the page cache (O_DIRECT)",
        };
        let order = match self.order {
            Order::Natural => "",
            Order::Shuffled => ", in an order of its own",
            Order::Backwards => ", backwards",
            Order::Strided => ", every third tensor and then the others",
            Order::Reshuffled => ", in another order each time",
            Order::Twice => ", and everything once more",
            Order::Pool => ", several files at once by a pool of threads",
        };
        match self.workers {
            1 => format!("one worker takes {each} {how}{order}"),
            many => format!("{many} workers, each takes {each} {how}{order}"),
        }
    }
}

impl fmt::Display for Profile {
    /// The name, as in `tp-dropped` or `full-kept-8w`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Full => "full",
            Mode::Tp => "tp",
            Mode::Stages => "pp2tp",
            Mode::Replicas => "dp2tp",
            Mode::Experts => "ep",
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

/// The task of a driver and its workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) folder: PathBuf,
    pub(crate) shape: Shape,
    pub(crate) profile: Profile,
    /// The memory cgroup of all of them.
    pub(crate) cgroup: Option<PathBuf>,
    /// How long the framework starts after reading the configuration.
    pub(crate) start_ms: u64,
    /// The overhead for each tensor, besides reading and copying.
    pub(crate) tensor_us: u64,
    /// The speed of copies from the host to the device, in bytes per second for each worker.
    pub(crate) copy: u64,
    /// The size of a read of the framework's prefetcher.
    pub(crate) piece: u64,
    /// The number of the load, for readers that use another order for each.
    pub(crate) turn: u64,
}

impl Task {
    /// A task with the times that the testbed is designed for.
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
        let stages = Profile::full().of(Mode::Stages);
        assert_eq!((name(stages).as_str(), stages.tp_size()), ("pp2tp-kept", 2));
        assert_eq!(
            stages.worker_title(3).as_deref(),
            Some("VLLM::Worker_PP1_TP1")
        );
    }
}
