//! The messages on the control socket: one JSON object a line, a request and then its replies.
//!
//! A connection carries one request. Every reply is a [`Reply`]. Each request has one, except
//! [`Request::Events`], which has one for each event until either side closes. Later versions may add
//! fields: clients ignore fields that they do not know, and the daemon refuses a request with
//! fields that it does not know, because the request would mean something else without them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::keep::{KeepSet, KeepStatus};
use super::kind::BackendKind;
use super::loads::LoadTotals;
use crate::error::Refusal;

/// Where the daemon listens unless its configuration says otherwise.
pub const SOCKET: &str = "/run/cprt/control.sock";

/// What a client asks of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Give the mount this policy, instead of the one it has. Replies [`MountStatus`].
    RegPolicy {
        /// Where rfs is mounted, or a directory.
        mount: PathBuf,
        /// The policy's shared library.
        library: PathBuf,
        /// Handed to the policy as they are.
        #[serde(default)]
        settings: Settings,
        /// The memory cgroup that the worker lives in; without it, that of the first reader.
        #[serde(default)]
        cgroup: Option<PathBuf>,
        /// The backend for a directory that is not a mount of rfs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        backend: Option<BackendKind>,
    },
    /// Take the mount's policy away. Replies [`MountStatus`].
    RmPolicy {
        /// Where rfs is mounted.
        mount: PathBuf,
    },
    /// Change settings of the running policy, one after another. Replies [`MountStatus`].
    Configure {
        /// Where rfs is mounted.
        mount: PathBuf,
        /// Handed to the policy as they are.
        settings: Settings,
    },
    /// Show mounts, policies and services. Replies [`Status`].
    Status {
        /// Only this mount.
        #[serde(default)]
        mount: Option<PathBuf>,
    },
    /// Show the counters of workers. Replies a list of [`MountStats`].
    Stats {
        /// Only this mount.
        #[serde(default)]
        mount: Option<PathBuf>,
    },
    /// Keep these files in the page cache while memory allows, as a set of this name, instead of the one that there
    /// is. Replies [`KeepStatus`].
    Keep {
        /// The name of the set.
        name: String,
        /// What it consists of.
        set: KeepSet,
    },
    /// Remove a set. Replies [`super::keep::KeepRemoved`].
    RmKeep {
        /// The name of the set.
        name: String,
        /// Whether to drop what it kept from the page cache.
        #[serde(default)]
        drop: bool,
    },
    /// Show what readers do, as the policy sees it. Replies [`EventLine`]s.
    Events {
        /// Where rfs is mounted.
        mount: PathBuf,
    },
}

/// Settings of a policy, by key.
pub type Settings = BTreeMap<String, String>;

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply<T> {
    /// The request succeeded, with this answer.
    Ok(T),
    /// The request was refused or failed.
    Error(Refusal),
}

/// The state of the daemon, its mounts and its services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// Seconds since the daemon started.
    pub uptime_s: u64,
    /// All mounts of rfs, including those without a policy, and directories with one, in order of their paths.
    pub mounts: Vec<MountStatus>,
    /// Services whose starts are followed, if any are configured; absent if the request names a mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<ServicesStatus>,
    /// The loads of models that are over, by service, as policies report them; absent if the request names a mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<LoadTotals>,
    /// Sets of files that are kept in the page cache, in the order in which they give way, the last ones first; absent
    /// if the request names a mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeepStatus>,
}

/// Services whose starts are recorded and loaded ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicesStatus {
    /// Why no start is followed, though services are configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<String>,
    /// Whether the daemon learns of other services.
    pub learn: bool,
    /// The services, in order of their names.
    pub known: Vec<ServiceStatus>,
}

/// A service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name in the configuration; if it was learned of, that of its start.
    pub name: String,
    /// Whether the daemon has learned of it.
    pub learnt: bool,
    /// Those of its processes that the daemon saw start and that are still there.
    pub running: Vec<u32>,
    /// How often the daemon has seen it start.
    pub starts: u64,
    /// The results of these starts.
    #[serde(default)]
    pub totals: StartTotals,
    /// Why the newest start was neither recorded nor loaded, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// The newest start that was recorded or loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<StartStatus>,
}

