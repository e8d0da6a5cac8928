//! All unsafe code: `ppc.h` in Rust, field by field, and the calls across it.
//!
//! This file mirrors the structures; `tests/layout.rs` compares them with the C compiler's view.
//! `guest`, `callbacks` and `waker` are the policy's side, `embed` and `desk` the host's.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use crate::{Event, FileId, Io, IoFlags, Kind, Op, Xpu};

#[doc(hidden)]
pub mod callbacks;
mod desk;
pub(crate) mod embed;
pub(crate) mod guest;
pub(crate) mod waker;

/// The version of the header that this crate mirrors.
pub const ABI_VERSION: u32 = 2;
/// Lower bound on the size of a policy, version 1's.
pub const POLICY_SIZE_V1: u32 = 80;
/// `PPC_EV_MMAP`
pub const EV_MMAP: u32 = 1 << 0;
/// `PPC_EV_DIRECT`
pub const EV_DIRECT: u32 = 1 << 1;
/// `PPC_IO_NEAR`; in Rust it is [`Io::xpu`](crate::Io::xpu).
pub const IO_NEAR: u32 = 1 << 2;
/// `PPC_ENTRY_FILE`
pub const ENTRY_FILE: u32 = 1;
/// `PPC_ENTRY_DIRECTORY`
pub const ENTRY_DIRECTORY: u32 = 2;
/// `PPC_LIST_RECURSIVE`
pub const LIST_RECURSIVE: u32 = 1 << 0;

/// The size that a structure of the contract says it has.
#[allow(clippy::cast_possible_truncation, reason = "the largest has 144 bytes")]
#[must_use]
pub const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// `struct ppc_event`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented in ppc.h")]
pub struct ppc_event {
    pub struct_size: u32,
    pub kind: u32,
    pub flags: u32,
    pub tgid: u32,
    pub file: u64,
    pub offset: u64,
    pub length: u64,
    pub time_ns: u64,
    pub count: u64,
    pub tid: u32,
    pub cpu: u32,
}

/// `struct ppc_io`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented in ppc.h")]
pub struct ppc_io {
    pub struct_size: u32,
    pub op: u32,
    pub flags: u32,
    pub priority: i32,
    pub file: u64,
    pub offset: u64,
    pub length: u64,
    pub xpu: u32,
    pub tgid: u32,
}

/// `struct ppc_setting`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented in ppc.h")]
pub struct ppc_setting {
    pub key: *const c_char,
    pub value: *const c_char,
}

/// `struct ppc_file`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "documented in ppc.h")]
pub struct ppc_file {
    pub struct_size: u32,
    pub reserved: u32,
    pub size: u64,
    pub device: u64,
    pub inode: u64,
    pub mtime_ns: i64,
}

/// `struct ppc_entry`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented in ppc.h")]
pub struct ppc_entry {
    pub struct_size: u32,
    pub r#type: u32,
    pub size: u64,
    pub path: *const c_char,
}

/// `struct ppc_memory`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "documented in ppc.h")]
pub struct ppc_memory {
    pub struct_size: u32,
    pub reserved: u32,
    pub limit: u64,
    pub used: u64,
    pub threshold: u64,
    pub available: u64,
    pub group: u64,
}

/// `struct ppc_report`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented in ppc.h")]
pub struct ppc_report {
    pub struct_size: u32,
    pub reserved: u32,
    pub service: *const c_char,
    pub asked: u64,
    pub used: u64,
    pub late: u64,
    pub unread: u64,
    pub own: u64,
    pub waiting_ns: u64,
    pub loading_ns: u64,
    pub held_ns: u64,
    pub reading_ns: u64,
    pub resting_ns: u64,
    pub whole_ns: u64,
}

/// `struct ppc_sink`, which only the host looks into.
#[repr(C)]
#[derive(Debug)]
pub struct ppc_sink {
    _opaque: [u8; 0],
}

/// What `list` calls for each entry.
pub type Visit = unsafe extern "C" fn(arg: *mut c_void, entry: *const ppc_entry) -> c_int;
type Id = u64;

