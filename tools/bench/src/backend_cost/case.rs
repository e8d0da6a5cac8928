//! How the file is read.

use serde::{Deserialize, Serialize};

use crate::units::MIB;

/// How the reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CostAccess {
    /// By `read`, `piece` bytes at a time.
    Read { piece: u64 },
    /// By copying from a mapping into a buffer.
    Copy,
}

/// A case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostCase {
    pub(crate) name: &'static str,
    pub(crate) access: CostAccess,
    /// Whether nothing is cached before; otherwise everything is.
    pub(crate) cold: bool,
    /// Whether the file is another one, which the worker does not serve.
    pub(crate) beside: bool,
    /// Number of times the file is read: smaller differences take longer to tell from noise.
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
    // An unrelated program.
    CostCase {
        beside: true,
        passes: 4,
        ..case("bystander, warm read 4 KiB", SMALLEST, false)
    },
];
