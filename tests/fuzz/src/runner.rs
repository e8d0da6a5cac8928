//! Starts libFuzzer for each target, waits for it, and keeps the input on which it died.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Instant;
use std::{env, os::unix::process::ExitStatusExt as _, thread};

use fuzz::limits::{OUT_OF_TIME, TIME};
use fuzz::slate;
use fuzz::targets::{PLANTED, Target};

use crate::Result;

/// Number of targets that run at a time.
const JOBS: usize = 2;
/// Time limit for finding a planted fault. Two seconds of processor time are enough, but a busy machine may
/// take long to provide them.
const PLANTED_SECONDS: u32 = 120;
/// Upper bound on the inputs that libFuzzer makes, in bytes.
const LONGEST: usize = 4096;

/// How a process ended.
#[derive(Debug)]
enum End {
    /// Its time was over.
    Done(Done),
    /// It died.
    Crash(Crash),
}

/// The statistics that libFuzzer prints at its end.
#[derive(Debug, PartialEq, Eq)]
struct Done {
    inputs: u64,
    /// Number of edges passed, and of all edges.
    edges: [u64; 2],
    /// Inputs that passed a new edge, or passed one more often than any before.
    kept: u64,
}

/// Why the process died, and on which input.
#[derive(Debug)]
struct Crash {
    input: Vec<u8>,
    how: String,
    /// What the target printed.
    log: String,
}

/// Runs the planted faults, then the targets, and prints each result. Returns whether all is well.
pub(crate) fn run(targets: &[Target], seconds: u32, seed: u32) -> Result<bool> {
    let folder = crashes()?;
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
            Err(_) => Err("a thread of the runner panicked".into()),
        });
        ended.collect::<Result<Vec<_>>>()
    })?;
    all.into_iter().flatten().for_each(count);
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

/// Whether libFuzzer finds a planted fault, and the input fails again when run alone.
fn planted(target: &Target, folder: &Path, seed: u32) -> Result<bool> {
    let start = Instant::now();
    let end = watch(target, PLANTED_SECONDS, seed, folder)?;
    let took = start.elapsed().as_secs_f64();
    let (is_well, said) = match end {
        End::Done(_) => (false, "FAILED: the planted fault was not found".to_owned()),
        End::Crash(Crash { input, how, .. }) => {
            let path = folder.join(target.name);
            fs::write(&path, input)?;
            let again = Command::new(env::current_exe()?)
                .args(["input", target.name])
                .arg(&path)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?;
            fs::remove_file(path)?;
            if again.success() {
                (
                    false,
                    format!("FAILED: {how}, but not if the input is run alone"),
                )
            } else {
                (true, format!("found, as it should be: {how}"))
            }
        }
    };
    println!("{}: {said}, in {took:.1} s", target.name);
    Ok(is_well)
}

fn one(target: &Target, seconds: u32, seed: u32, folder: &Path) -> Result<bool> {
    let name = target.name;
    match watch(target, seconds, seed, folder)? {
        End::Done(Done {
            inputs,
            edges: [passed, all],
            kept,
        }) => {
            let rate = inputs / u64::from(seconds.max(1));
            println!(
                "{name}: {inputs} inputs in {seconds} s ({rate}/s), {passed} of {all} edges, \
                 {kept} inputs kept, seed {seed}"
            );
            Ok(true)
        }
        End::Crash(Crash { input, how, log }) => {
            let mut hash = DefaultHasher::new();
            input.hash(&mut hash);
            let path = folder.join(format!("{name}-{:016x}", hash.finish()));
            fs::write(&path, input)?;
            println!(
                "{log}{name}: FAILED: {how}, seed {seed}\n\
                 {name}: the input is kept: {path}\n\
                 {name}: to see it again: make fuzz TARGET={name} INPUT={path}",
                path = path.display()
            );
            Ok(false)
        }
    }
}

