//! The runtime itself dies or is asked to end: readers continue, and once it is back all is as before.

use std::fs;
use std::thread::sleep;

use cprt::control::protocol::{MountState, MountStatus};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::case::{Case, scratch};
use crate::daemon::{Daemon, policy, test_policy};
use crate::disk::Disk;
use crate::files::{MIB, Pattern};
use crate::mount::{Mount, point_of};
use crate::outcome::{Outcome, ensure, ensure_eq, millis, wait_until};
use crate::procfs;
use crate::reader::Job;
use crate::way::Way;

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_crash_of_the_daemon", 60, of_the_daemon),
    Case::new("cprt_crash_of_a_worker", 60, of_a_worker),
    Case::new("cprt_crash_term_drains", 60, term_drains),
    Case::new("cprt_crash_term_stops_loads", 60, term_stops_loads),
    Case::new(
        "cprt_crash_one_mount_is_not_the_other",
        60,
        one_mount_is_not_the_other,
    ),
];

fn worker_of(status: &MountStatus) -> Option<u32> {
    status.policy.as_ref().and_then(|policy| policy.worker)
}

fn wait_gone(pids: &[u32]) -> Outcome {
    wait_until(10, "workers to be gone", || {
        Ok(pids.iter().all(|&pid| !procfs::alive(pid)).then_some(()))
    })
}

fn of_the_daemon() -> Outcome {
    let mount = Mount::new()?;
    let stop = scratch().join("stop");
    let file = mount.file("f", 3, 8 * MIB)?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &policy("shift"), &["length=1048576"])?;
    let reader = Job::new(&mount, &file).until(stop.clone()).start()?;
    sleep(millis(300));
    let workers = daemon.workers()?;
    ensure_eq!(workers.len(), 1, "workers");
    daemon.kill()?;
    wait_gone(&workers)?;
    sleep(millis(300));

    let daemon = Daemon::again()?;
    let running = |status: &MountStatus| status.state == MountState::Running;
    let status = daemon.wait_for(&mount, 10, "the policy to be back", running)?;
    let policy_status = status.policy.clone();
    let settings = policy_status.as_ref().map(|policy| policy.settings.clone());
    let length = settings.unwrap_or_default().get("length").cloned();
    ensure_eq!(length.as_deref(), Some("1048576"), "its setting");
    let library = policy_status.map(|policy| policy.library);
    ensure_eq!(library, Some(policy("shift")), "its library");
    wait_until(10, "it to load", || {
        Ok((daemon.stats(&mount)?.load_ranges > 0).then_some(()))
    })?;
    fs::write(stop, "")?;
    ensure!(reader.finish()?.times > 1, "the reader did not get far");
    // A policy that was removed stays removed.
    daemon.unregister(&mount)?;
    daemon.kill()?;
    let daemon = Daemon::again()?;
    sleep(millis(300));
    if Way::now() == Way::Module {
        let state = daemon.status(&mount)?.state;
        ensure_eq!(
            state,
            MountState::Native,
            "the state of what was taken away"
        );
    }
    ensure_eq!(daemon.workers()?.len(), 0, "workers of what was taken away");
    daemon.stop()
}

fn of_a_worker() -> Outcome {
    let mount = Mount::new()?;
    let stop = scratch().join("stop");
    let file = mount.file("f", 3, 8 * MIB)?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &policy("shift"), &["length=1048576"])?;
    let reader = Job::new(&mount, &file).until(stop.clone()).start()?;
    sleep(millis(200));
    let worker = daemon.worker(&mount)?;
    kill(Pid::from_raw(worker.cast_signed()), Signal::SIGKILL)?;
    let again = |status: &MountStatus| {
        status.state == MountState::Running && worker_of(status).is_some_and(|pid| pid != worker)
    };
    let status = daemon.wait_for(&mount, 10, "another worker", again)?;
    let policy_status = status.policy.clone().unwrap_or_else(|| unreachable!());
    ensure_eq!(policy_status.crashes, 1, "crashes in {status:?}");
    let fault = policy_status.last_fault.unwrap_or_default();
    ensure!(fault.contains("SIGKILL"), "{fault:?}");
    wait_until(10, "it to load", || {
        Ok((daemon.stats(&mount)?.load_ranges > 0).then_some(()))
    })?;
    ensure_eq!(daemon.workers()?.len(), 1, "workers");
    fs::write(stop, "")?;
    reader.finish()?;
    daemon.stop()
}

