//! A device that fails in one place costs only that place.

use std::thread::sleep;

use crate::case::{Case, scratch};
use crate::daemon::{Daemon, test_policy};
use crate::disk::Disk;
use crate::files::{KIB, MIB, Pattern};
use crate::mount::{Mount, point_of};
use crate::outcome::{Outcome, ensure, ensure_eq, millis, skip, wait_until};
use crate::reader::Job;
use crate::way::Way;

pub(crate) const CASES: &[Case] = &[Case::new("cprt_fault_of_one_range", 60, of_one_range)];

/// More than the loader's chunk, so that only part of the file fails.
const SIZE: u64 = 32 * MIB;

fn of_one_range() -> Outcome {
    if Way::now().caches_above() {
        skip!("what is cached of another disk is not looked for in the mount");
    }
    let disk = Disk::new("bad")?;
    let file = Pattern::make(&disk.path.join("f"), 3, SIZE)?;
    let bad = 9 * MIB..9 * MIB + 4 * KIB;
    disk.spoil(&file.lower, bad.clone())?;
    let name = scratch();
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    let mount = Mount::at(&disk.path, &point_of(&name))?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &test_policy("probe"), &["load=f"])?;
    // A request to the device fails as a whole, and the loader's chunk with it.
    wait_until(10, "what is not bad to be loaded", || {
        Ok((file.cached()? >= SIZE - 4 * MIB).then_some(()))
    })?;
    sleep(millis(300));
    let after = file.cached_in(12 * MIB..SIZE)?;
    ensure_eq!(after, SIZE - 12 * MIB, "bytes loaded behind the bad ones");
    ensure_eq!(
        file.cached_in(0..8 * MIB)?,
        8 * MIB,
        "bytes loaded before the bad ones"
    );
    let stats = daemon.stats(&mount)?;
    ensure_eq!(stats.load_errors, 1, "errors in {stats:?}");
    let log = daemon.log()?;
    let told: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("Input/output error"))
        .collect();
    ensure_eq!(told.len(), 1, "how often it is reported: {told:?}");
    ensure!(
        told[0].contains('f'),
        "it does not say of which file: {}",
        told[0]
    );
    // The reader gets its own error.
    let read = Job::new(&mount, &file).range(bad).run();
    ensure!(read.is_err(), "bad bytes are read well");
    Job::new(&mount, &file).range(16 * MIB..SIZE).run()?;
    daemon.stop()
}
