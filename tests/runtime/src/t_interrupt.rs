//! How long loads continue after they should stop, on a disk so slow that one is always in flight.

use std::thread::sleep;
use std::time::{Duration, Instant};

use cprt::control::client::Client;

use crate::case::{Case, scratch};
use crate::cgroup::{Group, Version};
use crate::daemon::{Daemon, policy, test_policy};
use crate::disk::Disk;
use crate::files::{MIB, Pattern};
use crate::mount::{Mount, point_of};
use crate::outcome::{For as _, Outcome, ensure, factor, median, wait_until};
use crate::reader::{Job, Service};

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_interrupt_by_unregistering", 90, by_unregistering),
    Case::new("cprt_interrupt_by_a_newer_plan", 90, by_a_newer_plan),
    Case::new("cprt_interrupt_by_memory", 90, by_memory),
];

/// Bandwidth of the disk. Two MiB, the loader's chunk, take 10 ms.
const MB_PER_S: u32 = 200;
/// Bandwidth at which the file is not loaded completely while a service takes its memory.
const SLOWER_MB_PER_S: u32 = 40;
const SIZE: u64 = 160 * MIB;
const ROUNDS: usize = 5;
/// Upper bound on the median time to stop, on its own machine.
const LIMIT_MS: f64 = 20.0;
/// Factor on that bound: the guest is emulated and shares its two processors. Alone on a fast machine it takes 95 ms,
/// 210 and 248 beside another guest on one that computes 1.6 times as long. Loads that do not stop go on for 800 ms.
const GENEROUS: f64 = 20.0;

fn slow() -> Outcome<(Disk, Mount, Pattern)> {
    let mut disk = Disk::new("slow")?;
    let file = Pattern::make(&disk.path.join("f"), 3, SIZE)?;
    disk.slow(MB_PER_S)?;
    file.make_cold()?;
    let name = scratch();
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    let mount = Mount::at(&disk.path, &point_of(&name))?;
    Ok((disk, mount, file))
}

/// Watches a disk until nothing has been read from it for 150 ms. Returns how long after `since` the last
/// read was.
fn until_quiet(disk: &Disk, since: Instant) -> Outcome<Duration> {
    let quiet = Duration::from_millis(150);
    let mut last = (disk.bytes_read()?, Instant::now());
    while last.1.elapsed() < quiet {
        sleep(Duration::from_millis(1));
        let read = disk.bytes_read()?;
        if read != last.0 {
            last = (read, Instant::now());
        }
    }
    Ok(last.1.saturating_duration_since(since))
}

fn verdict(what: &str, times: &[f64]) -> Outcome {
    let middle = median(times.to_vec());
    println!("{what}: loads stopped after {middle:.1} ms (median of {times:.1?})");
    let limit = LIMIT_MS * GENEROUS * factor();
    ensure!(middle <= limit, "{what}: {middle:.1} ms, above {limit} ms");
    Ok(())
}

fn by_unregistering() -> Outcome {
    let (disk, mount, file) = slow()?;
    let daemon = Daemon::start()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        file.make_cold()?;
        daemon.register(&mount, &policy("eager"), &[])?;
        Job::new(&mount, &file).range(0..8).run()?;
        wait_until(10, "loads", || Ok((file.cached()? > 8 * MIB).then_some(())))?;
        // Not through ppcctl, which would have to start first.
        let client = Client::new(daemon.socket());
        let begin = Instant::now();
        client.rm_policy(&mount.path)?;
        times.push(until_quiet(&disk, begin)?.as_secs_f64() * 1e3);
        ensure!(file.cached()? < file.size, "all was loaded before");
    }
    verdict("unregistering", &times)?;
    daemon.stop()
}

