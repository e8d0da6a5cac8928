//! Which backend a directory gets.
//!
//! The best that works is taken: the module costs readers nothing and can do most, `observe` leaves
//! the directory as it is, `fuse` works for everybody.

use std::path::Path;

use nix::unistd::{AccessFlags, eaccess, geteuid};

use crate::mounts;
use crate::sys::tracefs::Tracefs;

/// What can be behind a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// rfs.ko.
    Module,
    /// The kernel's tracepoints, on the plain directory.
    Observe,
    /// A mirror through FUSE.
    Fuse,
}

impl Kind {
    /// As everywhere that a backend is named.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Module => "module",
            Self::Observe => "observe",
            Self::Fuse => "fuse",
        }
    }
}

/// A backend, and what would become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which one.
    pub kind: Kind,
    /// Whether it would work.
    pub verdict: Verdict,
}

/// Whether a backend would work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It would.
    Usable {
        /// What it cannot do that it could elsewhere, a sentence each.
        limits: Vec<String>,
    },
    /// It would not.
    Unusable {
        /// What is in the way, as a phrase.
        why: String,
        /// What would help, as a phrase that begins with a verb.
        remedy: Option<String>,
    },
}

/// All of them for a directory, the best first; the first that is usable is taken.
#[must_use]
pub fn candidates(dir: &Path) -> Vec<Candidate> {
    let of = |kind, verdict| Candidate { kind, verdict };
    vec![
        of(Kind::Module, module(dir)),
        of(Kind::Observe, observe()),
        of(Kind::Fuse, fuse()),
    ]
}

fn usable() -> Verdict {
    Verdict::Usable { limits: Vec::new() }
}

fn unusable(why: &str, remedy: &str) -> Verdict {
    Verdict::Unusable {
        why: why.to_owned(),
        remedy: Some(remedy.to_owned()),
    }
}

fn module(dir: &Path) -> Verdict {
    match mounts::at(dir) {
        Ok(Some(_)) => usable(),
        _ => unusable(
            "no rfs is mounted there",
            "mount it, as in 'mount -t rfs DIR DIR'",
        ),
    }
}

fn observe() -> Verdict {
    match Tracefs::open().and_then(|tracefs| tracefs.read("filemap", "enable")) {
        Ok(_) if geteuid().is_root() => usable(),
        Ok(_) => unusable("it is for root", "run as root"),
        Err(error) => unusable(
            &format!("the kernel's tracepoints cannot be read: {error}"),
            "run as root, outside of a container",
        ),
    }
}

fn fuse() -> Verdict {
    match eaccess("/dev/fuse", AccessFlags::F_OK) {
        Ok(()) => usable(),
        Err(error) => unusable(&format!("/dev/fuse: {error}"), "load it: 'modprobe fuse'"),
    }
}
