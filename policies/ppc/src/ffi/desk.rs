//! The host's services as C sees them: `struct ppc_host`, and where callbacks put their ranges.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::mem::zeroed;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::embed::Services;
use super::{
    ABI_VERSION, ENTRY_DIRECTORY, ENTRY_FILE, LIST_RECURSIVE, Visit, ppc_entry, ppc_file, ppc_host,
    ppc_io, ppc_memory, ppc_report, ppc_sink, size,
};
use crate::{Error, FileId, Io, Kinds, Report, Result};

/// What services look like from C.
pub(super) struct Desk {
    pub(super) raw: ppc_host,
    services: Arc<dyn Services>,
}

pub(super) struct Sink {
    pub(super) ios: Vec<Io>,
    pub(super) limit: usize,
}

impl Desk {
    pub(super) fn new(services: Arc<dyn Services>) -> NonNull<Self> {
        let deadline = services.deadline().unwrap_or_default();
        let raw = ppc_host {
            struct_size: size::<ppc_host>(),
            abi_version: ABI_VERSION,
            features: services.features().0,
            deadline_ns: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
            ctx: ptr::null_mut(),
            log,
            add,
            open_file,
            close_file,
            file_info,
            file_path,
            list,
            read,
            resident,
            memory,
            process_xpu,
            now,
            want,
            wake,
            report,
        };
        let desk = Box::into_raw(Box::new(Self { raw, services }));
        // SAFETY: it comes from a Box, and the pointer has not left this function.
        unsafe {
            (*desk).raw.ctx = desk.cast();
            NonNull::new_unchecked(desk)
        }
    }
}

/// Has services do something, whatever they do.
///
/// # Safety
///
/// `ctx` is that of a live desk.
unsafe fn serve<T: TryInto<i64>>(
    ctx: *mut c_void,
    work: impl FnOnce(&dyn Services) -> Result<T>,
) -> i64 {
    // SAFETY: as the caller promises. A shared reference, as several threads may be here.
    let services = unsafe { &*(*ctx.cast::<Desk>()).services };
    match catch_unwind(AssertUnwindSafe(|| work(services))) {
        Ok(Ok(value)) => value.try_into().unwrap_or(-i64::from(libc::EOVERFLOW)),
        Ok(Err(error)) => -i64::from(error.errno()),
        Err(_) => -i64::from(libc::EIO),
    }
}

/// What fits into an int already.
#[allow(
    clippy::cast_possible_truncation,
    reason = "errnos and u16 are what goes in"
)]
fn int(rc: i64) -> c_int {
    rc as c_int
}

/// Writes as much of a structure as its receiver, who has set its size, knows of.
///
/// # Safety
///
/// `to` has as many bytes as it says in its first field.
unsafe fn fill<T>(to: *mut T, value: &T) -> Result<i64> {
    let skip = size_of::<u32>();
    // SAFETY: the first field of all structures is struct_size.
    let room = unsafe { to.cast::<u32>().read() } as usize;
    let bytes = room.min(size_of::<T>());
    if bytes < 2 * skip {
        return Err(Error::Errno(libc::EINVAL));
    }
    // SAFETY: both are at least so long; the receiver's size stays as it is.
    unsafe {
        let from = ptr::from_ref(value).cast::<u8>().add(skip);
        ptr::copy_nonoverlapping(from, to.cast::<u8>().add(skip), bytes - skip);
    }
    Ok(0)
}

unsafe extern "C" fn log(ctx: *mut c_void, level: u32, message: *const c_char) {
    // SAFETY: a string during the call, says the contract.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    // SAFETY: as is ctx.
    unsafe {
        serve(ctx, |services| {
            services.log(level, &message);
            Ok(0)
        })
    };
}

/// More than any version will have: a larger size is invalid.
const MOST_BYTES: usize = 4096;

