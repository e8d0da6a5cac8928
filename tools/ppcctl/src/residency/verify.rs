//! Compares what is cached of files with the device, and their contents with known hashes.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use cprt::control::config::{Bytes, TimeSpan};
use cprt::residency::{Cache, CacheFile, Comparison, Contents, Damage, LeftOut, Obstacle, Wanted};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::hashes::{self, Hash};
use super::interrupt::Interrupts;
use super::{bytes, files, is_failure, shown, tell_left_out};
use crate::args::Verify;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::run::progress::{Progress, millis};
use crate::screen::{age, count, print, print_json};

/// Upper bound on files that are read at once.
const AT_ONCE: usize = 4;
/// How often it is looked for signals.
const TICK: Duration = Duration::from_millis(10);
/// Progress is shown at every n-th look, the n-th being the first.
const SHOWN_EACH: u32 = 50;

/// What became of it.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    files: usize,
    bytes: u64,
    cached_bytes: u64,
    /// Compared with the device.
    compared_bytes: u64,
    /// Files whose hash was known and has been computed.
    hashed_files: usize,
    damaged: Vec<Damaged>,
    unchecked: Vec<Unchecked>,
    /// Names of the list below the given directories, for which there is no file.
    missing: Vec<PathBuf>,
    left_out: Vec<LeftOut>,
    interrupted: bool,
    seconds: f64,
}

/// A file with something wrong.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Damaged {
    path: PathBuf,
    /// Where the page cache differs from the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    differs: Option<Damage>,
    /// Whether its contents, as the cache has them, have the known hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    hash_right: Option<bool>,
}

/// A file that could not be checked.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Unchecked {
    path: PathBuf,
    why: Obstacle,
}

/// The verdict on a file.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Damaged(Damaged),
    Unchecked(Unchecked),
}

pub(crate) fn verify(json: bool, wanted: &Verify) -> Result<Exit> {
    let interrupts = Interrupts::take()?;
    let list = match &wanted.hashes {
        Some(path) => read_list(path)?,
        None => HashMap::new(),
    };
    let found = files(&wanted.paths)?;
    let known = |file: &CacheFile| {
        let of_list = list.get(&file.real).copied();
        of_list.or_else(|| hashes::of_blob(&file.real))
    };
    let hashes: Vec<_> = found.files.iter().map(known).collect();
    let began = Instant::now();
    let run = Run {
        files: &found.files,
        hashes: &hashes,
        all: wanted.all,
        cache: Cache::new()?,
        next: AtomicUsize::new(0),
        done: AtomicU64::new(0),
        running: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        outcome: Mutex::default(),
    };
    let shows = !wanted.quiet && !json && io::stderr().is_terminal();
    let signal = run.all(&interrupts, shows)?;
    let mut outcome = run
        .outcome
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    outcome.files = found.files.len();
    outcome.bytes = bytes(&found.files);
    outcome.missing = missing(&list, &found.files, &wanted.paths);
    outcome.left_out = found.left_out;
    outcome.interrupted = signal.is_some();
    outcome.seconds = began.elapsed().as_secs_f64();
    outcome.damaged.sort_by(|a, b| a.path.cmp(&b.path));
    outcome.unchecked.sort_by(|a, b| a.path.cmp(&b.path));
    if json {
        print_json(&outcome)?;
    } else {
        tell_left_out(&outcome.left_out, wanted.quiet);
        print(&outcome.text(wanted.quiet))?;
    }
    Ok(signal.unwrap_or_else(|| outcome.exit()))
}

/// The hashes of a list, by the paths of the files without links; those that are not there, by their paths.
fn read_list(path: &Path) -> Result<HashMap<PathBuf, Hash>> {
    let text = std::fs::read_to_string(path).map_err(|source| Failure::At {
        path: path.to_owned(),
        source,
    })?;
    let list = hashes::parse(&text).map_err(|line| Failure::NoHash {
        path: path.to_owned(),
        line,
    })?;
    let here = path.canonicalize().map_err(|source| Failure::At {
        path: path.to_owned(),
        source,
    })?;
    let folder = here.parent().unwrap_or(Path::new("/"));
    let real = |name: String| {
        let path = folder.join(name);
        path.canonicalize()
            .unwrap_or_else(|_| path.components().collect())
    };
    Ok(list
        .into_iter()
        .map(|(hash, name)| (real(name), hash))
        .collect())
}

