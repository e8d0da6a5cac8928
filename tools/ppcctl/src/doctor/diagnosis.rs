//! What keeps loads from a model's directory from being fast, and how to fix it.
//!
//! Two halves with plain data between them: `probe` looks at the directory and the machine without
//! judging, `Facts` is what it found, and `examine` turns facts into findings without looking at
//! anything. So a test describes any broken machine in a few lines.
//!
//! The severity of a finding depends on the backend that would be used: inaccessible tracepoints are
//! a mere note if the module is loaded, and a warning if there is nothing better than FUSE.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use cprt::Result;
use cprt::control::kind::BackendKind;
use cprt::machine::topology::Topology;

use super::facts::Facts;
use super::finding::{Finding, Severity};
use super::{examine, probe};

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Diagnosis {
    /// The directory that was examined, without links.
    #[serde(serialize_with = "lossy")]
    pub(crate) directory: PathBuf,
    /// The backend that would be used, if any.
    pub(crate) backend: Option<&'static str>,
    /// Bytes in its files and in those that links lead to.
    pub(crate) bytes: u64,
    /// The worst of the findings.
    pub(crate) severity: Severity,
    /// The findings, group by group.
    pub(crate) findings: Vec<Finding>,
}

/// Serializes a path even if it is not valid UTF-8.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// Examines a directory and the machine, with the caller's rights. `topology` returns the machine's
/// topology, if it can; it uses a separate process for that.
///
/// # Errors
///
/// There is no such directory, or it is not accessible.
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
