//! The memory of a virtual machine whose host takes back what is free (free page reporting).
//!
//! The host has to give such a page back at its first touch, which took 7 µs for 4 KiB: a load of 1.2 GB took from 0.35
//! to 1.5 s, whichever happened to get such pages. So nothing goes to the host during a measurement, and as much
//! memory as that needs is touched before.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use crate::machine;

/// The order of the smallest blocks of free pages that the host is told of.
const ORDER: &str = "/sys/module/page_reporting/parameters/page_reporting_order";
/// More than any block has; where that is refused, the most that one has.
const LARGEST: [&str; 2] = ["11", "10"];

/// While this exists, the host takes nothing, or as little as can be.
#[derive(Debug, Default)]
pub(crate) struct HostMemory {
    /// What to set again, and what it was.
    before: Option<(PathBuf, String)>,
}

impl HostMemory {
    /// Keeps what is free, of which so many bytes are going to be used. Without a host that takes memory, and for users
    /// who may not change that, it does nothing.
    pub(crate) fn keep(bytes: u64) -> Self {
        Self::keep_by(Path::new(ORDER), bytes)
    }

    fn keep_by(order: &Path, bytes: u64) -> Self {
        let Ok(before) = fs::read_to_string(order) else {
            return Self::default();
        };
        if !LARGEST.iter().any(|it| fs::write(order, it).is_ok()) {
            return Self::default();
        }
        let bytes = bytes.min(machine::available() / 2);
        black_box(vec![1_u8; usize::try_from(bytes).unwrap_or(0)]);
        Self {
            before: Some((order.to_owned(), before.trim().to_owned())),
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Some((order, before)) = &self.before
            && let Err(error) = fs::write(order, before)
        {
            eprintln!("{} was {before}: {error}", order.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_takes_memory_again_afterwards() {
        let path = std::env::temp_dir().join(format!("ppc-bench-order-{}", std::process::id()));
        let order = || fs::read_to_string(&path).expect("it is there");
        fs::write(&path, "9\n").expect("a file");
        let kept = HostMemory::keep_by(&path, 1 << 20);
        assert_eq!(order(), "11");
        drop(kept);
        assert_eq!(order(), "9");
        fs::remove_file(&path).expect("ours");
        assert!(HostMemory::keep_by(&path, 0).before.is_none());
        assert!(!path.exists());
    }
}
