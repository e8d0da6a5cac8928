//! How many loads this worker may have under way, beside the other workers that load from the same device.
//!
//! Each by itself would find that it gains nothing by fewer loads of its own, and all of them together would have too
//! many. So they search together, and share what they find: through a small file in memory, one for each device.
//!
//! ```text
//! bytes      0  the state of the search (`streams.rs`), which a worker changes with byte 0 locked
//!         1016  the sequence number of the disk, which no other disk has until the machine is started again
//!         1024  a slot for each worker: how many loads it has in flight, and their priority; byte 1 + n is locked while
//!               slot n's worker lives
//! ```
//!
//! The last worker leaves the file behind where the device is a disk, so that the next one begins with the number of
//! loads that has been found: a short load would be over before that.
//!
//! While a worker loads at a higher priority, each of the others has one load at a time, and rests after it
//! (`pace.rs`).
//!
//! A worker that is stopped holds up no other: a measurement that cannot be added at once is left out, and a worker
//! that cannot join within some milliseconds continues by itself.

use std::cell::Cell;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::mman::ProtFlags;
use nix::sys::stat::{major, minor};

use super::streams::{Streams, Words};
use crate::sys::shared::Shared;

/// The size of the file.
const SIZE: usize = 4096;
/// The sequence number of the disk.
const SEQUENCE_AT: usize = SLOTS_AT - 8;
/// The first slot.
const SLOTS_AT: usize = 1024;
/// Upper bound on workers that share a device.
const SLOTS: usize = 64;
/// The byte whose lock allows to change the state.
const STATE: i64 = 0;
/// How often to try for that lock where a worker cannot go without.
const ATTEMPTS: usize = 20;
/// How often to check whether workers with loads in flight still live.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The loads of this worker: by its own search, until it has joined others.
#[derive(Debug)]
pub(super) struct OwnStreams {
    own: Streams,
    common: Option<Common>,
    /// Of what this worker loads now.
    priority: i32,
}

impl OwnStreams {
    /// A fixed number of loads, or with 0 the number that turns out to be best.
    pub(super) fn new(fixed: usize) -> Self {
        Self {
            own: Streams::new(fixed),
            common: None,
            priority: 0,
        }
    }

    /// Searches together with the other workers from now on, unless the number is fixed.
    pub(super) fn join(&mut self, directory: &Path, device: u64) {
        if !self.own.searches() || self.common.is_some() {
            return;
        }
        match Common::join(directory, device, sequence(device), self.own) {
            Ok(common) => self.common = Some(common),
            Err(error) => log::debug!(
                "Cannot count loads together with those of other workers: {}: {error}",
                directory.display()
            ),
        }
    }

    /// How many loads may be under way: what others leave, and at least an equal share.
    pub(super) fn limit(&self) -> usize {
        let Some(common) = &self.common else {
            return self.own.limit();
        };
        let others = common.others(self.priority);
        if others.more_urgent {
            return 1;
        }
        let all = common.state().map_or(self.own.limit(), |it| it.limit());
        let share = (all / (others.equals + 1)).max(1);
        all.saturating_sub(others.loads).max(share)
    }

    /// Whether another worker loads at a higher priority.
    pub(super) fn are_outranked(&self) -> bool {
        let common = self.common.as_ref();
        common.is_some_and(|common| common.others(self.priority).more_urgent)
    }

    /// Publishes how many loads are in flight, and the highest priority of the waiting loads.
    pub(super) fn flying(&mut self, loads: usize, priority: i32) {
        self.priority = priority;
        if let Some(common) = &self.common {
            common.publish(loads, priority);
        }
    }

    /// See [`Streams::loaded`].
    pub(super) fn loaded(&mut self, bytes: u64, took: Duration, flying: usize) -> bool {
        let Some(common) = &self.common else {
            return self.own.loaded(bytes, took, flying);
        };
        let others = common.others(self.priority);
        let changed = common.change(|streams| {
            streams.at_least(others.workers + 1);
            streams.loaded(bytes, took, flying + others.loads)
        });
        changed == Some(true)
    }

    /// See [`Streams::starved`]; while others load, there is no lack of work.
    pub(super) fn starved(&mut self, flying: usize) {
        match &self.common {
            None => self.own.starved(flying),
            Some(common) if common.others(self.priority).loads == 0 => {
                common.change(|streams| streams.starved(flying));
            }
            Some(_) => {}
        }
    }

