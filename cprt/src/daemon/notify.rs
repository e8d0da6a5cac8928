//! Reports the daemon's state to the service manager, as by `sd_notify(3)`: without that, units ordered after the
//! daemon start before there is a socket.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use crate::sys;

/// Where the manager listens, if one does.
#[derive(Debug)]
pub(super) struct Notify(Option<(UnixDatagram, SocketAddr)>);

impl Notify {
    pub(super) fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
            return Self(None);
        };
        match Self::to(name.as_bytes()) {
            Ok(notify) => notify,
            Err(error) => {
                log::warn!("The service manager's socket {}: {error}", name.display());
                Self(None)
            }
        }
    }

    /// A name that begins with `@` is an abstract one.
    fn to(name: &[u8]) -> io::Result<Self> {
        let address = match name.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(Path::new(std::ffi::OsStr::from_bytes(name)))?,
        };
        Ok(Self(Some((UnixDatagram::unbound()?, address))))
    }

    fn say(&self, what: &str) {
        if let Some((socket, address)) = &self.0
            && let Err(error) = socket.send_to_addr(what.as_bytes(), address)
        {
            log::warn!("Notifying the service manager: {error}");
        }
    }

    /// The daemon answers requests.
    pub(super) fn ready(&self) {
        self.say("READY=1\nSTATUS=Answering requests");
    }

    /// The daemon reloads its configuration; [`Self::ready`] ends that.
    pub(super) fn reloading(&self) {
        let now = sys::monotonic_ns() / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
    }

    /// The daemon is ending its workers.
    pub(super) fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=Ending policies");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(by: &UnixDatagram, told: impl Fn(&Notify), name: &[u8]) -> String {
        told(&Notify::to(name).expect("an address"));
        let mut bytes = [0; 256];
        let length = by.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn the_manager_hears_it_at_either_kind_of_address() {
        let folder = test_support::Folder::new("notify");
        let path = folder.path().join("socket");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        let text = heard(&manager, Notify::ready, path.as_os_str().as_bytes());
        assert!(text.starts_with("READY=1\n"), "{text}");
        let name = format!("cprt-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let manager = UnixDatagram::bind_addr(&address).expect("a socket");
        let at = format!("@{name}");
        let text = heard(&manager, Notify::reloading, at.as_bytes());
        let (_, time) = text
            .split_once("RELOADING=1\nMONOTONIC_USEC=")
            .expect("both");
        assert!(time.parse::<u64>().expect("a time") > 0);
        let text = heard(&manager, Notify::stopping, at.as_bytes());
        assert!(text.contains("STOPPING=1"), "{text}");
        // Without a manager there is no socket to write to.
        Notify(None).ready();
    }
}
