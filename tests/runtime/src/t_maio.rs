//! MAIO on a real page cache: what workers read is recorded exactly, and replayed once, ahead of them.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::thread::sleep;

use cprt::protocol::State;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{major, minor};
use nix::unistd::Pid;
use serde_json::Value;

use crate::case::{Case, scratch};
use crate::daemon::{Daemon, policy};
use crate::files::{MIB, Pattern, readahead, set_readahead};
use crate::mount::Mount;
use crate::outcome::{
    For as _, Outcome, ensure, ensure_eq, kernel_is_at_least, millis, skip, wait_until,
};
use crate::reader::{Job, Reader};
use crate::way::Way;

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_maio_records_and_replays", 120, records_and_replays),
    Case::new("cprt_maio_slides_a_window", 120, slides_a_window),
    Case::new(
        "cprt_maio_survives_its_template",
        120,
        survives_its_template,
    ),
    Case::new("cprt_maio_bears_any_order", 120, bears_any_order),
    Case::new("cprt_maio_bears_ends", 120, bears_ends),
];

const WORKERS: u32 = 4;
const TENSORS: u64 = 48;
const TENSOR: u64 = MIB;
const SIZE: u64 = TENSORS * TENSOR;
/// Of those that have not enough.
const BUDGET: u64 = SIZE * 45 / 100;

/// What the worker of a rank reads: all of every third tensor, its part of the others.
fn part(rank: u32) -> Vec<Range<u64>> {
    let slice = TENSOR / u64::from(WORKERS);
    let tensor = |number: u64| {
        let start = number * TENSOR;
        if number.is_multiple_of(3) {
            start..start + TENSOR
        } else {
            let from = start + u64::from(rank) * slice;
            from..from + slice
        }
    };
    (0..TENSORS).map(tensor).collect()
}

/// A model, its service and where templates are.
struct Model {
    mount: Mount,
    config: Pattern,
    weights: Pattern,
    store: String,
}

impl Model {
    fn new() -> Outcome<Self> {
        if !kernel_is_at_least(6, 12) && Way::now() != Way::Module {
            skip!("before 6.12 hits are not told without the module: nothing can be recorded");
        }
        let mount = Mount::new()?;
        let config = mount.file("config.json", 5, 4096)?;
        let weights = mount.file("weights.bin", 6, SIZE)?;
        let store = scratch().join("store");
        Ok(Self {
            mount,
            config,
            weights,
            store: store
                .to_str()
                .ok_or("no text")
                .of("the store's path")?
                .to_owned(),
        })
    }

    fn register(&self, daemon: &Daemon, more: &[&str]) -> Outcome {
        let store = format!("store={}", self.store);
        let settings = ["service-id=test", "node=n", "idle=1", store.as_str()];
        daemon.register(
            &self.mount,
            &policy("maio"),
            &[&settings[..], more].concat(),
        )?;
        Ok(())
    }

    fn make_cold(&self) -> Outcome {
        self.config.make_cold()?;
        self.weights.make_cold()
    }

    /// As a framework does: the configuration, a while of its own, in which so much is loaded, and
    /// then all workers at once.
    fn load(&self, mmap: bool, bytes: u64) -> Outcome<Vec<Reader>> {
        let until = scratch().join("started");
        let _ = fs::remove_file(&until);
        let driver = Job::new(&self.mount, &self.config).linger(until.clone());
        let driver = driver.start()?;
        wait_until(30, "what is loaded in the meantime", || {
            Ok((self.weights.cached()? >= bytes).then_some(()))
        })?;
        let worker = |rank| {
            let job = Job::new(&self.mount, &self.weights).ranges(part(rank));
            let job = job.pause(30).rank(rank);
            if mmap { job.mmap() } else { job }.start()
        };
        let workers: Outcome<Vec<_>> = (0..WORKERS).map(worker).collect();
        fs::write(&until, "")?;
        driver.finish()?;
        workers
    }

    fn template(&self, daemon: &Daemon) -> Outcome<Value> {
        let words = ["template", "--store", &self.store, "show", "test"];
        wait_until(20, "a template", || {
            let answer = daemon.run(&words)?;
            if answer.code != 0 {
                return Ok(None);
            }
            let template = serde_json::from_str(&answer.output).of(&answer.output)?;
            Ok(Some(template))
        })
    }

