//! Loads files into the page cache.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cprt::control::config::{Bytes, TimeSpan};
use cprt::control::stats::Stats;
use cprt::residency::{Cache, CacheFile, Found, LeftOut, Part, Warming, distinct, placement};
use maio::template::Store;
use serde::Serialize;

use super::interrupt::Interrupts;
use super::order::{self, Source};
use super::{files, is_failure, shown, tell_left_out};
use crate::args::{Common, Warm};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::run::progress::{Progress, millis};
use crate::screen::{count, plain, print, print_json, remark};
use crate::template::root_of;

/// How often loads are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Progress is shown at every n-th look, the n-th being the first.
const SHOWN_EACH: u32 = 10;
/// A file stays where it is if less than this part of it is on other nodes.
const FEW: u64 = 20;
/// Upper bound on files that are named because of what they lack.
const MOST_NAMED: usize = 20;

/// What became of it.
#[derive(Debug, Serialize)]
struct Outcome {
    order: Source,
    /// Files to load, in whole or in part.
    files: usize,
    /// Bytes that should be cached.
    bytes: u64,
    /// Bytes beyond `--limit`, which were not.
    beyond_limit_bytes: u64,
    /// Bytes that loads had to do with, from the device or not.
    #[serde(skip)]
    done_bytes: u64,
    loaded_bytes: u64,
    /// Absent, like the next field, if the kernel does not report it to this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_before_bytes: Option<u64>,
    /// At the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_bytes: Option<u64>,
    load_errors: u64,
    /// The tightest memory limit; 0 if it is not known.
    memory_limit: u64,
    /// Whether loads were given up for memory.
    lacked_memory: bool,
    interrupted: bool,
    /// Files that are not cached as far as they should be.
    lacking: Vec<Lacking>,
    left_out: Vec<LeftOut>,
    seconds: f64,
}

/// A file that is cached in part.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Lacking {
    path: PathBuf,
    /// Bytes of it that should be cached.
    bytes: u64,
    cached_bytes: u64,
}

/// The files and parts to load.
struct Planned {
    source: Source,
    parts: Vec<Part>,
    beyond_limit: u64,
}

pub(crate) fn warm(common: &Common, wanted: &Warm) -> Result<Exit> {
    let interrupts = Interrupts::take()?;
    let config = common.limits()?;
    let found = files(&wanted.paths)?;
    let planned = plan(&found.files, wanted)?;
    if let Some(node) = wanted.node {
        leave_other_nodes(&found.files, node)?;
    }
    let began = Instant::now();
    let mut warming = Warming::start(
        found.files.clone(),
        planned.parts.clone(),
        config.memory,
        config.loader,
        wanted.node,
    )?;
    let shows = !wanted.quiet && !common.json && io::stderr().is_terminal();
    let signal = wait(&mut warming, &interrupts, shows)?;
    let (stats, lacked_memory) = (warming.stats(), warming.lacked_memory());
    let before = warming.cached_before();
    let cached = warming.end();
    let mut outcome = Outcome::of(&planned, found, cached.as_deref(), &stats);
    outcome.cached_before_bytes = cached.map(|_| before);
    outcome.lacked_memory = lacked_memory;
    outcome.interrupted = signal.is_some();
    outcome.seconds = began.elapsed().as_secs_f64();
    tell(common.json, wanted.quiet, &outcome, config.memory.threshold)?;
    Ok(signal.unwrap_or_else(|| outcome.exit()))
}

/// Drops the files of which another node has more than single pages.
fn leave_other_nodes(files: &[CacheFile], node: u16) -> Result<()> {
    if !Path::new(&format!("/sys/devices/system/node/node{node}")).exists() {
        let text = format!(
            "--node {node}: there is no such node; 'ls -d /sys/devices/system/node/node*' lists the nodes"
        );
        return Err(Failure::Usage(text));
    }
    let cache = Cache::new()?;
    for file in files {
        let nodes = placement(std::slice::from_ref(file));
        let all: u64 = nodes.values().sum();
        let near = nodes.get(&node).copied().unwrap_or(0);
        if all - near > all / FEW {
            // What processes map stays, and a file that is gone is reported when it is loaded.
            let _ = cache.release(file);
        }
    }
    Ok(())
}

fn plan(files: &[CacheFile], wanted: &Warm) -> Result<Planned> {
    let (source, parts) = ordered(files, wanted)?;
    let all = distinct(&parts, u64::MAX);
    let limit = wanted.limit.map_or(u64::MAX, |limit| limit.0);
    let parts = distinct(&all, limit);
    Ok(Planned {
        source,
        beyond_limit: sum(&all) - sum(&parts),
        parts,
    })
}

