//! The daemon's client, used by `ppcctl` and `mount.rfs`.
//!
//! Each call connects, sends one request and waits for its reply, so a [`Client`] is only the name of a
//! socket and a failed call leaves nothing behind. Each call ends, except for
//! [`Events`], where silence is the normal case.

use std::io::{self, BufReader, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use serde::de::DeserializeOwned;

use crate::control::keep::{KeepRemoved, KeepSet, KeepStatus};
use crate::control::kind::BackendKind;
use crate::control::protocol::{EventLine, MountStats, MountStatus, Request, Settings, Status};
use crate::control::wire::{read_reply, write_line};
use crate::{Error, Result};

/// How long to wait for answers that the daemon has at hand.
const PROMPT: Duration = Duration::from_secs(10);

/// How long to wait for answers that depend on a policy, whose init may look at every file of the mount.
const PATIENT: Duration = Duration::from_mins(1);

/// Talks to a daemon.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    group: String,
}

impl Client {
    /// A client of the daemon that listens at this socket. It does not connect yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            group: crate::control::config::Config::default().group,
        }
    }

    /// Sets the group whose members may use the socket, which [`Error::NoPermission`] names.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// Gives the mount this policy, instead of the one it has.
    ///
    /// # Errors
    ///
    /// [`Error::NoDaemon`], [`Error::NoPermission`], [`Error::Silent`], [`Error::Refused`], or the
    /// connection broke. All calls have these.
    pub fn reg_policy(
        &self,
        mount: &Path,
        library: &Path,
        settings: &Settings,
        cgroup: Option<&Path>,
        backend: Option<BackendKind>,
    ) -> Result<MountStatus> {
        let request = Request::RegPolicy {
            mount: mount.to_owned(),
            library: library.to_owned(),
            settings: settings.clone(),
            cgroup: cgroup.map(Path::to_owned),
            backend,
        };
        self.ask(&request, PATIENT)
    }

    /// Takes the mount's policy away.
    ///
    /// # Errors
    ///
    /// As for [`Client::reg_policy`].
    pub fn rm_policy(&self, mount: &Path) -> Result<MountStatus> {
        let mount = mount.to_owned();
        self.ask(&Request::RmPolicy { mount }, PATIENT)
    }

    /// Changes settings of the running policy, one after another.
    ///
    /// # Errors
    ///
    /// As for [`Client::reg_policy`].
    pub fn configure(&self, mount: &Path, settings: &Settings) -> Result<MountStatus> {
        let request = Request::Configure {
            mount: mount.to_owned(),
            settings: settings.clone(),
        };
        self.ask(&request, PATIENT)
    }

    /// The status of all mounts or of this one.
    ///
    /// # Errors
    ///
    /// As for [`Client::reg_policy`].
    pub fn status(&self, mount: Option<&Path>) -> Result<Status> {
        let mount = mount.map(Path::to_owned);
        self.ask(&Request::Status { mount }, PROMPT)
    }

    /// The counters of the workers of all mounts or of this one.
    ///
    /// # Errors
    ///
    /// As for [`Client::reg_policy`].
    pub fn stats(&self, mount: Option<&Path>) -> Result<Vec<MountStats>> {
        let mount = mount.map(Path::to_owned);
        self.ask(&Request::Stats { mount }, PROMPT)
    }

    /// Keeps files in the page cache while memory allows; replaces a set of that name.
    ///
    /// # Errors
    ///
    /// As for [`Client::reg_policy`].
    pub fn keep(&self, name: &str, set: &KeepSet) -> Result<KeepStatus> {
        let (name, set) = (name.to_owned(), set.clone());
        self.ask(&Request::Keep { name, set }, PROMPT)
    }

    /// Removes a set; with `drop`, what it kept leaves the page cache.
    ///
    /// # Errors
    ///
    /// As for [`Client::reg_policy`].
    pub fn rm_keep(&self, name: &str, drop: bool) -> Result<KeepRemoved> {
        let name = name.to_owned();
        self.ask(&Request::RmKeep { name, drop }, PATIENT)
    }

    /// What readers do from now on. The iterator yields a refusal as its first item.
    ///
    /// # Errors
    ///
    /// As for [`Client::reg_policy`].
    pub fn events(&self, mount: &Path) -> Result<Events> {
        let stream = self.connect()?;
        let mount = mount.to_owned();
        say(&stream, &Request::Events { mount })?;
        Ok(Events {
            from: Some(BufReader::new(stream)),
        })
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request, patience: Duration) -> Result<T> {
        let stream = self.connect()?;
        stream
            .set_read_timeout(Some(patience))
            .map_err(|source| Error::System {
                doing: "Setting the time to wait for cprtd",
                source,
            })?;
        say(&stream, request)?;
        match read_reply(&mut BufReader::new(stream)) {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(hung_up()),
            Err(Error::System { source, .. }) if timed_out(&source) => Err(silent(patience)),
            Err(Error::System { source, .. }) if source.kind() == ErrorKind::ConnectionReset => {
                Err(hung_up())
            }
            Err(error) => Err(error),
        }
    }

    fn connect(&self) -> Result<UnixStream> {
        dial(&self.socket).map_err(|source| match source.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Error::NoDaemon {
                socket: self.socket.clone(),
                source,
            },
            ErrorKind::PermissionDenied => Error::NoPermission {
                socket: self.socket.clone(),
                group: self.group.clone(),
                source,
            },
            _ if timed_out(&source) => silent(PROMPT),
            _ => Error::Read {
                path: self.socket.clone(),
                source,
            },
        })
    }
}

