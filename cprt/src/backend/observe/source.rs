//! The sources of the tracepoints' records.
//!
//! There are two: programs in the kernel (`bpf.rs`), which pick out our files there and cost a
//! reader least, and perf events (`perf.rs`) where programs do not load. `available.rs` opens the better one.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::record::{Key, Point, Raw};

/// A source of records of readers. One thread takes them; any thread may call the rest.
pub(super) trait RecordSource: Debug + Send + Sync {
    /// Its name, for messages.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests go by it"))]
    fn name(&self) -> &'static str;
    /// Turns on exactly the tracepoints of this set that the kernel has. A reader that continues where it was may
    /// read `merge` pages without a record; such pages at its end are not reported.
    fn enable(&self, points: &[Point], merge: u64) -> io::Result<()>;
    /// Sets the files to report from now on. Records of other files may still come.
    fn files(&self, keys: &[Key]) -> io::Result<()>;
    /// Readable when there is something to take; `None` while [`Self::due`] alone says when to look.
    fn ready(&self) -> Option<BorrowedFd<'_>>;
    /// The deadline for taking records, even if nothing is readable.
    fn due(&self) -> Option<Instant> {
        None
    }
    /// Takes all records, in the order of time; of this process's own, at most those of large folios that it has
    /// loaded. Returns how many were lost for lack of room.
    fn take(&self, into: &mut Vec<Raw>) -> u64;
}
