//! Where the records of the tracepoints come from.
//!
//! There are two: programs in the kernel (`bpf.rs`), which pick out our files there and cost a reader
//! least, and perf events (`perf.rs`) where those do not load.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::bpf::Bpf;
use super::perf::Perf;
use super::record::{Key, Layout, Point, Raw};
use crate::sys::tracefs::Tracefs;

/// Tells what readers do. One thread takes; any may call the rest.
pub(super) trait Source: Debug + Send + Sync {
    /// For people.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests go by it"))]
    fn name(&self) -> &'static str;
    /// These tracepoints from now on, as far as there are such. Of a reader that goes on where it was,
    /// so many pages may go without a record; what is left of them at its end is not told.
    fn enable(&self, points: &[Point], merge: u64) -> io::Result<()>;
    /// These files from now on. Of others there may be records all the same.
    fn files(&self, keys: &[Key]) -> io::Result<()>;
    /// The calling thread is about to read much: what it does need not be told.
    fn ignore_me(&self) {}
    /// Readable when there is something to take; `None` while that is only looked at when it is due.
    fn ready(&self) -> Option<BorrowedFd<'_>>;
    /// When to take what there is at the latest, even if nothing is readable.
    fn due(&self) -> Option<Instant> {
        None
    }
    /// Takes what there is, in the order of time, without what this process did; returns how many
    /// there was no room for.
    fn take(&self, into: &mut Vec<Raw>) -> u64;
}

/// The tracepoints that this kernel has.
pub(super) fn layouts() -> io::Result<Vec<Layout>> {
    let tracefs = Tracefs::open()?;
    let mut layouts = Vec::new();
    for point in Point::ALL {
        match tracefs.read(point.path(), "format") {
            Ok(format) => layouts.extend(Layout::parse(point, &format)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    if layouts.iter().any(|layout| layout.point == Point::Add) {
        Ok(layouts)
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The better one, and why if that is not the best.
pub(super) fn open(layouts: &[Layout]) -> io::Result<(Box<dyn Source>, Option<String>)> {
    // Older kernels warn, in their log and for all to see, of programs at tracepoints whose tables are
    // not made in one piece; ours would be of tens of MiB then. They have few records, too.
    let is_new = layouts.iter().any(|layout| layout.point == Point::Get);
    let bpf = if is_new {
        Bpf::open(layouts)
    } else {
        Err(io::Error::other("kernels before 6.12 are not asked to"))
    };
    match bpf {
        Ok(bpf) => Ok((Box::new(bpf), None)),
        Err(error) => Ok((Box::new(Perf::open(layouts)?), Some(error.to_string()))),
    }
}
