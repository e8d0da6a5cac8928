//! Tracepoints by perf events, and the ring in memory that receives their records.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use nix::sys::mman::ProtFlags;

use super::made;
use super::shared::Shared;

const TYPE_SOFTWARE: u32 = 1;
const TYPE_TRACEPOINT: u32 = 2;
/// A software event that never happens.
const DUMMY: u64 = 9;
/// The parts of a sample: thread, time, CPU, and the tracepoint's record.
const SAMPLE: u64 = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 10;
const DISABLED: u64 = 1;
const WATERMARK: u64 = 1 << 14;
const USE_CLOCKID: u64 = 1 << 25;
const FD_CLOEXEC: libc::c_ulong = 8;

const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;
const SET_OUTPUT: libc::c_ulong = 0x2405;
const SET_FILTER: libc::c_ulong = 0x4008_2406;
const SET_BPF: libc::c_ulong = 0x4004_2408;

/// `struct perf_event_attr` in its fifth version, which every supported kernel knows.
#[repr(C)]
#[derive(Debug, Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u32,
}

/// The threads whose events count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// All threads on this CPU.
    Cpu(u32),
    /// The calling thread.
    Mine,
}

/// When the ring becomes readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakes {
    /// After every record, which costs the thread that causes it an interrupt.
    Each,
    /// When it holds this many bytes.
    Bytes(u32),
}

/// A tracepoint, disabled at first.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn open(id: u64, whose: Whose, wakes: Wakes) -> io::Result<Self> {
        Self::new(TYPE_TRACEPOINT, id, whose, wakes)
    }

    /// An event that never happens and that others may join.
    pub(crate) fn dummy(whose: Whose) -> io::Result<Self> {
        Self::new(TYPE_SOFTWARE, DUMMY, whose, Wakes::Each)
    }

    fn new(kind: u32, config: u64, whose: Whose, wakes: Wakes) -> io::Result<Self> {
        let (watermark, wakeup) = match wakes {
            Wakes::Each => (0, 1),
            Wakes::Bytes(bytes) => (WATERMARK, bytes),
        };
        let attr = Attr {
            kind,
            size: 112,
            config,
            sample_period: 1,
            sample_type: SAMPLE,
            flags: DISABLED | USE_CLOCKID | watermark,
            wakeup,
            clockid: libc::CLOCK_MONOTONIC,
            ..Attr::default()
        };
        let (pid, cpu) = match whose {
            Whose::Cpu(cpu) => (-1, libc::c_int::try_from(cpu).unwrap_or(-1)),
            Whose::Mine => (0, -1),
        };
        // SAFETY: the kernel reads the structure, which has the size that it names itself.
        made(unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                pid,
                cpu,
                -1,
                FD_CLOEXEC,
            )
        })
        .map(Self)
    }

    pub(crate) fn enable(&self, on: bool) -> io::Result<()> {
        self.command(if on { ENABLE } else { DISABLE }, 0)
    }

    /// Sends its records to the ring of the other event.
    pub(crate) fn join(&self, other: &Self) -> io::Result<()> {
        let fd = other.0.as_raw_fd();
        self.command(SET_OUTPUT, libc::c_ulong::try_from(fd).unwrap_or(0))
    }

    /// Runs a program at this tracepoint, on all CPUs, enabled or not, until the event is dropped.
    pub(crate) fn run(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let fd = program.as_raw_fd();
        self.command(SET_BPF, libc::c_ulong::try_from(fd).unwrap_or(0))
    }

    /// Sets the kernel's filter for this event; to be called only once.
    pub(crate) fn filter(&self, text: &str) -> io::Result<()> {
        let text = CString::new(text)?;
        // SAFETY: the kernel reads a string that ends with a NUL.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), SET_FILTER, text.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn command(&self, command: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
        // SAFETY: these commands take numbers and no address.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), command, argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The ring of records of an event, and of those that have joined it.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Shared,
    /// Where the records begin, and their total size: a power of two.
    base: usize,
    size: usize,
}

/// Offsets in the first page: of the kernel's write position, and of this process's read position.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

impl Ring {
    /// A ring of `size` bytes, a power of two.
    pub(crate) fn new(event: &Event, size: usize) -> io::Result<Self> {
        let base = usize::try_from(super::page_size()).unwrap_or(4096);
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        Ok(Self {
            memory: Shared::new(event.as_fd(), 0, base + size, both)?,
            base,
            size,
        })
    }

    /// Appends all records to `into`. Only one thread at a time may call it.
    pub(crate) fn take(&self, into: &mut Vec<u8>) {
        let head = self.memory.number(HEAD).load(Ordering::Acquire);
        let tail = self.memory.number(TAIL).load(Ordering::Relaxed);
        let length = usize::try_from(head.wrapping_sub(tail))
            .unwrap_or(0)
            .min(self.size);
        let at = usize::try_from(tail % self.size as u64).unwrap_or(0);
        let first = length.min(self.size - at);
        self.memory.copy(self.base + at, first, into);
        self.memory.copy(self.base, length - first, into);
        self.memory.number(TAIL).store(head, Ordering::Release);
    }
}
