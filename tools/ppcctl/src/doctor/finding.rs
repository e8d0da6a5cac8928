//! Findings: each is a sentence with a severity, and how to fix it.

use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// It works, but less well than it could.
    Warning,
    /// It does not work, or there is nothing to gain.
    Problem,
}

impl Severity {
    /// The name, as in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// The subjects of findings, in the order in which they are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Group {
    /// The backend that would be used, and why no better one.
    Backend,
    /// The contents of the directory.
    Files,
    /// The file system that the directory is on.
    FileSystem,
    /// The device that files are read from.
    Device,
    /// The memory that the page cache may use.
    Memory,
    /// NUMA nodes and accelerators.
    Machine,
    /// The features of the kernel.
    Kernel,
    /// The privileges of the caller.
    Privileges,
}

impl Group {
    /// The heading shown to people.
    pub(crate) fn title(self) -> &'static str {
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

/// A single finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The subject.
    pub(crate) group: Group,
    /// A stable identifier of the finding, for programs.
    pub(crate) code: &'static str,
    /// The severity.
    pub(crate) severity: Severity,
    /// A sentence.
    pub(crate) text: String,
    /// How to fix it, if it can be fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
}

impl Finding {
    pub(super) fn new(
        group: Group,
        severity: Severity,
        code: &'static str,
        text: impl Into<String>,
    ) -> Self {
        Self {
            group,
            code,
            severity,
            text: text.into(),
            remedy: None,
        }
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}
