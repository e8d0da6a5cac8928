//! The daemon's settings: one optional TOML file, `/etc/cprt.toml`.
//!
//! `cprt/cprt.toml` is the file that is shipped. It shows every key with its default, and a test
//! compares it with the defaults here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};

use crate::control::guard::{KubeletGuard, UnifiedGuard};
use crate::control::keep::KeepSet;
use crate::control::kind::BackendKind;
use crate::control::protocol::{SOCKET, Settings};
use crate::{Error, Result};

pub use self::service::{ConfiguredService, Executed};
pub use super::quantity::{Bytes, TimeSpan};

mod service;

/// The file that the daemon reads unless `--config` names another.
pub const PATH: &str = "/etc/cprt.toml";

/// The whole file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The control socket.
    pub socket: PathBuf,
    /// The group whose members may use the socket; without such a group, only root may.
    pub group: String,
    /// The file in which registrations are kept for the next daemon.
    pub state: PathBuf,
    /// How much memory loads may take.
    pub memory: MemoryConfig,
    /// How loads are made.
    pub loader: LoaderConfig,
    /// How policies are kept.
    pub worker: WorkerConfig,
    /// How directories are mirrored through FUSE.
    pub fuse: FuseConfig,
    /// Where metrics are served.
    pub metrics: MetricsConfig,
    /// Policies to register at start, by mount.
    pub mount: BTreeMap<PathBuf, ConfiguredPolicy>,
    /// Services whose starts are recorded, and loaded ahead the next time.
    pub service: BTreeMap<String, ConfiguredService>,
    /// Whether other programs are treated like services once they have started often and read much.
    pub learn: bool,
    /// The file in which the list of those programs is kept.
    pub learnt: PathBuf,
    /// Sets of files that stay in the page cache while memory allows.
    pub keep: BTreeMap<String, ConfiguredKeep>,
    /// The file in which those sets are kept that `ppcctl keep add` has made.
    pub kept: PathBuf,
    /// How runtimes report containers.
    pub nri: NriConfig,
    /// How templates are shared; the program `ppc-store` reads that, and knows what is wrong with it.
    pub fleet: IgnoredAny,
}

/// How much memory loads may take.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// Percent of the limit; with more in use loads stop and evict is called.
    pub threshold: u8,
    /// Percent of the limit below the threshold at which that ends.
    pub hysteresis: u8,
    /// Percent of the time in which some task waits for memory (PSI, some, 10 s), above which memory
    /// counts as being over the threshold; 100 disables this.
    pub pressure: u8,
    /// How often evict is called while memory is over the threshold.
    pub interval: TimeSpan,
    /// The `memory.available` below which kubelet evicts pods.
    pub kubelet: KubeletGuard,
    /// Whether a GPU shares the memory, so that only free memory counts as available.
    pub unified: UnifiedGuard,
}

/// How loads are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoaderConfig {
    /// Loads under way at once; 0 for the number that suits the device.
    pub threads: u16,
    /// Size of one load.
    pub chunk: Bytes,
    /// Bytes per second; 0 = unlimited.
    pub bandwidth: Bytes,
}

/// How policies are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerConfig {
    /// A call that takes longer is a hang.
    pub deadline: TimeSpan,
    /// Memory for a worker and its policy.
    pub memory: Bytes,
    /// Events that may wait for the policy.
    pub queue: u32,
    /// Ranges that one call may name.
    pub ranges: u32,
}

/// How directories are mirrored through FUSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct FuseConfig {
    /// Whether the kernel may read the files itself, where it can (since Linux 6.9).
    pub passthrough: bool,
    /// Threads that answer the kernel where it does not.
    pub threads: u16,
    /// How far the kernel reads ahead there, and asks for at a time.
    pub readahead: Bytes,
}

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// A Unix socket, relative to the folder of the control socket; empty for none.
    pub socket: PathBuf,
    /// An address and a port.
    #[serde(deserialize_with = "address")]
    pub address: Option<SocketAddr>,
}

