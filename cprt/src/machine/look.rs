//! Looks at directories in a child, so as not to wait for their servers.
//!
//! A process that asks for as little as the attributes of a directory waits until its file system answers, and cannot
//! be killed meanwhile. A daemon that looked by itself could not end while the server of a directory does not answer.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::worker::child::{ChildEnd, WorkerChild};
use crate::{Error, Result};

/// How long a file system may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Looked {
    /// The path without links.
    pub(crate) real: PathBuf,
    pub(crate) is_directory: bool,
}

/// Runs the child: reports where a path leads.
///
/// # Errors
///
/// The report cannot be written.
pub fn run(path: &Path) -> Result<()> {
    let said = match path.canonicalize() {
        Ok(real) => {
            let kind = if real.is_dir() { b"d" } else { b"o" };
            [kind, real.as_os_str().as_bytes()].concat()
        }
        Err(error) => format!("e{}", error.raw_os_error().unwrap_or(libc::EIO)).into_bytes(),
    };
    io::stdout()
        .write_all(&said)
        .map_err(|source| Error::System {
            doing: "Reporting where a path leads",
            source,
        })
}

/// Looks at a path; [`io::ErrorKind::TimedOut`] if its file system does not answer.
pub(crate) fn at(path: &Path) -> io::Result<Looked> {
    let mut child = Command::new("/proc/self/exe")
        .arg("look")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let said = child.stdout.take();
    match WorkerChild::new(child).end(PATIENCE) {
        ChildEnd::Ended(status) if status.success() => {}
        ChildEnd::Ended(status) if status.code().is_some() => {
            return Err(io::Error::other(format!(
                "the process that looked at it failed: {status}"
            )));
        }
        ChildEnd::Ended(_) | ChildEnd::Held => {
            let seconds = PATIENCE.as_secs();
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("its file system does not answer within {seconds} s"),
            ));
        }
    }
    let mut bytes = Vec::new();
    if let Some(mut said) = said {
        said.read_to_end(&mut bytes)?;
    }
    heard(&bytes)
}

/// Parses the child's report.
fn heard(bytes: &[u8]) -> io::Result<Looked> {
    let odd = || io::Error::other("the process that looked at it reported nothing");
    let (kind, rest) = bytes.split_first().ok_or_else(odd)?;
    let looked = |is_directory| Looked {
        real: OsString::from_vec(rest.to_vec()).into(),
        is_directory,
    };
    match kind {
        b'd' => Ok(looked(true)),
        b'o' => Ok(looked(false)),
        b'e' => {
            let number = std::str::from_utf8(rest)
                .ok()
                .and_then(|it| it.parse().ok());
            Err(number.map_or_else(odd, io::Error::from_raw_os_error))
        }
        _ => Err(odd()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_reports_are_parsed_and_garbage_is_rejected() {
        let at = |text: &str| heard(text.as_bytes());
        let directory = at("d/a b\n").expect("a directory");
        assert_eq!(
            (directory.real, directory.is_directory),
            ("/a b\n".into(), true)
        );
        assert!(!at("o/f").expect("a file").is_directory);
        assert_eq!(
            at("e2").expect_err("gone").raw_os_error(),
            Some(libc::ENOENT)
        );
        for odd in ["", "x", "ex"] {
            assert!(at(odd).is_err(), "{odd:?}");
        }
    }
}
