//! Whatever a policy does, readers get the right bytes in good time, and its misbehaviour is reported.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread::sleep;

use cprt::control::protocol::{MountState, MountStatus};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::case::Case;
use crate::daemon::{Daemon, policy, test_policy};
use crate::files::{MIB, Pattern};
use crate::mount::Mount;
use crate::outcome::{Outcome, ensure, ensure_eq, factor, median, millis, wait_until};
use crate::procfs;
use crate::reader::{Job, Spinner};
use crate::way::Way;

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_misbehave_segv", 90, || crashes("segv", &["SIGSEGV"])),
    Case::new("cprt_misbehave_abort", 90, || {
        crashes("abort", &["SIGABRT"])
    }),
    Case::new("cprt_misbehave_exit", 90, || crashes("exit", &["exit(3)"])),
    Case::new("cprt_misbehave_hang", 90, || crashes("hang", &["hangs"])),
    Case::new("cprt_misbehave_signals", 90, || {
        crashes("signals", &["hangs"])
    }),
    Case::new("cprt_misbehave_closes_fds", 90, || {
        crashes("closes_fds", &[])
    }),
    Case::new("cprt_misbehave_thread_segv", 90, thread_segv),
    Case::new("cprt_misbehave_leak", 60, leak),
    Case::new("cprt_misbehave_flood", 120, flood),
    Case::new("cprt_misbehave_beyond", 60, beyond),
    Case::new("cprt_misbehave_stdout", 60, stdout),
    Case::new("cprt_misbehave_panic", 60, panic),
    Case::new("cprt_misbehave_too_often", 90, too_often),
];

const SIZE: u64 = 16 * MIB;
/// Rounds of reads with and without a policy, in turn; one verdict covers all of them.
const ROUNDS: usize = 5;
/// Upper bound on the rounds, which continue while the verdict is against the policy. On a guest's disk,
/// 16 MiB take either 150 or 250 ms, on an idle machine, too, depending on where the host puts the
/// emulator's threads, and the median of a few falls on one or the other: "hang" took 1.02, 1.12 and 1.47
/// times as long as without, in three runs. Time that readers wait for a policy shows in any number of
/// rounds.
const MOST_ROUNDS: usize = 4 * ROUNDS;
/// How many times as long reading may take, in the median over all rounds. A guest's clock is that of the
/// host, which other processes use, too; `bench_misbehaviour`, whose clock counts instructions, measures to
/// a percent what misbehaviour costs readers.
const MOST: f64 = 1.5;
/// The same without the module and without passthrough, where the worker itself serves every read and
/// shares its processor with the policy's work.
const MOST_PLAIN: f64 = 4.0;
/// Upper bound on the longest single read, in the median over all rounds. A reader that waits for a policy
/// waits as long as the daemon does: 2 s by default.
const LONGEST_MS: f64 = 500.0;

/// The same with FUSE: reads through a mirror begin with a request to the worker, and those without a policy
/// have no mirror: 1.1 to 1.7 of 25 ms on a busy machine.
const MOST_FUSE: f64 = 2.5;

fn most() -> f64 {
    match Way::now() {
        Way::Plain => MOST_PLAIN,
        Way::Fuse => MOST_FUSE,
        Way::Module | Way::Observe => MOST,
    }
}

/// Checks that reading with a policy does not take longer than without, by cold reads with and without in
/// turn. Each read with the policy begins with `before` and ends with `after`. Time that a reader was queued
/// for a processor is left out on both sides.
///
/// Reads without the policy run beside a process that spins. The policy's work, and the start and the end of
/// its worker, take a processor, as any process may; in a guest that gets no second processor from a busy
/// host, they take the reader's: reading took 3.6 times as long beside "hang", 1.8 to 2.3 times beside
/// "beyond", 1.7 times beside "segv". None of that is waiting for the policy, which [`LONGEST_MS`] catches.
fn compare(
    name: &str,
    mount: &Mount,
    file: &Pattern,
    mut before: impl FnMut() -> Outcome,
    mut after: impl FnMut() -> Outcome,
) -> Outcome {
    let job = Job::new(mount, file);
    let (mut with, mut without, mut longest) = (Vec::new(), Vec::new(), Vec::new());
    let mut part = f64::INFINITY;
    while part > most() && with.len() < MOST_ROUNDS {
        file.make_cold()?;
        before()?;
        let read = job.run()?;
        with.push(read.ms - read.queued_ms);
        longest.push(read.longest_ms);
        after()?;
        file.make_cold()?;
        let busy = Spinner::start()?;
        let read = job.run()?;
        drop(busy);
        without.push(read.ms - read.queued_ms);
        if with.len().is_multiple_of(ROUNDS) {
            part = median(with.clone()) / median(without.clone());
        }
    }
    let read = median(longest);
    println!("{name}: reading takes {part:.2} of the time without, one read at most {read:.0} ms");
    println!("    with {with:.0?} ms, without {without:.0?} ms");
    ensure!(
        part <= most(),
        "{part:.2} of the time without a policy: {with:.0?} ms, {without:.0?} ms"
    );
    let limit = LONGEST_MS * factor();
    ensure!(
        read <= limit,
        "one read took {read:.0} ms, above {limit} ms"
    );
    Ok(())
}

