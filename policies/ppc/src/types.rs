//! The words that both sides of the contract share.

use std::fmt;
use std::ops::{BitOr, Bound, RangeBounds};
use std::path::PathBuf;

/// Names a file of the mount: from an event, or from [`Host::open`](crate::Host::open).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An accelerator; they are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Xpu(pub u16);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// [`Event::count`] events could not be delivered.
    Lost,
    /// A file of [`Event::length`] bytes was opened.
    Open,
    /// The last descriptor of an open was closed; its mappings may outlive it.
    Close,
    /// The range was read and was not cached.
    Miss,
    /// The range was read, cached or not.
    Touch,
    /// A process is at [`Event::offset`], [`Event::length`] bytes after its last beacon.
    Progress,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Lost,
        Self::Open,
        Self::Close,
        Self::Miss,
        Self::Touch,
        Self::Progress,
    ];

    /// The kind with this number in `ppc.h`; `None` for one of a later version.
    #[must_use]
    pub fn from_raw(kind: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(kind).ok()?).copied()
    }

    /// Its number in `ppc.h`.
    #[must_use]
    pub const fn as_raw(self) -> u32 {
        self as u32
    }
}

/// A set of [`Kind`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kinds(u32);

impl Kinds {
    /// Added to them: [`Kind::Touch`] and [`Kind::Progress`] are needed from the next [`Kind::Open`] on. A mount on
    /// which they cost programs that read other files leaves them out until then, and again once its files have not
    /// been read or opened for a while.
    pub const FROM_OPEN: Self = Self(1 << 31);

    /// `1 << kind` for each of them.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set of these bits, known here or not.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Whether this kind is in the set.
    #[must_use]
    pub const fn contains(self, kind: Kind) -> bool {
        self.0 & (1 << kind.as_raw()) != 0
    }

    /// Whether [`Self::FROM_OPEN`] was added.
    #[must_use]
    pub const fn from_open(self) -> bool {
        self.0 & Self::FROM_OPEN.0 != 0
    }

    /// The same without it.
    #[must_use]
    pub const fn at_once(self) -> Self {
        Self(self.0 & !Self::FROM_OPEN.0)
    }
}

impl From<Kind> for Kinds {
    fn from(kind: Kind) -> Self {
        Self(1 << kind.as_raw())
    }
}

impl<K: Into<Kinds>> FromIterator<K> for Kinds {
    fn from_iter<I: IntoIterator<Item = K>>(kinds: I) -> Self {
        kinds
            .into_iter()
            .fold(Self::default(), |all, kind| Self(all.0 | kind.into().0))
    }
}

impl BitOr for Kind {
    type Output = Kinds;

    fn bitor(self, other: Self) -> Kinds {
        [self, other].into_iter().collect()
    }
}

impl BitOr<Kind> for Kinds {
    type Output = Self;

    fn bitor(self, other: Kind) -> Self {
        [self, other.into()].into_iter().collect()
    }
}

/// What a mount can do, and what a policy needs it to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(pub u64);

impl Features {
    /// [`Kind::Open`] and [`Kind::Close`].
    pub const OPEN: Self = Self(1 << 0);
    /// [`Kind::Touch`].
    pub const TOUCH: Self = Self(1 << 1);
    /// [`Kind::Progress`].
    pub const PROGRESS: Self = Self(1 << 2);
    /// Drops pages that processes map.
    pub const EVICT_MAPPED: Self = Self(1 << 3);
    /// [`Io::near`] decides on the memory.
    pub const AFFINITY: Self = Self(1 << 4);
    /// [`Io::by`] decides which memory cgroup pays.
    pub const CHARGE: Self = Self(1 << 5);