fn term_drains() -> Outcome {
    let mount = Mount::new()?;
    let stop = scratch().join("stop");
    let file = mount.file("f", 3, 8 * MIB)?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &test_policy("probe"), &["log=0", "ahead=1048576"])?;
    let reader = Job::new(&mount, &file).until(stop.clone()).start()?;
    // Without the module it takes longer to read a file twice.
    let twice = if Way::now() == Way::Module { 300 } else { 2000 };
    sleep(millis(twice));
    let workers = daemon.workers()?;
    let socket = daemon.socket();
    daemon.stop()?;
    ensure!(
        workers.iter().all(|&pid| !procfs::alive(pid)),
        "a worker is left"
    );
    ensure!(!socket.exists(), "the socket is left");
    sleep(millis(200));
    fs::write(stop, "")?;
    ensure!(reader.finish()?.times > 1, "the reader did not get far");
    file.make_cold()?;
    Job::new(&mount, &file).range(0..8).run()?;
    sleep(millis(200));
    ensure!(
        file.cached()? < MIB,
        "{} bytes are cached though nothing loads",
        file.cached()?
    );
    mount.unmount()
}

/// A mount of a disk so slow that loads are still in flight when they are asked to stop.
fn slow_mount(size: u64) -> Outcome<(Disk, Mount, Pattern)> {
    let mut disk = Disk::new("slow")?;
    let file = Pattern::make(&disk.path.join("f"), 3, size)?;
    disk.slow(20)?;
    let name = scratch();
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    let mount = Mount::at(&disk.path, &point_of(&name))?;
    Ok((disk, mount, file))
}

fn term_stops_loads() -> Outcome {
    let (_disk, mount, file) = slow_mount(64 * MIB)?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &test_policy("probe"), &["load=f"])?;
    wait_until(10, "the load to begin", || {
        Ok((file.cached()? > MIB).then_some(()))
    })?;
    let begin = std::time::Instant::now();
    daemon.stop()?;
    let took = begin.elapsed();
    println!("ending with loads in flight took {took:.0?}");
    ensure!(took < millis(2000), "ending took {took:.0?}");
    let cached = file.cached()?;
    ensure!(cached < file.size, "all of it was loaded");
    sleep(millis(300));
    ensure!(
        file.cached()? <= cached + 4 * MIB,
        "loading continues: {}",
        file.cached()?
    );
    Ok(())
}

fn one_mount_is_not_the_other() -> Outcome {
    let mount = Mount::new()?;
    fs::create_dir_all(mount.lower.join("a"))?;
    fs::create_dir_all(mount.lower.join("b"))?;
    let at = |name: &str| -> Outcome<(Mount, Pattern)> {
        let path = scratch().join(name);
        let one = Mount::at(&mount.lower.join(name), &path)?;
        let file = one.file("f", 3, 4 * MIB)?;
        Ok((one, file))
    };
    let ((a, file_a), (b, file_b)) = (at("a")?, at("b")?);
    let daemon = Daemon::start()?;
    daemon.register(&a, &test_policy("segv"), &[])?;
    daemon.register(&b, &policy("shift"), &["length=1048576"])?;
    ensure_eq!(daemon.workers()?.len(), 2, "workers");
    let worker = daemon.worker(&b)?;
    Job::new(&a, &file_a).run()?;
    let crashed = |status: &MountStatus| {
        status
            .policy
            .as_ref()
            .is_some_and(|policy| policy.crashes > 0)
    };
    daemon.wait_for(&a, 10, "the crash", crashed)?;
    Job::new(&b, &file_b).run()?;
    wait_until(5, "the other policy to load", || {
        Ok((daemon.stats(&b)?.load_ranges > 0).then_some(()))
    })?;
    ensure_eq!(daemon.worker(&b)?, worker, "the other mount's worker");
    let paths: Vec<_> = daemon
        .all()?
        .mounts
        .into_iter()
        .map(|mount| mount.path)
        .collect();
    let mut expected = vec![mount.path.clone(), a.path.clone(), b.path.clone()];
    expected.sort();
    ensure_eq!(paths, expected, "mounts in the status");
    daemon.unregister(&a)?;
    daemon.stop()
}
