//! The testbed: a disk with a model on it, and the settings of measurements.

use std::collections::HashMap;
use std::path::PathBuf;

use cprt::control::config;
use cprt::control::kind::BackendKind;

use crate::case::Regime;
use crate::disk::{Disk, READ_AHEAD};
use crate::error::Result;
use crate::model::{self, Model, Shape};
use crate::own_orders::{self, Item};
use crate::place::Place;
use crate::reader::{Order, Profile, Task, steps};
use crate::ssd::Timing;
use crate::units::{MIB, float, nanoseconds, seconds, transfer};

/// The memory limit, where there is one, in percent of the model.
const LIMIT: u64 = 45;
/// The share of the limit that the runtime may fill, in percent.
const THRESHOLD: u64 = 80;

/// The times of a framework, besides reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Takes {
    pub(crate) start_ms: u64,
    pub(crate) tensor_us: u64,
    /// The speed of copies from the host to the device, in bytes per second for each worker.
    pub(crate) copy: u64,
    /// The size of a read of its prefetcher: buffers count where memory is limited.
    pub(crate) piece: u64,
}

impl Takes {
    /// The same, with all times multiplied.
    pub(crate) const fn slower(self, times: u64) -> Self {
        Self {
            start_ms: self.start_ms * times,
            tensor_us: self.tensor_us * times,
            copy: self.copy / times,
            piece: self.piece,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Rig {
    // Dropped in this order.
    pub(crate) disk: Disk,
    pub(crate) mirror: PathBuf,
    pub(crate) place: Place,
    pub(crate) shape: Shape,
    pub(crate) model: Model,
    pub(crate) usual: Timing,
    pub(crate) kind: BackendKind,
    pub(crate) takes: Takes,
    /// The kernel's readahead in KiB, unless a policy sets another one.
    pub(crate) read_ahead: u64,
    /// The settings of policies' workers.
    pub(crate) worker: config::WorkerConfig,
    /// Number of loads made.
    pub(crate) turn: u64,
}

impl Rig {
    pub(crate) fn build(
        place: Place,
        shape: Shape,
        usual: Timing,
        kind: BackendKind,
        takes: Takes,
    ) -> Result<Self> {
        let model = Model::new(&shape);
        // The file system needs some room for itself.
        let size = (model.bytes() + model.bytes() / 20 + 32 * MIB).next_multiple_of(MIB);
        let disk = Disk::make(&place, size, model.shards.len(), |folder| {
            model::write(&model, folder)
        })?;
        let mirror = place.folder("mirror")?;
        Ok(Self {
            disk,
            mirror,
            place,
            shape,
            model,
            usual,
            kind,
            takes,
            read_ahead: READ_AHEAD,
            worker: config::WorkerConfig::default(),
            turn: 0,
        })
    }

    pub(crate) fn timing(&self, regime: Regime) -> Timing {
        match regime {
            Regime::Slow => self.usual.of_a_slow_device(),
            _ => self.usual,
        }
    }

    /// The limit of the memory cgroup where memory is limited.
    pub(crate) fn limit(&self) -> u64 {
        self.model.bytes() * LIMIT / 100
    }

    pub(crate) fn window(&self) -> u64 {
        self.limit() * THRESHOLD / 100
    }

    pub(crate) fn task(&self, profile: Profile) -> Task {
        let mut task = Task::new(self.shape, profile, &self.disk.path);
        task.start_ms = self.takes.start_ms;
        task.tensor_us = self.takes.tensor_us;
        task.copy = self.takes.copy;
        task.piece = self.takes.piece;
        task.turn = self.turn;
        task
    }

    /// How long a load by these workers takes, in seconds, if everything is cached and nothing takes CPU time.
    pub(crate) fn warm(&self, profile: Profile) -> f64 {
        let task = self.task(profile);
        let steps = steps(&self.model, task.profile, 0, 0);
        let copied = steps.iter().map(|step| step.copied).sum();
        let copying = seconds(nanoseconds(transfer(copied, task.copy)));
        let overhead = task.tensor_us * steps.len() as u64;
        copying + float(overhead) / 1e6 + float(task.start_ms) / 1e3
    }

    /// The least time of a load by four workers that each read in an order of their own, in seconds.
    pub(crate) fn own_orders(&self) -> f64 {
        let profile = Profile::full().in_order(Order::Shuffled);
        let task = self.task(profile);
        let mut tensors = HashMap::new();
        let orders = (0..profile.workers).map(|rank| {
            let of_rank = steps(&self.model, profile, rank, 0).into_iter();
            let items = of_rank.map(|step| {
                let next = tensors.len();
                let tensor = *tensors
                    .entry((step.shard, step.touch.start))
                    .or_insert(next);
                let took = |bytes, speed| seconds(nanoseconds(transfer(bytes, speed)));
                Item {
                    tensor,
                    device: took(step.touch.end - step.touch.start, self.usual.bandwidth),
                    worker: took(step.copied, task.copy) + float(task.tensor_us) / 1e6,
                }
            });
            items.collect()
        });
        let orders: Vec<Vec<Item>> = orders.collect();
        own_orders::shortest(&orders, float(task.start_ms) / 1e3)
    }

    /// The least time that the device takes for the model, in seconds.
    pub(crate) fn device(&self, regime: Regime) -> f64 {
        let bandwidth = self.timing(regime).bandwidth;
        seconds(nanoseconds(transfer(self.model.bytes(), bandwidth)))
    }
}
