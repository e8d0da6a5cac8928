//! The state that a restarted daemon needs: which mount has which policy, and which files to keep. Each is one JSON
//! file, replaced by rename, so that it is always complete.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::protocol::Settings;
use crate::worker::messages::BackendSource;
use crate::{Error, Result};

/// A policy and the mount it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Registration {
    /// Includes the N of `/dev/rfsN`: another number is another mount, even at the same path.
    pub(super) source: BackendSource,
    pub(super) library: PathBuf,
    #[serde(default)]
    pub(super) settings: Settings,
    #[serde(default)]
    pub(super) cgroup: Option<PathBuf>,
}

/// By mount.
pub(super) type Registrations = BTreeMap<PathBuf, Registration>;

/// What was saved; nothing, if there is no such file. `remedy` is what to do if it is damaged.
pub(super) fn read<T: DeserializeOwned + Default>(path: &Path, remedy: &str) -> Result<T> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(T::default()),
        Err(source) => {
            return Err(Error::Read {
                path: path.to_owned(),
                source,
            });
        }
    };
    serde_json::from_slice(&text).map_err(|error| Error::Config {
        path: path.to_owned(),
        problem: format!("{error}; remove it, and {remedy}"),
    })
}

/// Replaces the file.
pub(super) fn write(path: &Path, what: &impl Serialize) -> Result<()> {
    let failed = |source| Error::Write {
        path: path.to_owned(),
        source,
    };
    let text =
        serde_json::to_vec_pretty(what).map_err(|error| failed(std::io::Error::other(error)))?;
    let new = path.with_extension("new");
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()));
    written
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_state_is_read_back_and_garbage_is_rejected() {
        let path = std::env::temp_dir().join(format!("cprt-state-{}.json", std::process::id()));
        let registration = Registration {
            source: BackendSource::Module { device: 3 },
            library: "/usr/lib/ppc/shift.so".into(),
            settings: Settings::from([("length".into(), "4096".into())]),
            cgroup: None,
        };
        let all = Registrations::from([("/mnt".into(), registration)]);
        write(&path, &all).expect("to write");
        let read = |path: &Path| read::<Registrations>(path, "register the policies again");
        assert_eq!(read(&path).expect("to read"), all);
        std::fs::write(&path, b"{\"/mnt\": 3}").expect("to write");
        let error = read(&path).expect_err("garbage").to_string();
        assert!(error.contains("remove it"), "{error}");
        std::fs::remove_file(&path).expect("to remove");
        assert!(read(&path).expect("none").is_empty());
    }
}
