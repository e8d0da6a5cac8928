//! tracefs, the kernel's file system of tracepoints, which need not be mounted already.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use super::made;

/// The kernel's constants for creating a configured file system, and for descriptors to be closed on
/// exec.
const FSCONFIG_CMD_CREATE: libc::c_long = 6;
const FSOPEN_CLOEXEC: libc::c_long = 1;
const FSMOUNT_CLOEXEC: libc::c_long = 1;

/// The file system of the tracepoints.
#[derive(Debug)]
pub(crate) struct Tracefs {
    root: PathBuf,
    /// A private mount, if there is no other.
    _own: Option<OwnedFd>,
}

impl Tracefs {
    pub(crate) fn open() -> io::Result<Self> {
        let usual = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
        if let Some(root) = usual
            .map(Path::new)
            .iter()
            .find(|root| root.join("events").is_dir())
        {
            return Ok(Self {
                root: root.to_path_buf(),
                _own: None,
            });
        }
        let own = mount()?;
        Ok(Self {
            root: format!("/proc/self/fd/{}", own.as_raw_fd()).into(),
            _own: Some(own),
        })
    }

    /// Reads a file of a tracepoint, such as `format` of `filemap/mm_filemap_fault`.
    pub(crate) fn read(&self, point: &str, file: &str) -> io::Result<String> {
        fs::read_to_string(self.root.join("events").join(point).join(file))
    }
}

fn mount() -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads a string that ends with a NUL.
    let context =
        made(unsafe { libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), FSOPEN_CLOEXEC) })?;
    let nothing = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes no addresses, and gets none.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            nothing,
            nothing,
            0,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it takes no address.
    made(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) })
}