    /// Those of either; `|` where it need not be constant.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are there.
    #[must_use]
    pub const fn contain(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

/// What became of a load, when it is over. `ppc.h` describes each field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "documented in ppc.h")]
pub struct Report {
    pub service: String,
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

impl Report {
    /// Whether it has a service, and no parts that are more than the whole.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let within = |parts: &[u64], whole: u64| {
            let sum = parts
                .iter()
                .try_fold(0_u64, |sum, part| sum.checked_add(*part));
            sum.is_some_and(|sum| sum <= whole)
        };
        let phases = [
            self.waiting_ns,
            self.loading_ns,
            self.held_ns,
            self.reading_ns,
            self.resting_ns,
        ];
        (1..256).contains(&self.service.len())
            && within(&[self.used, self.late, self.unread], self.asked)
            && within(&phases, self.whole_ns)
    }
}

/// What a reader did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: Kind,
    /// To which file; 0 for [`Kind::Lost`].
    pub file: FileId,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub length: u64,
    /// When, on the clock of [`Host::now`](crate::Host::now).
    pub time_ns: u64,
    /// How many events were merged into this one, or lost.
    pub count: u64,
    /// The reader, by its number in the initial pid namespace.
    pub process: u32,
    /// Its thread, likewise.
    pub thread: u32,
    /// On which it happened.
    pub cpu: u32,
    /// A page fault, not a read.
    pub mmap: bool,
    /// Opened with `O_DIRECT`.
    pub direct: bool,
}

impl Event {
    /// The plainest event of a kind: one, by process 1.
    #[must_use]
    pub const fn new(kind: Kind, file: FileId, offset: u64, length: u64) -> Self {
        Self {
            kind,
            file,
            offset,
            length,
            time_ns: 0,
            count: 1,
            process: 1,
            thread: 1,
            cpu: 0,
            mmap: false,
            direct: false,
        }
    }

    /// That process, with its first thread, did it.
    #[must_use]
    pub const fn by(mut self, process: u32) -> Self {
        self.process = process;
        self.thread = process;
        self
    }

    /// Where the next byte would be.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// What an [`Io`] does with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Op {
    /// The range is brought into the cache.
    Load,
    /// The range is taken out of the cache, and its waiting loads are cancelled.
    Drop,
    /// The waiting loads of the range are cancelled; cached pages stay.
    Cancel,
}

impl Op {
    /// The operation with this number in `ppc.h`; `None` for 0 or one of a later version.
    #[must_use]
    pub const fn from_raw(op: u32) -> Option<Self> {
        match op {
            1 => Some(Self::Load),
            2 => Some(Self::Drop),
            3 => Some(Self::Cancel),
            _ => None,
        }
    }

    /// Its number in `ppc.h`.
    #[must_use]
    pub const fn as_raw(self) -> u32 {
        match self {
            Self::Load => 1,
            Self::Drop => 2,
            Self::Cancel => 3,
        }
    }
}

/// How to do an [`Io`]. Each flag is for one [`Op`] and refused with another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IoFlags(u32);

impl IoFlags {
    /// To load: replace older loads of [`Io::process`].
    pub const REPLACE: Self = Self(1 << 0);
    /// To load: and have the kernel take older cache first.
    pub const HOLD: Self = Self(1 << 1);
    /// To load: large folios rather than the exact range.
    pub const LARGE: Self = Self(1 << 3);
    /// To drop: leave pages that processes map.
    pub const UNMAPPED: Self = Self(1 << 4);

    /// Their bits in `ppc.h`.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The flags of these bits, known here or not.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Those of either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are there.
    #[must_use]
    pub const fn contain(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// All that go with an operation.
    pub(crate) const fn of(op: Op) -> Self {
        match op {
            Op::Load => Self::REPLACE.union(Self::HOLD).union(Self::LARGE),
            Op::Drop => Self::UNMAPPED,
            Op::Cancel => Self(0),
        }
    }
}

impl BitOr for IoFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

/// A range of a file, and what to do with it.
///
/// ```
/// use ppc::{FileId, Io, Xpu};
/// let (file, reader) = (FileId(1), 4711);
/// Io::load(file, 0..4096).by(reader).near(Xpu(0)).hold();
/// Io::load(file, 4096..).by(reader).replace();
/// Io::drop(file, ..4096).unmapped();
/// Io::cancel(file, ..);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Io {
    /// What to do.
    pub op: Op,
    /// Of which file.
    pub file: FileId,
    /// In bytes.
    pub offset: u64,
    /// In bytes, not 0; clipped at the end of the file.
    pub length: u64,
    /// How.
    pub flags: IoFlags,
    /// Load into the memory nearest to it.
    pub xpu: Option<Xpu>,
    /// Higher ones first.
    pub priority: i32,
    /// The process that will read it, if known.
    pub process: Option<u32>,
}