/// Paths in the list, below the verified ones, that have no file.
fn missing(list: &HashMap<PathBuf, Hash>, files: &[CacheFile], paths: &[PathBuf]) -> Vec<PathBuf> {
    let roots: Vec<_> = paths
        .iter()
        .filter_map(|it| it.canonicalize().ok())
        .collect();
    let is_below = |path: &Path| roots.iter().any(|root| path.starts_with(root));
    let is_there = |path: &Path| files.iter().any(|file| file.real == path);
    let missing = list.keys().filter(|path| is_below(path) && !is_there(path));
    let mut missing: Vec<_> = missing.cloned().collect();
    missing.sort();
    missing
}

/// The files, of which several threads take the next one.
struct Run<'a> {
    files: &'a [CacheFile],
    hashes: &'a [Option<Hash>],
    all: bool,
    cache: Cache,
    next: AtomicUsize,
    done: AtomicU64,
    running: AtomicUsize,
    stop: AtomicBool,
    outcome: Mutex<Outcome>,
}

impl Run<'_> {
    /// Checks all files, or as many as there are until a signal comes; returns with which status to end then.
    fn all(&self, interrupts: &Interrupts, shows: bool) -> Result<Option<Exit>> {
        let threads = available_parallelism().map_or(1, usize::from);
        let threads = threads.min(AT_ONCE).min(self.files.len());
        self.running.store(threads, Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    self.take_files();
                    self.running.fetch_sub(1, Relaxed);
                });
            }
            let signal = self.wait(interrupts, shows);
            self.stop.store(!matches!(signal, Ok(None)), Relaxed);
            signal
        })
    }

    fn wait(&self, interrupts: &Interrupts, shows: bool) -> Result<Option<Exit>> {
        let (began, all) = (Instant::now(), bytes(self.files));
        let mut progress = Progress::default();
        let mut signal = None;
        for tick in 1.. {
            if signal.is_some() || self.running.load(Relaxed) == 0 {
                break;
            }
            signal = interrupts.sleep(TICK)?;
            if shows && tick % SHOWN_EACH == 0 {
                progress.say(&line(self.done.load(Relaxed), all, began.elapsed()));
            }
        }
        progress.clear();
        Ok(signal)
    }

    fn take_files(&self) {
        loop {
            let at = self.next.fetch_add(1, Relaxed);
            let Some(file) = self.files.get(at).filter(|_| !self.stop.load(Relaxed)) else {
                return;
            };
            let (comparison, hash_right) = self.check(file, self.hashes[at].as_ref());
            let verdict = judge(file.path.clone(), &comparison, hash_right, self.all);
            let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
            outcome.add(&comparison, hash_right, verdict);
        }
    }

    /// Compares a file, and its contents with the hash if that is known.
    fn check(&self, file: &CacheFile, hash: Option<&Hash>) -> (Comparison, Option<bool>) {
        let mut digest = Sha256::new();
        let mut update = |bytes: &[u8]| digest.update(bytes);
        let mut goes_on = |bytes| {
            self.done.fetch_add(bytes, Relaxed);
            !self.stop.load(Relaxed)
        };
        let mut wanted = Wanted {
            all: self.all,
            contents: hash.map(|_| &mut update as Contents<'_>),
            goes_on: &mut goes_on,
        };
        let compared = self.cache.compare(file, &mut wanted);
        let comparison = compared.unwrap_or_else(|error| Comparison {
            obstacle: Some(Obstacle::Failed(error.to_string())),
            ..Comparison::default()
        });
        let is_whole = !matches!(
            comparison.obstacle,
            Some(Obstacle::Changed | Obstacle::Stopped | Obstacle::Failed(_))
        );
        let right = hash.filter(|_| is_whole);
        (
            comparison,
            right.map(|hash| digest.finalize()[..] == hash[..]),
        )
    }
}

