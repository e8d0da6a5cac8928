//! Where a policy can be registered: a mount of rfs, or a directory, observed or mirrored.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::backend::select::{self, Verdict};
use crate::control::config;
use crate::control::kind::BackendKind;
use crate::control::protocol::{MountState, MountStatus};
use crate::error::{Refusal, RefusalKind};
use crate::machine::mountinfo::{self, RfsMount};
use crate::worker::messages::BackendSource;

/// A place for a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) path: PathBuf,
    pub(super) lower: PathBuf,
    pub(super) source: BackendSource,
    /// Of what is mounted there; of a directory that is observed, none if it is within a mount.
    pub(super) number: Option<u64>,
}

impl Site {
    /// What somebody means by a path. Without a backend named, only mounts of rfs are meant: a policy
    /// on a mount point where nothing is mounted would do nothing, and nobody would notice.
    pub(super) fn of(
        path: &Path,
        backend: Option<BackendKind>,
        fuse: config::FuseConfig,
    ) -> Result<Self> {
        match (mountinfo::rfs_at(path)?, backend) {
            (Some(found), None | Some(BackendKind::Module)) => Ok(found.into()),
            (Some(found), Some(kind)) => Err(Refusal {
                kind: RefusalKind::Invalid,
                message: format!("{} is a mount of rfs, not for {kind}", found.path.display()),
                remedy: Some("leave --backend out".into()),
            }
            .into()),
            (None, None | Some(BackendKind::Module)) => Err(no_mount(path).into()),
            (None, Some(kind)) => Self::directory(path, kind, fuse),
        }
    }

    fn directory(path: &Path, kind: BackendKind, fuse: config::FuseConfig) -> Result<Self> {
        let refused = |message: String, remedy: Option<String>| Refusal {
            kind: RefusalKind::NotFound,
            message,
            remedy,
        };
        let real = path
            .canonicalize()
            .map_err(|error| refused(format!("{}: {error}", path.display()), None))?;
        if !real.is_dir() {
            let message = format!("{} is no directory", real.display());
            return Err(refused(message, None).into());
        }
        if let Verdict::Unusable { why, remedy } = select::judge(kind, &real) {
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
            BackendKind::Module | BackendKind::Observe => BackendSource::Observe,
        };
        Ok(Self {
            number: mountinfo::id_at(&real),
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
                BackendSource::Observe
                | BackendSource::Start { .. }
                | BackendSource::Fuse { .. } => String::new(),
            },
            state: MountState::Native,
            reason: None,
            policy: None,
        }
    }

    /// Whether it is still what it was. A mirror is gone when its worker says so.
    pub(super) fn is_there(&self) -> bool {
        match self.source {
            BackendSource::Observe => {
                mountinfo::id_at(&self.path) == self.number && self.path.is_dir()
            }
            BackendSource::Module { .. }
            | BackendSource::Start { .. }
            | BackendSource::Fuse { .. } => true,
        }
    }
}

impl From<RfsMount> for Site {
    fn from(found: RfsMount) -> Self {
        Self {
            path: found.path,
            lower: found.lower,
            source: BackendSource::Module {
                device: found.device,
            },
            number: None,
        }
    }
}

/// The word for a source.
pub(super) const fn kind(source: &BackendSource) -> BackendKind {
    match source {
        BackendSource::Module { .. } => BackendKind::Module,
        BackendSource::Observe | BackendSource::Start { .. } => BackendKind::Observe,
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