/// The folder where inputs are kept, in that of the build; created if it does not exist.
fn crashes() -> Result<PathBuf> {
    let program = env::current_exe()?;
    // TARGET_DIR/TRIPLE/PROFILE/fuzz
    let built = program
        .ancestors()
        .nth(3)
        .ok_or("the program is in no target folder")?;
    let folder = built.join("fuzz-crashes");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Runs libFuzzer on a target until it ends, in its own folder that is removed afterwards.
fn watch(target: &Target, seconds: u32, seed: u32, folder: &Path) -> Result<End> {
    let program = env::current_exe()?.with_file_name("fuzz-target");
    if !program.exists() {
        return Err(format!("no {}: `make fuzz` builds it", program.display()).into());
    }
    let folder = folder.join(format!(".{}-{}", target.name, std::process::id()));
    let seeds = folder.join("seeds");
    fs::create_dir_all(&seeds)?;
    for (number, input) in target.inputs()?.iter().enumerate() {
        fs::write(seeds.join(number.to_string()), input)?;
    }
    // The first line is a comment, as libFuzzer refuses an empty dictionary.
    let words = format!("# {}\n{}", target.name, dictionary(target.words));
    fs::write(folder.join("words"), words)?;
    let status = libfuzzer(&program, seconds, seed)
        .current_dir(&folder)
        .env("FUZZ_TARGET", target.name)
        .env("FUZZ_SLATE", "slate")
        .stderr(File::create(folder.join("log"))?)
        .status()?;
    // A panic may print any bytes.
    let log = String::from_utf8_lossy(&fs::read(folder.join("log"))?).into_owned();
    let input = slate::read(&folder.join("slate"));
    fs::remove_dir_all(&folder)?;
    let name = target.name;
    match (how_it_died(status), input) {
        (None, _) => match Done::of(&log) {
            Some(done) => Ok(End::Done(done)),
            None => Err(format!("{name}: no statistics in what libFuzzer printed: {log}").into()),
        },
        (Some(how), None) => Err(format!("{name}: {how}, before the first input: {log}").into()),
        (Some(how), Some(input)) => Ok(End::Crash(Crash {
            input,
            how,
            log: last_words(&log).to_owned(),
        })),
    }
}

/// The command that runs libFuzzer in a folder that [`watch`] has filled.
fn libfuzzer(program: &Path, seconds: u32, seed: u32) -> Command {
    let mut command = Command::new(program);
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-seed={seed}"))
        .arg(format!("-max_len={LONGEST}"))
        .args(["-dict=words", "-reload=0", "-print_funcs=0"])
        .arg("-print_final_stats=1")
        // Instead, the kernel ends the process, and the slate has its input.
        .args(["-timeout=0", "-rss_limit_mb=0", "-handle_abrt=0"])
        .args(["-handle_segv=0", "-handle_bus=0", "-handle_ill=0"])
        .args(["-handle_fpe=0", "-handle_trap=0"])
        .arg("seeds")
        // glibc would return each large buffer to the kernel and fetch it again for the next input.
        .env("MALLOC_MMAP_THRESHOLD_", "33554432")
        .env("MALLOC_TRIM_THRESHOLD_", "33554432")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

fn how_it_died(status: ExitStatus) -> Option<String> {
    if status.signal() == Some(OUT_OF_TIME as i32) {
        return Some(format!("the input takes longer than {TIME:?}"));
    }
    (!status.success()).then(|| status.to_string())
}

/// The output after libFuzzer's last line.
fn last_words(log: &str) -> &str {
    let is_libfuzzer = |line: &&str| line.starts_with('#') || line.starts_with("INFO:");
    let lines = log.split_inclusive('\n').rev();
    let length: usize = lines.take_while(|it| !is_libfuzzer(it)).map(str::len).sum();
    &log[log.len() - length..]
}

/// A dictionary in libFuzzer's format: a quoted word a line.
fn dictionary(words: &[&[u8]]) -> String {
    let hex = |byte: &u8| format!("\\x{byte:02x}");
    let line = |word: &&[u8]| format!("\"{}\"\n", word.iter().map(hex).collect::<String>());
    words.iter().map(line).collect()
}

impl Done {
    fn of(log: &str) -> Option<Self> {
        let after = |text: &str, key: &str| -> Option<u64> {
            let (_, rest) = text.rsplit_once(key)?;
            let rest = rest.trim_start();
            let digits = rest.find(|it: char| !it.is_ascii_digit());
            rest[..digits.unwrap_or(rest.len())].parse().ok()
        };
        let last = log.lines().rfind(|line| line.contains("\tDONE "))?;
        Some(Self {
            inputs: after(log, "stat::number_of_executed_units:")?,
            edges: [
                after(last, "cov:")?,
                after(log, "INFO: Loaded 1 modules   (")?,
            ],
            kept: after(last, "corp:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libfuzzer_totals_are_parsed_from_its_log() {
        let log = "\
INFO: Running with entropic power schedule (0xFF, 100).
INFO: Loaded 1 modules   (7512 inline 8-bit counters): 7512 [0x55, 0x56),
#2	INITED cov: 5 ft: 6 corp: 1/16b exec/s: 0 rss: 30Mb
#65536	pulse  cov: 90 ft: 120 corp: 31/4096b lim: 652 exec/s: 32768 rss: 31Mb
#70001	DONE   cov: 91 ft: 121 corp: 32/4097b lim: 652 exec/s: 32768 rss: 31Mb
###### Recommended dictionary. ######
Done 70001 runs in 2 second(s)
stat::number_of_executed_units: 70001
stat::average_exec_per_sec:     35000
";
        let done = Done {
            inputs: 70001,
            edges: [91, 7512],
            kept: 32,
        };
        assert_eq!(Done::of(log), Some(done));
        assert_eq!(Done::of("INFO: nothing\n"), None);
    }

    #[test]
    fn target_output_is_separated_from_libfuzzer_output() {
        let log = "INFO: Seed: 1\n#2\tINITED cov: 5\npanicked\nbacktrace\n";
        assert_eq!(last_words(log), "panicked\nbacktrace\n");
        assert_eq!(last_words("aborted"), "aborted");
    }

    #[test]
    fn a_dictionary_has_any_byte() {
        assert_eq!(
            dictionary(&[b"a\"\0", b"]"]),
            "\"\\x61\\x22\\x00\"\n\"\\x5d\"\n"
        );
    }
}