/// Our copy of a structure of another version's: fields that it lacks are zero, and what it has beyond
/// ours must be.
///
/// # Safety
///
/// `from` has as many bytes as it says in its first field, and all fields of `T` may be zero.
unsafe fn take<T: Copy>(from: *const T, least: usize) -> Result<T, c_int> {
    // SAFETY: the first field of all structures is struct_size.
    let bytes = unsafe { from.cast::<u32>().read_unaligned() } as usize;
    if bytes < least {
        return Err(libc::EINVAL);
    }
    if bytes > MOST_BYTES {
        return Err(libc::E2BIG);
    }
    let own = size_of::<T>().min(bytes);
    // SAFETY: as the caller promises.
    let (known, rest) = unsafe { slice::from_raw_parts(from.cast::<u8>(), bytes) }.split_at(own);
    if rest.iter().any(|&byte| byte != 0) {
        return Err(libc::E2BIG);
    }
    // SAFETY: as the caller promises.
    let mut copy: T = unsafe { zeroed() };
    // SAFETY: the known part is at most as long as this structure, which no other code refers to.
    unsafe {
        ptr::copy_nonoverlapping(known.as_ptr(), (&raw mut copy).cast(), own);
    }
    Ok(copy)
}

unsafe extern "C" fn add(_: *mut c_void, sink: *mut ppc_sink, io: *const ppc_io) -> c_int {
    // SAFETY: an I/O says its size first, and is plain numbers.
    let io = match unsafe { take(io, ppc_io::LEAST) } {
        Ok(io) => io,
        Err(errno) => return -errno,
    };
    // SAFETY: the sink is the one that the running callback was given.
    let sink = unsafe { &mut *sink.cast::<Sink>() };
    match io.typed() {
        None => -libc::EINVAL,
        Some(_) if sink.ios.len() >= sink.limit => -libc::ENOSPC,
        Some(io) => {
            sink.ios.push(io);
            0
        }
    }
}

/// # Safety
///
/// It is a string for as long as the result is used.
unsafe fn path<'a>(path: *const c_char) -> &'a Path {
    // SAFETY: as the caller promises.
    Path::new(OsStr::from_bytes(
        unsafe { CStr::from_ptr(path) }.to_bytes(),
    ))
}

unsafe extern "C" fn open_file(ctx: *mut c_void, name: *const c_char, file: *mut u64) -> c_int {
    // SAFETY: a ctx, a string and room for an id.
    int(unsafe {
        serve(ctx, |services| {
            *file = services.open(path(name))?.0;
            Ok(0)
        })
    })
}

unsafe extern "C" fn close_file(ctx: *mut c_void, file: u64) -> c_int {
    // SAFETY: a ctx.
    int(unsafe { serve(ctx, |services| services.close(FileId(file)).map(|()| 0)) })
}

unsafe extern "C" fn file_info(ctx: *mut c_void, file: u64, info: *mut ppc_file) -> c_int {
    // SAFETY: a ctx and a structure that says its size.
    int(unsafe {
        serve(ctx, |services| {
            let known = services.info(FileId(file))?;
            let own = ppc_file {
                size: known.size,
                device: known.device,
                inode: known.inode,
                mtime_ns: known.mtime_ns,
                ..ppc_file::default()
            };
            fill(info, &own)
        })
    })
}

unsafe extern "C" fn file_path(ctx: *mut c_void, file: u64, buf: *mut c_char, size: u64) -> i64 {
    // SAFETY: a ctx, and a buffer of that size, which path and NUL are checked against.
    unsafe {
        serve(ctx, |services| {
            let path = services.path(FileId(file))?;
            let bytes = path.as_os_str().as_bytes();
            if bytes.len() as u64 >= size {
                return Err(Error::Errno(libc::ENAMETOOLONG));
            }
            ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), bytes.len());
            *buf.add(bytes.len()) = 0;
            Ok(bytes.len() as u64)
        })
    }
}

unsafe extern "C" fn list(
    ctx: *mut c_void,
    directory: *const c_char,
    flags: u32,
    visit: Option<Visit>,
    arg: *mut c_void,
) -> c_int {
    let Some(visit) = visit.filter(|_| flags & !LIST_RECURSIVE == 0) else {
        return -libc::EINVAL;
    };
    // SAFETY: a ctx and a string; visit and arg belong together.
    int(unsafe {
        serve(ctx, |services| {
            let mut entries = services.list(path(directory), flags & LIST_RECURSIVE != 0)?;
            entries.sort_unstable_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
            for entry in entries {
                // No name in a file system has a NUL.
                let name = CString::new(entry.path.as_os_str().as_bytes()).unwrap_or_default();
                let seen = ppc_entry {
                    struct_size: size::<ppc_entry>(),
                    r#type: entry.size.map_or(ENTRY_DIRECTORY, |_| ENTRY_FILE),
                    size: entry.size.unwrap_or(0),
                    path: name.as_ptr(),
                };
                let rc = visit(arg, &raw const seen);
                if rc != 0 {
                    return Ok(rc);
                }
            }
            Ok(0)
        })
    })
}