/// `struct ppc_host`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[rustfmt::skip]
#[allow(missing_docs, reason = "documented in ppc.h")]
pub struct ppc_host {
    pub struct_size: u32,
    pub abi_version: u32,
    pub features: u64,
    pub deadline_ns: u64,
    pub ctx: *mut c_void,
    pub log: unsafe extern "C" fn(ctx: *mut c_void, level: u32, message: *const c_char),
    pub add: unsafe extern "C" fn(ctx: *mut c_void, sink: *mut ppc_sink, io: *const ppc_io) -> c_int,
    pub open_file: unsafe extern "C" fn(ctx: *mut c_void, path: *const c_char, file: *mut Id) -> c_int,
    pub close_file: unsafe extern "C" fn(ctx: *mut c_void, file: Id) -> c_int,
    pub file_info: unsafe extern "C" fn(ctx: *mut c_void, file: Id, info: *mut ppc_file) -> c_int,
    pub file_path: unsafe extern "C" fn(ctx: *mut c_void, file: Id, buf: *mut c_char, size: u64) -> i64,
    pub list: unsafe extern "C" fn(ctx: *mut c_void, path: *const c_char, flags: u32, visit: Option<Visit>, arg: *mut c_void) -> c_int,
    pub read: unsafe extern "C" fn(ctx: *mut c_void, file: Id, offset: u64, buf: *mut c_void, size: u64) -> i64,
    pub resident: unsafe extern "C" fn(ctx: *mut c_void, file: Id, offset: u64, length: u64, cached: *mut u64) -> c_int,
    pub memory: unsafe extern "C" fn(ctx: *mut c_void, memory: *mut ppc_memory) -> c_int,
    pub process_xpu: unsafe extern "C" fn(ctx: *mut c_void, tgid: u32) -> c_int,
    pub now: unsafe extern "C" fn(ctx: *mut c_void) -> u64,
    pub want: unsafe extern "C" fn(ctx: *mut c_void, kinds: u32, progress_bytes: u64) -> c_int,
    pub wake: unsafe extern "C" fn(ctx: *mut c_void, after_ns: u64) -> c_int,
    pub report: unsafe extern "C" fn(ctx: *mut c_void, report: *const ppc_report) -> c_int,
}

/// A callback that names I/Os.
pub type Advise = unsafe extern "C" fn(
    instance: *mut c_void,
    event: *const ppc_event,
    sink: *mut ppc_sink,
) -> c_int;

/// A callback that changes a setting.
pub type Set =
    unsafe extern "C" fn(instance: *mut c_void, key: *const c_char, value: *const c_char) -> c_int;

/// `struct ppc_policy`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[rustfmt::skip]
#[allow(missing_docs, reason = "documented in ppc.h")]
pub struct ppc_policy {
    pub struct_size: u32,
    pub abi_version: u32,
    pub name: *const c_char,
    pub version: *const c_char,
    pub description: *const c_char,
    pub needs: u64,
    pub init: Option<unsafe extern "C" fn(host: *const ppc_host, settings: *const ppc_setting, sink: *mut ppc_sink, instance: *mut *mut c_void) -> c_int>,
    pub exit: Option<unsafe extern "C" fn(instance: *mut c_void) -> c_int>,
    pub prefetch: Option<Advise>,
    pub evict: Option<Advise>,
    pub configure: Option<Set>,
}

// SAFETY: a policy is a constant; its pointers are to strings and functions that never change.
unsafe impl Sync for ppc_policy {}
// SAFETY: for the same reason.
unsafe impl Send for ppc_policy {}

impl From<&Event> for ppc_event {
    fn from(event: &Event) -> Self {
        let mmap = if event.mmap { EV_MMAP } else { 0 };
        let direct = if event.direct { EV_DIRECT } else { 0 };
        Self {
            struct_size: size::<Self>(),
            kind: event.kind.as_raw(),
            flags: mmap | direct,
            tgid: event.process,
            file: event.file.0,
            offset: event.offset,
            length: event.length,
            time_ns: event.time_ns,
            count: event.count,
            tid: event.thread,
            cpu: event.cpu,
        }
    }
}

impl ppc_event {
    /// `None` for kinds of a later version.
    pub(crate) fn typed(&self) -> Option<Event> {
        Some(Event {
            kind: Kind::from_raw(self.kind)?,
            file: FileId(self.file),
            offset: self.offset,
            length: self.length,
            time_ns: self.time_ns,
            count: self.count,
            process: self.tgid,
            thread: self.tid,
            cpu: self.cpu,
            mmap: self.flags & EV_MMAP != 0,
            direct: self.flags & EV_DIRECT != 0,
        })
    }
}

impl From<&Io> for ppc_io {
    fn from(io: &Io) -> Self {
        let near = if io.xpu.is_some() { IO_NEAR } else { 0 };
        Self {
            struct_size: size::<Self>(),
            op: io.op.as_raw(),
            flags: io.flags.bits() | near,
            priority: io.priority,
            file: io.file.0,
            offset: io.offset,
            length: io.length,
            xpu: io.xpu.map_or(0, |xpu| xpu.0.into()),
            tgid: io.process.unwrap_or(0),
        }
    }
}

impl ppc_io {
    /// No policy's is shorter: it ends with its length at least.
    pub(crate) const LEAST: usize = offset_of!(Self, xpu);

    /// `None` for what the contract forbids.
    pub(crate) fn typed(&self) -> Option<Io> {
        let op = Op::from_raw(self.op)?;
        let near = op == Op::Load && self.flags & IO_NEAR != 0;
        let flags = self.flags & !if near { IO_NEAR } else { 0 };
        let known = flags & !IoFlags::of(op).bits() == 0;
        let xpu = if near {
            Some(Xpu(u16::try_from(self.xpu).ok()?))
        } else {
            None
        };
        let end = self.offset.checked_add(self.length)?;
        (known && self.length > 0 && i64::try_from(end).is_ok()).then_some(Io {
            op,
            file: FileId(self.file),
            offset: self.offset,
            length: self.length,
            flags: IoFlags::from_bits(flags),
            xpu,
            priority: self.priority,
            process: Some(self.tgid).filter(|&process| process != 0),
        })
    }
}
