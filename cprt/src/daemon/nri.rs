//! A plugin of NRI, the interface by which containerd and CRI-O report containers before these run.
//!
//! ```text
//! the runtime's socket ─ frames ─ conversation ─ the answer, at once ─▶ services: what is about to start
//! ```
//!
//! The runtime waits for each answer, so nothing happens before it: the thread of its own here answers from what it was
//! sent, and only then leaves the news for the thread of the services, in a queue that is never waited for. If the
//! daemon is killed, the runtime finds the socket closed and continues; if it is stopped, the runtime continues after
//! its
//! `plugin_request_timeout` (2 s), once, and does without the plugin from then on. The plugin comes back by itself.

use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use self::conversation::{Conversation, Failure, News};
use super::services::ContainerNews;
use crate::{Error, Result};

mod conversation;
mod frames;
mod messages;
#[cfg(test)]
mod tests;

/// How long to wait before the next attempt to reach the runtime: it may be restarted.
const AGAIN: Duration = Duration::from_secs(2);
/// How long the runtime may take to take an answer.
const TO_TAKE: Duration = Duration::from_secs(5);
/// How much is read at once.
const ROOM: usize = 64 << 10;

/// What an operator has to do if there is no socket.
const REMEDY: &str = "containerd 1.7 has NRI with 'disable = false' in [plugins.\"io.containerd.nri.v1.nri\"], \
                      containerd 2 by default, CRI-O with 'enable_nri = true'";

/// Passes news on; it must not wait.
pub(super) type Pass = Box<dyn Fn(ContainerNews) + Send + Sync>;

/// The thread that talks to the runtime.
#[derive(Debug)]
pub(super) struct NriPlugin {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl NriPlugin {
    /// Starts the thread. The runtime need not be there yet.
    pub(super) fn start(socket: PathBuf, pass: Pass) -> Result<Self> {
        let failed = |source| Error::System {
            doing: "Starting the plugin of NRI",
            source,
        };
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("nri".to_owned())
            .stack_size(512 << 10)
            .spawn(move || run(&runtime, socket, pass, stopped))
            .map_err(failed)?;
        Ok(Self { stop, thread })
    }

    /// Leaves the runtime.
    pub(super) fn end(self) {
        let _ = self.stop.send(());
        // A thread that panicked has reported it.
        let _ = self.thread.join();
    }
}

fn run(runtime: &Runtime, socket: PathBuf, pass: Pass, stopped: oneshot::Receiver<()>) {
    runtime.block_on(async {
        let stays = tokio::spawn(async move { stay(&socket, &pass).await });
        // It is also over when the other end is dropped.
        let _ = stopped.await;
        stays.abort();
    });
}

/// Talks to the runtime, and to the next one when that has gone.
async fn stay(socket: &Path, pass: &Pass) {
    let at = socket.display();
    let mut waits = false;
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => {
                waits = false;
                let peer = stream.peer_cred().ok().and_then(|it| it.pid());
                let runtime = peer.and_then(|it| u32::try_from(it).ok());
                match talk(stream, runtime, pass).await {
                    Ok(()) => log::info!("The runtime at {at} has closed the connection"),
                    Err(gone) => log::warn!("The runtime at {at}: {gone}"),
                }
            }
            Err(error) if !waits => {
                waits = true;
                log::warn!("No container runtime answers at {at}: {error}; {REMEDY}");
            }
            Err(_) => {}
        }
        sleep(AGAIN).await;
    }
}

/// Why a conversation is over.
#[derive(Debug, thiserror::Error)]
enum Gone {
    #[error(transparent)]
    Failure(#[from] Failure),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Talks to a runtime until it closes the connection.
async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    runtime: Option<u32>,
    pass: &Pass,
) -> std::result::Result<(), Gone> {
    let mut conversation = Conversation::with(runtime);
    send(&mut stream, &Conversation::begin()).await?;
    let mut room = vec![0; ROOM];
    loop {
        let read = stream.read(&mut room).await?;
        if read == 0 {
            return Ok(());
        }
        let heard = conversation.take(&room[..read])?;
        send(&mut stream, &heard.answers).await?;
        for news in heard.news {
            match news {
                News::Runtime { name, version } => {
                    log::info!("{name} {version} reports containers by NRI");
                }
                News::Container(news) => pass(news),
            }
        }
    }
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    match timeout(TO_TAKE, stream.write_all(bytes)).await {
        Ok(done) => done,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