/// A process jumps: the worker drops the loads planned for it. The times are the worker's own.
fn by_a_newer_plan() -> Outcome {
    let (_disk, mount, file) = slow()?;
    let daemon = Daemon::with("[loader]\nthreads = 1\n")?;
    let ahead = format!("ahead={}", 64 * MIB);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        file.make_cold()?;
        daemon.register(&mount, &test_policy("probe"), &["log=0", &ahead])?;
        // One process, two places far from each other, and a load under way when it jumps.
        let far = [0..8, 80 * MIB..80 * MIB + 8];
        let reader = Job::new(&mount, &file).ranges(far).pause(60).start()?;
        wait_until(10, "loads for the second place", || {
            Ok((file.cached_in(84 * MIB..96 * MIB)? > 4 * MIB).then_some(()))
        })?;
        reader.finish()?;
        let stats = daemon.stats(&mount)?;
        let first = file.cached_in(0..64 * MIB)?;
        ensure!(
            first < 48 * MIB,
            "{} MiB of the plan before were loaded",
            first / MIB
        );
        ensure!(
            stats.superseded_bytes > 0,
            "nothing was superseded: {stats:?}"
        );
        if stats.interruptions > 0 {
            #[allow(clippy::cast_precision_loss, reason = "it is a measurement")]
            times.push(stats.last_stop_ns as f64 / 1e6);
        }
        daemon.unregister(&mount)?;
    }
    ensure!(!times.is_empty(), "no load was interrupted");
    verdict("a newer plan", &times)?;
    daemon.stop()
}

/// What the disk takes for a byte while loads bring in the first 8 MiB of a file.
#[allow(clippy::cast_precision_loss, reason = "it is a measurement")]
fn seconds_per_byte(disk: &Disk, file: &Pattern) -> Outcome<f64> {
    let loaded = |bytes| wait_until(10, "loads", || Ok((file.cached()? > bytes).then_some(())));
    loaded(2 * MIB)?;
    let (begin, before) = (Instant::now(), disk.bytes_read()?);
    loaded(8 * MIB)?;
    let read = disk.bytes_read()? - before;
    Ok(begin.elapsed().as_secs_f64() / read.max(1) as f64)
}

/// A service takes memory, and loads make room: once it has its memory, loads in flight end and no more
/// begin. The rest of the file would take seconds.
#[allow(clippy::cast_precision_loss, reason = "it is a measurement")]
fn by_memory() -> Outcome {
    let (mut disk, mount, file) = slow()?;
    mount.unmount()?;
    disk.slow(SLOWER_MB_PER_S)?;
    let mount = Mount::at(&disk.path, &mount.path)?;
    let group = Group::new(Version::V2, "interrupt")?;
    group.limit(256 * MIB)?;
    let daemon = Daemon::start()?;
    let path = group
        .path
        .to_str()
        .ok_or("no text")
        .of("the group's path")?
        .to_owned();
    daemon.register(&mount, &policy("eager"), &["--cgroup", &path])?;
    Job::new(&mount, &file).range(0..8).run()?;
    let per_byte = seconds_per_byte(&disk, &file)?;
    let service = Service::start(180 * MIB, group.procs())?;
    let begin = Instant::now();
    let (loaded, read) = (file.cached()?, disk.bytes_read()?);
    let took = until_quiet(&disk, begin)?;
    let (more, read) = (
        file.cached()?.saturating_sub(loaded),
        disk.bytes_read()? - read,
    );
    let stats = daemon.stats(&mount)?;
    println!(
        "memory: {} MiB loaded before and {} after it was taken; {} of {} MiB in use",
        loaded / MIB,
        more / MIB,
        stats.memory_used / MIB,
        stats.memory_limit / MIB
    );
    ensure!(
        loaded < SIZE / 2,
        "{} MiB were loaded before the memory was taken",
        loaded / MIB
    );
    // Each thread may have a chunk in flight, and more may begin before the memory is checked.
    ensure!(
        more.max(read) <= 24 * MIB,
        "{} MiB were loaded, {} read after the memory was taken: {stats:?}",
        more / MIB,
        read / MIB
    );
    // So slow a disk takes longer to deliver what is in flight than loads may take to stop: 6 MiB take 157 ms, and more
    // where the machine is busy.
    let giving = read as f64 * per_byte;
    verdict("memory", &[(took.as_secs_f64() - giving).max(0.0) * 1e3])?;
    ensure!(
        stats.memory_over > 0,
        "it was never over the threshold: {stats:?}"
    );
    service.finish()?;
    daemon.stop()
}