fn ordered(files: &[CacheFile], wanted: &Warm) -> Result<(Source, Vec<Part>)> {
    let Some(service) = &wanted.service_id else {
        return Ok(order::whole(files, &wanted.paths));
    };
    let store = Store::at(root_of(wanted.store.as_deref())?);
    let why = match order::known(&store, service)? {
        None => "there is no template of",
        Some(template) => {
            let (source, parts) = order::by_template(&template, files, &wanted.paths)?;
            if template.bypasses_cache() || !parts.is_empty() {
                return Ok((source, parts));
            }
            "none of these files is in the template of"
        }
    };
    if !wanted.quiet {
        remark(&format!("{why} {}: all files are loaded", plain(service)));
    }
    Ok(order::whole(files, &wanted.paths))
}

fn sum(parts: &[Part]) -> u64 {
    parts.iter().map(|it| it.range.end - it.range.start).sum()
}

/// Sleeps until all loads are done or a signal comes.
fn wait(warming: &mut Warming, interrupts: &Interrupts, shows: bool) -> Result<Option<Exit>> {
    let mut progress = Progress::default();
    let mut signal = None;
    for tick in 1.. {
        if !warming.goes_on() {
            break;
        }
        signal = interrupts.sleep(TICK)?;
        if signal.is_some() {
            break;
        }
        if shows && tick % SHOWN_EACH == 0 {
            progress.show(&warming.stats());
        }
    }
    progress.clear();
    Ok(signal)
}

impl Outcome {
    fn of(planned: &Planned, found: Found, cached: Option<&[u64]>, stats: &Stats) -> Self {
        let mut wanted = vec![0; found.files.len()];
        for part in &planned.parts {
            wanted[part.file] += part.range.end - part.range.start;
        }
        let files = found.files.iter().zip(&wanted);
        let lacking = files.zip(cached.into_iter().flatten());
        let lacking = lacking.filter(|((_, wanted), cached)| cached < wanted);
        let lacking = lacking.map(|((file, &bytes), &cached_bytes)| Lacking {
            path: file.path.clone(),
            bytes,
            cached_bytes,
        });
        Self {
            order: planned.source,
            files: wanted.iter().filter(|&&bytes| bytes > 0).count(),
            bytes: wanted.iter().sum(),
            beyond_limit_bytes: planned.beyond_limit,
            done_bytes: stats.load_bytes,
            loaded_bytes: stats.loaded_bytes,
            cached_before_bytes: None,
            cached_bytes: cached.map(|cached| cached.iter().sum()),
            load_errors: stats.load_errors,
            memory_limit: stats.memory_limit,
            lacked_memory: false,
            interrupted: false,
            lacking: lacking.collect(),
            left_out: found.left_out,
            seconds: 0.0,
        }
    }

    /// Bytes that are cached as far as is known.
    fn cached(&self) -> u64 {
        self.cached_bytes.unwrap_or(self.done_bytes).min(self.bytes)
    }

    fn exit(&self) -> Exit {
        if is_failure(&self.left_out) || self.load_errors > 0 {
            Exit::Failed
        } else if self.lacked_memory || self.cached() < self.bytes {
            Exit::Partly
        } else {
            Exit::Done
        }
    }

    /// What went wrong, line by line. `threshold`: of memory, in percent.
    fn remarks(&self, threshold: u8) -> Vec<String> {
        let mut lines = Vec::new();
        let missing = Bytes(self.bytes - self.cached());
        if self.interrupted {
            lines.push(format!(
                "interrupted; {} stays cached",
                Bytes(self.cached())
            ));
        } else if self.lacked_memory {
            lines.push(format!(
                "not enough memory: {missing} of {} is not cached, because loads stop at {threshold} % of {}; raise \
                 the limit, free memory, or load less with --limit",
                Bytes(self.bytes),
                Bytes(self.memory_limit)
            ));
        } else if missing.0 > 0 && self.load_errors == 0 {
            lines.push(format!(
                "{missing} of {} is no longer cached: the kernel needed the memory, or another program dropped it; \
                 free memory, or load less with --limit",
                Bytes(self.bytes)
            ));
        }
        if self.load_errors > 0 {
            lines.push(format!(
                "{} loads of the files below failed; the kernel's log may say why (dmesg)",
                count(self.load_errors)
            ));
        }
        if self.interrupted || self.lacked_memory {
            return lines;
        }
        lines.extend(self.lacking.iter().take(MOST_NAMED).map(|it| {
            let (path, cached, bytes) = (shown(&it.path), Bytes(it.cached_bytes), Bytes(it.bytes));
            format!("{path}: {cached} of {bytes} is cached")
        }));
        lines
    }

