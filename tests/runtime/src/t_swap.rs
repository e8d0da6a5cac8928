//! Policies come, change and go while readers read at full speed, and no reader notices.

use std::fs;

use cprt::control::protocol::MountState;

use crate::case::{Case, scratch};
use crate::daemon::{Answer, Daemon, FAILED, NOTHING_THERE, REFUSED, policy, test_policy};
use crate::files::MIB;
use crate::mount::Mount;
use crate::outcome::{Outcome, ensure, ensure_eq, factor, kernel_is_at_least, skip, wait_until};
use crate::procfs;
use crate::reader::{Job, Reader};
use crate::way::Way;

/// Number of swaps. One takes seconds where every memory access is checked, and fewer are needed to find a race.
fn storm_swaps() -> usize {
    if factor() > 1.0 { 30 } else { 1000 }
}

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_swap_under_load", 120, || swap(50)),
    Case::new("cprt_swap_from_all_sides", 120, from_all_sides),
    Case::new("storm_cprt_swap", 1800, || swap(storm_swaps())),
];

const SIZE: u64 = 8 * MIB;

/// Readers that read one file each, again and again, until the file `stop` exists.
///
/// They rest where every memory access is checked: with both processors busy, a worker's memory takes the kernel longer
/// to free than the next worker waits for the device.
fn load(mount: &Mount) -> Outcome<Vec<Reader>> {
    let stop = scratch().join("stop");
    let pause = if factor() > 1.0 { 100 } else { 0 };
    (1..=3)
        .map(|seed| {
            let file = mount.file(&format!("f{seed}"), seed, SIZE)?;
            let pieces = (0..SIZE / MIB).map(|n| n * MIB..(n + 1) * MIB);
            let job = Job::new(mount, &file).until(stop.clone()).yields();
            let job = job.ranges(pieces).pause(pause);
            if seed == 3 { job.mmap() } else { job }.start()
        })
        .collect()
}

fn end(readers: Vec<Reader>) -> Outcome {
    fs::write(scratch().join("stop"), "")?;
    for reader in readers {
        let read = reader.finish()?;
        println!(
            "a reader read {} MiB in {} times",
            read.bytes / MIB,
            read.times
        );
        ensure!(read.times > 1, "a reader did not get far: {read:?}");
    }
    Ok(())
}

/// Makes the n-th change of a mount's policy; every fifth removes it.
fn change(daemon: &Daemon, mount: &Mount, n: usize) -> Outcome {
    let probe = ["log=0", "ahead=2097152", "kinds=0x1e"];
    match n % 5 {
        0 => daemon.register(mount, &policy("eager"), &[])?,
        1 => daemon.register(mount, &policy("shift"), &["length=1048576"])?,
        2 => daemon.register(mount, &policy("null"), &[])?,
        3 => daemon.register(mount, &test_policy("probe"), &probe)?,
        _ => daemon.unregister(mount)?,
    };
    let workers = usize::from(n % 5 != 4);
    wait_until(10, "the worker of the policy before to be gone", || {
        Ok((daemon.workers()?.len() == workers).then_some(()))
    })
}

fn swap(times: usize) -> Outcome {
    if Way::now() == Way::Observe && !kernel_is_at_least(6, 12) {
        skip!("one of the policies is to hear of what is cached, which this kernel does not tell");
    }
    let mount = Mount::new()?;
    let daemon = Daemon::start()?;
    let readers = load(&mount)?;
    for n in 0..5 {
        change(&daemon, &mount, n)?;
    }
    let before = procfs::fd_names(daemon.pid())?;
    // Without the module, a worker takes longer to start.
    let times = if Way::now() == Way::Module {
        times
    } else {
        times / 5
    };
    for n in 0..times.next_multiple_of(5) {
        change(&daemon, &mount, n)?;
    }
    // Descriptors of a connection or a worker may take a moment to be closed.
    let mut after = Vec::new();
    let kept = wait_until(5, "descriptors to be given back", || {
        after = procfs::fd_names(daemon.pid())?;
        Ok((after.len() <= before.len()).then_some(()))
    });
    ensure!(
        kept.is_ok(),
        "descriptors are leaked: {before:?}, now {after:?}"
    );
    ensure_eq!(daemon.workers()?.len(), 0, "workers");
    end(readers)?;
    daemon.stop()
}

