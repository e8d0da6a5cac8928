//! MAIO on a real page cache: it records exactly what workers read, and replays it once, ahead of them.

use std::fs;
use std::thread::sleep;

use cprt::control::protocol::MountState;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::case::{Case, scratch};
use crate::daemon::Daemon;
use crate::files::{MIB, readahead, set_readahead};
use crate::model::{
    BUDGET, Model, SIZE, TENSOR, TENSORS, WORKERS, joined, part, recorded, shuffled,
};
use crate::outcome::{For as _, Outcome, ensure, ensure_eq, millis, wait_until};
use crate::reader::{Job, Reader};
use crate::way::Way;

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_maio_records_and_replays", 120, records_and_replays),
    Case::new("cprt_maio_slides_a_window", 120, slides_a_window),
    Case::new("cprt_maio_slides_for_stages", 120, slides_for_stages),
    Case::new("cprt_maio_slides_for_replicas", 120, slides_for_replicas),
    Case::new(
        "cprt_maio_survives_its_template",
        120,
        survives_its_template,
    ),
    Case::new("cprt_maio_bears_any_order", 120, bears_any_order),
    Case::new("cprt_maio_bears_ends", 120, bears_ends),
    Case::new("cprt_maio_bears_other_files", 120, bears_other_files),
];

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
    // Without the module, which load brought in a page is an estimate.
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

/// With room for 45 % of the model.
fn slides_a_window() -> Outcome {
    slides(None)
}

/// The same, with two workers for each tensor rank.
fn slides_for_stages() -> Outcome {
    slides(Some(|rank| {
        format!("VLLM::Worker_PP{}_TP{}", rank / 2, rank % 2)
    }))
}

fn slides_for_replicas() -> Outcome {
    slides(Some(|rank| {
        format!("VLLM::Worker_DP{}_TP{}_EP{rank}", rank / 2, rank % 2)
    }))
}

fn slides(titles: Option<fn(u32) -> String>) -> Outcome {
    // Keep what the kernel reads ahead by itself small beside the budget.
    set_readahead("128")?;
    let mapped = Way::now() == Way::Module;
    let model = Model {
        titles,
        ..Model::new()?
    };
    let daemon = Daemon::start()?;
    let budget = format!("budget={BUDGET}");
    model.register(&daemon, &[&budget])?;
    let template = model.record(&daemon, mapped)?;
    let groups = template["groups"].as_array().map_or(0, Vec::len);
    ensure_eq!(groups, 4, "workers of {template}");
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
    // The kernel also reads ahead past what is loaded, once for each worker.
    let beyond = readahead()?.parse::<u64>().unwrap_or(0) * 1024 * u64::from(WORKERS);
    // Readers, too, bring in what they wait for when other processes have the processor. So without the
    // module, this only checks that there is a window.
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

/// A reader that reads backwards or at random gets its bytes, and the device delivers them once.
fn bears_any_order() -> Outcome {
    set_readahead("128")?;
    let model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &[])?;
    model.record(&daemon, false)?;
    daemon.unregister(&model.mount)?;
    let forwards = || (0..TENSORS).map(|at| at * TENSOR..(at + 1) * TENSOR);
    let orders = [
        ("backwards", forwards().rev().collect::<Vec<_>>()),
        ("at random", shuffled(forwards().collect())),
    ];
    for (what, order) in orders {
        for budget in ["budget=22M", "budget=1G"] {
            model.register(&daemon, &["record=never", budget])?;
            model.make_cold()?;
            let device = model.device_bytes()?;
            let job = Job::new(&model.mount, &model.weights);
            job.ranges(order.clone()).pause(5).run()?;
            if Way::now() == Way::Module {
                let read = model.device_bytes()? - device;
                println!("{what}, {budget}: the device gave {read} of {SIZE}");
                ensure!(
                    read <= SIZE + SIZE * 3 / 100,
                    "{what}, {budget}: the device gave {read} bytes for {SIZE}"
                );
            }
            daemon.unregister(&model.mount)?;
        }
    }
    daemon.stop()
}

/// Killing readers and workers in the middle of a load costs neither bytes nor the template.
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
        status.state == MountState::Running
    })?;
    sleep(millis(1500));
    ensure!(
        fs::read(&path)? == kept,
        "half a load has taken the place of a whole one"
    );
    daemon.stop()
}

/// The weights are not the recorded file, but another of the same size, as after an update, and then one
/// with the same time as well, which no update leaves.
fn bears_other_files() -> Outcome {
    let mut model = Model::new()?;
    let daemon = Daemon::start()?;
    model.register(&daemon, &[])?;
    model.record(&daemon, false)?;
    let path = scratch().join("store/test/n.maio");
    let time = fs::metadata(&model.weights.lower)?.modified()?;
    for (seed, same) in [(7, false), (8, true)] {
        let before = fs::read(&path).of(path.display())?;
        fs::remove_file(&model.weights.lower)?;
        model.weights = model.mount.file("weights.bin", seed, SIZE)?;
        if same {
            let file = fs::File::options().write(true).open(&model.weights.lower)?;
            file.set_modified(time)?;
            file.sync_all()?;
            drop(file);
            model.weights.make_cold()?;
        }
        let device = model.device_bytes()?;
        for reader in model.load(false, 0)? {
            reader.finish()?;
        }
        if Way::now() == Way::Module {
            let read = model.device_bytes()? - device;
            println!("the device gave {read} of {SIZE}");
            let most = SIZE + SIZE * 3 / 100;
            ensure!(read <= most, "the device gave {read} bytes for {SIZE}");
        }
        wait_until(20, "a template of the new file", || {
            Ok((fs::read(&path)? != before).then_some(()))
        })?;
    }
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