impl Io {
    /// Brings a range of bytes into the cache, in addition to other waiting loads.
    #[must_use]
    pub fn load(file: FileId, range: impl RangeBounds<u64>) -> Self {
        Self::new(Op::Load, file, &range)
    }

    /// Takes a range of bytes out of the cache.
    #[must_use]
    pub fn drop(file: FileId, range: impl RangeBounds<u64>) -> Self {
        Self::new(Op::Drop, file, &range)
    }

    /// Cancels older loads of a range of bytes that still wait.
    #[must_use]
    pub fn cancel(file: FileId, range: impl RangeBounds<u64>) -> Self {
        Self::new(Op::Cancel, file, &range)
    }

    fn new(op: Op, file: FileId, range: &impl RangeBounds<u64>) -> Self {
        const END: u64 = i64::MAX as u64;
        let offset = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => END,
        };
        Self {
            op,
            file,
            offset,
            length: end.saturating_sub(offset),
            flags: IoFlags::default(),
            xpu: None,
            priority: 0,
            process: None,
        }
    }

    /// This process will read it.
    #[must_use]
    pub fn by(mut self, process: impl Into<Option<u32>>) -> Self {
        self.process = process.into();
        self
    }

    /// To load: near this accelerator. Without it the host uses the accelerator that the process works on.
    #[must_use]
    pub fn near(mut self, xpu: impl Into<Option<Xpu>>) -> Self {
        self.xpu = xpu.into();
        self
    }

    /// To load: before those of a lower priority, which is usually 0.
    #[must_use]
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// To load: replace older loads of the same process, which has moved on.
    #[must_use]
    pub const fn replace(mut self) -> Self {
        self.flags = self.flags.union(IoFlags::REPLACE);
        self
    }

    /// To load: and have the kernel take older cache first.
    #[must_use]
    pub const fn hold(mut self) -> Self {
        self.flags = self.flags.union(IoFlags::HOLD);
        self
    }

    /// To load: large folios rather than the exact range.
    #[must_use]
    pub const fn large(mut self) -> Self {
        self.flags = self.flags.union(IoFlags::LARGE);
        self
    }

    /// To drop: leave pages that processes map.
    #[must_use]
    pub const fn unmapped(mut self) -> Self {
        self.flags = self.flags.union(IoFlags::UNMAPPED);
        self
    }

    /// Where the next byte would be.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// What identifies a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileInfo {
    /// In bytes.
    pub size: u64,
    /// Device number of the lower file system.
    pub device: u64,
    /// Number on it.
    pub inode: u64,
    /// Last change of its contents, in ns since 1970.
    pub mtime_ns: i64,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// From the root of the mount: no path of this process, which the standard library could look up.
    pub path: PathBuf,
    /// In bytes; `None` for a directory.
    pub size: Option<u64>,
}

/// How much the page cache may take, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// By the tightest limit that applies.
    pub limit: u64,
    /// In use; of the page cache only what readers and policies of this mount have brought in.
    pub used: u64,
    /// Bytes in use from which on evict is called.
    pub threshold: u64,
    /// How much can be loaded before that.
    pub available: u64,
    /// Whose limit it is: the inode number of the memory control group's directory; 0 if it is the machine's, or not
    /// known.
    pub group: u64,
}

/// How much a line of log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Level {
    /// The requested action failed.
    Error = 1,
    /// Abnormal, but the policy continues.
    Warn = 2,
    /// Once per lifetime, not once per event.
    Info = 3,
    /// For the author of the policy.
    Debug = 4,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_any_kind_are_offset_and_length() {
        const END: u64 = i64::MAX as u64;
        let file = FileId(1);
        let of = |io: Io| (io.offset, io.length);
        assert_eq!(of(Io::load(file, 5..9)), (5, 4));
        assert_eq!(of(Io::load(file, 5..=9)), (5, 5));
        assert_eq!(of(Io::drop(file, ..9)), (0, 9));
        assert_eq!(of(Io::drop(file, 5..)), (5, END - 5));
        assert_eq!(of(Io::cancel(file, ..)), (0, END));
        let backwards = (9, 5);
        assert_eq!(of(Io::load(file, backwards.0..backwards.1)), (9, 0));
        assert_eq!(of(Io::load(file, u64::MAX..)), (u64::MAX, 0));
        assert_eq!(of(Io::load(file, ..=u64::MAX)), (0, u64::MAX));
    }
}
