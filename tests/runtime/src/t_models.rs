//! A mount with several models: each load is of one model, and each model has its own template.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::case::{Case, scratch};
use crate::daemon::{Daemon, policy};
use crate::files::{MIB, Pattern};
use crate::mount::Mount;
use crate::outcome::{For as _, Outcome, ensure, ensure_eq, kernel_is_at_least, skip, wait_until};
use crate::reader::Job;
use crate::way::Way;

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_models_of_a_folder", 120, models_of_a_folder),
    Case::new("cprt_models_of_a_hub", 120, models_of_a_hub),
];

/// Size of a weight file, large enough to be taken for weights.
const WEIGHTS: u64 = 24 * MIB;
/// How much of the weights must be cached at the same time, as pages may go for other reasons.
const MOST: u64 = WEIGHTS / 100 * 95;

fn can_record() -> Outcome {
    if !kernel_is_at_least(6, 12) && Way::now() != Way::Module {
        skip!("before 6.12 hits are not told without the module: nothing can be recorded");
    }
    Ok(())
}

fn register(daemon: &Daemon, mount: &Mount) -> Outcome<String> {
    let store = scratch().join("store");
    let store = store.to_str().ok_or("no text").of("the store's path")?;
    let setting = format!("store={store}");
    let settings = ["service-id=test", "node=n", "idle=3", setting.as_str()];
    daemon.register(mount, &policy("maio"), &settings)?;
    Ok(store.to_owned())
}

/// The services that have a template, once there are this many.
fn services(daemon: &Daemon, store: &str, count: usize) -> Outcome<Vec<String>> {
    wait_until(30, "templates", || {
        let answer = daemon.run(&["template", "--store", store, "ls"])?;
        let list: Value = serde_json::from_str(&answer.output).of(&answer.output)?;
        let entries = list.as_array().cloned().unwrap_or_default();
        let services = entries.iter().filter_map(|entry| entry["service"].as_str());
        let services: Vec<String> = services.map(str::to_owned).collect();
        Ok((services.len() == count).then_some(services))
    })
}

/// Reads the configuration and stays until this much of the weights is cached; then reads the weights.
fn load(mount: &Mount, config: &Pattern, weights: &Pattern, ahead: u64) -> Outcome {
    config.make_cold()?;
    weights.make_cold()?;
    let until = scratch().join("loaded");
    let driver = Job::new(mount, config).linger(until.clone()).start()?;
    wait_until(30, "what is loaded ahead", || {
        Ok((weights.cached()? >= ahead).then_some(()))
    })?;
    Job::new(mount, weights).run()?;
    fs::write(&until, "")?;
    driver.finish()?;
    fs::remove_file(&until)?;
    Ok(())
}

fn models_of_a_folder() -> Outcome {
    can_record()?;
    let mount = Mount::new()?;
    let model = |name: &str, seed| -> Outcome<(Pattern, Pattern)> {
        let config = mount.file(&format!("{name}/config.json"), seed, 4096)?;
        let weights = mount.file(&format!("{name}/weights.bin"), seed + 1, WEIGHTS)?;
        Ok((config.kept_open()?, weights.kept_open()?))
    };
    let models = [model("a", 5)?, model("b", 7)?];
    let daemon = Daemon::start()?;
    let store = register(&daemon, &mount)?;
    // The first load goes by headers, later ones by what was read.
    for round in 0..2 {
        for (this, other) in [(0, 1), (1, 0)] {
            let (config, weights) = &models[this];
            let others = &models[other].1;
            others.make_cold()?;
            load(&mount, config, weights, MOST)?;
            let there = others.cached()?;
            ensure_eq!(
                there,
                0,
                "of model {other} when {this} is loaded, round {round}"
            );
            services(&daemon, &store, (round * 2 + this + 1).min(2))?;
        }
    }
    let names = services(&daemon, &store, 2)?;
    let own = names.iter().all(|name| name.starts_with("test."));
    ensure!(own, "one for each model: {names:?}");
    daemon.stop()
}

/// Two revisions that share their configuration, in a download cache.
fn models_of_a_hub() -> Outcome {
    can_record()?;
    let mount = Mount::new()?;
    let blob = |name: &str, seed, size| -> Outcome<Pattern> {
        let blob = mount.file(&format!("models--x--y/blobs/{name}"), seed, size)?;
        blob.kept_open()
    };
    let config = blob("c0", 5, 4096)?;
    let weights = [blob("w1", 6, WEIGHTS)?, blob("w2", 7, WEIGHTS)?];
    let top = mount.lower.join("models--x--y");
    for (revision, weights) in [("aa", "w1"), ("bb", "w2")] {
        let folder = top.join("snapshots").join(revision);
        fs::create_dir_all(&folder)?;
        for (name, blob) in [("config.json", "c0"), ("model.safetensors", weights)] {
            let target = Path::new("../../blobs").join(blob);
            std::os::unix::fs::symlink(target, folder.join(name))?;
        }
    }
    fs::create_dir_all(top.join("refs"))?;
    fs::write(top.join("refs/main"), "bb\n")?;
    let daemon = Daemon::start()?;
    let store = register(&daemon, &mount)?;
    weights[0].make_cold()?;
    load(&mount, &config, &weights[1], MOST)?;
    ensure_eq!(weights[0].cached()?, 0, "of the other revision");
    services(&daemon, &store, 1)?;
    daemon.stop()
}
