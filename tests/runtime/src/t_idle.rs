//! An idle runtime takes little memory and no CPU time.

use std::thread::sleep;

use crate::case::Case;
use crate::daemon::{Daemon, policy};
use crate::files::MIB;
use crate::mount::Mount;
use crate::outcome::{Outcome, ensure, ensure_eq, millis, seconds};
use crate::procfs;
use crate::reader::Job;

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_idle_memory", 40, memory),
    Case::new("cprt_idle_never_wakes", 60, never_wakes),
];

/// Upper bound on the memory of the daemon, and of each worker.
const MOST_KIB: u64 = 15 * 1024;

/// A daemon that has worked a little and has nothing more to do, and its worker.
fn idle() -> Outcome<(Daemon, u32)> {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, 8 * MIB)?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &policy("shift"), &["length=1048576"])?;
    Job::new(&mount, &file).run()?;
    let worker = daemon.worker(&mount)?;
    // By then the thread that served the last request has ended, too.
    sleep(millis(2000));
    Ok((daemon, worker))
}

fn memory() -> Outcome {
    let (daemon, worker) = idle()?;
    let (own, its) = (procfs::rss_kib(daemon.pid())?, procfs::rss_kib(worker)?);
    println!("cprtd has {own} KiB, its worker {its}");
    ensure!(own <= MOST_KIB, "cprtd has {own} KiB");
    ensure!(its <= MOST_KIB, "a worker has {its} KiB");
    daemon.stop()
}

fn never_wakes() -> Outcome {
    let (daemon, worker) = idle()?;
    let count =
        || -> Outcome<_> { Ok((procfs::switches(daemon.pid())?, procfs::switches(worker)?)) };
    let before = count()?;
    sleep(seconds(10));
    let after = count()?;
    println!("context switches in 10 s: {before:?} before, {after:?} after");
    ensure_eq!(after.0, before.0, "context switches of cprtd");
    ensure_eq!(after.1, before.1, "context switches of its worker");
    daemon.stop()
}
