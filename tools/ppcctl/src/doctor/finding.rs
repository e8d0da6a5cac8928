//! What was found: one sentence each, how bad it is, and what to do about it.

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Severity {
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
    pub(crate) fn name(self) -> &'static str {
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
pub(crate) enum Group {
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

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// What it is about.
    pub(crate) group: Group,
    /// Which finding it is, for programs; stays as it is from version to version.
    pub(crate) code: &'static str,
    /// How bad it is.
    pub(crate) severity: Severity,
    /// A sentence.
    pub(crate) text: String,
    /// What to do about it, if there is something.
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
