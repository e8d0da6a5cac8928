//! What MAIO does for a model of four shards that four workers read: run by name, as `make maio-bench`
//! does in a guest with the module, and `make maio-bench-host` here without it.
//!
//! A line for each load and one for each bar. Nothing here fails for missing one: the line says so.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `MAIO_BENCH_MIB` | how large the model is, about | 2048 |
//! | `MAIO_BENCH_BY` | `read` or `mmap` | `mmap` |
//! | `MAIO_BENCH_DEADLINE` | how long a call of the policy may take | `2 s`, as everywhere |
//! | `MAIO_BENCH_READAHEAD` | KiB that the kernel reads ahead | 128, as most kernels do |

use std::env;
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cprt::control::stats::Stats;
use serde_json::Value;

use crate::case::{Case, scratch};
use crate::checkpoint::Checkpoint;
use crate::daemon::{Daemon, policy};
use crate::files::{MIB, readahead, set_readahead};
use crate::model::{device_bytes, joined, recorded_of};
use crate::mount::Mount;
use crate::outcome::{For as _, Outcome, ensure, fail, millis, wait_until};
use crate::procfs;
use crate::reader::{Job, Read, Reader, rests};
use crate::way::Way;

const BENCH: Case = Case::new("bench_maio", 3000, bench);

/// It, and the same without the module.
pub(crate) fn cases() -> Vec<Case> {
    vec![BENCH, BENCH.on(Way::Observe)]
}

const WORKERS: u32 = 4;
const PAGE: u64 = 4096;
/// So often is looked how much is cached: not so often that looking takes part in what is measured.
const SAMPLE: Duration = Duration::from_millis(250);
/// What a framework does between its configuration and the weights.
const STARTS: u32 = 1000;

/// What a load came to, in bytes but for seconds and faults.
#[derive(Clone, Debug, Default)]
struct Load {
    seconds: f64,
    /// What the disk gave; without the module, for the readers and for us, as others use it, too.
    device: u64,
    /// What it gave for readers, and for readers after their first hundredth.
    readers: u64,
    late: u64,
    major_faults: i64,
    loaded: u64,
    dropped: u64,
    kept: u64,
    /// ms that the policy's longest call took, and all of them.
    longest: u64,
    calls: u64,
    /// ms of CPU time that all of the worker took.
    cpu: u64,
    peak: u64,
    budget: Option<u64>,
    /// Cached when all was read, with all mappings still there.
    left: u64,
    /// Pages of what one worker alone reads that are on its node, of so many.
    placed: Option<(usize, usize)>,
    template: Option<Value>,
}

/// How a load is to be done.
struct Plan<'a> {
    name: &'a str,
    /// Words for the registration; without us if there are none.
    settings: Option<Vec<String>>,
    budget: Option<u64>,
    workers: Vec<Job>,
    /// It is recorded as this.
    records: Option<&'a str>,
}

struct Bench {
    model: Checkpoint,
    daemon: Daemon,
    store: String,
    mapped: bool,
}

fn bench() -> Outcome {
    let mib = env::var("MAIO_BENCH_MIB").unwrap_or_else(|_| "2048".to_owned());
    let mapped = !env::var("MAIO_BENCH_BY").is_ok_and(|by| by == "read");
    let deadline = env::var("MAIO_BENCH_DEADLINE").unwrap_or_else(|_| "2 s".to_owned());
    let readahead = env::var("MAIO_BENCH_READAHEAD").unwrap_or_else(|_| "128".to_owned());
    set_readahead(&readahead)?;
    let model = Checkpoint::make(Mount::new()?, mib.parse().of("MAIO_BENCH_MIB")?)?;
    let bench = Bench {
        model,
        daemon: Daemon::with(&format!("[worker]\ndeadline = \"{deadline}\"\n"))?,
        store: format!("store={}", scratch().join("store").display()),
        mapped,
    };
    bench.introduce()?;
    let loads = bench.loads()?;
    bench.judge(&loads)?;
    bench.daemon.stop()
}

/// All loads, by their letters.
struct Loads {
    native: Load,
    first: Load,
    replay: Load,
    tight: Load,
    wrong: Load,
    shuffled: Load,
}

impl Bench {
    fn introduce(&self) -> Outcome {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        println!(
            "{} MiB in {} shards, {WORKERS} workers by {}, {} on Linux {}, {} KiB of readahead",
            self.model.bytes() / MIB,
            self.model.shards.len(),
            if self.mapped { "mmap" } else { "read" },
            Way::now().name(),
            release.trim(),
            readahead()?
        );
        println!(
            "{:22} {:>6} {:>6} {:>13} {:>7} {:>6} {:>7} {:>5} {:>9} {:>15} {:>13}",
            "MiB; seconds first",
            "s",
            "disk",
            "readers, late",
            "faults",
            "loaded",
            "dropped",
            "kept",
            "peak",
            "ms of calls/CPU",
            "on their node"
        );
        Ok(())
    }

