//! The kinds of backends, as commands, configuration files and messages name them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A kind of backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// `rfs.ko`.
    Module,
    /// The kernel's tracepoints, on the directory as it is.
    Observe,
    /// A mirror in user space.
    Fuse,
}

impl BackendKind {
    /// The best first.
    pub const ALL: [Self; 3] = [Self::Module, Self::Observe, Self::Fuse];

    /// As in options and in `ppcctl status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Module => "module",
            Self::Observe => "observe",
            Self::Fuse => "fuse",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BackendKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("no such backend: {text}; use module, observe or fuse"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_as_they_are_read() {
        for kind in BackendKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let error = "magic".parse::<BackendKind>().expect_err("there is none");
        assert!(error.contains("module, observe or fuse"), "{error}");
    }
}
