//! Which templates are trusted: those that belong to root, to this process's user or to the owner of the store, and
//! that are not writable by everyone. A template decides what is loaded with the privileges of its reader.

use std::fs::{self, File, FileTimes, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::super::{MAX_BYTES, TemplateError};

/// Mode bits of files that everyone may write.
const BY_ALL: u32 = 0o002;
/// How often the reading of a template is noted.
const NOTED: Duration = Duration::from_hours(24);

/// A service's folder, held open, so that it cannot be replaced.
#[derive(Debug)]
pub(super) struct TrustedFolder {
    folder: File,
    path: PathBuf,
    owner: u32,
}

impl TrustedFolder {
    /// `None` if there is none.
    pub(super) fn open(root: &Path, service: &str) -> Result<Option<Self>, TemplateError> {
        let path = root.join(service);
        let reading = TemplateError::io(&path);
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let folder = match OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&path)
        {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)) => {
                // The store itself may be no directory.
                return match path.symlink_metadata() {
                    Ok(_) => Err(untrusted(&path, "it is a link or a file, not a directory")),
                    Err(_) => Ok(None),
                };
            }
            folder => folder.map_err(&reading)?,
        };
        let owner = fs::metadata(root).map_err(&reading)?.uid();
        let metadata = folder.metadata().map_err(&reading)?;
        check(&metadata, owner, &path)?;
        Ok(Some(Self {
            folder,
            path: path.clone(),
            owner,
        }))
    }

    /// A path that leads into it, even if its own path now names something else.
    pub(super) fn within(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd()))
    }

    /// Reads a regular file of no more than [`MAX_BYTES`].
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>, TemplateError> {
        let path = self.path.join(name);
        let reading = TemplateError::io(&path);
        // A pipe would wait for its writer.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(flags);
        let file = match file.open(self.within().join(name)) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO)) => {
                return Err(TemplateError::NotAFile(path.clone()));
            }
            file => file.map_err(&reading)?,
        };
        let found = file.metadata().map_err(&reading)?;
        if !found.is_file() {
            return Err(TemplateError::NotAFile(path.clone()));
        }
        check(&found, self.owner, &path)?;
        if found.len() > MAX_BYTES as u64 {
            return Err(TemplateError::TooLarge(found.len()));
        }
        note(&file, &found);
        let mut bytes = Vec::new();
        // It may grow meanwhile.
        file.take(MAX_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(&reading)?;
        Ok(bytes)
    }
}

/// Notes that it is in use, as file systems do not always do so themselves.
fn note(file: &File, found: &Metadata) {
    let now = SystemTime::now();
    let noted = found.accessed().ok();
    let noted = noted.and_then(|then| now.duration_since(then).ok());
    if noted.is_some_and(|ago| ago > NOTED) {
        // Another node maintains a store that is read-only here.
        let _ = file.set_times(FileTimes::new().set_accessed(now));
    }
}

fn check(found: &Metadata, owner: u32, path: &Path) -> Result<(), TemplateError> {
    let this_user = nix::unistd::geteuid().as_raw();
    let why = why_not(found.uid(), found.mode(), [0, this_user, owner]);
    why.map_or(Ok(()), |why| Err(untrusted(path, why)))
}

pub(super) fn untrusted(path: &Path, why: &'static str) -> TemplateError {
    TemplateError::Untrusted {
        path: path.to_owned(),
        why,
    }
}

/// Why a file with this owner and mode is not trusted.
pub(super) fn why_not(owner: u32, mode: u32, believed: [u32; 3]) -> Option<&'static str> {
    if !believed.contains(&owner) {
        Some("it belongs to another user")
    } else if mode & BY_ALL != 0 {
        Some("everyone may write to it")
    } else {
        None
    }
}
