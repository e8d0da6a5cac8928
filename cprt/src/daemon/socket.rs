//! `cprtd`: a registry behind a socket.
//!
//! Each connection has a thread for its one request; there are few. SIGTERM and SIGINT end the workers
//! in good order and the daemon after them; registrations stay saved for the next daemon. SIGHUP rereads the
//! services and the sets of files of the configuration.

use std::io::BufReader;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Gid, Group, Uid, chown};
use serde::Serialize;

use crate::control::config::Config;
use crate::control::metrics::{self, Format};
use crate::control::protocol::{Reply, Request, Status};
use crate::control::wire;
use crate::daemon::keep::KeptSets;
use crate::daemon::metrics::{Addresses, MetricsServer};
use crate::daemon::notify::Notify;
use crate::daemon::nri::NriPlugin;
use crate::daemon::peer::{self, Peer};
use crate::daemon::registry::{RegistrationRequest, Registry};
use crate::daemon::services::Services;
use crate::daemon::wanted;
use crate::error::{Refusal, RefusalKind};
use crate::machine::topology::Topology;
use crate::{Error, Result};

/// Upper bound on requests served at a time.
const CONNECTIONS: usize = 64;
/// How long a client may take to send its request.
const TO_ASK: Duration = Duration::from_secs(10);

/// Runs the daemon. At SIGHUP it calls `again` for the configuration, and applies its services.
///
/// # Errors
///
/// The daemon cannot begin: the socket is another daemon's, or cannot be made.
pub fn run(config: Config, again: impl Fn() -> Result<Config>) -> Result<()> {
    // Before there are other threads: they inherit the mask.
    let signals = block_signals()?;
    let notify = Notify::from_environment();
    let listener = listen(&config.socket, &config.group)?;
    if group(&config.group).is_none() {
        let name = &config.group;
        log::info!("There is no group {name}; only root may use the socket");
    }
    let of_metrics = Addresses::new(&config);
    for file in [&config.socket, &config.state] {
        make_room(file)?;
    }
    let socket = config.socket.clone();
    let topology = Topology::by_child().to_string();
    let registry = Arc::new(Registry::new(config.clone(), topology.clone()));
    registry.restore();
    let services = Arc::new(Services::new(&registry, topology)?);
    let kept = Arc::new(KeptSets::start(&config)?);
    let runtime = config.nri.socket.clone();
    services.apply(config);
    let nri = plugin(runtime, &services)?;
    let of_mounts = Arc::clone(&registry);
    spawn("mounts", move || {
        if let Err(error) = wanted::follow(&of_mounts) {
            log::error!("{}", crate::error::chain(&error));
        }
    })?;
    let served = Arc::new(Served {
        registry: Arc::clone(&registry),
        services: Arc::clone(&services),
        kept: Arc::clone(&kept),
    });
    let collected = Arc::clone(&served);
    let collect = Arc::new(move |format| collected.metrics(format));
    let metrics = MetricsServer::start(of_metrics, collect)?;
    spawn("requests", move || accept(&listener, &served))?;
    log::info!(
        "cprtd {} listens at {}",
        env!("CARGO_PKG_VERSION"),
        socket.display()
    );
    notify.ready();
    until_ended(&signals, || {
        notify.reloading();
        reload(&services, &kept, again());
        notify.ready();
    })?;
    notify.stopping();
    if let Some(metrics) = metrics {
        metrics.end();
    }
    // The next daemon may begin now, while this one ends its workers.
    let _ = std::fs::remove_file(&socket);
    if let Some(nri) = nri {
        nri.end();
    }
    services.end();
    registry.end();
    kept.end();
    Ok(())
}

/// Has the services know of containers before these run, from the runtime at this socket, if one is configured.
fn plugin(runtime: PathBuf, services: &Arc<Services>) -> Result<Option<NriPlugin>> {
    if runtime.as_os_str().is_empty() {
        return Ok(None);
    }
    let services = Arc::clone(services);
    let pass = Box::new(move |news| services.container(news));
    NriPlugin::start(runtime, pass).map(Some)
}