unsafe extern "C" fn read(
    ctx: *mut c_void,
    file: u64,
    offset: u64,
    buf: *mut c_void,
    size: u64,
) -> i64 {
    // SAFETY: a ctx; what is copied is no longer than the buffer, which need not be filled before.
    unsafe {
        serve(ctx, |services| {
            let size = usize::try_from(size).map_err(|_| Error::Errno(libc::EINVAL))?;
            let mut own = vec![0; size.min(1 << 24)];
            let bytes = services
                .read(FileId(file), offset, &mut own)?
                .min(own.len());
            ptr::copy_nonoverlapping(own.as_ptr(), buf.cast(), bytes);
            Ok(bytes as u64)
        })
    }
}

unsafe extern "C" fn resident(
    ctx: *mut c_void,
    file: u64,
    offset: u64,
    length: u64,
    cached: *mut u64,
) -> c_int {
    // SAFETY: a ctx and room for a number.
    int(unsafe {
        serve(ctx, |services| {
            *cached = services.resident(FileId(file), offset, length)?;
            Ok(0)
        })
    })
}

unsafe extern "C" fn memory(ctx: *mut c_void, memory: *mut ppc_memory) -> c_int {
    // SAFETY: a ctx and a structure that says its size.
    int(unsafe {
        serve(ctx, |services| {
            let known = services.memory()?;
            let own = ppc_memory {
                limit: known.limit,
                used: known.used,
                threshold: known.threshold,
                available: known.available,
                group: known.group,
                ..ppc_memory::default()
            };
            fill(memory, &own)
        })
    })
}

unsafe extern "C" fn process_xpu(ctx: *mut c_void, tgid: u32) -> c_int {
    // SAFETY: a ctx.
    int(unsafe { serve(ctx, |services| services.process_xpu(tgid).map(|xpu| xpu.0)) })
}

unsafe extern "C" fn now(ctx: *mut c_void) -> u64 {
    // SAFETY: a ctx.
    u64::try_from(unsafe { serve(ctx, |services| Ok(services.now())) }).unwrap_or(0)
}

unsafe extern "C" fn want(ctx: *mut c_void, kinds: u32, progress_bytes: u64) -> c_int {
    let kinds = Kinds::from_bits(kinds);
    // SAFETY: a ctx.
    int(unsafe {
        serve(ctx, |services| {
            services.want(kinds, progress_bytes).map(|()| 0)
        })
    })
}

unsafe extern "C" fn wake(ctx: *mut c_void, after_ns: u64) -> c_int {
    let after = Duration::from_nanos(after_ns);
    // SAFETY: a ctx.
    int(unsafe { serve(ctx, |services| services.wake(after).map(|()| 0)) })
}

unsafe extern "C" fn report(ctx: *mut c_void, report: *const ppc_report) -> c_int {
    // SAFETY: a report says its size first, and is plain numbers and a pointer, which may be NULL.
    let raw = match unsafe { take(report, size::<ppc_report>() as usize) } {
        Ok(raw) => raw,
        Err(errno) => return -errno,
    };
    if raw.service.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: a string during the call, says the contract.
    let service = unsafe { CStr::from_ptr(raw.service) }.to_string_lossy();
    let report = Report {
        service: service.into_owned(),
        asked: raw.asked,
        used: raw.used,
        late: raw.late,
        unread: raw.unread,
        own: raw.own,
        waiting_ns: raw.waiting_ns,
        loading_ns: raw.loading_ns,
        held_ns: raw.held_ns,
        reading_ns: raw.reading_ns,
        resting_ns: raw.resting_ns,
        whole_ns: raw.whole_ns,
    };
    if !report.is_sound() {
        return -libc::EINVAL;
    }
    // SAFETY: a ctx.
    int(unsafe { serve(ctx, |services| services.report(&report).map(|()| 0)) })
}
