//! The policy's side: safe wrappers of the host's services, C wrappers of the policy's callbacks.

use std::any::Any;
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::callbacks::raw;
use super::waker::{Waker, line};
use super::{
    ABI_VERSION, ENTRY_FILE, LIST_RECURSIVE, POLICY_SIZE_V1, ppc_entry, ppc_event, ppc_file,
    ppc_host, ppc_io, ppc_memory, ppc_policy, ppc_report, ppc_setting, ppc_sink, size,
};
use crate::{
    Callbacks, Configure, Entry, Error, Event, Evict, Features, FileId, FileInfo, Io, Kinds, Level,
    Memory, Policy, Prefetch, Report, Result, Settings, Xpu,
};

const _: () = assert!(size::<ppc_policy>() == POLICY_SIZE_V1);

/// The host's services for a policy, during a callback.
#[derive(Clone, Copy)]
pub struct Host<'a> {
    raw: &'a ppc_host,
    waker: &'a Waker,
}

impl fmt::Debug for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("abi_version", &self.raw.abi_version)
            .field("features", &self.features())
            .finish_non_exhaustive()
    }
}

impl<'a> Host<'a> {
    /// # Safety
    ///
    /// It is one, at least of our version, and outlives the result.
    unsafe fn new(raw: *const ppc_host, waker: &'a Waker) -> Self {
        // SAFETY: as the caller promises.
        let raw = unsafe { &*raw };
        Self { raw, waker }
    }