    fn loads(&self) -> Outcome<Loads> {
        let budget = self.model.bytes() * 45 / 100;
        let four = || self.workers(WORKERS, usize::MAX);
        let load = |name, settings: &[&str], workers, records| {
            let settings = settings.iter().map(|&it| it.to_owned()).collect();
            self.load(&Plan {
                name,
                settings: Some(settings),
                budget: None,
                workers,
                records,
            })
        };
        let wanderers = (0..WORKERS).map(|rank| {
            let job = self.model.wanderer(rank, WORKERS);
            self.settled(job, rank)
        });
        Ok(Loads {
            native: self.load(&Plan {
                name: "a native",
                settings: None,
                budget: None,
                workers: four(),
                records: None,
            })?,
            first: load(
                "b first, by headers",
                &["service-id=right", "tp=4"],
                four(),
                Some("right"),
            )?,
            replay: load("c replay", &["service-id=right"], four(), None)?,
            tight: self.load(&Plan {
                name: "d replay in 45 %",
                settings: Some(vec![
                    "service-id=right".to_owned(),
                    format!("budget={budget}"),
                ]),
                budget: Some(budget),
                workers: four(),
                records: None,
            })?,
            wrong: {
                let two = self.workers(2, self.model.shards.len() / 2);
                let settings = ["service-id=wrong", "tp=2"];
                load("  recorded of others", &settings, two, Some("wrong"))?;
                load("e with that template", &["service-id=wrong"], four(), None)?
            },
            shuffled: load(
                "f shuffled, that of c",
                &["service-id=right"],
                wanderers.collect(),
                None,
            )?,
        })
    }

    fn workers(&self, of: u32, shards: usize) -> Vec<Job> {
        let worker = |rank| self.settled(self.model.worker(rank, of, shards), rank);
        (0..of).map(worker).collect()
    }

    /// A worker as all of them are.
    fn settled(&self, job: Job, rank: u32) -> Job {
        let job = job.xpu(u16::from(rank % 2 == 1)).linger(stop(rank));
        if self.mapped { job.mmap() } else { job }
    }

    /// One load, from nothing cached until all is read.
    fn load(&self, plan: &Plan<'_>) -> Outcome<Load> {
        let logged = self.daemon.log()?.lines().count();
        self.prepare(plan)?;
        let ours = plan.settings.is_some();
        let before = self.counters(ours)?;
        self.model.look()?;
        sleep(millis(STARTS));
        let begin = Instant::now();
        let readers: Outcome<Vec<Reader>> = plan.workers.iter().map(Job::start).collect();
        let readers = readers?;
        let mut load = Load {
            budget: plan.budget,
            peak: self.watch(&readers)?,
            seconds: begin.elapsed().as_secs_f64(),
            ..Load::default()
        };
        let after = self.counters(ours)?;
        load.left = self.model.cached()?;
        if Way::now() == Way::Module && ours {
            load.placed = Some(self.placed()?);
        }
        load.template = plan
            .records
            .map(|service| self.template(service))
            .transpose()?;
        let mut own = 0;
        for (rank, reader) in (0..).zip(readers) {
            fs::write(stop(rank), "")?;
            let read = reader.finish()?;
            fs::remove_file(rests(&stop(rank)))?;
            fs::remove_file(stop(rank))?;
            own += load.add(&read)?;
        }
        load.device = match Way::now() {
            Way::Module => after.device - before.device,
            _ => after.worker.saturating_sub(before.worker) + own,
        };
        let (after, before) = (after.stats, before.stats);
        load.longest = after.policy_max_ns / 1_000_000;
        load.calls = after.policy_ns.saturating_sub(before.policy_ns) / 1_000_000;
        load.cpu = after.worker_cpu_ms.saturating_sub(before.worker_cpu_ms);
        load.loaded = after.loaded_bytes.saturating_sub(before.loaded_bytes);
        load.dropped = after.evicted_bytes.saturating_sub(before.evicted_bytes);
        load.kept = after.kept_bytes.saturating_sub(before.kept_bytes);
        if ours {
            self.daemon.unregister(&self.model.mount)?;
        }
        load.print(plan.name);
        let log = self.daemon.log()?;
        let new = log.lines().skip(logged);
        for line in new.filter(|line| line.contains("error:") || line.contains("warn")) {
            println!("      {line}");
        }
        Ok(load)
    }

