//! Starts a process for each target, watches it, and keeps the input by which it ended.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::child::{Done, LONGEST};
use crate::targets::{PLANTED, Target};
use crate::{Result, hooks, slate};

/// Targets at a time.
const JOBS: usize = 2;
/// The planted bug takes less than a second, more where others are at work.
const PLANTED_SECONDS: u64 = 30;
const LOOK: Duration = Duration::from_millis(100);

/// How a target ended.
#[derive(Debug)]
enum End {
    /// By itself.
    Done(Done),
    /// By this input, so.
    Crash(Vec<u8>, String),
}

/// Runs the targets, says what came of each, and whether all is well.
pub(crate) fn run(targets: &[Target], seconds: u64, seed: u64) -> Result<bool> {
    if hooks::edges() == 0 {
        return Err(
            "built without counters of edges, it finds nothing; `make fuzz` builds it".into(),
        );
    }
    let folder = folder()?;
    let (mut passed, mut failed) = (0, 0);
    let mut count = |is_well| *(if is_well { &mut passed } else { &mut failed }) += 1;
    for target in &PLANTED {
        count(planted(target, &folder, seed)?);
    }
    let queue = Mutex::new(targets.iter());
    let next = || queue.lock().ok()?.next();
    let worker = || -> Result<Vec<bool>> {
        std::iter::from_fn(next)
            .map(|target| one(target, seconds, seed, &folder))
            .collect()
    };
    let all = thread::scope(|scope| {
        let workers: Vec<_> = (0..JOBS).map(|_| scope.spawn(worker)).collect();
        let ended = workers.into_iter().map(|worker| match worker.join() {
            Ok(results) => results,
            Err(_) => Err("a thread that watches has died".into()),
        });
        ended.collect::<Result<Vec<_>>>()
    })?;
    all.into_iter().flatten().for_each(count);
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

/// Whether a fault that is there is found, told, and there again when its input is run once more.
fn planted(target: &Target, folder: &Path, seed: u64) -> Result<bool> {
    let start = Instant::now();
    let (found, again) = match watch(target, PLANTED_SECONDS, seed, folder)? {
        End::Done(_) => (false, false),
        End::Crash(input, _) => {
            let path = folder.join(target.name);
            fs::write(&path, input)?;
            let again = Command::new(env::current_exe()?)
                .args(["input", target.name])
                .arg(&path)
                .stderr(Stdio::null())
                .status()?;
            fs::remove_file(path)?;
            (true, !again.success())
        }
    };
    let took = start.elapsed().as_secs_f64();
    let said = match (found, again) {
        (true, true) => "found, as it should be",
        (true, false) => "FAILED: what was found does not fail again",
        (false, _) => "FAILED: what is there was not found",
    };
    println!("{}: {said}, in {took:.1} s", target.name);
    Ok(found && again)
}

fn one(target: &Target, seconds: u64, seed: u64, folder: &Path) -> Result<bool> {
    let name = target.name;
    match watch(target, seconds, seed, folder)? {
        End::Done(Done {
            inputs,
            edges,
            passed,
            kept,
        }) => {
            let rate = inputs / seconds.max(1);
            println!(
                "{name}: {inputs} inputs in {seconds} s ({rate}/s), {passed} of {edges} edges, \
                 {kept} inputs kept, seed {seed}"
            );
            Ok(true)
        }
        End::Crash(input, how) => {
            let mut hash = DefaultHasher::new();
            input.hash(&mut hash);
            let path = folder.join(format!("{name}-{:016x}", hash.finish()));
            fs::write(&path, input)?;
            println!(
                "{name}: FAILED: {how}, seed {seed}\n\
                 {name}: the input is kept: {path}\n\
                 {name}: to see it again: make fuzz TARGET={name} INPUT={path}",
                path = path.display()
            );
            Ok(false)
        }
    }
}

/// Where inputs are kept, made if need be: in the folder that everything is built into.
fn folder() -> Result<PathBuf> {
    let program = env::current_exe()?;
    // TARGET_DIR/TRIPLE/PROFILE/fuzz
    let built = program.ancestors().nth(3).ok_or("the program is nowhere")?;
    let folder = built.join("fuzz-crashes");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Runs a target until it ends or must be ended.
fn watch(target: &Target, seconds: u64, seed: u64, folder: &Path) -> Result<End> {
    let path = folder.join(format!(".{}-{}", target.name, std::process::id()));
    let is_planted = PLANTED.iter().any(|fault| fault.name == target.name);
    let mut child = Command::new(env::current_exe()?)
        .args([
            "child",
            target.name,
            &seconds.to_string(),
            &seed.to_string(),
        ])
        .arg(&path)
        // glibc would give each large buffer back to the kernel and fetch it again for the next input.
        .env("MALLOC_MMAP_THRESHOLD_", "33554432")
        .env("MALLOC_TRIM_THRESHOLD_", "33554432")
        .stdout(Stdio::piped())
        .stderr(if is_planted {
            Stdio::null()
        } else {
            Stdio::inherit()
        })
        .spawn()?;
    let ended = until_it_ends(&mut child, &path);
    let last = slate::read(&path);
    let _ = fs::remove_file(&path);
    let how = match ended? {
        Some(status) if status.success() => {
            let mut line = String::new();
            child
                .stdout
                .take()
                .ok_or("no pipe")?
                .read_to_string(&mut line)?;
            return Ok(End::Done(
                Done::parse(&line).ok_or("the process says nothing")?,
            ));
        }
        Some(status) => status.to_string(),
        None => format!("one input took longer than {LONGEST:?}"),
    };
    match last {
        Some((_, input)) => Ok(End::Crash(input, how)),
        None => Err(format!("{}: {how}, before the first input", target.name).into()),
    }
}

/// Waits; ends the process if one input takes too long. Its status, `None` if it was ended.
fn until_it_ends(child: &mut Child, slate: &PathBuf) -> Result<Option<ExitStatus>> {
    let (mut input, mut since) = (0, Duration::ZERO);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let (now, used) = (
            slate::read(slate).map_or(0, |(count, _)| count),
            processor_time(child),
        );
        if now != input {
            (input, since) = (now, used);
        } else if now > 0 && used.saturating_sub(since) > LONGEST {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

/// What a process has used of the processor: the kernel counts in hundredths of a second.
fn processor_time(child: &Child) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    // The name, in parentheses, may have anything in it; the fields after it are the third and on.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let times = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