    fn plan(&self, sink: *mut ppc_sink) -> Plan<'a> {
        Plan {
            host: *self,
            sink,
            full: false,
        }
    }

    /// The services that the policy's own threads may call.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The features of this mount.
    #[must_use]
    pub fn features(&self) -> Features {
        Features(self.raw.features)
    }

    /// How long a callback may take, if there is a limit.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.raw.deadline_ns)).filter(|deadline| !deadline.is_zero())
    }

    /// Logs a line, without the characters that C cannot represent.
    pub fn log(&self, level: Level, message: impl fmt::Display) {
        let line = line(&message);
        // SAFETY: the host is valid during the callback, as are its own ctx and our string.
        unsafe { (self.raw.log)(self.raw.ctx, level as u32, line.as_ptr()) }
    }

    /// Opens a file, which no event needs to have named; its id is valid until [`Host::close`].
    ///
    /// # Errors
    ///
    /// There is no such regular file, or it cannot be opened.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<FileId> {
        let path = c_path(path.as_ref())?;
        let mut file = 0;
        // SAFETY: as in log(); file outlives the call.
        let rc = unsafe { (self.raw.open_file)(self.raw.ctx, path.as_ptr(), &raw mut file) };
        check("open_file", rc.into()).map(|_| FileId(file))
    }

    /// Gives back an id from [`Host::open`]. Loads of its file that still wait may be left out.
    ///
    /// # Errors
    ///
    /// [`Host::open`] returned no such id.
    pub fn close(&self, file: FileId) -> Result<()> {
        // SAFETY: as in log().
        let rc = unsafe { (self.raw.close_file)(self.raw.ctx, file.0) };
        check("close_file", rc.into()).map(drop)
    }

    /// Size and identity of a file.
    ///
    /// # Errors
    ///
    /// The id is gone.
    pub fn info(&self, file: FileId) -> Result<FileInfo> {
        let mut info = ppc_file {
            struct_size: size::<ppc_file>(),
            ..ppc_file::default()
        };
        // SAFETY: as in log(); info says its size and outlives the call.
        let rc = unsafe { (self.raw.file_info)(self.raw.ctx, file.0, &raw mut info) };
        check("file_info", rc.into())?;
        Ok(FileInfo {
            size: info.size,
            device: info.device,
            inode: info.inode,
            mtime_ns: info.mtime_ns,
        })
    }

    /// The path of a file, from the root of the mount.
    ///
    /// # Errors
    ///
    /// The id is gone, or the file no longer has a name.
    pub fn path(&self, file: FileId) -> Result<PathBuf> {
        let mut buf = vec![0u8; 4096];
        let at = buf.as_mut_ptr().cast::<c_char>();
        // SAFETY: as in log(); the size is that of buf.
        let rc = unsafe { (self.raw.file_path)(self.raw.ctx, file.0, at, buf.len() as u64) };
        buf.truncate(check("file_path", rc)?);
        Ok(PathBuf::from(OsString::from_vec(buf)))
    }

    /// The entries of a directory, in byte order of their paths; all below it if `recursive`.
    ///
    /// # Errors
    ///
    /// There is no such directory.
    pub fn list(&self, directory: impl AsRef<Path>, recursive: bool) -> Result<Vec<Entry>> {
        let path = c_path(directory.as_ref())?;
        let flags = if recursive { LIST_RECURSIVE } else { 0 };
        let mut entries = Vec::<Entry>::new();
        let arg = (&raw mut entries).cast();
        // SAFETY: as in log(); collect() gets entries as its arg, only during the call.
        let rc = unsafe { (self.raw.list)(self.raw.ctx, path.as_ptr(), flags, Some(collect), arg) };
        check("list", rc.into()).map(|_| entries)
    }

    /// Copies bytes of a file, without causing an event; returns how many. For headers, not for weights.
    ///
    /// # Errors
    ///
    /// The id is gone, or its device fails.
    pub fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let at = buf.as_mut_ptr().cast();
        // SAFETY: as in log(); the size is that of buf.
        let rc = unsafe { (self.raw.read)(self.raw.ctx, file.0, offset, at, buf.len() as u64) };
        Ok(check("read", rc)?.min(buf.len()))
    }

    /// How many bytes of a range are cached.
    ///
    /// # Errors
    ///
    /// The id is gone.
    pub fn resident(&self, file: FileId, offset: u64, length: u64) -> Result<u64> {
        let mut cached = 0;
        let raw = self.raw;
        // SAFETY: as in log(); cached outlives the call.
        let rc = unsafe { (raw.resident)(raw.ctx, file.0, offset, length, &raw mut cached) };
        check("resident", rc.into()).map(|_| cached)
    }

    /// The state of memory.
    ///
    /// # Errors
    ///
    /// The host does not know it.
    pub fn memory(&self) -> Result<Memory> {
        let mut memory = ppc_memory {
            struct_size: size::<ppc_memory>(),
            ..ppc_memory::default()
        };
        // SAFETY: as in log(); memory says its size and outlives the call.
        let rc = unsafe { (self.raw.memory)(self.raw.ctx, &raw mut memory) };
        check("memory", rc.into())?;
        Ok(Memory {
            limit: memory.limit,
            used: memory.used,
            threshold: memory.threshold,
            available: memory.available,
            group: memory.group,
        })
    }

    /// The accelerator that a process works on, if it is known yet.
    #[must_use]
    pub fn process_xpu(&self, process: u32) -> Option<Xpu> {
        // SAFETY: as in log().
        let rc = unsafe { (self.raw.process_xpu)(self.raw.ctx, process) };
        u16::try_from(rc).ok().map(Xpu)
    }

    /// The monotonic clock, in ns.
    #[must_use]
    pub fn now(&self) -> u64 {
        // SAFETY: as in log().
        unsafe { (self.raw.now)(self.raw.ctx) }
    }

    /// Selects the events from now on; [`Kind::Progress`](crate::Kind::Progress) comes once per `progress_bytes`.
    ///
    /// # Errors
    ///
    /// This mount does not have one of the kinds; nothing has changed.
    pub fn want(&self, kinds: impl Into<Kinds>, progress_bytes: u64) -> Result<()> {
        // SAFETY: as in log().
        let rc = unsafe { (self.raw.want)(self.raw.ctx, kinds.into().bits(), progress_bytes) };
        check("want", rc.into()).map(drop)
    }

    /// Has prefetch called without an event, not before this time has passed.
    ///
    /// # Errors
    ///
    /// The host has no timer.
    pub fn wake(&self, after: Duration) -> Result<()> {
        let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: as in log().
        let rc = unsafe { (self.raw.wake)(self.raw.ctx, after) };
        check("wake", rc.into()).map(drop)
    }

    /// Tells what became of a load.
    ///
    /// # Errors
    ///
    /// It has no service, or parts that are more than the whole (`EINVAL`).
    pub fn report(&self, report: &Report) -> Result<()> {
        let service = line(&report.service);
        let raw = ppc_report {
            struct_size: size::<ppc_report>(),
            reserved: 0,
            service: service.as_ptr(),
            asked: report.asked,
            used: report.used,
            late: report.late,
            unread: report.unread,
            own: report.own,
            waiting_ns: report.waiting_ns,
            loading_ns: report.loading_ns,
            held_ns: report.held_ns,
            reading_ns: report.reading_ns,
            resting_ns: report.resting_ns,
            whole_ns: report.whole_ns,
        };
        // SAFETY: as in log(); the report says its size, and outlives the call with its string.
        let rc = unsafe { (self.raw.report)(self.raw.ctx, &raw const raw) };
        check("report", rc.into()).map(drop)
    }
}

/// Where a callback puts the I/Os that it names.
pub struct Plan<'a> {
    host: Host<'a>,
    sink: *mut ppc_sink,
    full: bool,
}

impl fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").finish_non_exhaustive()
    }
}