/// What readers do, until the daemon hangs up or it is dropped.
#[derive(Debug)]
pub struct Events {
    from: Option<BufReader<UnixStream>>,
}

impl Iterator for Events {
    type Item = Result<EventLine>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = read_reply(self.from.as_mut()?).transpose();
        // After an error it is unknown where the next line begins.
        if !matches!(next, Some(Ok(_))) {
            self.from = None;
        }
        next
    }
}

/// The connect of `std` never returns if the daemon accepts no connection; with this option set before it,
/// connect and all writes after it do not.
fn dial(path: &Path) -> io::Result<UnixStream> {
    let address = UnixAddr::new(path)?;
    let fd = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let seconds = i64::try_from(PROMPT.as_secs()).unwrap_or(i64::MAX);
    setsockopt(&fd, sockopt::SendTimeout, &TimeVal::seconds(seconds))?;
    connect(fd.as_raw_fd(), &address)?;
    Ok(UnixStream::from(fd))
}

fn say(mut stream: &UnixStream, request: &Request) -> Result<()> {
    match write_line(&mut stream, request) {
        // The daemon may have replied why before it hung up; that reply is what counts.
        Err(Error::System { source, .. }) if source.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(Error::System { source, .. }) if timed_out(&source) => Err(silent(PROMPT)),
        said => said,
    }
}

fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn silent(patience: Duration) -> Error {
    Error::Silent {
        seconds: patience.as_secs(),
    }
}