    /// Nothing is cached, and we are told of the load to come, if we are to be.
    fn prepare(&self, plan: &Plan<'_>) -> Outcome {
        // Before anybody hears of files that are opened.
        self.model.make_cold()?;
        if let Some(settings) = &plan.settings {
            let own = ["node=n", "idle=3", &self.store];
            let settings = settings.iter().map(String::as_str);
            let all: Vec<&str> = own.into_iter().chain(settings).collect();
            self.daemon
                .register(&self.model.mount, &policy("maio"), &all)?;
        }
        // Its headers may be.
        let cached = self.model.cached()?;
        ensure!(cached <= MIB, "{cached} bytes are cached before");
        Ok(())
    }

    /// Waits until all have read; how much was cached at most.
    fn watch(&self, readers: &[Reader]) -> Outcome<u64> {
        let (mut peak, mut next) = (0, Instant::now());
        wait_until(1000, "the readers to have read", || {
            if Instant::now() >= next {
                peak = peak.max(self.model.cached()?);
                next = Instant::now() + SAMPLE;
            }
            let dead = readers.iter().any(|reader| !procfs::alive(reader.pid()));
            let mut all = (0..).zip(readers);
            let done = all.all(|(rank, _)| rests(&stop(rank)).exists());
            Ok((dead || done).then_some(()))
        })?;
        Ok(peak.max(self.model.cached()?))
    }

    fn counters(&self, ours: bool) -> Outcome<Counters> {
        let mount = &self.model.mount;
        // One that has ended meanwhile counts nothing; its log is shown.
        let worker = self.daemon.worker(mount).ok().filter(|_| ours);
        let read = worker.and_then(|worker| procfs::io(worker, "read_bytes").ok());
        let stats = worker.and_then(|_| self.daemon.stats(mount).ok());
        Ok(Counters {
            device: device_bytes(&self.model.config)?,
            worker: read.unwrap_or_default(),
            stats: stats.unwrap_or_default(),
        })
    }

    fn template(&self, service: &str) -> Outcome<Value> {
        let store = self.store.trim_start_matches("store=");
        let words = ["template", "--store", store, "show", service];
        wait_until(30, "a template", || {
            let answer = self.daemon.run(&words)?;
            if answer.code != 0 {
                return Ok(None);
            }
            Ok(Some(serde_json::from_str(&answer.output).of(service)?))
        })
    }

    /// How many pages that one worker alone reads are on the node of its accelerator, and how many
    /// there are of them in the cache.
    fn placed(&self) -> Outcome<(usize, usize)> {
        let (mut right, mut all) = (0, 0);
        for shard in &self.model.shards {
            // Who reads a page: nobody, a worker, or several.
            let mut readers = vec![(0_u8, 0); usize::try_from(shard.file.size.div_ceil(PAGE))?];
            for rank in 0..WORKERS {
                for range in shard.pages(rank, WORKERS) {
                    let (from, to) = (range.start / PAGE, range.end.div_ceil(PAGE));
                    for page in &mut readers[usize::try_from(from)?..usize::try_from(to)?] {
                        *page = (page.0 + 1, rank);
                    }
                }
            }
            for ((count, rank), node) in readers.into_iter().zip(shard.file.node_of_each()?) {
                let Some(node) = node.filter(|_| count == 1) else {
                    continue;
                };
                all += 1;
                right += usize::from(node == rank as usize % 2);
            }
        }
        Ok((right, all))
    }
}

/// What is counted by others.
struct Counters {
    device: u64,
    worker: u64,
    stats: Stats,
}

/// How long a worker stays.
fn stop(rank: u32) -> PathBuf {
    scratch().join(format!("stop-{rank}"))
}

impl Load {
    /// Gives what a disk has given for this reader.
    fn add(&mut self, read: &Read) -> Outcome<u64> {
        let (Some(all), Some(late)) = (read.disk, read.disk_late) else {
            fail!("the kernel does not count what disks give to a process");
        };
        self.readers += all;
        self.late += late;
        self.major_faults += read.major_faults;
        Ok(all)
    }

    fn print(&self, name: &str) {
        let mib = |bytes: u64| bytes / MIB;
        let placed = self
            .placed
            .map_or_else(|| "-".to_owned(), |(right, all)| format!("{right}/{all}"));
        let budget = self
            .budget
            .map_or(String::new(), |it| format!("/{}", mib(it)));
        println!(
            "{name:22} {:6.1} {:6} {:6}, {:5} {:7} {:6} {:7} {:5} {:>9} {:>15} {placed:>13}",
            self.seconds,
            mib(self.device),
            mib(self.readers),
            mib(self.late),
            self.major_faults,
            mib(self.loaded),
            mib(self.dropped),
            mib(self.kept),
            format!("{}{budget}", mib(self.peak)),
            format!("{},{}/{}", self.longest, self.calls, self.cpu),
        );
    }
}

