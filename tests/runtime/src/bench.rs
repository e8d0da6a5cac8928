//! Measures what the runtime costs readers. Benchmarks run by name; `make cprt-bench` runs them in a guest
//! whose one processor counts instructions, so that its clock is the same in every run.
//!
//! These are not tests: nothing here fails for being slow.

use std::path::PathBuf;
use std::thread::sleep;

use crate::case::Case;
use crate::daemon::{Daemon, policy, test_policy};
use crate::files::{MIB, Pattern, set_readahead};
use crate::mount::Mount;
use crate::outcome::{Outcome, median, millis};
use crate::procfs;
use crate::reader::Job;

pub(crate) const CASES: &[Case] = &[
    Case::new("bench_misbehaviour", 1200, misbehaviour),
    Case::new("bench_hearing", 600, hearing),
];

const SIZE: u64 = 192 * MIB;
const ROUNDS: usize = 3;
const MISBEHAVIOURS: [&str; 10] = [
    "segv",
    "abort",
    "exit",
    "hang",
    "signals",
    "closes_fds",
    "thread_segv",
    "leak",
    "flood",
    "stdout",
];

/// Cold reads of a whole file, in turn without a policy, with one that does nothing and with each that
/// misbehaves. The time excludes the registration, but includes what the policy does and its restarts.
fn misbehaviour() -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, SIZE)?;
    let daemon = Daemon::start()?;
    let libraries = std::iter::once(policy("null")).chain(MISBEHAVIOURS.map(test_policy));
    let libraries: Vec<PathBuf> = libraries.collect();
    let mut native = Vec::new();
    let mut times = vec![Vec::new(); libraries.len()];
    for _ in 0..ROUNDS {
        for (library, times) in libraries.iter().zip(&mut times) {
            native.push(cold(&mount, &file)?);
            daemon.register(&mount, library, &[])?;
            times.push(cold(&mount, &file)?);
            daemon.unregister(&mount)?;
        }
    }
    let native = median(native);
    println!("native {native:.0} ms for {} MiB", SIZE / MIB);
    for (library, times) in libraries.iter().zip(times) {
        let name = library.file_stem().unwrap_or_default().display();
        let time = median(times);
        println!("{name:16} {time:6.0} ms  {:.3}", time / native);
    }
    daemon.stop()
}

fn cold(mount: &Mount, file: &Pattern) -> Outcome<f64> {
    file.make_cold()?;
    // Let earlier work end.
    sleep(millis(300));
    Ok(Job::new(mount, file).run()?.ms)
}

/// CPU time of the worker and the daemon beside that of the reader they listen to, with an event for each
/// page, and with the kernel reading ahead.
#[allow(clippy::cast_precision_loss, reason = "these are measurements")]
fn hearing() -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, SIZE / 3)?;
    for (readahead, what) in [("0", "an event for each page"), ("128", "read ahead")] {
        set_readahead(readahead)?;
        let daemon = Daemon::start()?;
        daemon.register(&mount, &test_policy("probe"), &["log=0"])?;
        file.make_cold()?;
        let before = (daemon.stats(&mount)?, procfs::cpu_ms(daemon.pid())?);
        let pages = file.size / 4096;
        // Every other page first, so that no event is merged with its neighbour's.
        let order = (0..pages).step_by(2).chain((1..pages).step_by(2));
        let job = Job::new(&mount, &file);
        let read = if readahead == "0" {
            job.ranges(order.map(|page| page * 4096..(page + 1) * 4096))
                .run()?
        } else {
            job.run()?
        };
        sleep(millis(500));
        let after = (daemon.stats(&mount)?, procfs::cpu_ms(daemon.pid())?);
        let own = (after.0.worker_cpu_ms - before.0.worker_cpu_ms + after.1 - before.1) as f64;
        println!(
            "{what}: {} events in {:.0} ms, {} lost; CPU time of the reader {:.0} ms, of the runtime \
             {own:.0} ms: {:.1} %",
            after.0.events - before.0.events,
            read.ms,
            after.0.lost,
            read.cpu_ms,
            100.0 * own / read.cpu_ms
        );
        daemon.stop()?;
    }
    Ok(())
}
