//! One run of a case: prepared, run, and measured.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::case::{Case, Policy, Regime};
use crate::cgroup::Group;
use crate::cold;
use crate::error::{Failure, Result};
use crate::helper::{Heard, Helper};
use crate::machine;
use crate::reader::{Ended, Loaded};
use crate::result::{Run, Sample, Timeline};
use crate::rig::Rig;
use crate::runtime::{Ground, Runtime, WorkerWanted};
use crate::signals;
use crate::ssd::{BIN, Readings};
use crate::units::{float, index, seconds};

/// How often memory and the runtime are sampled.
const LOOK: Duration = Duration::from_millis(100);
/// How long readers stay after the load, as services do: a policy that watches them sees the end of the load.
const LINGER: Duration = Duration::from_millis(300);
/// How long a load may take.
const PATIENCE: Duration = Duration::from_secs(400);

/// The time, the sample, and the memory of the runtime's worker.
type TimedSample = (u64, Sample, u64);

/// The processes of a load, and their cgroup.
struct Stage {
    // Dropped in this order: a group can only be removed when it is empty.
    driver: Helper,
    prefetcher: Option<Helper>,
    runtime: Option<Runtime>,
    group: Group,
}

/// Runs a case once.
pub(crate) fn run(rig: &mut Rig, case: &Case, store: &Path) -> Result<Run> {
    rig.turn += 1;
    let dirty = prepare(rig, case)?;
    let device_cpu = rig.disk.read()?.cpu_ms;
    rig.disk.reset()?;
    let began = Instant::now();
    let mut stage = set(rig, case, store)?;
    let setting = began.elapsed();
    let mut run = Run {
        dirty,
        before: match case.policy {
            Policy::Precache => cold::cached(&rig.model, &rig.disk.path)?,
            _ => 0,
        },
        ..Run::default()
    };
    let ticks = machine::ticks();
    let began = Instant::now();
    let (loaded, samples) = load(&mut stage)?;
    let loading = began.elapsed();
    let after = machine::ticks();
    sleep(LINGER);
    let readings = rig.disk.read()?;
    fill(&mut run, &loaded, &readings, samples);
    run.device_cpu = float(readings.cpu_ms - device_cpu) / 1e3;
    if let Some(stats) = stage.runtime.as_ref().and_then(Runtime::stats) {
        run.runtime_cpu = float(stats.worker_cpu_ms) / 1e3;
        run.runtime_memory = run.runtime_memory.max(stats.worker_rss);
        run.stats = stats
            .fields()
            .into_iter()
            .map(|(name, _, value)| (name.to_owned(), value))
            .collect();
    }
    let ours = run.reader_cpu + run.runtime_cpu + run.device_cpu;
    run.others = machine::others(ticks, after, ours);
    run.utilisation = run.utilisation / run.load / float(rig.timing(case.regime).bandwidth);
    let began = Instant::now();
    // A recording is kept if the policy ends while its readers still run.
    run.notes = stage.runtime.map(Runtime::end).unwrap_or_default();
    stage.driver.end()?;
    stage.prefetcher.map_or(Ok(()), Helper::end)?;
    run.whole = (setting + loading + began.elapsed()).as_secs_f64();
    drop(stage.group);
    Ok(run)
}

/// Drops the model from the page cache, or brings in all of it; returns the bytes that should not be cached but are.
fn prepare(rig: &mut Rig, case: &Case) -> Result<u64> {
    rig.disk
        .read_ahead(case.policy.read_ahead(rig.read_ahead))?;
    let folder = rig.disk.path.clone();
    if case.regime == Regime::Cached {
        rig.disk.simulator.be(None)?;
        cold::warm_all(&rig.model, &folder)?;
        rig.disk.be(rig.timing(case.regime))?;
        return Ok(0);
    }
    rig.disk.be(rig.timing(case.regime))?;
    cold::drop_all(&rig.model, &folder)?;
    cold::cached(&rig.model, &folder)
}

