//! Finds out which tracepoints this kernel has, and which source of records works.

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

/// Whether to try programs here: older kernels warn, in their log, of programs at tracepoints whose tables are not
/// preallocated; ours would take tens of MiB then. Those kernels also have few records.
fn may_run_programs(layouts: &[Layout]) -> io::Result<()> {
    let is_new = layouts.iter().any(|layout| layout.point == Point::Get);
    is_new
        .then_some(())
        .ok_or_else(|| io::Error::other("BPF programs are not used on kernels before 6.12"))
}

/// Whether a source works, without opening it if that takes long; returns why it is not the best one.
pub(super) fn probe(layouts: &[Layout]) -> io::Result<Option<String>> {
    match may_run_programs(layouts).and_then(|()| Bpf::probe(layouts)) {
        Ok(()) => Ok(None),
        Err(error) => Perf::open(layouts).map(|_| Some(error.to_string())),
    }
}

/// Opens the best source that works; returns why it is not the best one.
pub(super) fn open(layouts: &[Layout]) -> io::Result<(Box<dyn RecordSource>, Option<String>)> {
    match may_run_programs(layouts).and_then(|()| Bpf::open(layouts)) {
        Ok(bpf) => Ok((Box::new(bpf), None)),
        Err(error) => Ok((Box::new(Perf::open(layouts)?), Some(error.to_string()))),
    }
}