/// How often a client's requests were granted and refused.
#[derive(Debug, Default)]
struct Told {
    yes: usize,
    no: usize,
}

impl Told {
    /// A yes is JSON. A no comes from a mount without a policy, from a policy that refuses, or because another
    /// request came in between, and has a message.
    #[track_caller]
    fn hear(&mut self, answer: &Answer) -> Outcome {
        if answer.code == 0 {
            self.yes += 1;
            let value: serde_json::Value = serde_json::from_str(&answer.output)?;
            ensure!(value.is_object() || value.is_array(), "{answer:?}");
            return Ok(());
        }
        self.no += 1;
        ensure!(
            [FAILED, NOTHING_THERE, REFUSED].contains(&answer.code),
            "{answer:?}"
        );
        let words = answer.errors.strip_prefix("ppcctl: ").unwrap_or_default();
        ensure!(words.trim().len() > 8, "no words: {answer:?}");
        Ok(())
    }
}

/// Several clients at once ask for different policies on one mount. A refused client gets a reason in words, and
/// in the end the mount has what was asked for last.
fn from_all_sides() -> Outcome {
    let mount = Mount::new()?;
    let daemon = Daemon::start()?;
    let readers = load(&mount)?;
    let path = mount.path.display().to_string();
    let told = std::thread::scope(|scope| -> Outcome<Vec<Told>> {
        let sides = [
            scope.spawn(|| -> Outcome<Told> {
                let mut told = Told::default();
                for n in 0..20 {
                    let library = policy(if n % 2 == 0 { "eager" } else { "shift" });
                    told.hear(&daemon.try_register(&mount.path, &library, &[])?)?;
                }
                Ok(told)
            }),
            scope.spawn(|| -> Outcome<Told> {
                let mut told = Told::default();
                for _ in 0..20 {
                    told.hear(&daemon.run(&["rm-policy", &path])?)?;
                }
                Ok(told)
            }),
            scope.spawn(|| -> Outcome<Told> {
                let mut told = Told::default();
                for _ in 0..40 {
                    ensure_eq!(daemon.all()?.mounts.len(), 1, "mounts");
                    let stats = daemon.run(&["stats"])?;
                    ensure_eq!(stats.code, 0, "{stats:?}");
                    told.hear(&daemon.run(&["set", &path, "length=4096"])?)?;
                }
                Ok(told)
            }),
        ];
        let sides = sides.map(|side| {
            side.join()
                .unwrap_or_else(|_| Err(crate::outcome::Stop::fail("a side panicked")))
        });
        sides.into_iter().collect()
    })?;
    println!("registering, removing, setting: {told:?}");
    // With one side registering and one removing, some requests of each succeed.
    for (side, told) in ["registering", "removing"].into_iter().zip(&told) {
        ensure!(told.yes > 0, "{side} never went: {told:?}");
    }
    daemon.register(&mount, &policy("shift"), &[])?;
    daemon.set(&mount, "length=8192")?;
    wait_until(10, "all workers but one to be gone", || {
        Ok((daemon.workers()?.len() == 1).then_some(()))
    })?;
    let status = daemon.status(&mount)?;
    let last = status.policy.as_ref();
    ensure_eq!(
        last.map(|policy| (policy.name.as_str(), policy.crashes)),
        Some(("shift", 0)),
        "what was asked for last"
    );
    let length = last.and_then(|policy| policy.settings.get("length"));
    ensure_eq!(length.map(String::as_str), Some("8192"), "its setting");
    ensure_eq!(status.state, MountState::Running, "the state");
    end(readers)?;
    daemon.stop()
}