    /// One load that is recorded, and what came of it.
    fn record(&self, daemon: &Daemon, mmap: bool) -> Outcome<Value> {
        self.make_cold()?;
        for reader in self.load(mmap, BUDGET * 8 / 10)? {
            reader.finish()?;
        }
        self.template(daemon)
    }

    /// What the device under the lower file system has been read.
    fn device_bytes(&self) -> Outcome<u64> {
        let device = fs::metadata(&self.weights.lower)?.dev();
        let path = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
        let text = fs::read_to_string(&path).of(&path)?;
        let sectors = text.split_whitespace().nth(2).unwrap_or_default();
        Ok(sectors.parse::<u64>().of(&path)? * 512)
    }
}

/// Ranges sorted and joined where they touch.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// What a group of a template has of the weights.
fn recorded(group: &Value) -> Vec<Range<u64>> {
    let ranges = group["ranges"].as_array().into_iter().flatten();
    let weights = ranges.filter(|range| range[0] == "weights.bin");
    let range = |range: &Value| {
        let start = range[1].as_u64().unwrap_or(0);
        start..start + range[2].as_u64().unwrap_or(0)
    };
    joined(weights.map(range).collect())
}

fn records_and_replays() -> Outcome {
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &[])?;
    let template = model.record(&daemon, false)?;
    let groups = template["groups"].as_array().cloned().unwrap_or_default();
    ensure_eq!(groups.len(), 4, "workers of {template}");
    for (rank, group) in (0..).zip(&groups) {
        ensure_eq!(group["worker"], rank, "who it is");
        let (found, expected) = (recorded(group), joined(part(rank)));
        ensure_eq!(found, expected, "what worker {rank} has read");
    }
    let first = daemon.stats(&model.mount)?;
    ensure!(
        first.loaded_bytes >= SIZE / 3,
        "the first load goes by headers: {first:?}"
    );
    model.make_cold()?;
    let device = model.device_bytes()?;
    for reader in model.load(false, SIZE)? {
        reader.finish()?;
    }
    let stats = daemon.stats(&model.mount)?;
    let loaded = stats.loaded_bytes - first.loaded_bytes;
    println!("loaded {loaded} of {SIZE}");
    // Without the module, whose load a page came in by is an estimate.
    let least = if Way::now() == Way::Module { 100 } else { 90 };
    ensure!(
        loaded >= SIZE * least / 100,
        "{loaded} of {SIZE} bytes were loaded ahead: {stats:?}"
    );
    ensure!(
        loaded <= SIZE + MIB,
        "{loaded} of {SIZE} bytes were loaded: {stats:?}"
    );
    if Way::now() == Way::Module {
        let read = model.device_bytes()? - device;
        ensure!(
            read <= SIZE + SIZE / 50,
            "the device gave {read} bytes for {SIZE}"
        );
    }
    ensure_eq!(stats.policy_errors, 0, "{stats:?}");
    daemon.stop()
}

/// With room for 45 % of it.
fn slides_a_window() -> Outcome {
    // What the kernel reads on by itself is to be little beside the budget.
    set_readahead("128")?;
    let mapped = Way::now() == Way::Module;
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    let budget = format!("budget={BUDGET}");
    model.register(&daemon, &[&budget])?;
    model.record(&daemon, mapped)?;
    let first = daemon.stats(&model.mount)?;
    model.make_cold()?;
    let device = model.device_bytes()?;
    let readers = model.load(mapped, BUDGET * 8 / 10)?;
    let mut most = 0;
    let done = |readers: &[Reader]| readers.iter().all(|it| !crate::procfs::alive(it.pid()));
    wait_until(60, "the readers to end", || {
        most = most.max(model.weights.cached()?);
        Ok(done(&readers).then_some(()))
    })?;
    for reader in readers {
        reader.finish()?;
    }
    let stats = daemon.stats(&model.mount)?;
    let (loaded, dropped) = (
        stats.loaded_bytes - first.loaded_bytes,
        stats.evicted_bytes - first.evicted_bytes,
    );
    println!("at most {most} cached of {BUDGET}; {loaded} loaded, {dropped} dropped of {SIZE}");
    // Where the kernel reads on after what is loaded, that comes in as well, once for each worker.
    let beyond = readahead()?.parse::<u64>().unwrap_or(0) * 1024 * u64::from(WORKERS);
    // So does what readers wait for, where others take the processor: without the module the window
    // is only seen to be one.
    let most_of_all = if mapped {
        BUDGET + BUDGET / 5 + beyond
    } else {
        SIZE * 9 / 10
    };
    ensure!(
        most <= most_of_all,
        "{most} bytes were cached, {BUDGET} may be: {stats:?}"
    );
    ensure!(
        dropped >= SIZE / 3,
        "{dropped} bytes were dropped: {stats:?}"
    );
    if Way::now() == Way::Module {
        let read = model.device_bytes()? - device;
        println!("the device gave {read} of {SIZE}");
        ensure!(
            read <= SIZE + SIZE * 3 / 100,
            "the device gave {read} bytes for {SIZE}: {stats:?}"
        );
    }
    daemon.stop()
}