/// How containerd and CRI-O report containers before these run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NriConfig {
    /// The socket of the runtime; empty for none.
    pub socket: PathBuf,
    /// The file in which is kept how containers have started.
    pub containers: PathBuf,
}

/// A policy to register.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredPolicy {
    /// The library.
    pub policy: PathBuf,
    /// Handed to it.
    #[serde(default)]
    pub settings: Settings,
    /// As in `ppcctl reg-policy --cgroup`.
    #[serde(default)]
    pub cgroup: Option<PathBuf>,
    /// As in `ppcctl reg-policy --backend`.
    #[serde(default)]
    pub backend: Option<BackendKind>,
}

/// A set of files to keep in the page cache.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredKeep {
    /// As in `ppcctl keep add`.
    pub paths: Vec<PathBuf>,
    /// As in `ppcctl keep add --budget`.
    #[serde(default)]
    pub budget: Option<Bytes>,
    /// As in `ppcctl keep add --priority`.
    #[serde(default)]
    pub priority: i32,
}

impl From<&ConfiguredKeep> for KeepSet {
    fn from(keep: &ConfiguredKeep) -> Self {
        Self {
            paths: keep.paths.clone(),
            parts: Vec::new(),
            budget: keep.budget.map(|budget| budget.0),
            priority: keep.priority,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: SOCKET.into(),
            group: "ppc".into(),
            state: "/run/cprt/state.json".into(),
            memory: MemoryConfig::default(),
            loader: LoaderConfig::default(),
            worker: WorkerConfig::default(),
            fuse: FuseConfig::default(),
            metrics: MetricsConfig::default(),
            mount: BTreeMap::new(),
            service: BTreeMap::new(),
            learn: false,
            learnt: "/var/lib/cprt/learnt.json".into(),
            keep: BTreeMap::new(),
            kept: "/var/lib/cprt/kept.json".into(),
            nri: NriConfig::default(),
            fleet: IgnoredAny,
        }
    }
}

impl NriConfig {
    /// Where runtimes have their socket.
    pub const SOCKET: &str = "/var/run/nri/nri.sock";
}

impl Default for NriConfig {
    fn default() -> Self {
        Self {
            socket: PathBuf::new(),
            containers: "/var/lib/cprt/containers.json".into(),
        }
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            threshold: 80,
            hysteresis: 5,
            pressure: 20,
            interval: TimeSpan(Duration::from_millis(100)),
            kubelet: KubeletGuard::Auto,
            unified: UnifiedGuard::Auto,
        }
    }
}

impl Default for LoaderConfig {
    fn default() -> Self {
        Self {
            threads: 0,
            chunk: Bytes(2 << 20),
            bandwidth: Bytes(0),
        }
    }
}

