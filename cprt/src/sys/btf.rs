//! The kernel's type information (BTF): offsets of members in structures, and arguments of tracepoints.
//!
//! Pure, except for opening the file. It looks only at types that are asked for: the kernel has over 100,000.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::AsFd as _;

use super::shared::Constant;

/// The kernel's own type information.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
/// Upper bound on how deep types are nested.
const DEEPEST: u32 = 8;

/// The kinds of types that are distinguished here.
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const ENUM64: u32 = 19;
}

/// Where a member is within its structure, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) offset: u32,
    pub(crate) size: u32,
}

/// Types by their numbers; the first is 1.
#[derive(Debug)]
pub(crate) struct Btf {
    bytes: Bytes,
    /// Where the types and the strings are in `bytes`.
    types: Range<usize>,
    strings: Range<usize>,
    /// Where each type is in `bytes`.
    places: Vec<usize>,
}

/// A type's first three numbers.
#[derive(Clone, Copy, Debug)]
struct Type {
    name: u32,
    kind: u32,
    /// The number of its members, values or parameters.
    count: u32,
    /// Whether offsets of members have the sizes of bit fields in the upper byte.
    bits: bool,
    /// Its size, or the type that it points to or is another name for.
    of: u32,
    /// Where the data that follows begins.
    at: usize,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// The kind, from a type's second number.
const fn kind_of(info: u32) -> u32 {
    info >> 24 & 0x1f
}

fn place(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(word(bytes, at)?).ok()
}

/// The contents of a file of types. Linux 6.18 can map it; older kernels return it in thousands of pieces.
#[derive(Debug)]
enum Bytes {
    Mapped(Constant),
    Read(Vec<u8>),
}

impl Bytes {
    fn of_kernel() -> io::Result<Self> {
        let file = File::open(KERNEL)?;
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        match Constant::new(file.as_fd(), length) {
            Ok(mapped) => Ok(Self::Mapped(mapped)),
            Err(_) => Ok(Self::Read(std::fs::read(KERNEL)?)),
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(mapped) => mapped.bytes(),
            Self::Read(bytes) => bytes,
        }
    }
}

impl Btf {
    /// The types of the running kernel.
    pub(crate) fn kernel() -> io::Result<Self> {
        Self::parse(Bytes::of_kernel()?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(bytes: Bytes) -> Option<Self> {
        let magic = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        if magic != MAGIC {
            return None;
        }
        let header = place(&bytes, 4)?;
        let part = |offset, length| {
            let from = header.checked_add(place(&bytes, offset)?)?;
            let to = from.checked_add(place(&bytes, length)?)?;
            (to <= bytes.len()).then_some(from..to)
        };
        let (types, strings) = (part(8, 12)?, part(16, 20)?);
        // Most types take some thirty bytes.
        let mut places = Vec::with_capacity(types.len() / 24);
        places.push(0);
        let mut at = types.start;
        while at < types.end {
            places.push(at);
            let one = Type::read(&bytes, at)?;
            at = one.at.checked_add(one.rest()?)?;
        }
        Some(Self {
            bytes,
            types,
            strings,
            places,
        })
    }

    fn get(&self, id: u32) -> Option<Type> {
        let at = *self.places.get(usize::try_from(id).ok()?)?;
        (id > 0).then(|| Type::read(&self.bytes[..self.types.end], at))?
    }

    fn name(&self, offset: u32) -> &[u8] {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.bytes[self.strings.clone()].get(offset..));
        let rest = rest.unwrap_or_default();
        rest.split(|&byte| byte == 0).next().unwrap_or_default()
    }

    /// The number of the type with this kind and name.
    fn find(&self, kind: u32, name: &str) -> Option<u32> {
        let (types, strings) = (
            &self.bytes[..self.types.end],
            &self.bytes[self.strings.clone()],
        );
        let is_named = |offset: u32| {
            let from = usize::try_from(offset)
                .ok()
                .and_then(|offset| strings.get(offset..));
            let rest = from.and_then(|from| from.strip_prefix(name.as_bytes()));
            rest.is_some_and(|rest| rest.first() == Some(&0))
        };
        // Compares the kind first: most types are of another, and each string is a cache miss.
        let is_it = |&at: &usize| {
            kind_of(word(types, at + 4)?).eq(&kind).then_some(())?;
            is_named(word(types, at)?).then_some(())
        };
        let place = self
            .places
            .iter()
            .skip(1)
            .position(|at| is_it(at).is_some())?;
        u32::try_from(place + 1).ok()
    }

    pub(crate) fn typedef(&self, name: &str) -> Option<u32> {
        self.find(kind::TYPEDEF, name)
    }

    pub(crate) fn structure(&self, name: &str) -> Option<u32> {
        self.find(kind::STRUCT, name)
    }

    pub(crate) fn function(&self, name: &str) -> Option<u32> {
        self.find(kind::FUNC, name)
    }

    /// The parameters of functions of this type, each by the name of the structure it points to, or `None`.
    pub(crate) fn parameters(&self, typedef: u32) -> Option<Vec<Option<&str>>> {
        let pointer = self.get(self.get(typedef)?.of)?;
        let function = self.get(pointer.of)?;
        if (pointer.kind, function.kind) != (kind::PTR, kind::FUNC_PROTO) {
            return None;
        }
        let count = usize::try_from(function.count).ok()?;
        let one = |number| {
            let id = word(&self.bytes, function.at + number * 8 + 4)?;
            Some(self.points_to(id))
        };
        (0..count).map(one).collect()
    }

    fn points_to(&self, id: u32) -> Option<&str> {
        let pointer = self.get(id).filter(|one| one.kind == kind::PTR)?;
        let target = self.get(self.resolve(pointer.of)?)?;
        let is_struct = target.kind == kind::STRUCT;
        is_struct.then(|| std::str::from_utf8(self.name(target.name)).ok())?
    }

    /// The type behind its other names and its qualifiers.
    fn resolve(&self, mut id: u32) -> Option<u32> {
        for _ in 0..DEEPEST {
            let one = self.get(id)?;
            if !matches!(one.kind, kind::TYPEDEF | kind::VOLATILE | kind::CONST) {
                return Some(id);
            }
            id = one.of;
        }
        None
    }

    /// The place of a member of a structure, even in an anonymous part of it.
    pub(crate) fn member(&self, structure: &str, member: &str) -> Option<Member> {
        self.member_of(self.find(kind::STRUCT, structure)?, member, DEEPEST)
    }

    fn member_of(&self, id: u32, wanted: &str, deepest: u32) -> Option<Member> {
        let one = self.get(id)?;
        if !matches!(one.kind, kind::STRUCT | kind::UNION) {
            return None;
        }
        (0..usize::try_from(one.count).ok()?).find_map(|number| {
            let at = one.at + number * 12;
            let (name, id) = (word(&self.bytes, at)?, word(&self.bytes, at + 4)?);
            let bits = word(&self.bytes, at + 8)?;
            let bits = if one.bits { bits & 0x00ff_ffff } else { bits };
            let id = self.resolve(id)?;
            if self.name(name) == wanted.as_bytes() {
                let (offset, size) = (bits / 8, self.size(id, DEEPEST)?);
                return Some(Member { offset, size });
            }
            if !self.name(name).is_empty() || deepest == 0 {
                return None;
            }
            let found = self.member_of(id, wanted, deepest - 1)?;
            let offset = found.offset + bits / 8;
            Some(Member { offset, ..found })
        })
    }

    fn size(&self, id: u32, depth: u32) -> Option<u32> {
        let one = self.get(id)?;
        match one.kind {
            kind::PTR => Some(8),
            kind::INT | kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 => Some(one.of),
            kind::ARRAY => {
                let (each, count) = (word(&self.bytes, one.at)?, word(&self.bytes, one.at + 8)?);
                let each = self.resolve(each).filter(|_| depth > 0)?;
                self.size(each, depth - 1)?.checked_mul(count)
            }
            _ => None,
        }
    }

    /// The number of a named value of an enumeration.
    pub(crate) fn value(&self, enumeration: &str, value: &str) -> Option<u32> {
        let one = self.get(self.find(kind::ENUM, enumeration)?)?;
        (0..usize::try_from(one.count).ok()?).find_map(|number| {
            let at = one.at + number * 8;
            let name = word(&self.bytes, at)?;
            (self.name(name) == value.as_bytes()).then(|| word(&self.bytes, at + 4))?
        })
    }
}

impl Type {
    fn read(types: &[u8], at: usize) -> Option<Self> {
        let info = word(types, at + 4)?;
        Some(Self {
            name: word(types, at)?,
            kind: kind_of(info),
            count: info & 0xffff,
            bits: info >> 31 == 1,
            of: word(types, at + 8)?,
            at: at + 12,
        })
    }

