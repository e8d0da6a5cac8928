//! Looking at directories without waiting for their servers: a child does it.
//!
//! Who asks for as much as the attributes of a directory waits until its file system answers, and cannot be killed
//! meanwhile. A daemon that looked by itself would not end before the server of one of its directories does.

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

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Looked {
    /// The path without links.
    pub(crate) real: PathBuf,
    pub(crate) is_directory: bool,
}

/// What the child does, which is called with a path: says where it leads.
///
/// # Errors
///
/// What it says is not heard.
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
            doing: "Saying where a path leads",
            source,
        })
}

/// Looks at a path; [`io::ErrorKind::TimedOut`] where nothing answers.
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
            return Err(io::Error::other(format!("looking at it failed: {status}")));
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

/// What the child has said.
fn heard(bytes: &[u8]) -> io::Result<Looked> {
    let odd = || io::Error::other("looking at it says nothing");
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
    fn what_is_said_is_understood() {
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
