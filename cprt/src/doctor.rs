//! What stands between a model's directory and fast loads, and what to do about it.
//!
//! Two halves with plain data between them: `probe` looks at the directory and the machine and judges
//! nothing, `Facts` is what it found, and `examine` makes sentences of that and looks at nothing.
//! So a broken machine of any kind is a few lines in a test.
//!
//! What is told goes by the backend that would be used: that tracepoints are out of reach is only
//! worth knowing where the module is loaded, and costs something where there is nothing better than
//! FUSE.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::topology::Topology;
use crate::{Result, choice};

mod examine;
mod facts;
mod probe;
#[cfg(test)]
mod tests;

use facts::Facts;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// It works, and less well than it could.
    Warning,
    /// It does not work, or there is nothing to gain.
    Problem,
}

impl Severity {
    /// As in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// What it is about, in the order in which it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Which is used, and why no better one.
    Backend,
    /// What is in the directory.
    Files,
    /// Where the directory is.
    FileSystem,
    /// What is read from.
    Device,
    /// What may be cached.
    Memory,
    /// Nodes and accelerators.
    Machine,
    /// What the kernel has.
    Kernel,
    /// What the caller may do.
    Privileges,
}

impl Group {
    /// For people.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Backend => "Backend",
            Self::Files => "Files",
            Self::FileSystem => "File system",
            Self::Device => "Device",
            Self::Memory => "Memory",
            Self::Machine => "NUMA and accelerators",
            Self::Kernel => "Kernel",
            Self::Privileges => "Privileges",
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub group: Group,
    /// Which finding it is, for programs; stays as it is from version to version.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// A sentence.
    pub text: String,
    /// What to do about it, if there is something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    fn new(group: Group, severity: Severity, code: &'static str, text: impl Into<String>) -> Self {
        Self {
            group,
            code,
            severity,
            text: text.into(),
            remedy: None,
        }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// All that was found.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// What was looked at, without links.
    #[serde(serialize_with = "lossy")]
    pub directory: PathBuf,
    /// What would be used, if anything.
    pub backend: Option<&'static str>,
    /// Bytes in its files and in those that links lead to.
    pub bytes: u64,
    /// The worst of the findings.
    pub severity: Severity,
    /// Group by group.
    pub findings: Vec<Finding>,
}

/// A path may be no text, and is told all the same.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// Looks at a directory and at the machine, on behalf of the caller and with the caller's rights.
/// `topology` tells the machine's, if it can: looking for it is for a process of its own.
///
/// # Errors
///
/// There is no such directory, or the way to it is closed.
pub fn diagnose(
    directory: &Path,
    topology: impl FnOnce() -> Option<Topology>,
) -> Result<Diagnosis> {
    let facts = probe::look(&probe::Roots::default(), directory, topology)?;
    Ok(Diagnosis::of(&facts))
}

impl Diagnosis {
    fn of(facts: &Facts) -> Self {
        let findings = examine::examine(facts);
        let severity = findings.iter().map(|finding| finding.severity).max();
        Self {
            directory: facts.directory.clone(),
            backend: examine::chosen(facts).map(choice::Kind::name),
            bytes: facts.files.model(),
            severity: severity.unwrap_or(Severity::Ok),
            findings,
        }
    }
}