impl Default for FuseConfig {
    fn default() -> Self {
        Self {
            passthrough: true,
            // A request carries 1 MiB and each thread reads one at a time, so with less readahead both
            // would wait for the reader.
            threads: 2,
            readahead: Bytes(4 << 20),
        }
    }
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self {
            socket: "metrics.sock".into(),
            address: None,
        }
    }
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            deadline: TimeSpan(Duration::from_secs(2)),
            memory: Bytes(256 << 20),
            queue: 4096,
            ranges: 1 << 16,
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The file does not open, or has an error; the text names the line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        text.parse().map_err(|problem| Error::Config {
            path: path.to_owned(),
            problem,
        })
    }

    /// Reads [`PATH`]; without it, the defaults.
    ///
    /// # Errors
    ///
    /// Those of [`Config::read`].
    pub fn read_default() -> Result<Self> {
        match Path::new(PATH).try_exists() {
            Ok(false) => Ok(Self::default()),
            _ => Self::read(Path::new(PATH)),
        }
    }

    /// The Unix socket at which metrics are served, if any.
    #[must_use]
    pub fn metrics_socket(&self) -> Option<PathBuf> {
        let name = &self.metrics.socket;
        let folder = self.socket.parent().unwrap_or(Path::new("/"));
        (!name.as_os_str().is_empty()).then(|| folder.join(name))
    }

    fn checked(self) -> Result<Self, String> {
        let (memory, loader, worker) = (&self.memory, &self.loader, &self.worker);
        let rules = [
            (
                (1..=100).contains(&memory.threshold),
                format!(
                    "memory.threshold = {}: must be a percentage, from 1 to 100",
                    memory.threshold
                ),
            ),
            (
                memory.hysteresis < memory.threshold,
                format!(
                    "memory.hysteresis = {}: must be less than memory.threshold, {}",
                    memory.hysteresis, memory.threshold
                ),
            ),
            (
                memory.pressure <= 100,
                format!(
                    "memory.pressure = {}: must be a percentage; 100 disables it",
                    memory.pressure
                ),
            ),
            (
                !memory.interval.0.is_zero(),
                "memory.interval: must be longer than 0".to_owned(),
            ),
            (
                loader.threads <= 128,
                format!("loader.threads = {}: must be at most 128", loader.threads),
            ),
            (
                (64 << 10..=1 << 30).contains(&loader.chunk.0),
                format!(
                    "loader.chunk = \"{}\": must be from 64 KiB to 1 GiB",
                    loader.chunk
                ),
            ),
            (
                worker.deadline.0 >= Duration::from_millis(1),
                format!(
                    "worker.deadline = \"{}\": must be at least 1 ms",
                    worker.deadline
                ),
            ),
            (
                worker.memory.0 >= 32 << 20,
                format!(
                    "worker.memory = \"{}\": must be at least 32 MiB",
                    worker.memory
                ),
            ),
            (
                worker.queue >= 16,
                format!("worker.queue = {}: must be at least 16", worker.queue),
            ),
            (
                (1..=64).contains(&self.fuse.threads),
                format!("fuse.threads = {}: must be from 1 to 64", self.fuse.threads),
            ),
            (
                worker.ranges >= 1,
                "worker.ranges = 0: must be at least 1".to_owned(),
            ),
        ];
        if let Some((_, problem)) = rules.into_iter().find(|(sound, _)| !sound) {
            return Err(problem);
        }
        self.absolute()?;
        for (name, service) in &self.service {
            let problem = service.check(name);
            problem.map_err(|problem| format!("[service.{name}]: {problem}"))?;
        }
        for (name, keep) in &self.keep {
            let problem = KeepSet::from(keep).check(name);
            problem.map_err(|problem| format!("[keep.{name}]: {problem}"))?;
        }
        Ok(self)
    }

    /// A daemon may run in any directory, so a relative path would mean another file each time.
    fn absolute(&self) -> Result<(), String> {
        let own = [
            ("socket", &self.socket),
            ("state", &self.state),
            ("learnt", &self.learnt),
            ("kept", &self.kept),
            ("nri.containers", &self.nri.containers),
            ("nri.socket", &self.nri.socket),
        ];
        // An empty one is none.
        let own = own
            .into_iter()
            .filter(|(key, path)| *key != "nri.socket" || !path.as_os_str().is_empty());
        let own = own.map(|(key, path)| (key.to_owned(), path));
        let mounts = self.mount.iter().flat_map(|(mount, registration)| {
            let key = format!("[mount.\"{}\"]", mount.display());
            let cgroup = registration.cgroup.as_ref();
            [
                Some((format!("{key} policy"), &registration.policy)),
                cgroup.map(|path| (format!("{key} cgroup"), path)),
                Some((key, mount)),
            ]
        });
        match own
            .chain(mounts.flatten())
            .find(|(_, path)| !path.is_absolute())
        {
            Some((key, path)) => Err(format!(
                "{key}: \"{}\" must begin with a slash",
                path.display()
            )),
            None => Ok(()),
        }
    }
}

/// An address; `None` if it is empty.
fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Ok(None);
    }
    let problem = || format!("{text:?} is not an address with a port such as \"127.0.0.1:9464\"");
    text.parse()
        .map(Some)
        .map_err(|_| D::Error::custom(problem()))
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        toml::from_str::<Self>(text)
            .map_err(|error| error.to_string().trim_end().to_owned())?
            .checked()
    }
}

#[cfg(test)]
mod tests;