    fn text(&self) -> String {
        let took = TimeSpan(Duration::from_millis(millis(self.seconds)));
        let before = match self.cached_before_bytes {
            Some(before) => format!(" and {} cached before", Bytes(before)),
            None => String::new(),
        };
        let order = match self.order {
            Source::Template => ", by the service's template",
            Source::Start => ", by the template of the service's start",
            Source::Headers | Source::Names => "",
        };
        let beyond = match self.beyond_limit_bytes {
            0 => String::new(),
            bytes => format!("; {} is beyond --limit", Bytes(bytes)),
        };
        format!(
            "{} loaded{before}, of {} in {} files{order}{beyond}; it took {took}\n",
            Bytes(self.loaded_bytes),
            Bytes(self.bytes),
            count(self.files as u64)
        )
    }
}

fn tell(json: bool, quiet: bool, outcome: &Outcome, threshold: u8) -> Result<()> {
    if json {
        return print_json(outcome);
    }
    tell_left_out(&outcome.left_out, quiet);
    for line in outcome.remarks(threshold) {
        remark(&line);
    }
    if quiet {
        return Ok(());
    }
    print(&outcome.text())
}

#[cfg(test)]
mod tests {
    use cprt::residency::Reason;

    use super::*;

    fn outcome() -> Outcome {
        Outcome {
            order: Source::Headers,
            files: 2,
            bytes: 4 << 30,
            beyond_limit_bytes: 0,
            done_bytes: 4 << 30,
            loaded_bytes: 3 << 30,
            cached_before_bytes: Some(1 << 30),
            cached_bytes: Some(4 << 30),
            load_errors: 0,
            memory_limit: 5 << 30,
            lacked_memory: false,
            interrupted: false,
            lacking: Vec::new(),
            left_out: Vec::new(),
            seconds: 2.5,
        }
    }

    #[test]
    fn fully_cached_outcome_is_reported_in_one_line() {
        let outcome = outcome();
        assert_eq!(outcome.exit(), Exit::Done);
        assert_eq!(outcome.remarks(80), [""; 0]);
        assert_eq!(
            outcome.text(),
            "3 GiB loaded and 1 GiB cached before, of 4 GiB in 2 files; it took 2.5 s\n"
        );
    }

    #[test]
    fn done_bytes_decide_the_status_if_cached_is_unknown() {
        let mut outcome = outcome();
        (outcome.cached_bytes, outcome.cached_before_bytes) = (None, None);
        assert_eq!(outcome.exit(), Exit::Done);
        assert!(outcome.text().starts_with("3 GiB loaded, of 4 GiB"));
        outcome.done_bytes = 1 << 30;
        assert_eq!(outcome.exit(), Exit::Partly);
    }

    #[test]
    fn each_shortfall_has_a_status_and_an_explanation() {
        let mut lacks = outcome();
        lacks.cached_bytes = Some(3 << 30);
        lacks.lacking.push(Lacking {
            path: "/m/a".into(),
            bytes: 2 << 30,
            cached_bytes: 1 << 30,
        });
        assert_eq!(lacks.exit(), Exit::Partly);
        let lines = lacks.remarks(80);
        assert!(
            lines[0].contains("the kernel needed the memory"),
            "{lines:?}"
        );
        assert_eq!(lines[1], "/m/a: 1 GiB of 2 GiB is cached");
        lacks.lacked_memory = true;
        let lines = lacks.remarks(80);
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].contains("1 GiB of 4 GiB is not cached, because loads stop at 80 % of 5 GiB")
        );
        lacks.load_errors = 1;
        assert_eq!(lacks.exit(), Exit::Failed);

        let mut unreadable = outcome();
        unreadable.left_out.push(LeftOut {
            path: "/m/b".into(),
            why: Reason::NoFile,
        });
        assert_eq!(unreadable.exit(), Exit::Done);
        unreadable.left_out[0].why = Reason::DanglingLink;
        assert_eq!(unreadable.exit(), Exit::Failed);

        let mut stopped = outcome();
        (stopped.interrupted, stopped.cached_bytes) = (true, Some(1 << 30));
        assert_eq!(stopped.remarks(80), ["interrupted; 1 GiB stays cached"]);
    }
}
