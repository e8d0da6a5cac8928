//! Examines a directory and the machine. What cannot be found out stays unknown; nothing is judged.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, eaccess};

use self::place::Mounts;
use super::facts::{
    Capability, Facts, FuseDevice, Kernel, Machine, Memory, Namespaces, Tracefs, User,
};
use cprt::backend::select;
use cprt::control::config;
use cprt::machine::memory::{self, LimitSource};
use cprt::machine::probe::{find_program, lists_file_system};
use cprt::machine::topology::{CpuSet, Topology};
use cprt::residency::{find, placement};
use cprt::{Error, Result};

mod device;
mod paging_out;
mod place;
#[cfg(test)]
mod tests;
mod tree;

/// The directories that describe the machine, so that a test can describe one in files.
#[derive(Clone, Debug)]
pub(super) struct Roots {
    proc: PathBuf,
    sys: PathBuf,
    dev: PathBuf,
    /// The directory of kernel modules.
    lib: PathBuf,
    /// The directories of programs.
    path: Vec<PathBuf>,
    /// Our configuration, and kubelet's.
    config: PathBuf,
    kubelet: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self {
            path: std::env::split_paths(&path).collect(),
            ..Self::below(Path::new("/"))
        }
    }
}

impl Roots {
    fn below(root: &Path) -> Self {
        Self {
            proc: root.join("proc"),
            sys: root.join("sys"),
            dev: root.join("dev"),
            lib: root.join("lib/modules"),
            path: vec![root.join("usr/bin")],
            config: root.join("etc/cprt.toml"),
            kubelet: root.join("var/lib/kubelet/config.yaml"),
        }
    }
}

/// Collects all facts.
pub(super) fn look(
    roots: &Roots,
    directory: &Path,
    topology: impl FnOnce() -> Option<Topology>,
) -> Result<Facts> {
    let failed = |source| refusal(directory, source);
    let real = directory.canonicalize().map_err(failed)?;
    if !fs::metadata(&real).map_err(failed)?.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    let mounts = Mounts::read(&roots.proc);
    let here = mounts.of(&roots.proc, &real);
    let within = here.map(|here| mounts.within(here, &real));
    let files = tree::walk(&real, within.unwrap_or_default());
    Ok(Facts {
        link: link(directory),
        candidates: select::candidates(&real),
        files,
        place: here.map(place::place),
        device: here
            .map(|here| device::of(roots, mounts.base(here)))
            .unwrap_or_default(),
        memory: limit(roots),
        machine: machine(roots, topology(), &real),
        kernel: kernel(roots),
        user: user(roots),
        directory: real,
    })
}

/// The error for a directory that cannot be examined at all.
fn refusal(directory: &Path, source: io::Error) -> Error {
    let path = directory.to_owned();
    // A FUSE mount whose server was killed returns this.
    if source.raw_os_error() == Some(libc::ENOTCONN) {
        return Error::DeadMount { path, source };
    }
    Error::Read { path, source }
}

/// The given path, if its last component is a link, with or without a slash at the end.
fn link(given: &Path) -> Option<PathBuf> {
    let given: PathBuf = given.components().collect();
    given.is_symlink().then_some(given)
}

/// The trimmed text of a file, if it can be read.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    read(path)?.parse().ok()
}

/// A switch of the kernel, which is on unless it is 0.
fn flag(path: &Path) -> Option<bool> {
    number(path).map(|value: i64| value != 0)
}

/// The value of a line of `/proc/PID/status`.
fn field<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .map(str::trim)
}

fn limit(roots: &Roots) -> Option<Memory> {
    let of = memory::Roots {
        proc: roots.proc.clone(),
        cgroup: roots.sys.join("fs/cgroup"),
        kubelet: roots.kubelet.clone(),
        drivers: roots.sys.join("bus/pci/drivers"),
    };
    // The daemon tells about an error in it; here, what it would do without the file has to do.
    let config = config::Config::read(&roots.config).unwrap_or_default();
    let watch = memory::Watch::new(config.memory, of);
    watch.follow_process(std::process::id());
    let state = watch.sample(0);
    let knob = match &state.source {
        LimitSource::Unknown => return None,
        LimitSource::Cgroup(dir) | LimitSource::WorkingSet(dir) => Some(knob(dir)),
        LimitSource::Host | LimitSource::Kubelet(_) | LimitSource::Free | LimitSource::Blocks => {
            None
        }
    };
    Some(Memory {
        limit: state.limit,
        threshold: state.threshold,
        available: state.available,
        source: state.source,
        knob,
    })
}

/// The file that sets the limit of a memory cgroup: v2 has two, and the lower one counts.
fn knob(cgroup: &Path) -> PathBuf {
    let v1 = cgroup.join("memory.limit_in_bytes");
    if v1.is_file() {
        return v1;
    }
    let [high, max] = ["memory.high", "memory.max"].map(|name| cgroup.join(name));
    let value = |path| number(path).unwrap_or(u64::MAX);
    if value(&high) < value(&max) {
        high
    } else {
        max
    }
}