/// The verdict on a file, by its comparison and whether its hash is right, if that is known.
fn judge(path: PathBuf, comparison: &Comparison, hash_right: Option<bool>, all: bool) -> Verdict {
    if comparison.damage.is_some() || hash_right == Some(false) {
        return Verdict::Damaged(Damaged {
            path,
            differs: comparison.damage,
            hash_right,
        });
    }
    match &comparison.obstacle {
        None => Verdict::Good,
        // The hash proves what is cached.
        Some(by) if hash_right == Some(true) && by.is_outdone_by_hash() => Verdict::Good,
        // There was nothing to compare.
        Some(Obstacle::NoDirect) if comparison.cached == 0 && !all => Verdict::Good,
        Some(why) => Verdict::Unchecked(Unchecked {
            path,
            why: why.clone(),
        }),
    }
}

/// How far it is.
fn line(done: u64, all: u64, elapsed: Duration) -> String {
    let mut parts = vec![format!("{} of {} checked", Bytes(done), Bytes(all))];
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    let rate = done.saturating_mul(1000).checked_div(millis).unwrap_or(0);
    if rate > 0 {
        parts.push(format!("{}/s", Bytes(rate)));
        parts.push(format!(
            "{} left",
            age((all.saturating_sub(done) / rate).max(1))
        ));
    }
    parts.join(", ")
}

impl Damaged {
    fn text(&self) -> String {
        let Some(damage) = &self.differs else {
            return "its SHA-256 differs from the known hash; download or copy the file again"
                .to_owned();
        };
        let more = match damage.extents {
            1 => String::new(),
            extents => format!(
                " and in {} more places, {} pages in all",
                count(extents - 1),
                count(damage.pages)
            ),
        };
        let what = match self.hash_right {
            Some(true) => {
                "; the page cache has the right contents, so the device is damaged: download or copy the file again"
            }
            Some(false) => {
                "; the page cache has wrong contents: 'ppcctl drop' makes the next reader read it again"
            }
            None => "; 'ppcctl drop' makes the next reader read it again, if the device is right",
        };
        let (offset, length) = (damage.offset, damage.length);
        format!(
            "the page cache differs from the device at byte {offset}, for {length} bytes{more}{what}"
        )
    }
}

impl Outcome {
    fn add(&mut self, comparison: &Comparison, hash_right: Option<bool>, verdict: Verdict) {
        self.cached_bytes += comparison.cached;
        self.compared_bytes += comparison.compared;
        self.hashed_files += usize::from(hash_right.is_some());
        match verdict {
            Verdict::Good => {}
            Verdict::Damaged(damaged) => self.damaged.push(damaged),
            Verdict::Unchecked(unchecked) => self.unchecked.push(unchecked),
        }
    }

    fn exit(&self) -> Exit {
        if !self.damaged.is_empty() {
            Exit::Damaged
        } else if !self.unchecked.is_empty()
            || !self.missing.is_empty()
            || is_failure(&self.left_out)
        {
            Exit::Unchecked
        } else {
            Exit::Done
        }
    }

    /// What is wrong, line by line, and a summary.
    fn text(&self, quiet: bool) -> String {
        let damaged = self.damaged.iter();
        let damaged = damaged.map(|it| format!("{}: {}\n", shown(&it.path), it.text()));
        let unchecked = self.unchecked.iter();
        let unchecked =
            unchecked.map(|it| format!("{}: not checked: {}\n", shown(&it.path), it.why));
        let missing = self.missing.iter();
        let missing = missing.map(|path| format!("{}: listed, but missing\n", shown(path)));
        let text: String = damaged.chain(unchecked).chain(missing).collect();
        if quiet {
            return text;
        }
        let verdict = match (self.damaged.len(), self.exit()) {
            (0, Exit::Done) => "nothing is wrong".to_owned(),
            (0, _) => "no damage found, but some files could not be checked".to_owned(),
            (files, _) => format!("{} damaged", count(files as u64)),
        };
        let summary = format!(
            "{verdict}; {} of {} in {} files cached, {} compared with the device, {} hashes computed; it took {}\n",
            Bytes(self.cached_bytes),
            Bytes(self.bytes),
            count(self.files as u64),
            Bytes(self.compared_bytes),
            count(self.hashed_files as u64),
            TimeSpan(Duration::from_millis(millis(self.seconds)))
        );
        text + &summary
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