fn block_signals() -> Result<SigSet> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGHUP);
    let failed = |error: nix::Error| Error::System {
        doing: "Blocking signals",
        source: error.into(),
    };
    signals.thread_block().map_err(failed)?;
    Ok(signals)
}

/// Waits for a signal that ends the daemon, and reloads at each that does not.
fn until_ended(signals: &SigSet, reload: impl Fn()) -> Result<()> {
    let failed = |error: nix::Error| Error::System {
        doing: "Waiting for signals",
        source: error.into(),
    };
    loop {
        match signals.wait().map_err(failed)? {
            Signal::SIGHUP => reload(),
            signal => {
                log::info!("{signal}: ending");
                return Ok(());
            }
        }
    }
}

fn reload(services: &Services, kept: &KeptSets, config: Result<Config>) {
    match config {
        Ok(config) => {
            log::info!("The configuration has been reread; its services and kept sets apply now");
            kept.apply(&config);
            services.apply(config);
        }
        Err(error) => log::error!(
            "The services and kept sets of the earlier configuration stay in force: {}",
            crate::error::chain(&error)
        ),
    }
}

/// What requests act on.
struct Served {
    registry: Arc<Registry>,
    services: Arc<Services>,
    kept: Arc<KeptSets>,
}

impl Served {
    fn status(&self, mount: Option<&Path>) -> Result<Status> {
        let mut status = self.registry.status(mount)?;
        if mount.is_none() {
            status.services = self.services.status();
            status.kept = self.kept.status();
        }
        Ok(status)
    }

    /// The text for a collector of metrics.
    fn metrics(&self, format: Format) -> Result<String> {
        let (status, counted) = (self.status(None)?, self.registry.stats(None)?);
        Ok(metrics::text(&status, &counted, format))
    }
}

fn spawn(name: &'static str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(256 << 10)
        .spawn(run)
        .map(drop)
        .map_err(|source| Error::System {
            doing: "Starting a thread",
            source,
        })
}

/// Makes the directory for one of our files.
fn make_room(file: &Path) -> Result<()> {
    let Some(directory) = file.parent().filter(|it| !it.as_os_str().is_empty()) else {
        return Ok(());
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(|source| Error::Write {
            path: directory.to_owned(),
            source,
        })
}

fn group(name: &str) -> Option<Group> {
    Group::from_name(name).ok().flatten()
}

/// Makes a socket, for root and the group.
pub(super) fn listen(path: &Path, group: &str) -> Result<UnixListener> {
    make_room(path)?;
    let failed = |source| Error::Write {
        path: path.to_owned(),
        source,
    };
    if UnixStream::connect(path).is_ok() {
        return Err(Error::Running(path.to_owned()));
    }
    // A daemon that was killed left it behind; any other kind of file is not ours to remove.
    if std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket()) {
        std::fs::remove_file(path).map_err(failed)?;
    }
    // Clients connect only once its owner and mode are set.
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    nix::sys::stat::umask(before);
    let listener = listener.map_err(failed)?;
    let group = self::group(group);
    if Uid::effective().is_root() {
        let gid = group.as_ref().map_or(Gid::from_raw(0), |group| group.gid);
        chown(path, Some(Uid::from_raw(0)), Some(gid)).map_err(|error| failed(error.into()))?;
    }
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    Ok(listener)
}

fn accept(listener: &UnixListener, served: &Arc<Served>) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!("Accepting a connection: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if open.load(Relaxed) >= CONNECTIONS {
            let refusal = Refusal {
                kind: RefusalKind::Failed,
                message: format!("cprtd is serving {CONNECTIONS} requests already"),
                remedy: Some("try again later".into()),
            };
            let _ = wire::write_line(&mut &stream, &Reply::<()>::Error(refusal));
            continue;
        }
        let place = Place::take(&open);
        let of_request = Arc::clone(served);
        let spawned = spawn("request", move || {
            let _place = place;
            serve(&stream, &of_request);
        });
        if let Err(error) = spawned {
            log::warn!("{}", crate::error::chain(&error));
        }
    }
}

