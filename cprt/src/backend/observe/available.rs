//! Which tracepoints and which source of their records this kernel has.

use std::io;

use super::bpf::Bpf;
use super::perf::Perf;
use super::record::{Layout, Point};
use super::source::RecordSource;
use crate::sys::tracefs::Tracefs;

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

/// Whether programs can be had here: older kernels warn, in their log and for all to see, of programs at
/// tracepoints whose tables are not made in one piece; ours would be of tens of MiB then. They have few records,
/// too.
fn may_run_programs(layouts: &[Layout]) -> io::Result<()> {
    let is_new = layouts.iter().any(|layout| layout.point == Point::Get);
    is_new
        .then_some(())
        .ok_or_else(|| io::Error::other("kernels before 6.12 are not asked to"))
}

/// Whether there is a source, without opening one if that takes long; why it is not the best.
pub(super) fn probe(layouts: &[Layout]) -> io::Result<Option<String>> {
    match may_run_programs(layouts).and_then(|()| Bpf::probe(layouts)) {
        Ok(()) => Ok(None),
        Err(error) => Perf::open(layouts).map(|_| Some(error.to_string())),
    }
}

/// The better one, and why if that is not the best.
pub(super) fn open(layouts: &[Layout]) -> io::Result<(Box<dyn RecordSource>, Option<String>)> {
    match may_run_programs(layouts).and_then(|()| Bpf::open(layouts)) {
        Ok(bpf) => Ok((Box::new(bpf), None)),
        Err(error) => Ok((Box::new(Perf::open(layouts)?), Some(error.to_string()))),
    }
}