impl Plan<'_> {
    /// Names an I/O. If the plan is full, the I/O is left out; see [`Plan::is_full`].
    ///
    /// # Errors
    ///
    /// Its range is empty or reaches beyond 2^63 - 1, or a flag is of another operation (`EINVAL`).
    pub fn add(&mut self, io: Io) -> Result<()> {
        let (raw, io) = (self.host.raw, ppc_io::from(&io));
        // SAFETY: host and sink are valid during the callback, which a Plan does not outlive.
        let rc = unsafe { (raw.add)(raw.ctx, self.sink, &raw const io) };
        self.full |= rc == -libc::ENOSPC;
        if self.full {
            return Ok(());
        }
        check("add", rc.into()).map(drop)
    }

    /// Loads all of a file, or of every file below a directory, in order of their paths. One that
    /// does not open is logged and left out.
    ///
    /// # Errors
    ///
    /// There is nothing at this path.
    pub fn add_all(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let (host, path) = (self.host, path.as_ref());
        if !path.as_os_str().is_empty()
            && let Ok(file) = host.open(path)
        {
            return self.add(Io::load(file, ..));
        }
        let entries = host.list(path, true)?;
        for entry in entries
            .iter()
            .filter(|entry| entry.size.is_some_and(|size| size > 0))
        {
            match host.open(&entry.path) {
                Ok(file) => self.add(Io::load(file, ..))?,
                Err(error) => {
                    host.log(
                        Level::Warn,
                        format_args!("{}: {error}", entry.path.display()),
                    );
                }
            }
            if self.is_full() {
                host.log(
                    Level::Warn,
                    "the plan names too many files; the rest is skipped",
                );
                break;
            }
        }
        Ok(())
    }

    /// Whether the host takes no more I/Os; the I/Os taken before count.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.full
    }
}

/// The instance, which the host was given as self.
struct Live<P> {
    host: *const ppc_host,
    policy: P,
    waker: Waker,
    /// It panicked, so its state is unknown.
    broken: bool,
}

impl ppc_policy {
    /// The callbacks of a policy in Rust.
    #[must_use]
    pub const fn of<P: Callbacks>() -> Self {
        Self {
            struct_size: size::<Self>(),
            abi_version: ABI_VERSION,
            name: P::NAME.as_ptr(),
            version: P::VERSION.as_ptr(),
            description: P::DESCRIPTION.as_ptr(),
            needs: P::NEEDS.0,
            init: Some(on_init::<P>),
            exit: Some(on_exit::<P>),
            prefetch: raw(P::PREFETCH),
            evict: raw(P::EVICT),
            configure: raw(P::CONFIGURE),
        }
    }
}

unsafe extern "C" fn on_init<P: Policy>(
    host: *const ppc_host,
    mut settings: *const ppc_setting,
    sink: *mut ppc_sink,
    instance: *mut *mut c_void,
) -> c_int {
    // SAFETY: the host hands over itself; its size is looked at before anything behind it is.
    if host.is_null() || unsafe { (*host).struct_size } < size::<ppc_host>() {
        return -libc::EPROTO;
    }
    let waker = Waker::new(host);
    // SAFETY: valid until exit has returned, and large enough.
    let services = unsafe { Host::new(host, &waker) };
    let mut pairs = Vec::new();
    // SAFETY: the array is there, or NULL, and ends with a key of NULL.
    while let Some(setting) = unsafe { settings.as_ref() }.filter(|pair| !pair.key.is_null()) {
        // SAFETY: both are strings until we return.
        pairs.push(unsafe { (text(setting.key), text(setting.value)) });
        // SAFETY: this was not the last.
        settings = unsafe { settings.add(1) };
    }
    let made = guard(services, "init", || {
        let mut settings = Settings::new(pairs);
        let mut plan = services.plan(sink);
        let policy = P::init(&services, &mut settings, &mut plan)?;
        settings.finish().map(|()| policy)
    });
    match made {
        Ok(policy) => {
            let live = Live {
                host,
                policy,
                waker,
                broken: false,
            };
            // SAFETY: the host gives room for one pointer.
            unsafe { *instance = Box::into_raw(Box::new(live)).cast() };
            0
        }
        Err(Failure { errno, .. }) => {
            waker.shut();
            -errno
        }
    }
}

unsafe extern "C" fn on_exit<P: Policy>(instance: *mut c_void) -> c_int {
    // SAFETY: on_init made this pointer, and this is its last callback.
    let live = unsafe { Box::from_raw(instance.cast::<Live<P>>()) };
    let Live {
        host,
        policy,
        waker,
        broken,
    } = *live;
    // SAFETY: the host is valid until we return.
    let host = unsafe { Host::new(host, &waker) };
    let done = guard(host, "exit", || {
        if broken {
            drop(policy);
            return Ok(());
        }
        policy.exit(&host)
    });
    waker.shut();
    done.map_or_else(|failure| -failure.errno, |()| 0)
}

