//! What is said on the control socket: one JSON object a line, a request and then its replies.
//!
//! A connection carries one request. Every reply is [`Reply`]; all requests have one, but
//! [`Request::Events`], which has one for each event until either side closes. Fields may be added,
//! so who reads ignores what it does not know; a request with fields that the daemon does not know
//! is refused, as it would mean something else without them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::kind::BackendKind;
use crate::error::Refusal;

/// Where the daemon listens unless its configuration says otherwise.
pub const SOCKET: &str = "/run/cprt/control.sock";

/// What somebody wants of the daemon.
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
        /// The worker lives in this memory cgroup; without it, in that of the first reader.
        #[serde(default)]
        cgroup: Option<PathBuf>,
        /// What to put behind a directory that is no mount of rfs.
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
    /// How things are. Replies [`Status`].
    Status {
        /// Only this mount.
        #[serde(default)]
        mount: Option<PathBuf>,
    },
    /// The counters of workers. Replies a list of [`MountStats`].
    Stats {
        /// Only this mount.
        #[serde(default)]
        mount: Option<PathBuf>,
    },
    /// What readers do, as it is told to the policy. Replies [`EventLine`]s.
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
    /// It is done; here is what was asked for.
    Ok(T),
    /// It is not.
    Error(Refusal),
}

/// How things are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Of the daemon.
    pub version: String,
    /// Of the daemon.
    pub pid: u32,
    /// Since the daemon started.
    pub uptime_s: u64,
    /// All mounts of rfs, those without a policy among them, in order of their paths.
    pub mounts: Vec<MountStatus>,
    /// Services whose starts are known, if any are to be; absent if it is asked for one mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<ServicesStatus>,
}

/// Services whose starts are recorded and loaded ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicesStatus {
    /// Why none is, though some are configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<String>,
    /// Whether others are learned of.
    pub learn: bool,
    /// In order of their names.
    pub known: Vec<ServiceStatus>,
}

/// A service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// As it is configured; of what was learned of, that of its start.
    pub name: String,
    /// Whether it was learned of.
    pub learnt: bool,
    /// Its processes, of those that were seen to start and are still there.
    pub running: Vec<u32>,
    /// So often it was seen to start since the daemon began.
    pub starts: u64,
    /// Why the newest start was neither recorded nor loaded, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// The newest start of those that were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<StartStatus>,
}

/// A start of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartStatus {
    /// What it is known by, as `ppcctl start ls` shows it.
    pub start: String,
    /// Which began it.
    pub process: u32,
    /// In seconds since 1970.
    pub began_s: u64,
    /// How far it is.
    pub phase: StartPhase,
    /// Loaded ahead of it, from storage.
    pub loaded_bytes: u64,
    /// What was to be loaded and was there already.
    pub cached_bytes: u64,
    /// The last word of its policy, or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

/// How far a start is.
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
    /// The policy failed, and it went on without.
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
    /// Where it is mounted.
    pub path: PathBuf,
    /// What it mirrors.
    pub lower: PathBuf,
    /// `rfs0`; empty where there is no device.
    pub device: String,
    /// Who says what is in its cache.
    pub state: MountState,
    /// Why [`MountState`] is `native`, `waiting` or `failed`, if it is not by anybody's will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The policy registered, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyStatus>,
}

/// Who says what is in a mount's cache.
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
    /// The kernel, as the policy failed too often; registering it again gives it another chance.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// As it calls itself.
    pub name: String,
    /// As it calls itself, or nothing.
    pub version: String,
    /// Where it was loaded from.
    pub library: PathBuf,
    /// With which it was registered, and what has changed since.
    pub settings: Settings,
    /// `module`, ...
    pub backend: String,
    /// What the mount can do: `open`, `touch`, `progress`, `evict-mapped`, `affinity`, `charge`.
    pub features: Vec<String>,
    /// Of the worker, if it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// The memory cgroup that pays, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// Since it was registered.
    pub crashes: u64,
    /// What the last of them was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fault: Option<String>,
    /// The last warnings and errors in the log, the newest last.
    pub log: Vec<String>,
}

/// The counters of a mount's worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStats {
    /// Where it is mounted.
    pub path: PathBuf,
    /// The policy's name.
    pub policy: String,
    /// Since the worker started.
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
    /// How many were merged or lost.
    pub count: u64,
    /// The reader.
    pub process: u32,
    /// Its thread.
    pub thread: u32,
    /// Where it ran.
    pub cpu: u32,
    /// By a page fault.
    pub mmap: bool,
    /// Past the page cache.
    pub direct: bool,
}
