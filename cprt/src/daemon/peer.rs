//! The user at the other end of the socket, and which requests that user may make.
//!
//! Members of the socket's group may register policies that root has installed, remove them and set them. But what a
//! policy is given takes effect as root: it reads and writes a path in a setting as root, a mirror covers a directory
//! for all to see, a cgroup's memory pays, a file to be kept is opened. Only root may ask for that, on the command line
//! or in the configuration.

use std::fmt;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::control::kind::BackendKind;
use crate::control::protocol::{Request, Settings};
use crate::error::{Refusal, RefusalKind};

/// Upper bound on the paths that the log names.
const MOST_TOLD: usize = 4;

/// The process at the other end, as it was when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    process: i32,
    user: u32,
    group: u32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            process,
            user,
            group,
        } = self;
        write!(f, "user {user}, group {group}, process {process}")
    }
}

impl Peer {
    /// `None` if the kernel does not report the credentials, which it always does.
    pub(super) fn of(stream: &UnixStream) -> Option<Self> {
        let credentials = getsockopt(stream, PeerCredentials).ok()?;
        Some(Self {
            process: credentials.pid(),
            user: credentials.uid(),
            group: credentials.gid(),
        })
    }

    /// Why the peer may not make this request, if it may not. `me` is the daemon's own user.
    pub(super) fn refusal(&self, request: &Request, me: u32) -> Option<Refusal> {
        if self.user == 0 || self.user == me {
            return None;
        }
        let (what, key) = match request {
            Request::RegPolicy {
                backend: Some(BackendKind::Fuse),
                ..
            } => ("A mirror over a directory".to_owned(), None),
            Request::RegPolicy {
                cgroup: Some(_), ..
            } => ("A cgroup to charge".to_owned(), None),
            Request::RegPolicy { settings, .. } | Request::Configure { settings, .. } => {
                let key = names_a_file(settings)?;
                (format!("The path in {key}"), Some(key))
            }
            Request::Keep { .. } => return Some(of_keep()),
            Request::RmPolicy { .. }
            | Request::RmKeep { .. }
            | Request::Status { .. }
            | Request::Stats { .. }
            | Request::Events { .. } => return None,
        };
        let settings = if key.is_some() { ".settings" } else { "" };
        Some(Refusal {
            kind: RefusalKind::Invalid,
            message: format!("{what} is for root only: policies run as root"),
            remedy: Some(format!(
                "have root run it, or name it in [mount.'DIRECTORY'{settings}] of /etc/cprt.toml"
            )),
        })
    }
}

/// Files are opened as root, which may open more of them than the peer, and their names are shown to all users who may
/// use the socket.
fn of_keep() -> Refusal {
    Refusal {
        kind: RefusalKind::Invalid,
        message: "Keeping files is for root only: the daemon opens them as root".to_owned(),
        remedy: Some(
            "have root run it, or name them in [keep.NAME] of /etc/cprt.toml; to load what you \
             may read once, use 'ppcctl warm'"
                .to_owned(),
        ),
    }
}

/// The first setting that may be a path.
fn names_a_file(settings: &Settings) -> Option<&str> {
    let is_path = |value: &str| value.contains('/') || value == "..";
    let found = settings.iter().find(|(_, value)| is_path(value));
    found.map(|(key, _)| key.as_str())
}

/// What a request would change, for the log; `None` if it changes nothing.
pub(super) fn change(request: &Request) -> Option<String> {
    match request {
        Request::RegPolicy { mount, library, .. } => {
            let (mount, library) = (mount.display(), library.display());
            Some(format!("register {library} for {mount}"))
        }
        Request::RmPolicy { mount } => Some(format!("remove the policy of {}", mount.display())),
        Request::Configure { mount, settings } => {
            let keys: Vec<_> = settings.keys().map(String::as_str).collect();
            Some(format!("set {} of {}", keys.join(", "), mount.display()))
        }
        Request::Keep { name, set } => {
            let paths: Vec<_> = set
                .paths
                .iter()
                .take(MOST_TOLD)
                .map(|it| it.display().to_string())
                .collect();
            Some(format!("keep {} as {name}", paths.join(", ")))
        }
        Request::RmKeep { name, .. } => Some(format!("stop keeping {name}")),
        Request::Status { .. } | Request::Stats { .. } | Request::Events { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::keep::KeepSet;

    fn register(settings: &[(&str, &str)]) -> Request {
        let pairs = settings.iter();
        Request::RegPolicy {
            mount: "/srv/models".into(),
            library: "/usr/lib/ppc/maio.so".into(),
            settings: pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            cgroup: None,
            backend: Some(BackendKind::Observe),
        }
    }

    fn of(user: u32) -> Peer {
        Peer {
            process: 7,
            user,
            group: 5,
        }
    }

    #[test]
    fn requests_that_need_root_are_refused_to_other_users() {
        let refused = |request: &Request| of(1000).refusal(request, 0).map(|it| it.message);
        assert_eq!(refused(&register(&[("length", "2 MiB")])), None);
        let paths = [("store", "/etc/cron.d"), ("store", "a/b"), ("dir", "..")];
        for path in paths {
            let request = register(&[("length", "1"), path]);
            let why = refused(&request).expect("a path");
            assert!(why.contains(path.0), "{why}");
            assert_eq!(of(0).refusal(&request, 0), None);
            assert_eq!(
                of(1000).refusal(&request, 1000),
                None,
                "a daemon of one's own"
            );
        }
        let configure = Request::Configure {
            mount: "/srv/models".into(),
            settings: Settings::from([("record".into(), "/root/.profile".into())]),
        };
        assert!(refused(&configure).is_some());
        for (cgroup, backend) in [
            (Some("/system.slice/x.service".into()), None),
            (None, Some(BackendKind::Fuse)),
        ] {
            let request = Request::RegPolicy {
                mount: "/srv/models".into(),
                library: "/usr/lib/ppc/maio.so".into(),
                settings: Settings::new(),
                cgroup,
                backend,
            };
            assert!(refused(&request).is_some(), "{request:?}");
        }
        let keep = Request::Keep {
            name: "a".into(),
            set: KeepSet {
                paths: vec!["/etc/shadow".into()],
                ..KeepSet::default()
            },
        };
        assert!(refused(&keep).is_some_and(|why| why.contains("for root only")));
        assert_eq!(of(0).refusal(&keep, 0), None);
        let (name, drop) = ("a".to_owned(), true);
        assert_eq!(refused(&Request::RmKeep { name, drop }), None);
        let mount = || "/srv/models".into();
        assert_eq!(refused(&Request::RmPolicy { mount: mount() }), None);
        assert_eq!(refused(&Request::Events { mount: mount() }), None);
    }

    #[test]
    fn peer_identity_comes_from_the_kernel() {
        let (here, _there) = UnixStream::pair().expect("a socket");
        let peer = Peer::of(&here).expect("it says");
        let own = (nix::unistd::geteuid().as_raw(), std::process::id());
        assert_eq!((peer.user, peer.process.unsigned_abs()), own);
        assert_eq!(of(3).to_string(), "user 3, group 5, process 7");
    }

    #[test]
    fn only_changing_requests_are_described_for_the_log() {
        let told = change(&register(&[])).expect("a change");
        assert_eq!(told, "register /usr/lib/ppc/maio.so for /srv/models");
        assert_eq!(change(&Request::Status { mount: None }), None);
    }
}
