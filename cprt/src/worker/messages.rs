//! The messages between a worker and its keeper: one JSON object a line, over their own socket. Both are
//! the same program, so the messages may change from version to version.

use std::io::BufReader;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::config;
use crate::control::loads::LoadTotals;
use crate::control::protocol::{EventLine, Settings};
use crate::control::stats::Stats;
use crate::control::wire;
use crate::error::Refusal;
use crate::machine::view::Place;
use crate::worker::stop::{First, Stop};
use crate::{Error, Result};

/// The exit code of a worker that cannot say why it ends: the policy closed the worker's socket.
pub(crate) const EXIT_SOCKET_CLOSED: i32 = 113;
/// The exit code of a worker that panicked, which is a bug of the runtime.
pub(crate) const EXIT_PANICKED: i32 = 112;

/// All that a worker has to know to begin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The directory whose files it works on.
    pub(crate) mount: PathBuf,
    pub(crate) source: BackendSource,
    /// The path of the library, which was found trustworthy.
    pub(crate) library: PathBuf,
    pub(crate) settings: Settings,
    /// If given, the worker lives in this cgroup, and no other pays.
    pub(crate) cgroup: Option<PathBuf>,
    /// As [`crate::machine::topology::Topology`] prints itself.
    pub(crate) topology: String,
    pub(crate) memory: config::MemoryConfig,
    pub(crate) loader: config::LoaderConfig,
    pub(crate) worker: config::WorkerConfig,
}

impl Job {
    pub(crate) fn new(
        mount: PathBuf,
        source: BackendSource,
        library: PathBuf,
        settings: Settings,
        cgroup: Option<PathBuf>,
        topology: &str,
        config: &config::Config,
    ) -> Self {
        Self {
            mount,
            source,
            library,
            settings,
            cgroup,
            topology: topology.to_owned(),
            memory: config.memory,
            loader: config.loader,
            worker: config.worker,
        }
    }
}

/// The source of events for the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BackendSource {
    /// It is a mount of rfs, with `/dev/rfsN`.
    Module { device: u32 },
    /// It is a directory like any other.
    Observe {
        /// Its readers begin after the worker, because their command waits for it.
        before_readers: bool,
    },
    /// It is all that the children of this process read; `None`: all that the process of [`Order::Follow`] and
    /// its children read.
    Start { parent: Option<u32> },
    /// It is what a container will see that has no process yet.
    Ahead {
        /// Where the paths of the places begin.
        root: PathBuf,
        places: Vec<Place>,
    },
    /// The worker mounts a mirror of `lower` there.
    Fuse {
        lower: PathBuf,
        options: config::FuseConfig,
        /// Whether users other than the worker's own may read the mirror.
        others: bool,
    },
}

impl BackendSource {
    /// A directory that may have readers already.
    pub(crate) const OBSERVE: Self = Self::Observe {
        before_readers: false,
    };
}

/// A message from the keeper to the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Load the library.
    Start(Box<Job>),
    /// Follow the start of this process, which was not known when the worker started; the policy starts later.
    Follow {
        process: u32,
    },
    /// Take the device, start the policy, with these settings besides those of the job.
    Go(Settings),
    Configure {
        id: u64,
        settings: Settings,
    },
    Stats {
        id: u64,
    },
    /// Start or stop sending events.
    Events(bool),
    /// Stop what is in flight, have the policy exit, end.
    Exit,
}

/// A message from the worker to the keeper.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Note {
    /// The answer to [`Order::Start`].
    Loaded {
        name: String,
        version: String,
    },
    /// The answer to [`Order::Go`].
    Ready {
        backend: String,
        features: Vec<String>,
        /// What the backend cannot do, a sentence each.
        limits: Vec<String>,
    },
    /// The answer in place of either; the worker ends.
    Refused(Refusal),
    Log {
        /// As in `ppc.h`.
        level: u32,
        message: String,
    },
    /// Why the worker ends at once.
    Fault(String),
    /// The first reader of a service, whose memory cgroup is to pay.
    Reader {
        process: u32,
        cgroup: Option<PathBuf>,
    },
    /// The worker is about to enter this cgroup, as loads are charged to the cgroup that it is in; `None`: it is back.
    Guest {
        host: Option<PathBuf>,
    },
    Configured {
        id: u64,
        refused: Option<Refusal>,
    },
    Stats {
        id: u64,
        stats: Box<Stats>,
    },
    Event(EventLine),
    /// The policy reports a load that is over.
    Reported(Box<LoadTotals>),
    /// The mount is gone.
    Unmounted,
    /// The worker has done all that [`Order::Exit`] asks for.
    Ended {
        /// The kernel takes long to release the worker's resources; a session does not wait for that.
        late: bool,
        /// What it has done in total.
        stats: Box<Stats>,
    },
}

/// The sending end; any thread may write whole lines.
#[derive(Debug)]
pub(crate) struct Outbox {
    stream: Mutex<UnixStream>,
    /// The inode of the socket.
    inode: Option<u64>,
}

impl Outbox {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            inode: inode(&stream),
            stream: Mutex::new(stream),
        }
    }

    /// Whether the descriptor is still our socket: the policy's code may have closed it.
    pub(crate) fn is_intact(&self) -> bool {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        inode(&stream) == self.inode
    }

    /// Sends one message. It ignores errors: the listening end notices that the other side is gone.
    pub(crate) fn say(&self, what: &impl Serialize) {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = wire::write_line(&mut *stream, what);
    }

    /// Hangs up, in both directions.
    pub(crate) fn hang_up(&self) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

fn inode(stream: &UnixStream) -> Option<u64> {
    nix::sys::stat::fstat(stream).ok().map(|stat| stat.st_ino)
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Inbox {
    stream: BufReader<UnixStream>,
}

impl Inbox {
    pub(crate) fn new(stream: UnixStream) -> Self {
        // An order is a line; most of them are short.
        Self {
            stream: BufReader::with_capacity(4096, stream),
        }
    }

    /// Waits for a message: at most `after` from a stop on, and at most until `until` in any case.
    pub(crate) fn wait(&self, stop: &Stop, after: Duration, until: Option<Instant>) -> First {
        if self.stream.buffer().contains(&b'\n') {
            return First::Readable;
        }
        stop.or_readable(self.stream.get_ref().as_fd(), after, until)
    }

    /// The next line; `None` if the other side is gone.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let Some(line) = wire::line(&mut self.stream, wire::REPLY_MAX)? else {
            return Ok(None);
        };
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|error| Error::Protocol(format!("Between daemon and worker: {error}")))
    }
}

/// The two ends of a conversation.
pub(crate) fn ends(stream: UnixStream) -> Result<(Inbox, Outbox)> {
    let out = stream.try_clone().map_err(|source| Error::System {
        doing: "Sharing a socket",
        source,
    })?;
    Ok((Inbox::new(stream), Outbox::new(out)))
}