pub(super) unsafe extern "C" fn on_prefetch<P: Prefetch>(
    instance: *mut c_void,
    event: *const ppc_event,
    sink: *mut ppc_sink,
) -> c_int {
    // SAFETY: the arguments are those of the contract.
    unsafe { advise::<P>(instance, event, sink, "prefetch", P::prefetch) }
}

pub(super) unsafe extern "C" fn on_evict<P: Evict>(
    instance: *mut c_void,
    event: *const ppc_event,
    sink: *mut ppc_sink,
) -> c_int {
    // SAFETY: the arguments are those of the contract.
    unsafe { advise::<P>(instance, event, sink, "evict", P::evict) }
}

pub(super) unsafe extern "C" fn on_configure<P: Configure>(
    instance: *mut c_void,
    key: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: both are strings until we return.
    let pair = unsafe { (text(key), text(value)) };
    // SAFETY: instance is what on_init made.
    unsafe {
        call::<P>(instance, "configure", |policy, host| {
            let mut settings = Settings::new([pair]);
            policy.configure(host, &mut settings)?;
            settings.finish()
        })
    }
}

type Advising<P> = fn(&mut P, &Host<'_>, Option<&Event>, &mut Plan<'_>) -> Result<()>;

/// # Safety
///
/// The arguments are those of the contract.
unsafe fn advise<P: Policy>(
    instance: *mut c_void,
    event: *const ppc_event,
    sink: *mut ppc_sink,
    name: &'static str,
    callback: Advising<P>,
) -> c_int {
    // SAFETY: NULL or an event, no shorter than the one of our version.
    let event = match unsafe { event.as_ref() }.map(ppc_event::typed) {
        // A kind of a later version, which this policy cannot have asked for.
        Some(None) => return 0,
        Some(known) => known,
        None => None,
    };
    // SAFETY: instance is what on_init made.
    unsafe {
        call::<P>(instance, name, |policy, host| {
            callback(policy, host, event.as_ref(), &mut host.plan(sink))
        })
    }
}

/// # Safety
///
/// `instance` is what [`on_init`] made of the same `P`, and no other callback is running.
unsafe fn call<P: Policy>(
    instance: *mut c_void,
    name: &'static str,
    callback: impl FnOnce(&mut P, &Host<'_>) -> Result<()>,
) -> c_int {
    // SAFETY: as the caller promises.
    let live = unsafe { &mut *instance.cast::<Live<P>>() };
    if live.broken {
        return -libc::EIO;
    }
    // SAFETY: the host is valid until exit has returned.
    let host = unsafe { Host::new(live.host, &live.waker) };
    match guard(host, name, || callback(&mut live.policy, &host)) {
        Ok(()) => 0,
        Err(Failure { errno, panicked }) => {
            live.broken = panicked;
            -errno
        }
    }
}

struct Failure {
    errno: c_int,
    panicked: bool,
}

/// Nothing unwinds from here: a failure is logged and becomes an errno.
fn guard<T>(
    host: Host<'_>,
    name: &'static str,
    callback: impl FnOnce() -> Result<T>,
) -> Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(callback)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            host.log(Level::Error, format_args!("{name}: {error}"));
            let errno = error.errno();
            let errno = if errno > 0 { errno } else { libc::EIO };
            Err(Failure {
                errno,
                panicked: false,
            })
        }
        Err(payload) => {
            host.log(
                Level::Error,
                format_args!("{name}: panic: {}", said(&*payload)),
            );
            // Dropping it may panic again.
            std::mem::forget(payload);
            Err(Failure {
                errno: libc::EIO,
                panicked: true,
            })
        }
    }
}

fn said(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref().copied())
        .unwrap_or("no message")
}

unsafe extern "C" fn collect(arg: *mut c_void, entry: *const ppc_entry) -> c_int {
    // SAFETY: list() hands us its vector, the host an entry.
    let (entries, entry) = unsafe { (&mut *arg.cast::<Vec<Entry>>(), &*entry) };
    // SAFETY: a string until we return.
    let path = unsafe { CStr::from_ptr(entry.path) };
    entries.push(Entry {
        path: PathBuf::from(OsString::from_vec(path.to_bytes().to_vec())),
        size: (entry.r#type == ENTRY_FILE).then_some(entry.size),
    });
    0
}

/// # Safety
///
/// It is a string.
unsafe fn text(string: *const c_char) -> String {
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(string) }
        .to_string_lossy()
        .into_owned()
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::Nul(path.to_string_lossy().into_owned()))
}

pub(super) fn check(service: &'static str, rc: i64) -> Result<usize> {
    usize::try_from(rc).map_err(|_| Error::Host {
        service,
        errno: i32::try_from(-rc).unwrap_or(libc::EIO),
    })
}
