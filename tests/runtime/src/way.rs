//! Ways: what is behind the mount in a test. Most tests should hold on every way.
//!
//! On ways without the module, a test's mount is a read-only bind mount of its lower directory, which
//! looks the same. Registering a policy there names the backend; the FUSE backend mounts its mirror over
//! it.

use std::env;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sys::stat::{major, minor};

use crate::mount::{lower_of, point_of};
use crate::outcome::{For as _, Outcome};
use crate::{files, outcome};

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// rfs.
    Module,
    /// The directory as it is.
    Observe,
    /// FUSE with passthrough, where the kernel has it.
    Fuse,
    /// FUSE without passthrough: the worker reads.
    Plain,
}

const VARIABLE: &str = "CPRT_WAY";

impl Way {
    pub(crate) const OTHERS: [Self; 3] = [Self::Observe, Self::Fuse, Self::Plain];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Module => "module",
            Self::Observe => "observe",
            Self::Fuse => "fuse",
            Self::Plain => "plain",
        }
    }

    /// The way of the running test.
    pub(crate) fn now() -> Self {
        let name = env::var(VARIABLE).unwrap_or_default();
        let found = Self::OTHERS.into_iter().find(|way| way.name() == name);
        found.unwrap_or(Self::Module)
    }

    /// The environment variable for the process that runs a test.
    pub(crate) const fn variable(self) -> (&'static str, &'static str) {
        (VARIABLE, self.name())
    }

    /// Arguments for `reg-policy`.
    pub(crate) const fn words(self) -> &'static [&'static str] {
        match self {
            Self::Module => &[],
            Self::Observe => &["--backend", "observe"],
            Self::Fuse | Self::Plain => &["--backend", "fuse"],
        }
    }

    /// Lines for the daemon's configuration.
    pub(crate) const fn configuration(self) -> &'static str {
        match self {
            Self::Plain => "\n[fuse]\npassthrough = false\n",
            _ => "",
        }
    }

    /// Whether files are cached in the mount, and not below.
    pub(crate) fn caches_above(self) -> bool {
        match self {
            Self::Plain => true,
            Self::Fuse => !outcome::kernel_is_at_least(6, 9),
            Self::Module | Self::Observe => false,
        }
    }
}

/// Mounts the lower directory on a path, by the way of the running test.
pub(crate) fn put(lower: &Path, path: &Path) -> Outcome {
    let nothing = None::<&str>;
    if Way::now() == Way::Module {
        return mount(Some(lower), path, Some("rfs"), MsFlags::empty(), nothing)
            .of(format_args!("mounting rfs on {}", path.display()));
    }
    let what = format!("binding {}", path.display());
    mount(Some(lower), path, nothing, MsFlags::MS_BIND, nothing).of(&what)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(nothing, path, nothing, flags, nothing).of(&what)
}

/// The path by which a lower file's cached pages are found.
pub(crate) fn view(lower: &Path) -> PathBuf {
    if !Way::now().caches_above() {
        return lower.to_owned();
    }
    let scratch = crate::case::scratch();
    let name = scratch.file_name().unwrap_or_default().to_string_lossy();
    match lower.strip_prefix(lower_of(&name)) {
        Ok(path) => point_of(&name).join(path),
        Err(_) => lower.to_owned(),
    }
}

/// A mirror has its own readahead; turns it off if the test has done so for the lower device.
pub(crate) fn settle(path: &Path) -> Outcome {
    if !Way::now().caches_above() {
        return Ok(());
    }
    let kib = files::readahead()?;
    if kib != "0" {
        return Ok(());
    }
    let device = std::os::linux::fs::MetadataExt::st_dev(&std::fs::metadata(path)?);
    let (major, minor) = (major(device), minor(device));
    let bdi = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    std::fs::write(&bdi, kib).of(&bdi)
}
