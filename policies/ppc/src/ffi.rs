//! The room of unsafe code: `ppc.h` in Rust, field by field, and what crosses it.
//!
//! This file mirrors the structures and is compared with the C compiler's idea of them by
//! `tests/layout.rs`. `guest` and `waker` are the policy's side, `embed` and `desk` the host's.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;

use crate::{Event, FileId, Io, Kind, Xpu};

mod desk;
pub(crate) mod embed;
pub(crate) mod guest;
pub(crate) mod waker;

/// The version of the header that this crate mirrors.
pub const ABI_VERSION: u32 = 1;
/// No older policy is shorter.
pub const POLICY_SIZE_V1: u32 = 88;
/// `PPC_EV_MMAP`
pub const EV_MMAP: u32 = 1 << 0;
/// `PPC_EV_DIRECT`
pub const EV_DIRECT: u32 = 1 << 1;
/// `PPC_IO_LARGE`
pub const IO_LARGE: u32 = 1 << 0;
/// `PPC_IO_UNMAPPED`
pub const IO_UNMAPPED: u32 = 1 << 1;
/// `PPC_IO_MORE`
pub const IO_MORE: u32 = 1 << 2;
/// `PPC_IO_DROP`
pub const IO_DROP: u32 = 1 << 3;
/// `PPC_IO_CANCEL`
pub const IO_CANCEL: u32 = 1 << 4;
/// `PPC_IO_HOLD`
pub const IO_HOLD: u32 = 1 << 5;
/// `PPC_XPU_NONE`
pub const XPU_NONE: i32 = -1;
/// `PPC_ENTRY_FILE`
pub const ENTRY_FILE: u32 = 1;
/// `PPC_ENTRY_DIRECTORY`
pub const ENTRY_DIRECTORY: u32 = 2;
/// `PPC_LIST_RECURSIVE`
pub const LIST_RECURSIVE: u32 = 1 << 0;

/// The size that a structure of the contract says it has.
#[allow(clippy::cast_possible_truncation, reason = "the largest has 168 bytes")]
#[must_use]
pub const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// `struct ppc_event`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "told in ppc.h")]
pub struct ppc_event {
    pub struct_size: u32,
    pub kind: u32,
    pub flags: u32,
    pub reserved: u32,
    pub file: u64,
    pub offset: u64,
    pub length: u64,
    pub time_ns: u64,
    pub count: u64,
    pub tgid: u32,
    pub tid: u32,
    pub cpu: u32,
    pub reserved2: u32,
}

/// `struct ppc_io`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "told in ppc.h")]
pub struct ppc_io {
    pub struct_size: u32,
    pub flags: u32,
    pub file: u64,
    pub offset: u64,
    pub length: u64,
    pub xpu: i32,
    pub priority: i32,
    pub tgid: u32,
    pub reserved: u32,
}

/// `struct ppc_setting`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "told in ppc.h")]
pub struct ppc_setting {
    pub key: *const c_char,
    pub value: *const c_char,
}

/// `struct ppc_file`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "told in ppc.h")]
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
#[allow(missing_docs, reason = "told in ppc.h")]
pub struct ppc_entry {
    pub struct_size: u32,
    pub r#type: u32,
    pub size: u64,
    pub path: *const c_char,
}

/// `struct ppc_memory`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "told in ppc.h")]
pub struct ppc_memory {
    pub struct_size: u32,
    pub reserved: u32,
    pub limit: u64,
    pub used: u64,
    pub threshold: u64,
    pub available: u64,
}

/// `struct ppc_sink`, which nobody but the host looks into.
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
#[allow(missing_docs, reason = "told in ppc.h")]
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
    pub xpus: unsafe extern "C" fn(ctx: *mut c_void) -> c_int,
    pub nodes: unsafe extern "C" fn(ctx: *mut c_void) -> c_int,
    pub xpu_node: unsafe extern "C" fn(ctx: *mut c_void, xpu: i32) -> c_int,
    pub process_xpu: unsafe extern "C" fn(ctx: *mut c_void, tgid: u32) -> c_int,
    pub now: unsafe extern "C" fn(ctx: *mut c_void) -> u64,
    pub want: unsafe extern "C" fn(ctx: *mut c_void, kinds: u32, progress_bytes: u64) -> c_int,
    pub wake: unsafe extern "C" fn(ctx: *mut c_void, after_ns: u64) -> c_int,
}

/// A callback that names ranges.
pub type Advise = unsafe extern "C" fn(
    instance: *mut c_void,
    event: *const ppc_event,
    sink: *mut ppc_sink,
) -> c_int;

/// `struct ppc_policy`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[rustfmt::skip]
#[allow(missing_docs, reason = "told in ppc.h")]
pub struct ppc_policy {
    pub struct_size: u32,
    pub abi_version: u32,
    pub name: *const c_char,
    pub version: *const c_char,
    pub description: *const c_char,
    pub needs: u64,
    pub flags: u64,
    pub init: Option<unsafe extern "C" fn(host: *const ppc_host, settings: *const ppc_setting, sink: *mut ppc_sink, instance: *mut *mut c_void) -> c_int>,
    pub exit: Option<unsafe extern "C" fn(instance: *mut c_void) -> c_int>,
    pub prefetch: Option<Advise>,
    pub evict: Option<Advise>,
    pub configure: Option<unsafe extern "C" fn(instance: *mut c_void, key: *const c_char, value: *const c_char) -> c_int>,
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
            reserved: 0,
            file: event.file.0,
            offset: event.offset,
            length: event.length,
            time_ns: event.time_ns,
            count: event.count,
            tgid: event.process,
            tid: event.thread,
            cpu: event.cpu,
            reserved2: 0,
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
        let flag = |set, flag| if set { flag } else { 0 };
        Self {
            struct_size: size::<Self>(),
            flags: flag(io.large, IO_LARGE)
                | flag(io.unmapped, IO_UNMAPPED)
                | flag(io.more, IO_MORE)
                | flag(io.drop, IO_DROP)
                | flag(io.cancel, IO_CANCEL)
                | flag(io.hold, IO_HOLD),
            file: io.file.0,
            offset: io.offset,
            length: io.length,
            xpu: io.xpu.map_or(XPU_NONE, |xpu| i32::from(xpu.0)),
            priority: io.priority,
            tgid: io.process.unwrap_or(0),
            reserved: 0,
        }
    }
}

impl ppc_io {
    /// `None` for what the contract forbids.
    pub(crate) fn typed(&self) -> Option<Io> {
        const KNOWN: u32 = IO_LARGE | IO_UNMAPPED | IO_MORE | IO_DROP | IO_CANCEL | IO_HOLD;

        let end = self.offset.checked_add(self.length)?;
        let xpu = match self.xpu {
            XPU_NONE => None,
            number => Some(Xpu(u16::try_from(number).ok()?)),
        };
        let plain = self.flags & !KNOWN == 0 && self.reserved == 0;
        (plain && self.length > 0 && i64::try_from(end).is_ok()).then_some(Io {
            file: FileId(self.file),
            offset: self.offset,
            length: self.length,
            xpu,
            priority: self.priority,
            process: Some(self.tgid).filter(|&process| process != 0),
            large: self.flags & IO_LARGE != 0,
            unmapped: self.flags & IO_UNMAPPED != 0,
            more: self.flags & IO_MORE != 0,
            drop: self.flags & IO_DROP != 0,
            cancel: self.flags & IO_CANCEL != 0,
            hold: self.flags & IO_HOLD != 0,
        })
    }
}
