//! How a program in the kernel gets at what a tracepoint tells. Pure.
//!
//! At a tracepoint itself it is handed what the kernel's own code hands out there, and follows pointers from it,
//! which lie where the kernel's types say ([`Btf`]). By way of a perf event it gets a record, which
//! the kernel has put together before: that costs each reader of the machine some 100 ns, ours or not.

use super::record::{Extent, Field, Layout, Point};
use crate::sys::btf::{Btf, Member};

/// One value: what is loaded from what the program is given, and from there on, one after another.
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
    /// In the kernel's inode. The device is in what a pointer in it points to, which is only followed if the inode
    /// may be ours, and by a function of the kernel.
    Kernel {
        cast: Option<Cast>,
        inode: Reach,
        number: Field,
        superblock: Field,
        device: Field,
    },
}

/// The kernel trusts what a tracepoint hands out, and when it takes a program that follows a pointer in there, goes
/// through all its types four times to find out whether it trusts that as well: 2 ms. After this cast, a function by
/// the number of its type, nothing is trusted, and all is checked as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cast {
    pub(super) function: i32,
    pub(super) structure: i32,
}

impl Cast {
    /// The function; `None` where the kernel has none: before 6.2.
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

/// What tells how many pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    One,
    Last(Reach),
    /// The binary logarithm of their number.
    Order(Reach),
    /// The same of a folio that has a flag, the number of a bit, and one page without.
    Folio {
        flags: Reach,
        large: u32,
        order: Reach,
    },
}

/// Where the registers of a thread's system call are, and the numbers of those that read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) number: Field,
    pub(super) count: Field,
    pub(super) offset: Field,
    pub(super) read: i32,
    pub(super) pread: i32,
}

impl Call {
    /// The kernel keeps the registers of a system call as it shows them to debuggers, so nothing has to be looked up.
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

    /// Of other processors we do not know this.
    #[cfg(not(target_arch = "x86_64"))]
    fn known() -> Option<Self> {
        None
    }

    /// Reads alone have something to be looked up.
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
    /// Of reads: the system call under way.
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
    /// Those at the tracepoint itself, and the number of the type of what it hands out; `None` if this kernel
    /// hands out something else. The cast is by this function.
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
        // Numbers and pointers alike are handed out in eight bytes each.
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

    /// The same for a kernel that refuses the cast; `None` if there is none.
    pub(super) fn without_cast(&self) -> Option<Self> {
        let mut reaches = self.clone();
        match &mut reaches.file {
            FileReach::Kernel { cast, .. } => cast.take().map(|_| reaches),
            FileReach::Record { .. } => None,
        }
    }
}

/// As programs load it: a structure is a number in another guise.
fn field(member: Member) -> Option<Field> {
    let offset = u16::try_from(member.offset).ok()?;
    let size = u16::try_from(member.size).ok()?;
    matches!(size, 1 | 2 | 4 | 8).then_some(Field { offset, size })
}
