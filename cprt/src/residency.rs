//! Residency on purpose: what of some files is in the page cache, put there, taken out, and compared with the device,
//! without a policy, a daemon or any privilege.
//!
//! ```text
//! paths ─ find ─ files ─┬─ order ─ Warming ─ the worker's loader and budget ─ page cache
//!                       ├─ Cache::release ─ what went, and why the rest stays
//!                       └─ Cache::compare ─ pages that differ from the device
//! ```
//!
//! [`find()`] follows links to files, of which caches of downloads consist. [`Warming`] uses a worker's loader with its
//! budget in this process: as many loads at once as the device wants, none while memory is over its threshold.

mod compare;
mod find;
mod listed;
mod placement;
mod release;
mod warming;

use std::fs::File;
use std::ops::Range;

use crate::backend::Fault;
use crate::backend::pagecache::Engine;
use crate::{Error, Result};

pub use compare::{Comparison, Contents, Damage, Obstacle, Wanted};
pub use find::{CacheFile, Found, LeftOut, Reason, find};
pub use placement::placement;
pub use release::Released;
pub use warming::{Part, Warming, distinct};

/// The page cache of ordinary files.
#[derive(Debug)]
pub struct Cache {
    engine: Engine,
}

impl Cache {
    /// Prepares to look.
    ///
    /// # Errors
    ///
    /// There is no `/dev/null`.
    pub fn new() -> Result<Self> {
        let engine = Engine::new().map_err(|source| Error::System {
            doing: "Opening /dev/null",
            source,
        })?;
        Ok(Self { engine })
    }

    /// How many bytes of a range are cached; `None` if the kernel does not tell this user.
    #[must_use]
    pub fn resident(&self, file: &File, range: &Range<u64>) -> Option<u64> {
        self.engine.resident(file, range).ok()
    }
}

/// A failure of one file, as the system's error.
fn plain(fault: Fault) -> std::io::Error {
    match fault {
        Fault::Io(error) => error,
        other => std::io::Error::from_raw_os_error(other.errno()),
    }
}
