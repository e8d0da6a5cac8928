//! The host's side: a policy is copied, checked, and called with services behind it.
//!
//! A [`Table`] is the copy, an [`Instance`] one that runs. The services are any type that
//! implements [`Services`].

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::mem::zeroed;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use super::desk::{Desk, Sink};
use super::{ABI_VERSION, Advise, POLICY_SIZE_V1, ppc_event, ppc_policy, ppc_setting, size};
use crate::{
    Callbacks, Entry, Error, Event, Features, FileId, FileInfo, Io, Kinds, LoadError, Memory,
    Report, Result, Xpu,
};

const KNOWN_FEATURES: u64 = (1 << 6) - 1;

/// The services of a host for its policies. `ppc.h` describes each; any thread may call
/// `log`, `now` and `wake`.
#[allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "documented in ppc.h"
)]
pub trait Services: Send + Sync {
    fn features(&self) -> Features;
    fn deadline(&self) -> Option<Duration>;
    /// The level is a number, because a policy may make one up.
    fn log(&self, level: u32, message: &str);
    fn open(&self, path: &Path) -> Result<FileId>;
    fn close(&self, file: FileId) -> Result<()>;
    fn info(&self, file: FileId) -> Result<FileInfo>;
    fn path(&self, file: FileId) -> Result<PathBuf>;
    /// In any order.
    fn list(&self, path: &Path, recursive: bool) -> Result<Vec<Entry>>;
    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize>;
    fn resident(&self, file: FileId, offset: u64, length: u64) -> Result<u64>;
    fn memory(&self) -> Result<Memory>;
    fn process_xpu(&self, process: u32) -> Result<Xpu>;
    fn now(&self) -> u64;
    fn want(&self, kinds: Kinds, progress_bytes: u64) -> Result<()>;
    fn wake(&self, after: Duration) -> Result<()>;
    /// It is sound.
    fn report(&self, report: &Report) -> Result<()>;
}

/// A host's copy of a policy, checked; the host uses nothing else of the policy.
#[derive(Clone, Copy, Debug)]
pub struct Table(ppc_policy);

impl Table {
    /// The table of a policy in Rust.
    ///
    /// # Errors
    ///
    /// Its name is not valid.
    pub fn of<P: Callbacks>() -> Result<Self, LoadError> {
        let policy = ppc_policy::of::<P>();
        // SAFETY: its strings are constants.
        unsafe { Self::copy(&raw const policy) }
    }

    /// The table of a library. It is never closed: its code may have left threads and pointers behind.
    ///
    /// # Safety
    ///
    /// Its code runs in this process. The caller trusts it, or is a process made for it.
    ///
    /// # Errors
    ///
    /// It cannot be opened, is not a policy, or does not fit this host.
    pub unsafe fn open(library: &Path) -> Result<Self, LoadError> {
        let path = CString::new(library.as_os_str().as_bytes()).map_err(|_| LoadError::Nul)?;
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: a string and flags; running its constructors is what the caller wants.
        let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
        if handle.is_null() {
            // SAFETY: after a failure it is a string, until the next call of this thread.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(LoadError::Open(why.to_string_lossy().into_owned()));
        }
        // SAFETY: the handle is open, the name a string.
        let symbol = unsafe { libc::dlsym(handle, c"ppc_policy".as_ptr()) };
        if symbol.is_null() {
            return Err(LoadError::NoSymbol);
        }
        // SAFETY: of that name the contract knows only this type, and it stays loaded.
        unsafe { Self::copy(symbol.cast()) }
    }

    /// The table of the structure itself: the fields that both sides know are copied, the rest is zero.
    ///
    /// # Safety
    ///
    /// It has as many bytes as its `struct_size`, its strings stay valid, its callbacks keep the contract.
    ///
    /// # Errors
    ///
    /// It is newer than this host, or not sound.
    pub unsafe fn copy(policy: *const ppc_policy) -> Result<Self, LoadError> {
        // SAFETY: these two are there in every version.
        let (bytes, version) = unsafe { ((*policy).struct_size, (*policy).abi_version) };
        if version > ABI_VERSION {
            let (policy, host) = (version, ABI_VERSION);
            return Err(LoadError::Newer { policy, host });
        }
        if version == 0 || bytes < POLICY_SIZE_V1 || bytes > size::<ppc_policy>() {
            let size = bytes;
            return Err(LoadError::Damaged { version, size });
        }
        // SAFETY: all of its fields may be zero.
        let mut own: ppc_policy = unsafe { zeroed() };
        // SAFETY: ours is no shorter, as was checked, and only we have it.
        unsafe {
            let to = (&raw mut own).cast::<u8>();
            ptr::copy_nonoverlapping(policy.cast::<u8>(), to, bytes as usize);
        }
        if own.needs & !KNOWN_FEATURES != 0 {
            return Err(LoadError::UnknownNeeds(ABI_VERSION));
        }
        let table = Self(own);
        let sound = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let name = table.name().as_bytes();
        if name.is_empty() || name.len() > 64 || !name.iter().all(|&byte| sound(byte)) {
            return Err(LoadError::Name);
        }
        Ok(table)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        string(self.0.name)
    }

    /// Its version, or nothing.
    #[must_use]
    pub fn version(&self) -> &str {
        string(self.0.version)
    }

    /// Its description, or nothing.
    #[must_use]
    pub fn description(&self) -> &str {
        string(self.0.description)
    }

    /// What a mount must have.
    #[must_use]
    pub fn needs(&self) -> Features {
        Features(self.0.needs)
    }

    /// The structure, for inspection.
    #[must_use]
    pub fn raw(&self) -> &ppc_policy {
        &self.0
    }
}