/// Counts a request as being served until it ends, by a panic too.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Relaxed);
        Self(Arc::clone(open))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn serve(stream: &UnixStream, served: &Served) {
    let registry = &served.registry;
    // This never fails on a socket.
    let _ = stream.set_read_timeout(Some(TO_ASK));
    let _ = stream.set_write_timeout(Some(TO_ASK));
    let request = match wire::read_request(&mut BufReader::new(stream)) {
        Ok(Some(request)) => request,
        Ok(None) => return,
        Err(error) => {
            let refusal = Refusal {
                kind: RefusalKind::Invalid,
                message: crate::error::chain(&error),
                remedy: None,
            };
            // The client may have hung up.
            let _ = wire::write_line(&mut &*stream, &Reply::<()>::Error(refusal));
            return;
        }
    };
    // A peer that the kernel does not name may be any user.
    let Some(peer) = Peer::of(stream) else {
        return log::error!("The kernel does not say which user sent a request");
    };
    if let Some(change) = peer::change(&request) {
        log::info!("Request to {change}, asked by {peer}");
    }
    if let Some(refusal) = peer.refusal(&request, Uid::effective().as_raw()) {
        return reply::<()>(stream, Err(refusal.into()));
    }
    match request {
        Request::RegPolicy {
            mount,
            library,
            settings,
            cgroup,
            backend,
        } => reply(
            stream,
            registry.register(RegistrationRequest {
                mount,
                library,
                settings,
                cgroup,
                backend,
            }),
        ),
        Request::RmPolicy { mount } => reply(stream, registry.remove(&mount)),
        Request::Configure { mount, settings } => {
            reply(stream, registry.configure(&mount, &settings));
        }
        Request::Keep { name, set } => reply(stream, served.kept.keep(&name, set)),
        Request::RmKeep { name, drop } => reply(stream, served.kept.remove(&name, drop)),
        Request::Status { mount } => reply(stream, served.status(mount.as_deref())),
        Request::Stats { mount } => reply(stream, registry.stats(mount.as_deref())),
        Request::Events { mount } => match registry.events(&mount) {
            Ok(events) => stream_events(stream, &events),
            Err(error) => reply::<()>(stream, Err(error)),
        },
    }
}

/// Sends events until either side closes.
fn stream_events(
    stream: &UnixStream,
    events: &std::sync::mpsc::Receiver<crate::control::protocol::EventLine>,
) {
    use std::sync::mpsc::RecvTimeoutError;

    loop {
        match events.recv_timeout(Duration::from_secs(1)) {
            Ok(event) => {
                if wire::write_line(&mut &*stream, &Reply::Ok(event)).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) if is_open(stream) => {}
            Err(_) => return,
        }
    }
}

/// Whether the client still listens. It has nothing more to say, so anything to read is the end.
fn is_open(stream: &UnixStream) -> bool {
    use std::os::fd::AsFd as _;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO) == Ok(0)
}

fn reply<T: Serialize>(stream: &UnixStream, outcome: Result<T>) {
    let reply = match outcome {
        Ok(value) => Reply::Ok(value),
        Err(error) => {
            let refusal = refusal(error);
            log::info!("Refused: {refusal}");
            Reply::Error(refusal)
        }
    };
    // The client may have gone.
    let _ = wire::write_line(&mut &*stream, &reply);
}

fn refusal(error: Error) -> Refusal {
    let kind = match &error {
        Error::Policy(_) => RefusalKind::Policy,
        Error::Cgroup { .. } => RefusalKind::Invalid,
        _ => RefusalKind::Failed,
    };
    match error {
        Error::Refused(refusal) => refusal,
        other => Refusal {
            kind,
            message: crate::error::chain(&other),
            remedy: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_panics_gives_its_place_back() {
        let open = Arc::new(AtomicUsize::new(0));
        let place = Place::take(&open);
        assert_eq!(open.load(Relaxed), 1);
        let served = std::thread::spawn(move || {
            let _place = place;
            panic!("as a bug would");
        });
        assert!(served.join().is_err());
        assert_eq!(open.load(Relaxed), 0);
    }
}
