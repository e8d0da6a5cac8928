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

use cprt::Result;
use cprt::control::kind::BackendKind;
use cprt::machine::topology::Topology;

use super::facts::Facts;
use super::finding::{Finding, Severity};
use super::{examine, probe};

/// All that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Diagnosis {
    /// What was looked at, without links.
    #[serde(serialize_with = "lossy")]
    pub(crate) directory: PathBuf,
    /// What would be used, if anything.
    pub(crate) backend: Option<&'static str>,
    /// Bytes in its files and in those that links lead to.
    pub(crate) bytes: u64,
    /// The worst of the findings.
    pub(crate) severity: Severity,
    /// Group by group.
    pub(crate) findings: Vec<Finding>,
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
pub(crate) fn diagnose(
    directory: &Path,
    topology: impl FnOnce() -> Option<Topology>,
) -> Result<Diagnosis> {
    let facts = probe::look(&probe::Roots::default(), directory, topology)?;
    Ok(Diagnosis::of(&facts))
}

impl Diagnosis {
    pub(super) fn of(facts: &Facts) -> Self {
        let findings = examine::examine(facts);
        let severity = findings.iter().map(|finding| finding.severity).max();
        Self {
            directory: facts.directory.clone(),
            backend: examine::chosen(facts).map(BackendKind::name),
            bytes: facts.files.model(),
            severity: severity.unwrap_or(Severity::Ok),
            findings,
        }
    }
}