/// A reader that goes from the end to the beginning gets its bytes, and the device gives them once.
fn bears_any_order() -> Outcome {
    set_readahead("128")?;
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &[])?;
    model.record(&daemon, false)?;
    daemon.unregister(&model.mount)?;
    for budget in ["budget=22M", "budget=1G"] {
        model.register(&daemon, &["record=never", budget])?;
        model.make_cold()?;
        let device = model.device_bytes()?;
        let backwards = (0..TENSORS).rev().map(|at| at * TENSOR..(at + 1) * TENSOR);
        let job = Job::new(&model.mount, &model.weights);
        job.ranges(backwards).pause(5).run()?;
        if Way::now() == Way::Module {
            let read = model.device_bytes()? - device;
            println!("{budget}: the device gave {read} of {SIZE}");
            ensure!(
                read <= SIZE + SIZE * 3 / 100,
                "the device gave {read} bytes for {SIZE}"
            );
        }
        daemon.unregister(&model.mount)?;
    }
    daemon.stop()
}

/// Readers and workers that are killed in the midst of a load cost neither bytes nor the template.
fn bears_ends() -> Outcome {
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &["record=always"])?;
    model.record(&daemon, false)?;
    let path = scratch().join("store/test/n.maio");
    let kept = fs::read(&path).of(path.display())?;
    // A reader.
    model.make_cold()?;
    let mut readers = model.load(false, 0)?;
    let victim = readers.remove(0);
    kill(Pid::from_raw(victim.pid().cast_signed()), Signal::SIGKILL)?;
    ensure!(victim.finish().is_err(), "it was killed");
    for reader in readers {
        reader.finish()?;
    }
    // The runtime's worker.
    model.make_cold()?;
    let readers = model.load(false, 0)?;
    let worker = daemon.worker(&model.mount)?;
    kill(Pid::from_raw(worker.cast_signed()), Signal::SIGKILL)?;
    for reader in readers {
        reader.finish()?;
    }
    daemon.wait_for(&model.mount, 20, "another worker", |status| {
        status.state == State::Running
    })?;
    sleep(millis(1500));
    ensure!(
        fs::read(&path)? == kept,
        "half a load has taken the place of a whole one"
    );
    daemon.stop()
}

/// Whatever is in the store, readers get their bytes and the next load is recorded.
fn survives_its_template() -> Outcome {
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &[])?;
    model.record(&daemon, false)?;
    daemon.unregister(&model.mount)?;
    let path = scratch().join("store/test/n.maio");
    let sound = fs::read(&path).of(path.display())?;
    let mut flipped = sound.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 4;
    for bytes in [&sound[..sound.len() / 2], &flipped, b"", b"#!/bin/sh"] {
        fs::write(&path, bytes)?;
        model.register(&daemon, &[])?;
        model.record(&daemon, false)?;
        wait_until(20, "a sound template", || {
            Ok(
                (fs::read(&path)?.len() * 2 > sound.len() && fs::read(&path)? != flipped)
                    .then_some(()),
            )
        })?;
        daemon.unregister(&model.mount)?;
    }
    daemon.stop()
}
