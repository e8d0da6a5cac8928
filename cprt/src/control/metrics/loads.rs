//! The metrics of loads of models, as policies report them.

use super::exposition::{Exposition, Family, Kind, Value};
use crate::control::loads::LoadTotals;

/// All of them, in the order of the text.
pub(super) const ALL: &[&Family] = &[&DURATION, &PHASES, &ASKED, &SOURCES];

const DURATION: Family = Family {
    name: "ppc_model_load_duration_seconds",
    kind: Kind::Summary,
    unit: "seconds",
    labels: &["service"],
    help: "Time of finished loads of the service's model, from the first sign of the load until its end",
};
const PHASES: Family = Family {
    name: "ppc_model_load_phase_seconds",
    kind: Kind::Counter,
    unit: "seconds",
    labels: &["service", "phase"],
    help: "The same time by phases that do not overlap: waiting for the first reader; loading; held, while the rest \
           waits for readers or memory; reading, with everything loaded; resting, without any read",
};
const ASKED: Family = Family {
    name: "ppc_model_load_asked_bytes",
    kind: Kind::Counter,
    unit: "bytes",
    labels: &["service"],
    help: "Bytes requested ahead of readers, counted once for each load: in-time, late and never-read together",
};
const SOURCES: Family = Family {
    name: "ppc_model_load_source_bytes",
    kind: Kind::Counter,
    unit: "bytes",
    labels: &["service", "source"],
    help: "Bytes by source: in-time, loaded before they were read; late, requested but missed anyway; reader, missed \
           and not requested; never-read, loaded in vain",
};

pub(super) fn of_loads(to: &mut Exposition, loads: &[LoadTotals]) {
    let durations = loads.iter().map(|it| {
        let whole = Value::micros(it.whole_us);
        ([it.service.clone()], it.loads, whole)
    });
    to.summary(&DURATION, durations);
    let parts = |of: &LoadTotals, part: &str| [of.service.clone(), part.to_owned()];
    let phases = loads.iter().flat_map(|it| {
        let phases = it.phases();
        phases.map(|(phase, us)| (parts(it, phase), Value::micros(us)))
    });
    to.family(&PHASES, phases);
    let asked = loads.iter();
    let asked = asked.map(|it| ([it.service.clone()], Value::Whole(it.asked_bytes)));
    to.family(&ASKED, asked);
    let sources = loads.iter().flat_map(|it| {
        let sources = it.sources();
        sources.map(|(source, bytes)| (parts(it, source), Value::Whole(bytes)))
    });
    to.family(&SOURCES, sources);
}
