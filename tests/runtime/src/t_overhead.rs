//! What hearing events costs: the CPU time of the runtime beside that of the readers it listens to.

use std::thread::sleep;

use crate::case::Case;
use crate::daemon::{Daemon, test_policy};
use crate::files::{MIB, set_readahead};
use crate::mount::Mount;
use crate::outcome::{Outcome, ensure, ensure_eq, millis};
use crate::procfs;
use crate::reader::Job;

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_overhead_at_full_rate", 90, at_full_rate),
    Case::new("cprt_overhead_of_a_large_file", 90, of_a_large_file),
];

const SIZE: u64 = 32 * MIB;
const PAGE: u64 = 4096;

/// CPU time that the runtime takes to receive a reader's events and load nothing, in percent of the
/// reader's.
#[allow(clippy::cast_precision_loss, reason = "these are measurements")]
fn percent(mount: &Mount, job: &Job, least: u64) -> Outcome<f64> {
    let daemon = Daemon::start()?;
    daemon.register(mount, &test_policy("probe"), &["log=0"])?;
    let before = (daemon.stats(mount)?, procfs::cpu_ms(daemon.pid())?);
    let read = job.run()?;
    sleep(millis(500));
    let after = (daemon.stats(mount)?, procfs::cpu_ms(daemon.pid())?);
    let events = after.0.events - before.0.events;
    // Lost events cost nothing, and the policy does not receive them.
    ensure!(events >= least, "{events} events of {least}: {:?}", after.0);
    ensure_eq!(after.0.lost, 0, "events lost");
    let worker = (after.0.worker_cpu_ms - before.0.worker_cpu_ms) as f64;
    let own = (after.1 - before.1) as f64;
    let percent = 100.0 * (worker + own) / read.cpu_ms;
    println!(
        "{events} events in {:.0} ms: the reader took {:.0} ms of CPU time, the worker {worker:.0}, \
         cprtd {own:.0}: {percent:.1} %",
        read.ms, read.cpu_ms
    );
    daemon.stop()?;
    Ok(percent)
}

/// The worst case: an event for each page, and a reader that hardly looks at what it read. A context
/// switch, of which every few events cause one, costs much more in a guest than a copy.
fn at_full_rate() -> Outcome {
    set_readahead("0")?;
    let mount = Mount::new()?;
    let file = mount.file("f", 3, SIZE)?;
    // Every other page first, so that no event is merged with its neighbour's.
    let pages = SIZE / PAGE;
    let order = (0..pages).step_by(2).chain((1..pages).step_by(2));
    let job = Job::new(&mount, &file).ranges(order.map(|page| page * PAGE..page * PAGE + 8));
    let taken = percent(&mount, &job, pages)?;
    ensure!(
        taken <= 150.0,
        "the runtime took {taken:.1} % of the reader's CPU time"
    );
    Ok(())
}

/// As files are usually read: front to back, with the kernel reading ahead 128 KiB at a time, each a miss.
fn of_a_large_file() -> Outcome {
    set_readahead("128")?;
    let mount = Mount::new()?;
    let file = mount.file("f", 3, 4 * SIZE)?;
    let taken = percent(&mount, &Job::new(&mount, &file), 1)?;
    ensure!(
        taken <= 15.0,
        "the runtime took {taken:.1} % of the reader's CPU time"
    );
    Ok(())
}
