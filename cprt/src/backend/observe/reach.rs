//! How a program in the kernel gets at the values of a tracepoint. Pure.
//!
//! Attached to the tracepoint itself, it receives the arguments of the kernel's own code, and follows pointers from
//! there, by the offsets in the kernel's types ([`Btf`]). Run through a perf event, it receives a record that the
//! kernel has put together before: that costs each reader of the machine some 100 ns, ours or not.

use super::record::{Extent, Field, Layout, Point};
use crate::sys::btf::{Btf, Member};

/// The way to one value: fields to load one after another, the first from the program's argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reach(pub(super) Vec<Field>);

impl Reach {
    fn then(&self, field: Field) -> Self {
        Self(self.0.iter().copied().chain([field]).collect())
    }
}

/// Where inode and device are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileReach {
    Record {
        inode: Field,
        device: Field,
    },
    /// In the kernel's inode. The device is behind a pointer in it, which is only followed if the inode
    /// may be ours, and by a function of the kernel.
    Kernel {
        cast: Option<Cast>,
        inode: Reach,
        number: Field,
        superblock: Field,
        device: Field,
    },
}

/// A call of `bpf_rdonly_cast()`, which the program finds by the number of its type. The kernel trusts the arguments of
/// a tracepoint. When it loads a program that follows a pointer in one, it searches all its types four times, 2 ms,
/// to find out whether to trust what lies there as well. It does not trust the result of the cast, so it does not
/// search, and checks each read as it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cast {
    pub(super) function: i32,
    pub(super) structure: i32,
}

impl Cast {
    /// The number of the function's type; `None` before Linux 6.2, which has no such function.
    pub(super) fn function(btf: &Btf) -> Option<i32> {
        i32::try_from(btf.function("bpf_rdonly_cast")?).ok()
    }

    fn to(structure: &str, function: i32, btf: &Btf) -> Option<Self> {
        Some(Self {
            function,
            structure: i32::try_from(btf.structure(structure)?).ok()?,
        })
    }
}

/// Where the number of pages is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    One,
    Last(Reach),
    /// The binary logarithm of their number.
    Order(Reach),
    /// The same for a folio that has the flag of this bit number; one page without.
    Folio {
        flags: Reach,
        large: u32,
        order: Reach,
    },
}

/// Where the registers of a thread's system call are, and the numbers of the calls that read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) number: Field,
    pub(super) count: Field,
    pub(super) offset: Field,
    pub(super) read: i32,
    pub(super) pread: i32,
}

impl Call {
    /// The kernel saves the registers of a system call in the layout that debuggers see, so BTF is not needed.
    #[cfg(target_arch = "x86_64")]
    fn known() -> Option<Self> {
        use std::mem::offset_of;

        use libc::user_regs_struct as Registers;

        let register = |offset: usize| {
            let offset = u16::try_from(offset).ok()?;
            Some(Field { offset, size: 8 })
        };
        Some(Self {
            number: register(offset_of!(Registers, orig_rax))?,
            count: register(offset_of!(Registers, rdx))?,
            offset: register(offset_of!(Registers, r10))?,
            read: i32::try_from(libc::SYS_read).ok()?,
            pread: i32::try_from(libc::SYS_pread64).ok()?,
        })
    }

    /// The layout on other processors is not known here.
    #[cfg(not(target_arch = "x86_64"))]
    fn known() -> Option<Self> {
        None
    }

    /// Only a read has a beginning to look up.
    fn at(point: Point) -> Option<Self> {
        (point == Point::Get).then(Self::known).flatten()
    }
}

/// Where the values of a tracepoint are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reaches {
    pub(super) point: Point,
    pub(super) file: FileReach,
    pub(super) first: Reach,
    pub(super) pages: Pages,
    /// For reads: the system call under way.
    pub(super) call: Option<Call>,
}

impl From<&Layout> for Reaches {
    fn from(layout: &Layout) -> Self {
        let reach = |field| Reach(vec![field]);
        Self {
            point: layout.point,
            file: FileReach::Record {
                inode: layout.inode,
                device: layout.device,
            },
            first: reach(layout.first),
            pages: match layout.extent {
                Extent::One => Pages::One,
                Extent::Last(field) => Pages::Last(reach(field)),
                Extent::Order(field) => Pages::Order(reach(field)),
            },
            call: Call::at(layout.point),
        }
    }
}

impl Reaches {
    /// For programs at the tracepoint itself: its values, and the number of the type of its arguments; `None` if this
    /// kernel has other arguments there. `cast` is the function to cast them by.
    pub(super) fn raw(point: Point, btf: &Btf, cast: Option<i32>) -> Option<(Self, u32)> {
        let name = point.path().rsplit('/').next()?;
        let id = btf.typedef(&format!("btf_trace_{name}"))?;
        let of_mapping = point != Point::Add;
        let (structure, numbers) = match point {
            Point::Add => ("folio", 0),
            Point::Fault => ("address_space", 1),
            Point::Get | Point::Map => ("address_space", 2),
        };
        let mut taken = vec![None, Some(structure)];
        taken.extend(std::iter::repeat_n(None, numbers));
        if btf.parameters(id)? != taken {
            return None;
        }
        let member = |structure, name| field(btf.member(structure, name)?);
        // Each argument takes eight bytes, number or pointer.
        let handed = |number: u16| {
            let (offset, size) = (number * 8, 8);
            Reach(vec![Field { offset, size }])
        };
        let mapping = if of_mapping {
            handed(0)
        } else {
            handed(0).then(member("folio", "mapping")?)
        };
        let reaches = Self {
            point,
            file: FileReach::Kernel {
                cast: cast.and_then(|function| Cast::to(structure, function, btf)),
                inode: mapping.then(member("address_space", "host")?),
                number: member("inode", "i_ino")?,
                superblock: member("inode", "i_sb")?,
                device: member("super_block", "s_dev")?,
            },
            first: if of_mapping {
                handed(1)
            } else {
                handed(0).then(member("folio", "index")?)
            },
            pages: match point {
                Point::Fault => Pages::One,
                Point::Get | Point::Map => Pages::Last(handed(2)),
                Point::Add => Pages::Folio {
                    flags: handed(0).then(member("page", "flags")?),
                    large: btf.value("pageflags", "PG_head")?,
                    // The lowest byte of it.
                    order: handed(0).then(Field {
                        size: 1,
                        ..member("folio", "_flags_1")?
                    }),
                },
            },
            call: Call::at(point),
        };
        Some((reaches, id))
    }

    /// For a kernel that refuses the cast; `None` if there is no cast.
    pub(super) fn without_cast(&self) -> Option<Self> {
        let mut reaches = self.clone();
        match &mut reaches.file {
            FileReach::Kernel { cast, .. } => cast.take().map(|_| reaches),
            FileReach::Record { .. } => None,
        }
    }
}

/// As programs load it: a structure of a number's size is loaded as a number.
fn field(member: Member) -> Option<Field> {
    let offset = u16::try_from(member.offset).ok()?;
    let size = u16::try_from(member.size).ok()?;
    matches!(size, 1 | 2 | 4 | 8).then_some(Field { offset, size })
}