/// Prints whether a bar is reached.
fn bar(reached: bool, words: &str) {
    println!("{}  {words}", if reached { "PASS" } else { "MISS" });
}

#[allow(clippy::cast_precision_loss, reason = "these are measurements")]
fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of as f64
}

impl Bench {
    fn judge(&self, loads: &Loads) -> Outcome {
        self.judge_template(loads.first.template.as_ref())?;
        let all = self.model.bytes();
        let (native, first, replay) = (&loads.native, &loads.first, &loads.replay);
        let late = percent(replay.late, native.readers);
        bar(
            late <= 1.0,
            &format!(
                "c: readers had {late:.2} % of native's read themselves, after the first hundredth"
            ),
        );
        let device = percent(replay.device, all);
        bar(
            (device - 100.0).abs() <= 1.0,
            &format!("c: the disk gave {device:.2} % of the model"),
        );
        match replay.placed {
            Some((right, own)) => bar(
                right == own && own > 0,
                &format!("c: {right} of {own} pages are on their node"),
            ),
            None => println!("-     c: on their node: there is but one, or no accelerator"),
        }
        self.judge_tight(&loads.tight);
        let gain = |load: &Load| native.readers.saturating_sub(load.readers);
        let gained = percent(gain(first), gain(replay));
        bar(
            gained >= 90.0,
            &format!("b: {gained:.1} % of what a replay gains"),
        );
        for (name, load) in [("e", &loads.wrong), ("f", &loads.shuffled)] {
            let device = percent(load.device, native.device);
            bar(
                device <= 103.0,
                &format!("{name}: the disk gave {device:.2} % of what it gives natively"),
            );
        }
        Ok(())
    }

    fn judge_tight(&self, load: &Load) {
        let (device, budget) = (
            percent(load.device, self.model.bytes()),
            load.budget.unwrap_or(0),
        );
        bar(
            (device - 100.0).abs() <= 3.0,
            &format!("d: the disk gave {device:.2} % of the model"),
        );
        let peak = percent(load.peak, budget);
        bar(
            load.peak <= budget,
            &format!("d: {peak:.2} % of the budget was cached at most"),
        );
        let left = percent(load.left, budget);
        let words = format!(
            "d: {left:.2} % of the budget is cached at the end, {} MiB were to be dropped and stayed",
            load.kept / MIB
        );
        if self.mapped && Way::now() != Way::Module {
            println!("-     {words}: it is mapped");
        } else {
            // Without the module what cannot be dropped is counted, and only that.
            let gone = load.kept * 1000 <= load.dropped || Way::now() != Way::Module;
            bar(load.left <= budget && gone, &words);
        }
    }

    /// Whether what is recorded of each worker is what it has read, page by page.
    fn judge_template(&self, template: Option<&Value>) -> Outcome {
        let groups = template.and_then(|it| it["groups"].as_array());
        let groups = groups.cloned().unwrap_or_default();
        let mut exact = groups.len() == WORKERS as usize;
        let mut words = Vec::new();
        for (rank, group) in (0..).zip(&groups) {
            let (mut right, mut others, mut missing) = (0, 0, 0);
            for shard in &self.model.shards {
                let pages = |ranges: Vec<std::ops::Range<u64>>| -> Outcome<Vec<bool>> {
                    let mut pages = vec![false; usize::try_from(shard.file.size.div_ceil(PAGE))?];
                    for range in ranges {
                        let (from, to) = (range.start / PAGE, range.end.div_ceil(PAGE));
                        pages[usize::try_from(from)?..usize::try_from(to)?].fill(true);
                    }
                    Ok(pages)
                };
                let found = pages(joined(recorded_of(group, &shard.name)))?;
                let read = pages(shard.pages(rank, WORKERS))?;
                for (found, read) in found.into_iter().zip(read) {
                    right += u64::from(found && read);
                    others += u64::from(found && !read);
                    missing += u64::from(read && !found);
                }
            }
            exact &= missing == 0 && others == 0;
            words.push(format!(
                "{right} right, {missing} missing, {others} not read"
            ));
        }
        bar(
            exact,
            &format!("b: pages in the template's groups: {}", words.join("; ")),
        );
        Ok(())
    }
}
