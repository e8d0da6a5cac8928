//! Parses the kernel's files that the watch reads.
//!
//! These are functions of text alone. A value that is missing, cut short or not a number is `None`, never a
//! guess and never a panic: the caller continues with the next file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::machine::mountinfo;

/// Which of the two kinds of memory cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// A hierarchy for memory, `memory.limit_in_bytes`.
    V1,
    /// One for all, `memory.max`.
    V2,
}

/// Of `/proc/meminfo`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meminfo {
    pub(super) total: u64,
    pub(super) available: u64,
    pub(super) free: u64,
    /// On the two lists of file pages.
    pub(super) file: u64,
    /// On the inactive one of them.
    pub(super) inactive: u64,
    /// Pages that must be written first.
    pub(super) dirty: u64,
    /// Set aside for huge pages, free or not.
    pub(super) hugetlb: u64,
}

/// Of `memory.stat`, in bytes, children included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// On the two lists of file pages.
    pub(super) file: u64,
    /// On the inactive one of them.
    pub(super) inactive: u64,
    /// Pages that must be written first.
    pub(super) dirty: u64,
    /// v1 only: the least limit of this cgroup and its ancestors, those out of sight among them.
    pub(super) limit: Option<u64>,
}

/// The line `some` of a pressure file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Psi {
    /// Of the last 10 s, in hundredths of a percent.
    pub(super) avg10: u32,
    /// Since the machine or the cgroup started, in µs.
    pub(super) total: u64,
}

/// Where a process is, of `/proc/PID/cgroup`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Membership {
    /// In the hierarchy of v1 that has memory.
    pub(super) memory: Option<PathBuf>,
    /// In that of v2.
    pub(super) unified: Option<PathBuf>,
}

/// A hierarchy that memory may be in, as it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    /// The cgroup that is seen at `point`: `/` for the root of our namespace, `/..` above it.
    pub(super) root: PathBuf,
    pub(super) point: PathBuf,
}

/// The lines that are whole: one without its newline may have lost digits.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
}

pub(super) fn meminfo(text: &str) -> Option<Meminfo> {
    let bytes = |name: &str| -> Option<u64> {
        lines(text)
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
            .trim()
            .strip_suffix("kB")?
            .trim_end()
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    };
    let inactive = bytes("Inactive(file)")?;
    Some(Meminfo {
        total: bytes("MemTotal")?,
        available: bytes("MemAvailable")?,
        free: bytes("MemFree")?,
        file: bytes("Active(file)")?.checked_add(inactive)?,
        inactive,
        dirty: bytes("Dirty")?.checked_add(bytes("Writeback")?)?,
        hugetlb: bytes("Hugetlb").unwrap_or(0),
    })
}

pub(super) fn stat(text: &str, version: Version) -> Option<Stat> {
    let bytes = |name: &str| -> Option<u64> {
        lines(text)
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?
            .parse()
            .ok()
    };
    let [active, inactive, dirty, writeback] = match version {
        Version::V1 => [
            "total_active_file",
            "total_inactive_file",
            "total_dirty",
            "total_writeback",
        ],
        Version::V2 => [
            "active_file",
            "inactive_file",
            "file_dirty",
            "file_writeback",
        ],
    };
    let limit = match version {
        Version::V1 => bytes("hierarchical_memory_limit").filter(|&bytes| bytes < NO_LIMIT),
        Version::V2 => None,
    };
    let inactive = bytes(inactive)?;
    Some(Stat {
        file: bytes(active)?.checked_add(inactive)?,
        inactive,
        dirty: bytes(dirty)
            .unwrap_or(0)
            .saturating_add(bytes(writeback).unwrap_or(0)),
        limit,
    })
}

/// The bytes of `/proc/buddyinfo` in free blocks of this size or larger, where pages have `page` bytes.
pub(super) fn large_blocks(text: &str, block: u64, page: u64) -> Option<u64> {
    let mut sum = None;
    for line in lines(text) {
        // "Node 0, zone   Normal      5      3 ...": the number of free blocks by the power of two of their pages.
        let (_, zone) = line.split_once(", zone")?;
        let mut size = page;
        let mut bytes = 0_u64;
        for count in zone.split_ascii_whitespace().skip(1) {
            let count = count.parse::<u64>().ok()?;
            if size >= block {
                bytes = bytes.checked_add(count.checked_mul(size)?)?;
            }
            size = size.checked_mul(2)?;
        }
        sum = Some(bytes.checked_add(sum.unwrap_or(0))?);
    }
    sum
}

/// The value by which v1 means "no limit": `LONG_MAX` rounded down to the page size.
const NO_LIMIT: u64 = 1 << 62;

/// A limit; `Some(None)` for none.
#[expect(
    clippy::option_option,
    reason = "no answer and no limit are not the same"
)]
pub(super) fn limit(text: &str) -> Option<Option<u64>> {
    match text.trim_end() {
        "max" | "-1" => Some(None),
        number => Some(
            number
                .parse()
                .ok()
                .map(Some)?
                .filter(|&bytes: &u64| bytes < NO_LIMIT),
        ),
    }
}

/// A file that is one number.
pub(super) fn number(text: &str) -> Option<u64> {
    text.trim_end().parse().ok()
}

pub(super) fn psi(text: &str) -> Option<Psi> {
    let some = lines(text).find_map(|line| line.strip_prefix("some "))?;
    let value = |name: &str| {
        some.split(' ')
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    // Two decimals, always.
    let (whole, decimals) = value("avg10")?.split_once('.')?;
    let decimals = decimals.parse::<u32>().ok().filter(|&cents| cents < 100)?;
    Some(Psi {
        avg10: whole
            .parse::<u32>()
            .ok()?
            .checked_mul(100)?
            .checked_add(decimals)?,
        total: value("total")?.parse().ok()?,
    })
}

pub(super) fn membership(text: &[u8]) -> Membership {
    let mut found = Membership::default();
    for line in text.split(|&byte| byte == b'\n') {
        // A path may contain colons.
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (Some(number), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        // A process that has ended but not been waited for may outlive its cgroup.
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        if !path.starts_with(b"/") {
            continue;
        }
        let path = || Some(PathBuf::from(OsStr::from_bytes(path)));
        if controllers
            .split(|&byte| byte == b',')
            .any(|name| name == b"memory")
        {
            found.memory = path();
        } else if number == b"0" && controllers.is_empty() {
            found.unified = path();
        }
    }
    found
}

/// The mounts of hierarchies that can have memory, in the order they were made.
pub(super) fn hierarchies(mounts: Vec<mountinfo::Mount>) -> Vec<Hierarchy> {
    mounts.into_iter().filter_map(hierarchy).collect()
}

fn hierarchy(mount: mountinfo::Mount) -> Option<Hierarchy> {
    let version = match mount.kind.as_str() {
        "cgroup2" => Version::V2,
        "cgroup" => mount
            .options
            .split(',')
            .any(|option| option == "memory")
            .then_some(Version::V1)?,
        _ => return None,
    };
    Some(Hierarchy {
        version,
        root: mount.root,
        point: mount.point,
    })
}

impl Hierarchy {
    /// Where `path`, as `/proc/PID/cgroup` names it, is below the mount point. Both are seen from
    /// our cgroup namespace; with one `..` more than the mount it is out of its sight.
    pub(super) fn below(&self, path: &Path) -> Option<PathBuf> {
        let rest = path.strip_prefix(&self.root).ok()?;
        let out = rest
            .components()
            .any(|part| !matches!(part, std::path::Component::Normal(_)));
        (!out).then(|| rest.to_owned())
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