/// A `Table`'s string; one that is not UTF-8 counts as none.
fn string<'a>(string: *const c_char) -> &'a str {
    if string.is_null() {
        return "";
    }
    // SAFETY: Table::copy() was promised that the strings of a policy stay.
    unsafe { CStr::from_ptr(string) }
        .to_str()
        .unwrap_or_default()
}

/// A running policy, on the thread that started it. Dropping it calls its `exit`.
pub struct Instance {
    table: Table,
    desk: NonNull<Desk>,
    /// What `init` left for the other callbacks.
    this: *mut c_void,
    limit: usize,
    live: bool,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.table.name();
        f.debug_struct("Instance")
            .field("name", &name)
            .finish_non_exhaustive()
    }
}

impl Instance {
    /// The default number of ranges that a callback may name; [`Instance::limit`] changes it.
    pub const LIMIT: usize = 1 << 16;

    /// Starts a policy; also returns the I/Os that its `init` names.
    ///
    /// # Errors
    ///
    /// The mount lacks something, or the policy refuses.
    pub fn start(
        table: Table,
        services: Arc<dyn Services>,
        settings: &[(&str, &str)],
    ) -> Result<(Self, Vec<Io>), LoadError> {
        let missing = table.0.needs & !services.features().0;
        if missing != 0 {
            return Err(LoadError::Needs(missing));
        }
        let desk = Desk::new(services);
        let limit = Self::LIMIT;
        let mut new = Self {
            table,
            desk,
            this: ptr::null_mut(),
            limit,
            live: false,
        };
        let Some(init) = table.0.init else {
            new.live = true;
            return if settings.is_empty() {
                Ok((new, Vec::new()))
            } else {
                Err(LoadError::NoSettings)
            };
        };
        let c_string = |text: &str| CString::new(text).map_err(|_| LoadError::Nul);
        let pairs = settings
            .iter()
            .map(|(key, value)| Ok((c_string(key)?, c_string(value)?)));
        let pairs = pairs.collect::<Result<Vec<_>, LoadError>>()?;
        let pointers = pairs
            .iter()
            .map(|(key, value)| (key.as_ptr(), value.as_ptr()));
        let array: Vec<_> = pointers
            .chain([(ptr::null(), ptr::null())])
            .map(|(key, value)| ppc_setting { key, value })
            .collect();
        let mut sink = Sink {
            ios: Vec::new(),
            limit,
        };
        // SAFETY: the desk lives until exit has returned, the other arguments until init has.
        let rc = unsafe {
            let host = &raw const (*desk.as_ptr()).raw;
            init(
                host,
                array.as_ptr(),
                (&raw mut sink).cast(),
                &raw mut new.this,
            )
        };
        done(rc).map_err(|error| LoadError::Init(error.errno()))?;
        new.live = true;
        Ok((new, sink.ios))
    }

    /// Sets how many ranges a callback may name.
    #[must_use]
    pub const fn limit(mut self, ios: usize) -> Self {
        self.limit = ios;
        self
    }

    /// Calls `prefetch`; `None` if the policy leaves that to the kernel.
    ///
    /// # Errors
    ///
    /// It failed; what it had named is dropped.
    pub fn prefetch(&mut self, event: Option<&Event>) -> Result<Option<Vec<Io>>> {
        self.advise(self.table.0.prefetch, event)
    }

    /// Calls `evict`; `None` if the policy leaves that to the kernel.
    ///
    /// # Errors
    ///
    /// It failed; what it had named is dropped.
    pub fn evict(&mut self, event: Option<&Event>) -> Result<Option<Vec<Io>>> {
        self.advise(self.table.0.evict, event)
    }

    /// Changes a setting.
    ///
    /// # Errors
    ///
    /// The policy refuses, or takes none while it runs (`EOPNOTSUPP`).
    pub fn configure(&mut self, key: &str, value: &str) -> Result<()> {
        let Some(configure) = self.table.0.configure else {
            return Err(Error::Errno(libc::EOPNOTSUPP));
        };
        let c_string = |text: &str| CString::new(text).map_err(|_| Error::Nul(text.to_owned()));
        let (key, value) = (c_string(key)?, c_string(value)?);
        // SAFETY: the instance is live, the strings outlive the call.
        done(unsafe { configure(self.this, key.as_ptr(), value.as_ptr()) })
    }

    /// Ends it.
    ///
    /// # Errors
    ///
    /// The policy's `exit` failed; the instance has ended anyway.
    pub fn exit(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        match self.table.0.exit {
            Some(exit) if std::mem::take(&mut self.live) => {
                // SAFETY: init has succeeded, and exit is called once: `live` is false from here on.
                done(unsafe { exit(self.this) })
            }
            _ => Ok(()),
        }
    }

    fn advise(&mut self, advise: Option<Advise>, event: Option<&Event>) -> Result<Option<Vec<Io>>> {
        let Some(advise) = advise else {
            return Ok(None);
        };
        let event = event.map(ppc_event::from);
        let event = event.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mut sink = Sink {
            ios: Vec::new(),
            limit: self.limit,
        };
        // SAFETY: the instance is live; event and sink outlive the call.
        match done(unsafe { advise(self.this, event, (&raw mut sink).cast()) }) {
            // This only repeats what add() has returned.
            Err(Error::Errno(libc::ENOSPC)) | Ok(()) => Ok(Some(sink.ios)),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Its error has no recipient left.
        let _ = self.end();
        // SAFETY: start() made it of a Box, and exit was the last to use it.
        drop(unsafe { Box::from_raw(self.desk.as_ptr()) });
    }
}

/// Callbacks return 0 or a negative errno; anything else is a fault.
fn done(rc: c_int) -> Result<()> {
    match rc {
        0 => Ok(()),
        i32::MIN | 1.. => Err(Error::Errno(libc::EINVAL)),
        errno => Err(Error::Errno(-errno)),
    }
}