fn hung_up() -> Error {
    Error::Protocol(
        "cprtd closed the connection without an answer and may have crashed; see 'systemctl status cprtd'"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, Write as _};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::error::RefusalKind;

    /// A daemon of this name that answers all clients with these bytes and returns their requests.
    fn daemon(name: &str, answers: &[&'static str]) -> (Client, thread::JoinHandle<Vec<String>>) {
        let path = std::env::temp_dir().join(format!("cprt-client-{}-{name}", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a free name");
        let (socket, answers) = (path.clone(), answers.to_vec());
        let asked = thread::spawn(move || {
            let asked = answers.iter().map(|answer| {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut line = String::new();
                let mut from = BufReader::new(stream.try_clone().expect("another"));
                from.read_line(&mut line).expect("a request");
                stream.write_all(answer.as_bytes()).expect("it listens");
                line
            });
            let asked = asked.collect();
            std::fs::remove_file(path).expect("it was ours");
            asked
        });
        (Client::new(socket), asked)
    }

    #[test]
    fn every_client_call_sends_one_request() {
        const MOUNT: &str = "{\"ok\":{\"path\":\"/m\",\"lower\":\"/l\",\"device\":\"rfs0\",\"state\":\"running\"}}\n";
        let (client, daemon) = daemon(
            "calls",
            &[
                MOUNT,
                MOUNT,
                MOUNT,
                "{\"ok\":{\"version\":\"1\",\"pid\":2,\"uptime_s\":3,\"mounts\":[]}}\n",
                "{\"ok\":[{\"path\":\"/m\",\"policy\":\"p\",\"stats\":{\"events\":4}}]}\n",
            ],
        );
        let mount = Path::new("/m");
        let settings: Settings = [("a".to_owned(), "b".to_owned())].into();
        let done = client.reg_policy(mount, Path::new("/p.so"), &settings, None, None);
        assert_eq!(done.expect("a mount").path, mount);
        assert_eq!(client.rm_policy(mount).expect("a mount").path, mount);
        let done = client.configure(mount, &settings);
        assert_eq!(done.expect("a mount").device, "rfs0");
        assert_eq!(client.status(None).expect("a status").pid, 2);
        let stats = client.stats(Some(mount)).expect("counters");
        assert_eq!(stats[0].stats.events, 4);
        let asked = daemon.join().expect("it ends");
        assert_eq!(
            asked,
            [
                "{\"do\":\"reg-policy\",\"mount\":\"/m\",\"library\":\"/p.so\",\"settings\":{\"a\":\"b\"},\"cgroup\":null}\n",
                "{\"do\":\"rm-policy\",\"mount\":\"/m\"}\n",
                "{\"do\":\"configure\",\"mount\":\"/m\",\"settings\":{\"a\":\"b\"}}\n",
                "{\"do\":\"status\",\"mount\":null}\n",
                "{\"do\":\"stats\",\"mount\":\"/m\"}\n",
            ]
        );
    }

    #[test]
    fn event_stream_yields_events_until_an_error_or_end() {
        const EVENTS: &str = "{\"ok\":{\"kind\":\"OPEN\",\"file\":1,\"offset\":0,\"length\":0,\"time_ns\":0,\"count\":1,\"process\":1,\"thread\":1,\"cpu\":0,\"mmap\":false,\"direct\":false}}\nnonsense\n";
        let (client, daemon) = daemon(
            "events",
            &[
                EVENTS,
                "{\"error\":{\"kind\":\"not-found\",\"message\":\"No\"}}\n",
                "",
            ],
        );
        let mut events = client.events(Path::new("/m")).expect("a stream");
        let first = events.next().expect("an event").expect("an event");
        assert_eq!(first.kind, "OPEN");
        assert!(matches!(events.next(), Some(Err(Error::Protocol(_)))));
        assert!(events.next().is_none());
        let mut refused = client.events(Path::new("/m")).expect("a stream");
        match refused.next() {
            Some(Err(Error::Refused(refusal))) => assert_eq!(refusal.kind, RefusalKind::NotFound),
            other => panic!("{other:?}"),
        }
        assert_eq!(client.events(Path::new("/m")).expect("a stream").count(), 0);
        daemon.join().expect("it ends");
    }

    #[test]
    fn closed_connection_differs_from_a_missing_daemon() {
        let (client, daemon) = daemon("silent", &[""]);
        let error = client.status(None).expect_err("no answer").to_string();
        assert!(
            error.starts_with("cprtd closed the connection without an answer"),
            "{error}"
        );
        daemon.join().expect("it ends");
        assert!(matches!(client.status(None), Err(Error::NoDaemon { .. })));
    }

    #[test]
    fn a_closed_socket_names_the_group_to_join() {
        let source = ErrorKind::PermissionDenied.into();
        let error = Error::NoPermission {
            socket: "/run/cprt/control.sock".into(),
            group: "ppc".into(),
            source,
        };
        assert_eq!(
            error.to_string(),
            "Connecting to /run/cprt/control.sock: only root and the group ppc may; try 'usermod \
             -aG ppc USER' as root and a new login"
        );
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_no_missing_daemon() {
        let client = Client::new("/x".repeat(100));
        let error = client.status(None).expect_err("no such socket");
        assert!(matches!(error, Error::Read { .. }), "{error:?}");
    }
}