/// The results of a service's starts since the daemon has known it. The three phases of a start, beginning, loading and
/// reading, follow each other without a gap; they are added up when it is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartTotals {
    /// Starts that were neither recorded nor loaded.
    pub left_alone: u64,
    /// Starts that are over, failed ones included.
    pub over: u64,
    /// Starts whose policy failed.
    pub failed: u64,
    /// Bytes loaded ahead of starts, from storage.
    pub loaded_bytes: u64,
    /// Bytes that would have been loaded, but were already cached.
    pub cached_bytes: u64,
    /// From when the program was executed until its policy ran.
    pub beginning_us: u64,
    /// From then until all was loaded that was known to be read.
    pub loading_us: u64,
    /// From then until reading had come to rest.
    pub reading_us: u64,
    /// From when the program was executed until reading had come to rest.
    pub whole_us: u64,
}

/// A start of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartStatus {
    /// Its name, as `ppcctl start ls` shows it.
    pub start: String,
    /// The process that began it.
    pub process: u32,
    /// When it began, in seconds since 1970.
    pub began_s: u64,
    /// Its progress.
    pub phase: StartPhase,
    /// Bytes loaded ahead of it, from storage.
    pub loaded_bytes: u64,
    /// Bytes that would have been loaded, but were already cached.
    pub cached_bytes: u64,
    /// The last log line of its policy, or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

/// The progress of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum StartPhase {
    /// Its policy starts; what the service reads until then may not be recorded.
    Beginning,
    /// Its policy records it.
    UnderWay,
    /// Reading has come to rest, or its processes have ended.
    Over,
    /// The policy failed, and the start continued without it.
    Failed,
}

impl fmt::Display for StartPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Beginning => "beginning",
            Self::UnderWay => "under way",
            Self::Over => "over",
            Self::Failed => "failed",
        })
    }
}

/// A mount and its policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStatus {
    /// Its mount point, or the directory.
    pub path: PathBuf,
    /// The directory that it mirrors.
    pub lower: PathBuf,
    /// `rfs0`; empty where there is no device.
    pub device: String,
    /// Whether the kernel or a policy manages its cache.
    pub state: MountState,
    /// Why [`MountState`] is `native`, `waiting` or `failed`, if no user asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The policy registered, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyStatus>,
}

/// Whether the kernel or a policy manages a mount's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MountState {
    /// The kernel; no policy is registered.
    Native,
    /// The policy.
    Running,
    /// The kernel, until the worker has been started again.
    Waiting,
    /// The kernel, because the policy failed too often; registering a policy again ends this.
    Failed,
}

impl fmt::Display for MountState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Native => "native",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
        })
    }
}

/// A registered policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// The policy's name for itself.
    pub name: String,
    /// The policy's version; may be empty.
    pub version: String,
    /// The library that it was loaded from.
    pub library: PathBuf,
    /// Its settings at registration, with all changes since.
    pub settings: Settings,
    /// `module`, ...
    pub backend: String,
    /// What the mount can do: `open`, `touch`, `progress`, `evict-mapped`, `affinity`, `charge`.
    pub features: Vec<String>,
    /// The worker's process, if it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// The memory cgroup that pays, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// Failures since it was registered.
    pub crashes: u64,
    /// The last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fault: Option<String>,
    /// The last warnings and errors in the log, the newest last.
    pub log: Vec<String>,
}

/// The counters of a mount's worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStats {
    /// Its mount point.
    pub path: PathBuf,
    /// The policy's name.
    pub policy: String,
    /// The counters since the worker started.
    pub stats: crate::control::stats::Stats,
}

/// One event of [`Request::Events`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLine {
    /// `LOST`, `OPEN`, `CLOSE`, `MISS`, `TOUCH`, `PROGRESS`
    pub kind: String,
    /// Its path in the mount, while it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Its id.
    pub file: u64,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub length: u64,
    /// On `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Events that were merged into this one, or lost.
    pub count: u64,
    /// The reader.
    pub process: u32,
    /// Its thread.
    pub thread: u32,
    /// The CPU that it ran on.
    pub cpu: u32,
    /// The access was a page fault.
    pub mmap: bool,
    /// The access bypassed the page cache.
    pub direct: bool,
}
