//! Serves metrics: `GET /metrics` on a Unix socket and, if the configuration names one, at an address.
//!
//! ```text
//! accept ─ a place ─ request (http) ─ collect, one at a time ─ response ─ close
//! ```
//!
//! A thread of its own runs all of it, so that slow clients hold up neither the daemon nor each other; only collecting,
//! which waits for workers, has another thread. There are a few places for clients: others wait in the kernel's queue
//! until one is free, which each step's deadline sees to.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener as BoundListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::http::Head;
use super::socket;
use crate::control::config::Config;
use crate::control::metrics::Format;
use crate::{Error, Result};

mod http;

/// How many clients are served, and how long what takes.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Clients served at a time, at each address.
    places: u32,
    /// How long a client may take to send its request.
    to_ask: Duration,
    /// How long collecting may take: less than collectors wait by default, which is 10 s.
    to_collect: Duration,
    /// How long a client may take to receive the response.
    to_take: Duration,
    /// How long the daemon waits for clients at its end.
    to_drain: Duration,
    /// How often to try an address that cannot be bound yet.
    again: Duration,
}

const LIMITS: Limits = Limits {
    places: 16,
    to_ask: Duration::from_secs(5),
    to_collect: Duration::from_secs(8),
    to_take: Duration::from_secs(10),
    to_drain: Duration::from_secs(1),
    again: Duration::from_secs(10),
};

/// Makes the text; it may wait.
pub(super) type Collect = Arc<dyn Fn(Format) -> Result<String> + Send + Sync>;

/// Where to serve metrics.
#[derive(Debug)]
pub(super) struct Addresses {
    socket: Option<(BoundListener, PathBuf)>,
    tcp: Option<SocketAddr>,
}

/// The thread that serves metrics.
#[derive(Debug)]
pub(super) struct MetricsServer {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    socket: Option<PathBuf>,
}

/// What clients share.
struct Shared {
    limits: Limits,
    collect: Collect,
    collecting: Arc<Semaphore>,
}

impl Addresses {
    /// Makes the Unix socket, while the process has no other thread. cprtd runs without metrics if it has to: an error
    /// is logged.
    pub(super) fn new(config: &Config) -> Self {
        let bind = |path: PathBuf| match socket::listen(&path, &config.group) {
            Ok(listener) => Some((listener, path)),
            Err(error) => {
                let (path, why) = (path.display(), crate::error::chain(&error));
                log::error!("Metrics are not served at {path}: {why}");
                None
            }
        };
        Self {
            socket: config.metrics_socket().and_then(bind),
            tcp: config.metrics.address,
        }
    }
}

impl MetricsServer {
    /// Starts the thread; `None` if metrics are not to be served.
    pub(super) fn start(at: Addresses, collect: Collect) -> Result<Option<Self>> {
        Self::start_within(LIMITS, at, collect)
    }

    fn start_within(limits: Limits, at: Addresses, collect: Collect) -> Result<Option<Self>> {
        if at.socket.is_none() && at.tcp.is_none() {
            return Ok(None);
        }
        let failed = |source| Error::System {
            doing: "Starting to serve metrics",
            source,
        };
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(1)
            .thread_name("metrics")
            .thread_stack_size(512 << 10)
            .build()
            .map_err(failed)?;
        let socket = at.socket.as_ref().map(|(_, path)| path.clone());
        let shared = Arc::new(Shared {
            limits,
            collect,
            collecting: Arc::new(Semaphore::new(1)),
        });
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .stack_size(512 << 10)
            .spawn(move || run(runtime, at, &shared, stopped))
            .map_err(failed)?;
        Ok(Some(Self {
            stop,
            thread,
            socket,
        }))
    }

    /// Lets clients that are being served have their response, and ends.
    pub(super) fn end(self) {
        if let Some(path) = self.socket {
            // It may be gone already, which is as good.
            let _ = std::fs::remove_file(path);
        }
        let _ = self.stop.send(());
        // A thread that panicked has reported it.
        let _ = self.thread.join();
    }
}