    /// Leaves the others.
    pub(super) fn leave(&mut self) {
        self.common = None;
    }
}

/// The loads that other workers have in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Others {
    workers: usize,
    loads: usize,
    /// How many of them load at the same priority.
    equals: usize,
    /// One of them loads at a higher priority.
    more_urgent: bool,
}

/// The file that the workers of a device share.
#[derive(Debug)]
struct Common {
    path: PathBuf,
    file: File,
    page: Shared,
    slot: usize,
    looked: Cell<Instant>,
    /// Of the disk; 0 if it has none.
    sequence: u64,
}

impl Common {
    /// Joins the workers of a device; the first one brings its state, unless earlier ones have left theirs.
    fn join(directory: &Path, device: u64, sequence: u64, first: Streams) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o755).create(directory)?;
        let path = directory.join(format!("{}:{}", major(device), minor(device)));
        for _ in 0..ATTEMPTS {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).mode(0o600);
            let file = options.custom_flags(libc::O_NOFOLLOW).open(&path)?;
            if !lock(&file, STATE)? {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            // The last worker may have removed it just now.
            if file.metadata()?.nlink() > 0 {
                return Self::enter(path, file, sequence, first);
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Takes a slot, with the state locked.
    fn enter(path: PathBuf, file: File, sequence: u64, first: Streams) -> io::Result<Self> {
        file.set_len(SIZE as u64)?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let page = Shared::new(file.as_fd(), 0, SIZE, both)?;
        let mut free = (0..SLOTS).filter_map(|slot| match lock(&file, byte_of(slot)) {
            Ok(true) => Some(Ok(slot)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        });
        let slot = free.next().ok_or(io::ErrorKind::StorageFull)??;
        let common = Self {
            path,
            page,
            slot,
            looked: Cell::new(Instant::now()),
            file,
            sequence,
        };
        if common.is_alone() {
            (0..SLOTS).for_each(|slot| common.slot(slot).store(0, Relaxed));
            let earlier = common.state().filter(|_| common.is_same_disk());
            let found = earlier.and_then(|it| it.found());
            common.set(&found.unwrap_or(first).to_words());
            common.page.number(SEQUENCE_AT).store(sequence, Relaxed);
        }
        common.publish(0, 0);
        unlock(&common.file, STATE)?;
        Ok(common)
    }

    fn is_alone(&self) -> bool {
        let mut others = (0..SLOTS).filter(|slot| *slot != self.slot);
        others.all(|slot| !is_locked(&self.file, byte_of(slot)))
    }

    /// Whether the state in the file is of this disk, and not of another that had its number before.
    fn is_same_disk(&self) -> bool {
        self.sequence != 0 && self.page.number(SEQUENCE_AT).load(Relaxed) == self.sequence
    }

    fn words(&self) -> Words {
        std::array::from_fn(|word| self.page.number(8 * word).load(Relaxed))
    }

    fn set(&self, words: &Words) {
        for (word, number) in words.iter().enumerate() {
            self.page.number(8 * word).store(*number, Relaxed);
        }
    }

    fn state(&self) -> Option<Streams> {
        Streams::from_words(&self.words())
    }

    fn slot(&self, slot: usize) -> &AtomicU64 {
        self.page.number(SLOTS_AT + 8 * slot)
    }

    fn publish(&self, loads: usize, priority: i32) {
        let loads = u32::try_from(loads).unwrap_or(u32::MAX);
        let both = u64::from(priority.cast_unsigned()) << 32 | u64::from(loads);
        self.slot(self.slot).store(both, Relaxed);
    }

    /// Changes the state, unless another worker is doing so.
    fn change<T>(&self, change: impl FnOnce(&mut Streams) -> T) -> Option<T> {
        if !lock(&self.file, STATE).unwrap_or(false) {
            return None;
        }
        let mut streams = self.state().unwrap_or_else(|| Streams::new(0));
        let changed = change(&mut streams);
        self.set(&streams.to_words());
        let _ = unlock(&self.file, STATE);
        Some(changed)
    }

    /// The others that have loads in flight, seen from this priority; those that have been killed do not count, soon.
    fn others(&self, own: i32) -> Others {
        let look = self.looked.get().elapsed() > LOOK_AGAIN;
        if look {
            self.looked.set(Instant::now());
        }
        let mut others = Others::default();
        for slot in (0..SLOTS).filter(|slot| *slot != self.slot) {
            let [high, low] = halves(self.slot(slot).load(Relaxed));
            if low == 0 {
                continue;
            }
            if look && !is_locked(&self.file, byte_of(slot)) {
                self.slot(slot).store(0, Relaxed);
                continue;
            }
            let priority = high.cast_signed();
            others.workers += 1;
            others.loads += usize::try_from(low).unwrap_or(0);
            others.equals += usize::from(priority == own);
            others.more_urgent |= priority > own;
        }
        others
    }
}

/// The upper and the lower half of a number.
fn halves(number: u64) -> [u32; 2] {
    [number >> 32, number & u64::from(u32::MAX)].map(|half| u32::try_from(half).unwrap_or(0))
}

impl Drop for Common {
    fn drop(&mut self) {
        self.publish(0, 0);
        if self.is_same_disk() {
            return;
        }
        // A worker that joins now finds after its next attempt that the file no longer has a name.
        if lock(&self.file, STATE).unwrap_or(false) && self.is_alone() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The sequence number of the disk with this device number, or of the disk that a partition is on; 0 if it has none.
fn sequence(device: u64) -> u64 {
    let folder = of_block_device(device);
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let text = read("diskseq").or_else(|| read("../diskseq"));
    text.and_then(|it| it.trim().parse().ok()).unwrap_or(0)
}

/// What the kernel reports about the block device with this number; there is no such folder for a network file system.
pub(super) fn of_block_device(device: u64) -> PathBuf {
    PathBuf::from(format!(
        "/sys/dev/block/{}:{}",
        major(device),
        minor(device)
    ))
}

/// The byte whose lock shows that a slot's worker lives.
fn byte_of(slot: usize) -> i64 {
    1 + i64::try_from(slot).unwrap_or(0)
}

fn region(kind: i32, byte: i64) -> libc::flock {
    #[allow(clippy::cast_possible_truncation, reason = "small constants")]
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

/// Locks a byte for this open file; false if another has it.
fn lock(file: &File, byte: i64) -> io::Result<bool> {
    let wanted = region(libc::F_WRLCK, byte);
    match fcntl(file, FcntlArg::F_OFD_SETLK(&wanted)) {
        Ok(_) => Ok(true),
        Err(nix::Error::EAGAIN | nix::Error::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn unlock(file: &File, byte: i64) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&region(libc::F_UNLCK, byte)))?;
    Ok(())
}

/// Whether another open file has locked a byte.
fn is_locked(file: &File, byte: i64) -> bool {
    let mut found = region(libc::F_WRLCK, byte);
    let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut found));
    asked.is_ok() && i32::from(found.l_type) != libc::F_UNLCK
}

/// Where the files are; none for a user without a runtime directory.
pub(crate) fn directory() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some(PathBuf::from("/run/ppc/devices"));
    }
    let runtime = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    runtime.is_absolute().then(|| runtime.join("ppc/devices"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::loader::streams::{START, WORDS};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let own = format!("cprt-devices-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(own))
        }

        fn worker(&self) -> OwnStreams {
            let mut streams = OwnStreams::new(0);
            streams.join(&self.0, 1);
            assert!(streams.common.is_some(), "it has joined");
            streams
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn workers_share_the_loads_of_a_device() {
        let folder = Folder::new("share");
        let (mut one, mut other) = (folder.worker(), folder.worker());
        assert_eq!(
            (one.limit(), other.limit()),
            (START, START),
            "no worker loads"
        );
        one.flying(START, 0);
        assert_eq!(other.limit(), START / 2, "an equal share");
        other.flying(START / 2, 0);
        assert_eq!(one.limit(), START / 2, "likewise");
        one.flying(1, 0);
        assert_eq!(other.limit(), START - 1, "what the other leaves");
        let third = folder.worker();
        assert_eq!(third.limit(), START / 3);
        drop(other);
        assert_eq!(third.limit(), START - 1, "one that has left leaves all");
    }

    #[test]
    fn while_one_loads_at_a_higher_priority_the_others_have_one_load_each() {
        let folder = Folder::new("priority");
        let (mut urgent, mut other) = (folder.worker(), folder.worker());
        other.flying(START, 0);
        assert!(!other.are_outranked());
        urgent.flying(1, 5);
        assert!(other.are_outranked() && !urgent.are_outranked());
        assert_eq!(other.limit(), 1);
        assert_eq!(urgent.limit(), START, "its share is not cut by the other's");
        other.flying(1, 0);
        urgent.flying(START, 5);
        assert_eq!((urgent.limit(), other.limit()), (START, 1));
        other.flying(1, -1);
        assert_eq!(other.limit(), 1, "nor has what is loaded in the background");
        urgent.flying(0, 5);
        assert_eq!(other.limit(), START, "it has nothing to load");
    }

    #[test]
    fn they_find_together_what_suits_the_device() {
        let folder = Folder::new("together");
        let mut workers = [folder.worker(), folder.worker()];
        // A device that is slower with more than four loads: it takes 10 ms for each, and a tenth more for each
        // load beyond four.
        for _ in 0..400 {
            let limits = workers.each_ref().map(OwnStreams::limit);
            let all: usize = limits.iter().sum();
            for (worker, flying) in workers.iter_mut().zip(limits) {
                worker.flying(flying, 0);
            }
            let too_many = u32::try_from(all.saturating_sub(4)).expect("few");
            let all = u32::try_from(all).expect("few");
            let took = Duration::from_millis(10) * all * (10 + 4 * too_many) / 10;
            for (worker, flying) in workers.iter_mut().zip(limits) {
                for _ in 0..flying {
                    worker.loaded(2 << 20, took, flying - 1);
                }
            }
        }
        let all: usize = workers.iter().map(OwnStreams::limit).sum();
        assert!((2..=4).contains(&all), "{all} loads");
    }

    #[test]
    fn last_worker_discards_state_of_a_non_disk_device() {
        let folder = Folder::new("last");
        let (mut one, other) = (folder.worker(), folder.worker());
        let path = folder.0.join("0:1");
        drop(other);
        assert!(path.exists());
        one.leave();
        assert!(!path.exists());
        assert_eq!(one.limit(), START);
        assert_eq!(folder.worker().limit(), START);
    }

    #[test]
    fn stream_limit_is_kept_until_the_disk_changes() {
        let folder = Folder::new("found");
        let join =
            |sequence| Common::join(&folder.0, 1, sequence, Streams::new(0)).expect("a file");
        let limit = |common: &Common| common.state().expect("a state").limit();
        let one = join(5);
        // As fast with any number of loads as with one, times that number.
        while limit(&one) < 16 {
            let flying = limit(&one);
            one.change(|it| it.loaded(2 << 20, Duration::from_millis(20), flying - 1));
        }
        drop(one);
        drop(join(5));
        let next = join(5);
        assert_eq!(limit(&next), 8, "the number that is known to be good");
        for _ in 0..16 {
            next.change(|it| it.loaded(2 << 20, Duration::from_millis(20), 7));
        }
        assert_eq!(limit(&next), 8, "it is measured before another is tried");
        drop(next);
        assert_eq!(limit(&join(6)), START, "it is another disk");
        assert_eq!(limit(&join(5)), START);
        let here = fs::metadata(std::env::temp_dir()).expect("a folder").dev();
        println!(
            "the disk of the temporary folder is number {}",
            sequence(here)
        );
        assert_eq!(sequence(1), 0);
    }

    #[test]
    fn killed_workers_slot_and_invalid_state_are_discarded() {
        let folder = Folder::new("killed");
        let (one, mut other) = (folder.worker(), folder.worker());
        let gone = one.common.as_ref().expect("joined").slot;
        drop(one);
        let common = other.common.as_ref().expect("joined");
        common.slot(gone).store(START as u64, Relaxed);
        let earlier = Instant::now().checked_sub(2 * LOOK_AGAIN);
        common
            .looked
            .set(earlier.expect("the machine has run for longer"));
        assert_eq!(common.others(0).loads, 0);
        // An invalid state is replaced.
        common.set(&[u64::MAX; WORDS]);
        assert_eq!(other.limit(), START);
        other.loaded(1, Duration::from_millis(1), 0);
        assert_eq!(other.limit(), START);
    }

    #[test]
    fn fixed_stream_limit_is_not_shared() {
        let folder = Folder::new("set");
        let mut streams = OwnStreams::new(7);
        streams.join(&folder.0, 1);
        assert!(streams.common.is_none());
        assert_eq!(streams.limit(), 7);
    }
}
