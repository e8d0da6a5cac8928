//! Where a policy can be registered: a mount of rfs, or a directory, observed or mirrored.

use std::io;
use std::path::{Path, PathBuf};

use crate::backend::select::{self, Verdict};
use crate::control::config;
use crate::control::kind::BackendKind;
use crate::control::protocol::{MountState, MountStatus};
use crate::error::{Refusal, RefusalKind};
use crate::machine::look::{self, Looked};
use crate::machine::mountinfo::{self, RfsMount};
use crate::worker::messages::BackendSource;
use crate::{Error, Result};

/// A place for a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) path: PathBuf,
    pub(super) lower: PathBuf,
    pub(super) source: BackendSource,
    /// The number of the mount that it is in: another mount at the same path is another place.
    pub(super) number: Option<u64>,
}

impl Site {
    /// The place that a path in a request names. Without a backend, it has to be a mount of rfs: a policy
    /// on a mount point where nothing is mounted would silently do nothing.
    pub(super) fn of(
        path: &Path,
        backend: Option<BackendKind>,
        fuse: config::FuseConfig,
    ) -> Result<Self> {
        if let Some(found) = mountinfo::rfs_exactly_at(path)? {
            return Self::of_rfs(found, backend);
        }
        let looked = look::at(path);
        let found = match &looked {
            Ok(looked) => mountinfo::rfs_exactly_at(&looked.real)?,
            Err(_) => None,
        };
        match (found, backend) {
            (Some(found), _) => Self::of_rfs(found, backend),
            (None, None | Some(BackendKind::Module)) => Err(no_mount(path).into()),
            (None, Some(kind)) => Self::directory(path, looked, kind, fuse),
        }
    }

    fn of_rfs(found: RfsMount, backend: Option<BackendKind>) -> Result<Self> {
        match backend {
            None | Some(BackendKind::Module) => Ok(found.into()),
            Some(_) => Err(Refusal {
                kind: RefusalKind::Invalid,
                message: format!(
                    "{} is a mount of rfs, which works only with the backend module",
                    found.path.display()
                ),
                remedy: Some("omit --backend".into()),
            }
            .into()),
        }
    }

    fn directory(
        path: &Path,
        looked: io::Result<Looked>,
        kind: BackendKind,
        fuse: config::FuseConfig,
    ) -> Result<Self> {
        let refused = |message: String, remedy: Option<String>| Refusal {
            kind: RefusalKind::NotFound,
            message,
            remedy,
        };
        let looked = match looked {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let doing = "Looking at the directory";
                return Err(Error::System {
                    doing,
                    source: error,
                });
            }
            looked => {
                looked.map_err(|error| refused(format!("{}: {error}", path.display()), None))?
            }
        };
        let real = looked.real;
        if !looked.is_directory {
            let message = format!("{} is not a directory", real.display());
            return Err(refused(message, None).into());
        }
        if let Verdict::Unusable { why, remedy } = select::judge_for_all(kind, &real) {
            let mut refusal = refused(format!("{kind} does not work here: {why}"), remedy);
            refusal.kind = RefusalKind::Failed;
            return Err(refusal.into());
        }
        let source = match kind {
            BackendKind::Fuse => BackendSource::Fuse {
                lower: real.clone(),
                options: fuse,
                others: nix::unistd::geteuid().is_root(),
            },
            BackendKind::Module | BackendKind::Observe => BackendSource::OBSERVE,
        };
        Ok(Self {
            number: mountinfo::id_around(&real),
            lower: real.clone(),
            path: real,
            source,
        })
    }

    /// As in `ppcctl status`.
    pub(super) fn native(&self) -> MountStatus {
        MountStatus {
            path: self.path.clone(),
            lower: self.lower.clone(),
            device: match self.source {
                BackendSource::Module { device } => format!("rfs{device}"),
                BackendSource::Observe { .. }
                | BackendSource::Start { .. }
                | BackendSource::Ahead { .. }
                | BackendSource::Fuse { .. } => String::new(),
            },
            state: MountState::Native,
            reason: None,
            policy: None,
        }
    }

    /// Whether another mount, or none, is there by now. This asks only the kernel's list of mounts: looking at the
    /// directory may wait for a server that never answers. The workers of other backends report this themselves.
    pub(super) fn is_another(&self) -> bool {
        self.source == BackendSource::OBSERVE && mountinfo::id_around(&self.path) != self.number
    }

    /// Whether its directory is gone, though its mount is not. This looks at the directory, which takes time.
    pub(super) fn is_removed(&self) -> bool {
        let is_gone = || match look::at(&self.path) {
            Ok(looked) => !looked.is_directory,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        self.source == BackendSource::OBSERVE && is_gone()
    }
}

impl From<RfsMount> for Site {
    fn from(found: RfsMount) -> Self {
        Self {
            number: mountinfo::id_around(&found.path),
            path: found.path,
            lower: found.lower,
            source: BackendSource::Module {
                device: found.device,
            },
        }
    }
}

/// The kind of backend of a source.
pub(super) const fn kind(source: &BackendSource) -> BackendKind {
    match source {
        BackendSource::Module { .. } => BackendKind::Module,
        BackendSource::Observe { .. }
        | BackendSource::Start { .. }
        | BackendSource::Ahead { .. } => BackendKind::Observe,
        BackendSource::Fuse { .. } => BackendKind::Fuse,
    }
}

pub(super) fn no_mount(path: &Path) -> Refusal {
    Refusal {
        kind: RefusalKind::NotFound,
        message: format!("No rfs is mounted at {}", path.display()),
        remedy: Some(format!(
            "try 'mount -t rfs DIRECTORY {}', or without the module 'ppcctl reg-policy --backend \
             observe'",
            path.display()
        )),
    }
}
