//! System calls that no safe crate makes; the runtime's one module of unsafe code.

use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::daemon::trust::Trusted;

pub(crate) mod bpf;
pub(crate) mod btf;
pub(crate) mod cache;
pub(crate) mod huge;
mod mapping;
pub(crate) mod maps;
pub(crate) mod pagemap;
pub(crate) mod perf;
pub(crate) mod shared;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod tracefs;
pub(crate) mod window;
pub(crate) mod xattr;

/// The CPU time that this thread has used.
pub(crate) fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The time of `CLOCK_MONOTONIC` in ns, which is what events carry.
pub(crate) fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| {
        u64::try_from(Duration::from(now).as_nanos()).unwrap_or(u64::MAX)
    })
}

/// The running kernel's series, such as 6 and 18.
pub(crate) fn kernel_release() -> Option<(u32, u32)> {
    let name = nix::sys::utsname::uname().ok()?;
    series(name.release().to_str()?)
}

fn series(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Bytes in a page.
pub(crate) fn page_size() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| u64::try_from(size).ok())
        .unwrap_or(4096)
}

/// Makes malloc take each large block of memory from the kernel separately, and return it when it is
/// freed. By default glibc stops that after the first one, and a policy that has prepared a large model
/// once would keep twice what it needs.
pub(crate) fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: i32 = 128 << 10;
        // SAFETY: it sets a number; no other thread of this process runs yet.
        let _ = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }
}

/// Has the I/O of the calling thread, and of those that it starts, wait for that of others, where the device's
/// scheduler knows priorities.
pub(crate) fn yield_io() -> io::Result<()> {
    const OF_PROCESS: libc::c_int = 1;
    /// The idle class, in the bits above those of the level.
    const IDLE: libc::c_int = 3 << 13;

    // SAFETY: it takes three numbers and touches no memory; thread 0 is the calling one.
    let rc = unsafe { libc::syscall(libc::SYS_ioprio_set, OF_PROCESS, 0, IDLE) };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The result of a system call that makes a descriptor.
fn made(fd: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made it for this caller.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel load the module of a file system, as a mount of it does.
pub(crate) fn load_file_system(name: &CStr) {
    const CLOSE_ON_EXEC: libc::c_uint = 1;
    // SAFETY: the kernel copies the name, which ends with a zero, and keeps no address.
    let opened = unsafe { libc::syscall(libc::SYS_fsopen, name.as_ptr(), CLOSE_ON_EXEC) };
    drop(made(opened));
}

/// Binds the calling thread to these CPUs, and has it take memory, including the page cache that it
/// fills, from this node while the node has some.
///
/// The node is preferred and not bound: with a bound one, the kernel would rather kill than take
/// memory from elsewhere.
pub(crate) fn bind_thread(cpus: &[u16], node: u16) -> io::Result<()> {
    let mut set = nix::sched::CpuSet::new();
    for &cpu in cpus {
        set.set(usize::from(cpu))?;
    }
    if !cpus.is_empty() {
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)?;
    }
    prefer_node(node)
}

fn prefer_node(node: u16) -> io::Result<()> {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let mut mask = [0 as libc::c_ulong; (u16::MAX as usize + 1) / BITS];
    let node = usize::from(node);
    mask[node / BITS] = 1 << (node % BITS);
    // As few bits as needed: a kernel refuses masks that are longer than its own.
    let bits = node + 2;
    // SAFETY: the kernel reads at most that many bits of a mask that has them, and writes nothing.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            bits,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sets how nice one of our threads is to others: 0 is usual, 19 the nicest.
pub(crate) fn nice(thread: nix::unistd::Pid, value: i32) -> io::Result<()> {
    let thread = libc::id_t::try_from(thread.as_raw()).unwrap_or(0);
    // SAFETY: it takes no address.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the calling thread run soon after it is woken, for short turns, even where all processors are busy: a reader
/// that has work to do keeps the one of a thread that it has woken for up to 4 ms otherwise. Before Linux 6.12 the
/// kernel ignores it.
pub(crate) fn take_short_turns() -> io::Result<()> {
    /// A turn in ns: the shortest that the kernel accepts.
    const SHORT: u64 = 100_000;

    let size = u32::try_from(size_of::<libc::sched_attr>()).unwrap_or(0);
    let mut attr = std::mem::MaybeUninit::<libc::sched_attr>::zeroed();
    // SAFETY: the kernel writes at most that many bytes of the structure.
    match unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attr.as_mut_ptr(), size, 0) } {
        0 => {}
        _ => return Err(io::Error::last_os_error()),
    }
    // SAFETY: all bytes are initialised, and every number is valid in each field.
    let mut attr = unsafe { attr.assume_init() };
    if i32::try_from(attr.sched_policy) != Ok(libc::SCHED_OTHER) {
        return Ok(());
    }
    attr.sched_runtime = SHORT;
    // SAFETY: the kernel reads the structure, which has the size that it names itself.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the process at once, without calling exit handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: it takes no address and does not return.
    unsafe { libc::_exit(code) }
}

/// Loads a policy's library into this process, for good.
pub(crate) fn load_policy(library: &Trusted) -> Result<ppc::host::Table, ppc::LoadError> {
    // SAFETY: this is a worker, a process made to run this library's code, and the library, which is
    // open, has been found trustworthy.
    unsafe { ppc::host::Table::open(&library.magic()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_have_series() {
        for (release, expected) in [
            ("6.12.95+deb12-cloud-amd64", Some((6, 12))),
            ("7.3-cloud-amd64", Some((7, 3))),
            ("6.18.44", Some((6, 18))),
            ("next", None),
        ] {
            assert_eq!(series(release), expected, "{release}");
        }
        assert!(kernel_release().is_some_and(|it| it > (4, 0)));
    }

    #[test]
    fn short_turns_leave_a_thread_as_nice_as_it_was() {
        let thread = std::thread::spawn(|| {
            nice(nix::unistd::gettid(), 7).expect("anybody may be nicer");
            take_short_turns().expect("its own thread's");
            // SAFETY: it takes no address.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        });
        assert_eq!(thread.join().expect("the thread"), 7);
    }

    #[test]
    fn a_thread_can_be_bound_to_where_it_is() {
        std::thread::spawn(|| bind_thread(&[0], 0))
            .join()
            .expect("the thread")
            .expect("CPU 0 and node 0 are everywhere");
    }
}