    /// The number of bytes that follow the first three numbers.
    fn rest(self) -> Option<usize> {
        let each = match self.kind {
            kind::INT | kind::VAR | kind::DECL_TAG => return Some(4),
            kind::ARRAY => return Some(12),
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12,
            kind::ENUM | kind::FUNC_PROTO => 8,
            _ => 0,
        };
        usize::try_from(self.count).ok()?.checked_mul(each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types of a small kernel: an int, `struct file { u32 flags; union { u64 inode; u32 half; }; }`,
    /// `void (*)(void *, struct file *)` under a name, and an enumeration.
    fn small() -> Vec<u8> {
        let names = b"\0int\0file\0flags\0inode\0half\0on_open\0states\0open\0shut\0long\0";
        let name = |text: &str| {
            let text = format!("\0{text}\0");
            let mut windows = names.windows(text.len());
            let at = windows.position(|window| window == text.as_bytes());
            u32::try_from(at.expect("a name") + 1).expect("a small number")
        };
        let info = |kind: u32, count: u32| kind << 24 | count;
        #[rustfmt::skip]
        let types = [
            name("int"), info(kind::INT, 0), 4, 32,                         // 1
            name("file"), info(kind::STRUCT, 2), 16,                        // 2
                name("flags"), 1, 0,
                0, 3, 64,
            0, info(kind::UNION, 2), 8,                                     // 3
                name("inode"), 4, 0,
                name("half"), 1, 0,
            name("long"), info(kind::INT, 0), 8, 64,                        // 4
            0, info(kind::PTR, 0), 2,                                       // 5
            0, info(kind::FUNC_PROTO, 3), 0,                                // 6
                0, 8, 0, 5, 0, 4,
            0, info(kind::PTR, 0), 6,                                       // 7
            0, info(kind::PTR, 0), 0,                                       // 8
            name("on_open"), info(kind::TYPEDEF, 0), 7,                     // 9
            name("states"), info(kind::ENUM, 2), 4,                         // 10
                name("open"), 0, name("shut"), 6,
        ];
        let types: Vec<u8> = types
            .iter()
            .flat_map(|word: &u32| word.to_ne_bytes())
            .collect();
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("few").to_ne_bytes();
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        bytes.extend(24_u32.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(length(&types));
        bytes.extend(length(&types));
        bytes.extend(length(names));
        bytes.extend(types);
        bytes.extend(names);
        bytes
    }

    #[test]
    fn members_are_found_within_what_has_no_name() {
        let btf = Btf::parse(Bytes::Read(small())).expect("types");
        let member = |offset, size| Some(Member { offset, size });
        assert_eq!(btf.member("file", "flags"), member(0, 4));
        assert_eq!(btf.member("file", "inode"), member(8, 8));
        assert_eq!(btf.member("file", "half"), member(8, 4));
        assert_eq!(btf.member("file", "nothing"), None);
        assert_eq!(btf.member("nothing", "flags"), None);
    }

    #[test]
    fn btf_lookup_finds_parameter_types_and_enum_values() {
        let btf = Btf::parse(Bytes::Read(small())).expect("types");
        let typedef = btf.typedef("on_open").expect("a name");
        let taken = [None, Some("file"), None];
        assert_eq!(btf.parameters(typedef).as_deref(), Some(&taken[..]));
        assert_eq!(btf.parameters(1), None, "no function");
        assert_eq!(btf.typedef("file"), None, "a structure");
        assert_eq!(btf.value("states", "shut"), Some(6));
        assert_eq!(btf.value("states", "ajar"), None);
    }

    #[test]
    fn truncated_btf_is_rejected() {
        let whole = small();
        for length in 0..whole.len() {
            assert!(
                Btf::parse(Bytes::Read(whole[..length].to_vec())).is_none(),
                "{length}"
            );
        }
    }
}
