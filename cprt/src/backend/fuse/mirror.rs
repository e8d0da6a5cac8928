//! A directory, mirrored read-only through FUSE: for machines without rfs.ko.
//!
//! The life of a mirror: the lower directory is opened, then the mirror is mounted, perhaps over that
//! directory itself; threads answer the kernel until it is unmounted. Where the kernel can read the
//! lower files itself (passthrough, since 6.9, and for root), data never comes this way, and
//! the page cache is the lower one. Otherwise files are cached in the mount, these threads read them,
//! and each read is a miss that a [`Listener`] receives. [`Mirror::mode`] says which it is, and
//! why if it is the latter.
//!
//! When the process is killed, files that were open by passthrough stay readable; everything else
//! fails at once with ENOTCONN, until the directory is mounted again.
//!
//! # What it is not
//!
//! Set-user-ID bits and devices have no effect, `statx` reports no time of birth, and mounts within
//! the lower directory do not show. Reading through a mapping alone does not notice that a file has
//! changed below; opening it or asking for its attributes does, a second later at most.

use std::fmt;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, Notifier, Session, SessionACL};

use self::lower::Directory;
use self::serve::Server;
pub(crate) use self::shared::{Core, Listener, Mode};

mod attributes;
pub(crate) mod identity;
pub(crate) mod lower;
mod mounting;
mod serve;
pub(crate) mod shared;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod tests;

/// How long to wait for a mount's threads to notice that it is gone.
const PARTING: Duration = Duration::from_secs(1);

/// How to mirror.
#[derive(Clone, Debug)]
pub(crate) struct MirrorOptions {
    /// Use passthrough if the kernel has it.
    pub(crate) passthrough: bool,
    /// Threads that answer the kernel.
    pub(crate) threads: usize,
    /// How far the kernel reads ahead, if we may set that.
    pub(crate) readahead_kib: u64,
    /// Let users other than the one that mounts read it. An ordinary user may need `user_allow_other` in
    /// `/etc/fuse.conf` for that.
    pub(crate) others: bool,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        Self {
            passthrough: true,
            // A request carries 1 MiB and each thread reads one at a time, so with less readahead both
            // would wait for the reader.
            threads: 2,
            readahead_kib: 4096,
            others: nix::unistd::geteuid().is_root(),
        }
    }
}

/// A mount. It ends when this is dropped, or when a user unmounts it.
pub(crate) struct Mirror {
    core: Arc<Core>,
    at: PathBuf,
    device: u64,
    notifier: Notifier,
    session: Mutex<Option<BackgroundSession>>,
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror")
            .field("at", &self.at)
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}

impl Mirror {
    /// Mounts the directory `lower` at `at`, which may be the same. First unmounts what a killed mirror
    /// has left there.
    pub(crate) fn mount(
        lower: &Path,
        at: &Path,
        options: &MirrorOptions,
        listener: Option<Arc<dyn Listener>>,
    ) -> io::Result<Self> {
        mounting::clear_dead(at)?;
        let at = at.canonicalize()?;
        let name = lower.canonicalize()?;
        // Before the mount: afterwards its path may lead to the mount.
        let root = Directory::root(&name)?;
        mounting::allow_many_files();
        let depth = options.passthrough.then(|| mounting::depth(root.fd()));
        let core = Arc::new(Core::new(root, listener)?);
        let server = Server::new(Arc::clone(&core), depth);
        let session = Session::new(server, &at, &config(&name, options))?;
        let mode = mode(options.passthrough, core.offered.get().is_some(), || {
            mounting::may_pass_through(session.as_fd())
        });
        // It is set only here.
        let _ = core.mode.set(mode);
        let notifier = session.notifier();
        let session = session.spawn()?;
        let mirror = Self {
            core,
            device: mounting::device(&at)?,
            at,
            notifier,
            session: Mutex::new(Some(session)),
        };
        if let Err(error) = mounting::raise_readahead(mirror.device, options.readahead_kib) {
            log::info!("the mount keeps its default readahead: {error}");
        }
        Ok(mirror)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Where it is mounted.
    pub(crate) fn at(&self) -> &Path {
        &self.at
    }

    /// Its device number, which is that of files in it.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// How files are read.
    pub(crate) fn mode(&self) -> Mode {
        let unknown = || Mode::Plain("it is not known yet".to_owned());
        self.core.mode.get().cloned().unwrap_or_else(unknown)
    }

    /// Puts pages into the kernel's cache and drops them; never on a thread that serves the mount.
    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Ends the mount; processes that still use it can read only what is cached.
    pub(crate) fn unmount(&self) {
        let session = self
            .session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if session.is_none() || self.core.ended(Duration::ZERO) {
            return;
        }
        // That unmounts, unless a process still uses the mount.
        drop(session);
        let still = || mounting::device(&self.at).is_ok_and(|device| device == self.device);
        if !self.core.ended(Duration::ZERO)
            && still()
            && let Err(error) = mounting::detach(&self.at)
        {
            log::warn!("{} stays mounted: {error}", self.at.display());
        }
        self.core.ended(PARTING);
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.unmount();
    }
}

fn config(lower: &Path, options: &MirrorOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::DefaultPermissions,
        // A comma would begin another option.
        MountOption::FSName(lower.display().to_string().replace([',', '\\'], "_")),
        // fuser's own option for that works only with the helper.
        MountOption::CUSTOM("subtype=cprt".to_owned()),
    ];
    config.acl = if options.others {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.threads > 1 && mounting::may_open_device();
    config
}

fn mode(wanted: bool, offered: bool, permitted: impl FnOnce() -> io::Result<()>) -> Mode {
    if !wanted {
        return Mode::Plain("passthrough is off in the settings".to_owned());
    }
    if !offered {
        return Mode::Plain("the kernel has no passthrough, which came with Linux 6.9".to_owned());
    }
    match permitted() {
        Ok(()) => Mode::Passthrough,
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            Mode::Plain("passthrough requires CAP_SYS_ADMIN".to_owned())
        }
        Err(error) => Mode::Plain(format!("the kernel refuses passthrough: {error}")),
    }
}
