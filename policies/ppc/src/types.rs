//! The words that both sides of the contract share.

use std::fmt;
use std::ops::BitOr;
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
    /// [`Event::count`] events could not be told.
    Lost,
    /// A file of [`Event::length`] bytes was opened.
    Open,
    /// The last descriptor of an open was closed; its mappings may live on.
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

    /// The kind of that number in `ppc.h`, unless it is a later version's.
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
    /// Evicts what processes map.
    pub const EVICT_MAPPED: Self = Self(1 << 3);
    /// [`Io::xpu`] decides on the memory.
    pub const AFFINITY: Self = Self(1 << 4);
    /// [`Io::process`] decides whom to charge.
    pub const CHARGE: Self = Self(1 << 5);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are there.
    #[must_use]
    pub const fn contain(self, other: Self) -> bool {
        self.0 & other.0 == other.0
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

/// A range to load or to evict.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the contract, and any of them go together"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Io {
    /// Of which file.
    pub file: FileId,
    /// In bytes.
    pub offset: u64,
    /// In bytes, not 0; what is beyond the end of the file is clipped.
    pub length: u64,
    /// Load into the memory nearest to it.
    pub xpu: Option<Xpu>,
    /// Higher ones first.
    pub priority: i32,
    /// Who will read it, if that is known.
    pub process: Option<u32>,
    /// To load: large folios rather than the exact range.
    pub large: bool,
    /// To evict: leave pages that processes map.
    pub unmapped: bool,
    /// To load: after what is left of older plans of the same process, which it does not replace.
    pub more: bool,
    /// From [`Policy::prefetch`](crate::Policy::prefetch): drop the range, as if by evict. What is
    /// left of it in older plans is not loaded.
    pub drop: bool,
    /// From [`Policy::prefetch`](crate::Policy::prefetch): what is left of the range in older plans is
    /// not loaded. What is there stays.
    pub cancel: bool,
    /// To load: and have the kernel take older cache first.
    pub hold: bool,
}

impl Io {
    /// This range, for nobody in particular.
    #[must_use]
    pub const fn new(file: FileId, offset: u64, length: u64) -> Self {
        Self {
            file,
            offset,
            length,
            xpu: None,
            priority: 0,
            process: None,
            large: false,
            unmapped: false,
            more: false,
            drop: false,
            cancel: false,
            hold: false,
        }
    }

    /// From here to the end of the file.
    #[must_use]
    pub const fn to_end(file: FileId, offset: u64) -> Self {
        Self::new(file, offset, (i64::MAX as u64).saturating_sub(offset))
    }

    /// This process will read it.
    #[must_use]
    pub const fn by(mut self, process: u32) -> Self {
        self.process = Some(process);
        self
    }

    /// Near this accelerator.
    #[must_use]
    pub const fn near(mut self, xpu: Option<Xpu>) -> Self {
        self.xpu = xpu;
        self
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
    /// From the root of the mount.
    pub path: PathBuf,
    /// In bytes; `None` for a directory.
    pub size: Option<u64>,
}

/// How much the page cache may take, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// By the tightest limit there is.
    pub limit: u64,
    /// In use; of the page cache only what readers and policies of this mount have brought in.
    pub used: u64,
    /// With so much in use, evict is called.
    pub threshold: u64,
    /// What can be loaded before that.
    pub available: u64,
}

/// How much a line of log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Level {
    /// What was asked for did not happen.
    Error = 1,
    /// Not as it should be, but it goes on.
    Warn = 2,
    /// Once in a life, not once per event.
    Info = 3,
    /// For whoever writes the policy.
    Debug = 4,
}