fn last_fault(status: &MountStatus) -> String {
    let policy = status.policy.as_ref();
    policy
        .and_then(|policy| policy.last_fault.clone())
        .unwrap_or_default()
}

fn crash_count(status: &MountStatus) -> u64 {
    status.policy.as_ref().map_or(0, |policy| policy.crashes)
}

/// How many seconds a fault may take to be reported. The watchdog counts the time that a call runs, not the
/// time it waits for a processor, and gives up on the call in any case after ten deadlines of 2 s.
const TOLD_S: u32 = 25;

/// Follows a policy whose worker ends at its first event: the runtime reports which policy failed and how,
/// readers are not affected, and another policy works afterwards.
fn crashes(name: &str, words: &[&str]) -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, SIZE)?;
    let daemon = Daemon::start()?;
    let library = test_policy(name);
    let before = || daemon.register(&mount, &library, &[]).map(drop);
    let after = || {
        let what = format!("the fault of {name} to be reported");
        let status = daemon.wait_for(&mount, TOLD_S, &what, |status| crash_count(status) > 0)?;
        let fault = last_fault(&status);
        ensure!(!fault.is_empty(), "no fault in {status:?}");
        for word in words {
            ensure!(fault.contains(word), "{fault:?} does not mention {word}");
        }
        ensure!(
            matches!(status.state, MountState::Waiting | MountState::Running),
            "after one fault: {status:?}"
        );
        daemon.unregister(&mount).map(drop)
    };
    compare(name, &mount, &file, before, after)?;
    let policy_name = format!("test-{}", name.replace('_', "-"));
    let log = daemon.log()?;
    ensure!(
        log.contains(&policy_name),
        "the log does not name {policy_name}"
    );
    still_sound(&daemon, &mount, &file)
}

/// Checks that a sound policy still works, whatever happened before.
fn still_sound(daemon: &Daemon, mount: &Mount, file: &Pattern) -> Outcome {
    wait_until(10, "the workers to be gone", || {
        Ok((daemon.workers()?.len() <= 1).then_some(()))
    })?;
    file.make_cold()?;
    daemon.register(mount, &policy("shift"), &["length=1048576"])?;
    Job::new(mount, file).run()?;
    let stats = daemon.stats(mount)?;
    ensure!(
        stats.load_ranges > 0,
        "the policy after it loads nothing: {stats:?}"
    );
    ensure_eq!(daemon.workers()?.len(), 1, "workers");
    Ok(())
}

/// The runtime gives up a policy after three crashes in a minute.
fn too_often() -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, MIB)?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &test_policy("segv"), &[])?;
    let mut count = 0;
    let status = wait_until(60, "the policy to be given up", || {
        file.make_cold()?;
        Job::new(&mount, &file).run()?;
        let status = daemon.status(&mount)?;
        ensure!(
            crash_count(&status) >= count,
            "crashes are forgotten: {status:?}"
        );
        count = crash_count(&status);
        Ok((status.state == MountState::Failed).then_some(status))
    })?;
    ensure_eq!(count, 3, "crashes until it was given up");
    let reason = status.reason.clone().unwrap_or_default();
    ensure!(reason.contains("SIGSEGV"), "the reason in {status:?}");
    ensure_eq!(
        status.policy.as_ref().and_then(|policy| policy.worker),
        None,
        "its worker"
    );
    wait_until(5, "the worker to be gone", || {
        Ok(daemon.workers()?.is_empty().then_some(()))
    })?;
    sleep(millis(1500));
    ensure_eq!(
        daemon.status(&mount)?.state,
        MountState::Failed,
        "the state a while later"
    );
    file.make_cold()?;
    Job::new(&mount, &file).mmap().run()?;
    // The daemon tries again when it is asked to, and only then.
    daemon.register(&mount, &test_policy("segv"), &[])?;
    still_sound(&daemon, &mount, &file)?;
    daemon.stop()
}

/// This policy crashes without an event, so the daemon gives it up while there is no reader.
fn thread_segv() -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, SIZE)?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &test_policy("thread_segv"), &[])?;
    let given_up = |status: &MountStatus| status.state == MountState::Failed;
    let status = daemon.wait_for(&mount, 45, "the policy to be given up", given_up)?;
    ensure!(last_fault(&status).contains("SIGSEGV"), "{status:?}");
    let before = || {
        daemon
            .register(&mount, &test_policy("thread_segv"), &[])
            .map(drop)
    };
    let after = || daemon.unregister(&mount).map(drop);
    compare("thread_segv", &mount, &file, before, after)?;
    still_sound(&daemon, &mount, &file)
}