fn set(rig: &Rig, case: &Case, store: &Path) -> Result<Stage> {
    let limit = (case.regime == Regime::Limited).then(|| rig.limit());
    let group = Group::make(&std::process::id().to_string(), limit)?;
    let wanted = WorkerWanted {
        policy: case.policy,
        place: &rig.place,
        ground: Ground {
            kind: rig.kind,
            folder: &rig.disk.path,
            mirror: &rig.mirror,
            cgroup: Some(&group.path),
        },
        tp: case.reader.tp_size(),
        store,
        worker: rig.worker,
    };
    let runtime = Runtime::start(&wanted)?;
    if case.policy == Policy::Precache
        && let Some(runtime) = &runtime
    {
        runtime.settle()?;
    }
    let mut task = rig.task(case.reader);
    if let Some(folder) = runtime.as_ref().and_then(Runtime::folder) {
        folder.clone_into(&mut task.folder);
    }
    task.cgroup = Some(group.path.clone());
    let driver = Helper::start("drive", &task)?;
    let prefetcher = match case.policy {
        Policy::Framework => Some(Helper::start("prefetch", &task)?),
        _ => None,
    };
    Ok(Stage {
        driver,
        prefetcher,
        runtime,
        group,
    })
}

/// Starts the load, and samples it until it is over.
fn load(stage: &mut Stage) -> Result<(Loaded, Vec<TimedSample>)> {
    stage.driver.go()?;
    if let Some(prefetcher) = &mut stage.prefetcher {
        prefetcher.go()?;
    }
    let began = Instant::now();
    let mut samples = Vec::new();
    loop {
        samples.push(look(stage));
        match stage.driver.hear(LOOK) {
            Ok(Heard::Line(line)) => {
                samples.push(look(stage));
                return match serde_json::from_str(&line)? {
                    Ended::Loaded(loaded) => Ok((loaded, samples)),
                    Ended::Failed(why) => Err(Failure::Said(format!("A reader failed: {why}"))),
                };
            }
            Ok(Heard::Nothing) => {}
            Err(_) if signals::came() => return Err(Failure::Interrupted),
            Err(failure) => return Err(failure),
        }
        if signals::came() {
            return Err(Failure::Interrupted);
        }
        if began.elapsed() > PATIENCE {
            return Err(Failure::Said("A load took too long".to_owned()));
        }
    }
}

fn look(stage: &Stage) -> TimedSample {
    let at = crate::units::now();
    let charged = stage.group.charged();
    let stats = stage
        .runtime
        .as_ref()
        .and_then(Runtime::stats)
        .unwrap_or_default();
    let sample = Sample {
        at: 0.0,
        cache: charged.cache,
        anonymous: charged.anonymous,
        queued: stats.queued_bytes + stats.in_flight_bytes,
        loaded: stats.loaded_bytes,
        evicted: stats.evicted_bytes,
    };
    (at, sample, stats.worker_rss)
}

fn fill(run: &mut Run, loaded: &Loaded, device: &Readings, samples: Vec<TimedSample>) {
    let end = loaded
        .workers
        .iter()
        .map(|it| it.ended)
        .max()
        .unwrap_or(loaded.began);
    run.load = seconds(end - loaded.began);
    run.device_bytes = device.bytes;
    run.requests = device.requests;
    run.lateness = device.lateness;
    let sum = |of: fn(&crate::reader::Worked) -> u64| loaded.workers.iter().map(of).sum::<u64>();
    run.major_faults = sum(|it| it.major_faults);
    run.minor_faults = sum(|it| it.minor_faults);
    let all = |of: fn(&crate::reader::Worked) -> Option<u64>| loaded.workers.iter().map(of).sum();
    run.readers_bytes = all(|it| it.disk);
    run.late_bytes = all(|it| it.late);
    run.reader_cpu = float(sum(|it| it.cpu_ms)) / 1e3;
    run.touched = sum(|it| it.touched);
    run.wrong = sum(|it| it.wrong);
    let since = |then: u64| {
        let later = seconds(then.saturating_sub(loaded.began));
        later - seconds(loaded.began.saturating_sub(then))
    };
    let workers = loaded
        .workers
        .iter()
        .map(|it| (since(it.began), since(it.ended)));
    run.timeline = Timeline {
        device: device.bins.clone(),
        device_from: since(device.since),
        workers: workers.collect(),
        samples: Vec::new(),
    };
    // For now, the bytes between beginning and end.
    let bins = |then: u64| index(then.saturating_sub(device.since) / BIN);
    let within = device
        .bins
        .iter()
        .skip(bins(loaded.began))
        .take(bins(end) - bins(loaded.began) + 1);
    run.utilisation = float(within.sum());
    for (at, mut sample, memory) in samples {
        sample.at = since(at);
        run.peak_cache = run.peak_cache.max(sample.cache);
        run.peak_anonymous = run.peak_anonymous.max(sample.anonymous);
        run.runtime_memory = run.runtime_memory.max(memory);
        run.timeline.samples.push(sample);
    }
}
