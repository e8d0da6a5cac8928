//! How the file is read.

use serde::{Deserialize, Serialize};

use crate::units::MIB;

/// How bytes come to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CostAccess {
    /// By `read`, so many bytes at a time.
    Read { piece: u64 },
    /// Out of a mapping, into a buffer.
    Copy,
}

/// A case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostCase {
    pub(crate) name: &'static str,
    pub(crate) access: CostAccess,
    /// Nothing is cached before; otherwise everything is.
    pub(crate) cold: bool,
    /// The file is another one, which the worker does not serve.
    pub(crate) beside: bool,
    /// How often the file is read: what is to be told from noise takes longer.
    pub(crate) passes: u64,
}

const fn case(name: &'static str, access: CostAccess, cold: bool) -> CostCase {
    CostCase {
        name,
        access,
        cold,
        beside: false,
        passes: 1,
    }
}

const LARGE: CostAccess = CostAccess::Read { piece: MIB };
const SMALL: CostAccess = CostAccess::Read { piece: MIB / 16 };
const SMALLEST: CostAccess = CostAccess::Read { piece: MIB / 256 };

pub(crate) const CASES: [CostCase; 6] = [
    case("warm read 1 MiB", LARGE, false),
    case("warm read 64 KiB", SMALL, false),
    case("warm mmap copy", CostAccess::Copy, false),
    case("cold read 1 MiB", LARGE, true),
    case("cold mmap copy", CostAccess::Copy, true),
    // A program that has nothing to do with any of this.
    CostCase {
        beside: true,
        passes: 4,
        ..case("bystander, warm read 4 KiB", SMALLEST, false)
    },
];