fn leak() -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, MIB)?;
    let daemon = Daemon::with("[worker]\nmemory = \"64 MiB\"\ndeadline = \"20 s\"\n")?;
    daemon.register(&mount, &test_policy("leak"), &[])?;
    let reader = Job::new(&mount, &file).start()?;
    let mut most = 0;
    let status = wait_until(20, "the leak to be noticed", || {
        for worker in daemon.workers()? {
            // The worker may have ended meanwhile.
            most = most.max(procfs::rss_kib(worker).unwrap_or(0));
        }
        let status = daemon.status(&mount)?;
        Ok((crash_count(&status) > 0).then_some(status))
    })?;
    reader.finish()?;
    println!(
        "leak: the worker had {} MiB at most of the 64 it may have",
        most / 1024
    );
    ensure!(last_fault(&status).contains("memory"), "{status:?}");
    ensure!(most < 512 * 1024, "the worker had {most} KiB");
    daemon.unregister(&mount)?;
    still_sound(&daemon, &mount, &file)
}

fn flood() -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, MIB)?;
    // One call names more ranges than allowed and takes longer than a policy may; this test is about the
    // ranges.
    let daemon = Daemon::with("[worker]\ndeadline = \"180 s\"\n")?;
    daemon.register(&mount, &test_policy("flood"), &[])?;
    let worker = daemon.worker(&mount)?;
    Job::new(&mount, &file).range(0..8).run()?;
    wait_until(60, "the flood to be over", || {
        let stats = daemon.stats(&mount)?;
        Ok((stats.prefetch_calls > 0 && stats.load_ranges > 0).then_some(()))
    })?;
    let stats = daemon.stats(&mount)?;
    let allowed = stats.prefetch_calls << 16;
    ensure!(
        stats.load_ranges <= allowed,
        "more ranges than it may name: {stats:?}"
    );
    let rss = procfs::rss_kib(worker)?;
    ensure!(rss < 64 * 1024, "the worker has {rss} KiB");
    ensure_eq!(daemon.worker(&mount)?, worker, "the worker");
    file.make_cold()?;
    Job::new(&mount, &file).run()?;
    daemon.unregister(&mount)?;
    still_sound(&daemon, &mount, &file)
}

/// The policy names ranges and paths that do not exist or that it must not load.
fn beyond() -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, SIZE)?;
    let lower = &mount.lower;
    fs::create_dir(lower.join("dir"))?;
    mkfifo(&lower.join("fifo"), Mode::S_IRUSR)?;
    symlink("/etc/passwd", lower.join("link"))?;
    fs::write(lower.parent().unwrap_or(lower).join("beside"), "secret")?;
    let daemon = Daemon::start()?;
    let paths = "paths=dir:fifo:link:missing:../beside:/etc/passwd:dir/../../beside:f/";
    let before = || {
        daemon
            .register(&mount, &test_policy("beyond"), &[paths])
            .map(drop)
    };
    let after = || {
        let stats = daemon.stats(&mount)?;
        ensure!(stats.load_refused > 0, "nothing was left out: {stats:?}");
        ensure_eq!(stats.load_errors, 0, "errors in {stats:?}");
        daemon.unregister(&mount).map(drop)
    };
    compare("beyond", &mount, &file, before, after)?;
    let log = daemon.log()?;
    let taken: Vec<&str> = log.lines().filter(|line| line.contains("taken:")).collect();
    ensure!(
        taken.is_empty(),
        "what should have been refused: {:?}",
        taken[0]
    );
    fs::remove_file(lower.parent().unwrap_or(Path::new("/")).join("beside"))?;
    still_sound(&daemon, &mount, &file)
}

fn stdout() -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, SIZE)?;
    let daemon = Daemon::start()?;
    let before = || {
        daemon
            .register(&mount, &test_policy("stdout"), &[])
            .map(drop)
    };
    let after = || {
        let status = daemon.status(&mount)?;
        ensure_eq!(
            (status.state, crash_count(&status)),
            (MountState::Running, 0),
            "{status:?}"
        );
        daemon.unregister(&mount).map(drop)
    };
    compare("stdout", &mount, &file, before, after)?;
    let size = daemon.log_size()?;
    println!("stdout: {size} bytes of log");
    ensure!(size < 4 * MIB, "{size} bytes of log");
    ensure!(
        daemon.log()?.contains("output without reason"),
        "the log has none of it"
    );
    still_sound(&daemon, &mount, &file)
}

/// A panic in a Rust policy is an error of each of its calls, and nothing more.
fn panic() -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, SIZE)?;
    let daemon = Daemon::start()?;
    let before = || {
        daemon
            .register(&mount, &test_policy("panic"), &[])
            .map(drop)
    };
    let after = || {
        wait_until(5, "its error to be counted", || {
            Ok((daemon.stats(&mount)?.policy_errors > 0).then_some(()))
        })?;
        let status = daemon.status(&mount)?;
        ensure_eq!(
            (status.state, crash_count(&status)),
            (MountState::Running, 0),
            "{status:?}"
        );
        let log = status
            .policy
            .map(|policy| policy.log)
            .unwrap_or_default()
            .join("\n");
        ensure!(
            log.contains("out of patience"),
            "the panic is not in {log:?}"
        );
        daemon.unregister(&mount).map(drop)
    };
    compare("panic", &mount, &file, before, after)?;
    still_sound(&daemon, &mount, &file)
}
