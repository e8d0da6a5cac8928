//! Programs in the kernel and the tables that they share with this process, by `bpf(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::ProtFlags;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

use super::made;
use super::shared::Shared;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const RINGBUF: u32 = 27;
const NO_PREALLOC: u32 = 1;
const MMAPABLE: u32 = 1 << 10;
const TRACEPOINT: u32 = 5;
const TRACING: u32 = 26;
const TRACE_RAW_TP: u32 = 23;

/// Raises the limit of locked memory: before Linux 5.11, maps and programs count towards it, and the default is low.
pub(crate) fn allow_memory() {
    // If it cannot be raised, the calls will fail.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
}

/// `union bpf_attr` of `MAP_CREATE`, up to the last member used here.
#[repr(C)]
#[derive(Debug, Default)]
struct Create {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

fn create(attr: &Create) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads the structure, whose size is passed.
    made(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            MAP_CREATE,
            std::ptr::from_ref(attr),
            size_of::<Create>(),
        )
    })
}

/// A table.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    key: usize,
    value: usize,
}

/// `union bpf_attr` of the commands for elements.
#[repr(C)]
struct Element {
    map: u32,
    _padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Map {
    /// A hash table, whose elements take memory only while they exist.
    pub(crate) fn hash(key: usize, value: usize, most: u32) -> io::Result<Self> {
        Self::new(HASH, key, value, most, NO_PREALLOC)
    }

    /// An array with separate elements for each CPU; only programs may access them.
    pub(crate) fn array_per_cpu(value: usize, count: u32) -> io::Result<Self> {
        // For `set`, the kernel would read one value for each CPU. A value size of 0 on this side
        // keeps callers from that.
        let map = Self::new(PERCPU_ARRAY, 4, value, count, 0)?;
        Ok(Self { value: 0, ..map })
    }

    fn new(kind: u32, key: usize, value: usize, most: u32, flags: u32) -> io::Result<Self> {
        let size = |bytes: usize| u32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput);
        let fd = create(&Create {
            kind,
            key_size: size(key)?,
            value_size: size(value)?,
            max_entries: most,
            flags,
        })?;
        Ok(Self { fd, key, value })
    }

    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!((key.len(), value.len()), (self.key, self.value));
        self.command(MAP_UPDATE, key, value.as_ptr().expose_provenance())
    }

    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<()> {
        assert_eq!(key.len(), self.key);
        self.command(MAP_DELETE, key, 0)
    }

    /// `value` is the address of as many bytes as the map's values have, or is not used.
    fn command(&self, command: libc::c_int, key: &[u8], value: usize) -> io::Result<()> {
        let attr = Element {
            map: u32::try_from(self.fd.as_raw_fd()).unwrap_or(u32::MAX),
            _padding: 0,
            key: key.as_ptr().expose_provenance() as u64,
            value: value as u64,
            flags: 0,
        };
        // SAFETY: the kernel reads the structure, whose size is passed, and the key and the value
        // that it points to, which have the map's sizes, by the assertions above.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                &raw const attr,
                size_of::<Element>(),
            )
        };
        match rc {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Numbers that programs share with this process, the only element of an array. They are read and written
/// without a system call: during one, even while it is preempted, the kernel runs no program on that CPU,
/// and records would be lost.
#[derive(Debug)]
pub(crate) struct Numbers {
    fd: OwnedFd,
    shared: Shared,
}

impl Numbers {
    /// `count` numbers, all 0; they must fit into a page.
    pub(crate) fn new(count: u32) -> io::Result<Self> {
        let fd = create(&Create {
            kind: ARRAY,
            key_size: 4,
            value_size: count * 8,
            max_entries: 1,
            flags: MMAPABLE,
        })?;
        let page = usize::try_from(super::page_size()).unwrap_or(4096);
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let shared = Shared::new(fd.as_fd(), 0, page, both)?;
        Ok(Self { fd, shared })
    }

    pub(crate) fn at(&self, place: usize) -> &AtomicU64 {
        self.shared.number(place * 8)
    }
}

impl AsFd for Numbers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `union bpf_attr` of `PROG_LOAD`, up to the last member used here.
#[repr(C)]
#[derive(Debug, Default)]
struct Load {
    kind: u32,
    count: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
    btf: u32,
    func_info_size: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_size: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
}

/// Where a program is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramFor {
    /// At a tracepoint, through a perf event: the program receives the record that perf would keep.
    Perf,
    /// At a raw tracepoint: the program receives its arguments, whose type has this number.
    Raw(u32),
}

