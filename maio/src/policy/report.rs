//! Tells the host what became of a load.

use ppc::{Host, Level, Report};

use super::Model;
use crate::extent::PAGE;
use crate::load::{Load, Tally};

/// Upper bound on the bytes of a service's name in a report.
const NAME: usize = 255;

impl Model {
    /// Reports a load that ends now.
    pub(super) fn report(&self, host: &Host<'_>, load: &mut Load) {
        let Some(tally) = load.tally(host.now()) else {
            return;
        };
        if let Err(error) = host.report(&report(&self.service, &tally)) {
            host.log(
                Level::Debug,
                format_args!("The load is not reported: {error}"),
            );
        }
    }
}

fn report(service: &str, tally: &Tally) -> Report {
    let Tally { figures, phases } = tally;
    Report {
        service: service[..service.floor_char_boundary(NAME)].to_owned(),
        asked: figures.asked() * PAGE,
        used: figures.used * PAGE,
        late: figures.late * PAGE,
        unread: figures.unread * PAGE,
        own: figures.own * PAGE,
        waiting_ns: phases.waiting,
        loading_ns: phases.loading,
        held_ns: phases.held,
        reading_ns: phases.reading,
        resting_ns: phases.resting,
        whole_ns: phases.whole(),
    }
}