fn run(runtime: Runtime, at: Addresses, shared: &Arc<Shared>, stopped: oneshot::Receiver<()>) {
    let Limits {
        places, to_drain, ..
    } = shared.limits;
    runtime.block_on(async {
        let mut accepting = JoinSet::new();
        let all_places = [(); 2].map(|()| Arc::new(Semaphore::new(places as usize)));
        let [of_socket, of_tcp] = all_places.clone();
        if let Some((listener, path)) = at.socket {
            accepting.spawn(at_socket(listener, path, Arc::clone(shared), of_socket));
        }
        if let Some(address) = at.tcp {
            accepting.spawn(at_address(address, Arc::clone(shared), of_tcp));
        }
        // It is also over when the other end is dropped.
        let _ = stopped.await;
        accepting.shutdown().await;
        let drained = async {
            for all in all_places {
                // This never fails: the semaphores are not closed.
                let _ = all.acquire_many(places).await.map(drop);
            }
        };
        let _ = timeout(to_drain, drained).await;
    });
    // A worker that does not answer would hold up the thread that collects.
    runtime.shutdown_background();
}

async fn at_socket(
    listener: BoundListener,
    path: PathBuf,
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
) {
    let listener = listener
        .set_nonblocking(true)
        .and_then(|()| UnixListener::from_std(listener));
    match listener {
        Ok(listener) => accept_all(&listener, &shared, &places).await,
        Err(error) => log::error!("Metrics are not served at {}: {error}", path.display()),
    }
}

/// Waits until the address exists: those of networks may come after the daemon.
async fn at_address(address: SocketAddr, shared: Arc<Shared>, places: Arc<Semaphore>) {
    let mut is_told = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) if !is_told => {
                is_told = true;
                let why = why_not(&error);
                log::error!("Cannot serve metrics at {address} yet: {why}");
            }
            Err(_) => {}
        }
        sleep(shared.limits.again).await;
    };
    let address = listener.local_addr().unwrap_or(address);
    log::info!("Metrics are served at http://{address}/metrics");
    if !address.ip().is_loopback() {
        log::warn!("Any machine that reaches {address} may read the metrics");
    }
    accept_all(&listener, &shared, &places).await;
}

/// Why an address could not be bound, with the remedy where the unit forbids networks.
fn why_not(error: &io::Error) -> String {
    if error.raw_os_error() == Some(libc::EAFNOSUPPORT) {
        return "the unit cprtd.service forbids network access; add 'RestrictAddressFamilies=AF_INET AF_INET6' to its \
                [Service] by 'systemctl edit cprtd', and restart it"
            .to_owned();
    }
    error.to_string()
}

/// What clients connect to.
trait Listens {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listens for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Listens for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

async fn accept_all(listener: &impl Listens, shared: &Arc<Shared>, places: &Arc<Semaphore>) {
    while let Ok(place) = Arc::clone(places).acquire_owned().await {
        match listener.next().await {
            Ok(stream) => {
                let shared = Arc::clone(shared);
                tokio::spawn(async move {
                    serve(stream, &shared).await;
                    drop(place);
                });
            }
            Err(error) => {
                log::warn!("Accepting a collector of metrics: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, shared: &Shared) {
    let head = timeout(shared.limits.to_ask, read_head(&mut stream)).await;
    let (response, is_whole) = match head {
        Ok(Ok(Some(Ok(request)))) => {
            let text = shared.text(request.format).await;
            (request.answered(text), true)
        }
        Ok(Ok(Some(Err(refused)))) => (refused, false),
        // A client that is slow, gone or has nothing to ask.
        _ => return,
    };
    let given = async {
        stream.write_all(&response.bytes()).await?;
        stream.shutdown().await?;
        if !is_whole {
            // If it closed with bytes unread, the kernel would take the response back.
            let mut rest = [0; 1024];
            while stream.read(&mut rest).await? > 0 {}
        }
        io::Result::Ok(())
    };
    // It may have gone meanwhile.
    let _ = timeout(shared.limits.to_take, given).await;
}

/// The request, or why there is none; `None` if the client closes before.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Head>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(head) = http::head(&bytes) {
            return Ok(Some(head));
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
}

impl Shared {
    /// The text; an error is a sentence.
    async fn text(&self, format: Format) -> Result<String, String> {
        let collect = Arc::clone(&self.collect);
        let collecting = Arc::clone(&self.collecting);
        let collected = async {
            // Given back when it is done, even if no client waits any more.
            let turn = collecting.acquire_owned().await;
            let done = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                collect(format)
            });
            done.await
        };
        match timeout(self.limits.to_collect, collected).await {
            Ok(Ok(Ok(text))) => Ok(text),
            Ok(Ok(Err(error))) => Err(crate::error::chain(&error)),
            // It panicked, which has been reported.
            Ok(Err(_)) => Err("Collecting the metrics failed".to_owned()),
            Err(_) => Err(format!(
                "Collecting the metrics took longer than {} s",
                self.limits.to_collect.as_secs()
            )),
        }
    }
}

#[cfg(test)]
mod tests;