/// How often to try to load a program before it counts as refused.
const ATTEMPTS: usize = 8;

/// Has the kernel verify a program for a tracepoint and prepare it.
///
/// The kernel stops verifying, with EAGAIN, when it finds a signal pending for the thread, as may happen
/// for a moment in a process that starts others.
pub(crate) fn load(code: &[u64], for_what: ProgramFor) -> io::Result<OwnedFd> {
    let (kind, attach_type, attach_btf_id) = match for_what {
        ProgramFor::Perf => (TRACEPOINT, 0, 0),
        ProgramFor::Raw(id) => (TRACING, TRACE_RAW_TP, id),
    };
    let attr = Load {
        kind,
        attach_type,
        attach_btf_id,
        count: u32::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        code: code.as_ptr().expose_provenance() as u64,
        // Our licence, by its name in the kernel's list.
        license: c"Dual MIT/GPL".as_ptr().expose_provenance() as u64,
        ..Load::default()
    };
    let once = || {
        // SAFETY: the kernel reads the structure, whose size is passed, `count` instructions, which
        // exist, and a string that ends with a NUL.
        made(unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const attr, size_of::<Load>()) })
    };
    let busy = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    (1..ATTEMPTS).fold(once(), |made, _| match made {
        Err(error) if busy(&error) => once(),
        made => made,
    })
}

/// `union bpf_attr` of `RAW_TRACEPOINT_OPEN`, up to the last member used here.
#[repr(C)]
#[derive(Debug, Default)]
struct Attach {
    name: u64,
    program: u32,
    _padding: u32,
}

/// Attaches a program to the tracepoint that it was loaded for, until the result is dropped. That takes a
/// fraction of a millisecond, while a perf event takes as long as all CPUs need to leave its tracepoint.
pub(crate) fn attach(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attr = Attach {
        program: u32::try_from(program.as_raw_fd()).unwrap_or(u32::MAX),
        ..Attach::default()
    };
    // SAFETY: the kernel reads the structure, whose size is passed and which contains no address.
    made(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            RAW_TRACEPOINT_OPEN,
            &raw const attr,
            size_of::<Attach>(),
        )
    })
}

/// A ring of records.
#[derive(Debug)]
pub(crate) struct Records {
    fd: OwnedFd,
    /// A page with this process's read position.
    consumer: Shared,
    /// A page with the kernel's write position, and then the records, mapped twice, so that no record is
    /// cut in two.
    producer: Shared,
    base: usize,
    size: usize,
}

/// Flags in the length of a record: it is still being written, or the reader must skip it.
const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
const HEADER: usize = 8;

impl Records {
    /// A ring of `size` bytes, a power of two.
    pub(crate) fn new(size: u32) -> io::Result<Self> {
        let fd = create(&Create {
            kind: RINGBUF,
            max_entries: size,
            ..Create::default()
        })?;
        let base = usize::try_from(super::page_size()).unwrap_or(4096);
        let size = usize::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let consumer = Shared::new(fd.as_fd(), 0, base, both)?;
        let length = base + 2 * size;
        let producer = Shared::new(fd.as_fd(), base, length, ProtFlags::PROT_READ)?;
        Ok(Self {
            fd,
            consumer,
            producer,
            base,
            size,
        })
    }

    /// Passes each record to `each`. Only one thread at a time may call it.
    pub(crate) fn take(&self, mut each: impl FnMut(&[u8])) {
        let mut bytes = Vec::new();
        let mut at = self.consumer.number(0).load(Ordering::Relaxed);
        while at < self.producer.number(0).load(Ordering::Acquire) {
            let place = self.base + usize::try_from(at % self.size as u64).unwrap_or(0);
            // The lower half is the length with its flags.
            let header = self.producer.number(place).load(Ordering::Acquire);
            let header = u32::try_from(header & u64::from(u32::MAX)).unwrap_or(BUSY);
            if header & BUSY != 0 {
                break;
            }
            let length = usize::try_from(header & !DISCARD).unwrap_or(0);
            if header & DISCARD == 0 {
                bytes.clear();
                self.producer.copy(place + HEADER, length, &mut bytes);
                each(&bytes);
            }
            at += (length + HEADER).next_multiple_of(8) as u64;
            self.consumer.number(0).store(at, Ordering::Release);
        }
    }
}

impl AsFd for Records {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