fn machine(roots: &Roots, topology: Option<Topology>, directory: &Path) -> Machine {
    let xpus = topology.as_ref().map(Topology::xpus).unwrap_or_default();
    let home = |pci: cprt::machine::topology::PciAddress| {
        let path = roots.sys.join(format!("bus/pci/devices/{pci}/numa_node"));
        // -1 if the firmware does not report it.
        Some((pci, number(&path)?))
    };
    let homes = xpus.iter().filter_map(|xpu| home(xpu.pci)).collect();
    let status = read(&roots.proc.join("self/status")).unwrap_or_default();
    let mems = field(&status, "Mems_allowed_list").and_then(|list| list.parse::<CpuSet>().ok());
    let several = topology.as_ref().is_some_and(|it| it.nodes().len() > 1);
    let files = several
        .then(|| find(&[directory.to_owned()]).ok())
        .flatten();
    let cached = files.map(|found| placement(&found.files));
    Machine {
        topology,
        homes,
        mems,
        cached: cached.unwrap_or_default(),
    }
}

fn kernel(roots: &Roots) -> Kernel {
    let release = read(&roots.proc.join("sys/kernel/osrelease")).unwrap_or_default();
    let modules = roots.lib.join(&release);
    let filesystems = read(&roots.proc.join("filesystems")).unwrap_or_default();
    let events = roots.sys.join("kernel/tracing/events/filemap");
    Kernel {
        version: version(&release),
        rfs: lists_file_system(&filesystems, "rfs"),
        module: module(&modules),
        headers: modules.join("build/Makefile").is_file(),
        tracepoints: fs::read_dir(&events)
            .is_ok()
            .then(|| events.join("mm_filemap_get_pages").is_dir()),
        lockdown: read(&roots.sys.join("kernel/security/lockdown")).and_then(|text| chosen(&text)),
        paging_out: paging_out::of(roots),
        release,
    }
}

/// `6.18.44-fc` is 6.18.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// rfs among the modules of a kernel, as listed by depmod.
fn module(modules: &Path) -> Option<PathBuf> {
    let list = fs::read_to_string(modules.join("modules.dep")).ok()?;
    let path = list.lines().find_map(|line| {
        let (path, _) = line.split_once(':')?;
        let (_, name) = path.rsplit_once('/')?;
        let packed = name.strip_prefix("rfs.ko")?;
        ["", ".xz", ".zst", ".gz"].contains(&packed).then_some(path)
    })?;
    Some(modules.join(path))
}

/// The chosen item, which the kernel puts in brackets, of a list of choices.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (chosen, _) = rest.split_once(']')?;
    Some(chosen.to_owned())
}

fn user(roots: &Roots) -> User {
    let status = read(&roots.proc.join("self/status")).unwrap_or_default();
    // Real, effective, saved and file-system UID.
    let uid = field(&status, "Uid").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
    let uid = uid.unwrap_or_else(|| nix::unistd::geteuid().as_raw());
    let capabilities = field(&status, "CapEff").and_then(|bits| u64::from_str_radix(bits, 16).ok());
    // Without /proc, assume the usual.
    let capabilities = capabilities.unwrap_or(if uid == 0 { u64::MAX } else { 0 });
    let users = read(&roots.proc.join("self/uid_map"));
    let sysctl = roots.proc.join("sys");
    User {
        uid,
        capabilities,
        initial: users.is_none_or(|users| is_initial(&users)),
        paranoid: number(&sysctl.join("kernel/perf_event_paranoid")),
        tracefs: tracefs(roots, capabilities),
        fuse: fuse(&roots.dev.join("fuse")),
        helper: helper(&roots.path),
        namespaces: Namespaces {
            max: number(&sysctl.join("user/max_user_namespaces")),
            clone: flag(&sysctl.join("kernel/unprivileged_userns_clone")),
            apparmor: flag(&sysctl.join("kernel/apparmor_restrict_unprivileged_userns")),
        },
    }
}

/// Only the initial user namespace maps all users to themselves.
fn is_initial(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn tracefs(roots: &Roots, capabilities: u64) -> Tracefs {
    let at = roots.sys.join("kernel/tracing");
    let filesystems = read(&roots.proc.join("filesystems"));
    let root = capabilities & (1 << Capability::SysAdmin as u64) != 0;
    if at.join("events/filemap").is_dir() {
        return Tracefs::Open(at);
    }
    if filesystems.is_some_and(|filesystems| !lists_file_system(&filesystems, "tracefs")) {
        return Tracefs::Absent;
    }
    // Its mount point is an empty directory while it is not mounted.
    let closed = match fs::read_dir(&at) {
        Ok(mut names) => names.next().is_some(),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    };
    // To root, it is closed only if something was mounted over it.
    if closed && !root {
        Tracefs::Closed(at)
    } else {
        Tracefs::Unmounted
    }
}

fn fuse(device: &Path) -> FuseDevice {
    match eaccess(device, AccessFlags::R_OK | AccessFlags::W_OK) {
        Ok(()) => FuseDevice::Open,
        Err(nix::Error::EACCES | nix::Error::EPERM) => FuseDevice::Closed,
        Err(_) => FuseDevice::Missing,
    }
}

fn helper(path: &[PathBuf]) -> Option<(PathBuf, bool)> {
    let program = find_program("fusermount3", path.to_vec())?;
    let metadata = fs::metadata(&program).ok()?;
    let works = metadata.uid() == 0 && metadata.mode() & 0o4000 != 0;
    Some((program, works))
}
