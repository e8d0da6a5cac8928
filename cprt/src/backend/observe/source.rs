//! Where the records of the tracepoints come from.
//!
//! There are two sources: programs in the kernel (`bpf.rs`), which pick out our files there and cost a
//! reader least, and perf events (`perf.rs`) where those do not load. `available.rs` opens the better one.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::record::{Key, Point, Raw};

/// Tells what readers do. One thread takes; any may call the rest.
pub(super) trait RecordSource: Debug + Send + Sync {
    /// For people.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests go by it"))]
    fn name(&self) -> &'static str;
    /// These tracepoints from now on, as far as there are such. Of a reader that goes on where it was,
    /// so many pages may go without a record; what is left of them at its end is not told.
    fn enable(&self, points: &[Point], merge: u64) -> io::Result<()>;
    /// These files from now on. Of others there may be records all the same.
    fn files(&self, keys: &[Key]) -> io::Result<()>;
    /// Readable when there is something to take; `None` while that is only looked at when it is due.
    fn ready(&self) -> Option<BorrowedFd<'_>>;
    /// When to take what there is at the latest, even if nothing is readable.
    fn due(&self) -> Option<Instant> {
        None
    }
    /// Takes what there is, in the order of time; of what this process did, the large folios that it has loaded
    /// at most. Returns how many there was no room for.
    fn take(&self, into: &mut Vec<Raw>) -> u64;
}
