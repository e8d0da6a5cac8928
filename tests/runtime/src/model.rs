//! A small model, its service, and what four workers read of it.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use nix::sys::stat::{major, minor};
use serde_json::Value;
use test_support::pages_taken_back;

use crate::case::scratch;
use crate::daemon::{Daemon, policy};
use crate::files::{MIB, Pattern};
use crate::mount::Mount;
use crate::outcome::{For as _, Outcome, kernel_is_at_least, skip, wait_until};
use crate::reader::{Job, Reader};
use crate::way::Way;

pub(crate) const WORKERS: u32 = 4;
pub(crate) const TENSORS: u64 = 48;
pub(crate) const TENSOR: u64 = MIB;
pub(crate) const SIZE: u64 = TENSORS * TENSOR;
/// Budget of the tests in which not all of the model fits.
pub(crate) const BUDGET: u64 = SIZE * 45 / 100;

const SERVICE: &str = "test";
/// How long to wait before an event counts as not reported; events arrive sooner.
const UNHEARD: Duration = Duration::from_secs(5);

/// What the worker of a rank reads: every third tensor whole, and its slice of the others.
pub(crate) fn part(rank: u32) -> Vec<Range<u64>> {
    let slice = TENSOR / u64::from(WORKERS);
    let tensor = |number: u64| {
        let start = number * TENSOR;
        if number.is_multiple_of(3) {
            start..start + TENSOR
        } else {
            let from = start + u64::from(rank) * slice;
            from..from + slice
        }
    };
    (0..TENSORS).map(tensor).collect()
}

/// A model, its service and the store of its templates.
pub(crate) struct Model {
    pub(crate) mount: Mount,
    pub(crate) config: Pattern,
    pub(crate) weights: Pattern,
    pub(crate) store: String,
    /// Process titles of the workers, if these show their ranks.
    pub(crate) titles: Option<fn(u32) -> String>,
}

impl Model {
    pub(crate) fn new() -> Outcome<Self> {
        if !kernel_is_at_least(6, 12) && Way::now() != Way::Module {
            skip!("before 6.12 hits are not told without the module: nothing can be recorded");
        }
        let mount = Mount::new()?;
        let config = mount.file("config.json", 5, 4096)?.kept_open()?;
        let weights = mount.file("weights.bin", 6, SIZE)?.kept_open()?;
        let store = scratch().join("store");
        Ok(Self {
            mount,
            config,
            weights,
            store: store
                .to_str()
                .ok_or("no text")
                .of("the store's path")?
                .to_owned(),
            titles: None,
        })
    }

    pub(crate) fn register(&self, daemon: &Daemon, more: &[&str]) -> Outcome {
        self.register_as(daemon, &self.mount, SERVICE, more)
    }

    /// Registers the policy as another service, or for another mount of the model.
    pub(crate) fn register_as(
        &self,
        daemon: &Daemon,
        mount: &Mount,
        service: &str,
        more: &[&str],
    ) -> Outcome {
        let (store, id) = (
            format!("store={}", self.store),
            format!("service-id={service}"),
        );
        let settings = [id.as_str(), "node=n", "idle=3", store.as_str()];
        daemon.register(mount, &policy("maio"), &[&settings[..], more].concat())?;
        Ok(())
    }

    pub(crate) fn make_cold(&self) -> Outcome {
        self.config.make_cold()?;
        self.weights.make_cold()
    }

    /// The worker of a rank, and what it reads.
    pub(crate) fn worker(&self, rank: u32) -> Job {
        let job = Job::new(&self.mount, &self.weights).ranges(part(rank));
        let job = job.pause(30);
        match self.titles {
            Some(title) => job.unranked().title(title(rank)),
            None => job.rank(rank),
        }
    }

    /// Loads as a framework does: reads the configuration, pauses until `bytes` are loaded, and then starts
    /// all workers at once.
    pub(crate) fn load(&self, mmap: bool, bytes: u64) -> Outcome<Vec<Reader>> {
        let worker = |rank| {
            let job = self.worker(rank);
            if mmap { job.mmap() } else { job }
        };
        self.load_by(bytes, (0..WORKERS).map(worker))
    }

    /// The same with these workers.
    pub(crate) fn load_by(
        &self,
        bytes: u64,
        workers: impl IntoIterator<Item = Job>,
    ) -> Outcome<Vec<Reader>> {
        // The policy loads nothing without a reader, so this one stays.
        let until = scratch().join("started");
        let driver = Job::new(&self.mount, &self.config).linger(until.clone());
        let driver = driver.start()?;
        let (mut began, taken) = (Instant::now(), pages_taken_back());
        let came = wait_until(30, "what is loaded in the meantime", || {
            let cached = self.weights.cached()?;
            if bytes > 0 && cached == 0 && began.elapsed() > UNHEARD && Way::now() != Way::Module {
                // While one of its tables is being filled, the kernel reports nothing on that processor.
                println!("no event came of reading the configuration: it is read again");
                self.config.make_cold()?;
                Job::new(&self.mount, &self.config).run()?;
                began = Instant::now();
            }
            Ok((cached >= bytes).then_some(()))
        });
        if came.is_err() {
            let (cached, taken) = (self.weights.cached()?, pages_taken_back() - taken);
            println!(
                "{cached} of {bytes} bytes are cached; {taken} pages were reclaimed meanwhile"
            );
        }
        came?;
        let workers = workers.into_iter().map(|job| job.start());
        let workers: Outcome<Vec<_>> = workers.collect();
        fs::write(&until, "")?;
        driver.finish()?;
        fs::remove_file(&until)?;
        workers
    }

    pub(crate) fn template(&self, daemon: &Daemon) -> Outcome<Value> {
        self.template_of(daemon, SERVICE)
    }

    pub(crate) fn template_of(&self, daemon: &Daemon, service: &str) -> Outcome<Value> {
        let words = ["template", "--store", &self.store, "show", service];
        wait_until(20, "a template", || {
            let answer = daemon.run(&words)?;
            if answer.code != 0 {
                return Ok(None);
            }
            let template = serde_json::from_str(&answer.output).of(&answer.output)?;
            Ok(Some(template))
        })
    }

    /// Records one load; returns its template.
    pub(crate) fn record(&self, daemon: &Daemon, mmap: bool) -> Outcome<Value> {
        self.make_cold()?;
        for reader in self.load(mmap, BUDGET * 8 / 10)? {
            reader.finish()?;
        }
        self.template(daemon)
    }

    /// Bytes read so far from the device under the lower file system.
    pub(crate) fn device_bytes(&self) -> Outcome<u64> {
        device_bytes(&self.weights)
    }
}

/// Bytes read so far from the device that a file is on.
pub(crate) fn device_bytes(file: &Pattern) -> Outcome<u64> {
    let device = fs::metadata(&file.lower)?.dev();
    let path = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
    let text = fs::read_to_string(&path).of(&path)?;
    let sectors = text.split_whitespace().nth(2).unwrap_or_default();
    Ok(sectors.parse::<u64>().of(&path)? * 512)
}

/// The ranges sorted, and joined where they touch.
pub(crate) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Shuffles into an order that is the same in every run.
pub(crate) fn shuffled<T>(mut all: Vec<T>) -> Vec<T> {
    let mut state = 1_u64;
    for at in (1..all.len()).rev() {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let below = at as u64 + 1;
        let other = usize::try_from((state >> 33) % below).unwrap_or(at);
        all.swap(at, other);
    }
    all
}

/// The ranges of the weights in a group of a template.
pub(crate) fn recorded(group: &Value) -> Vec<Range<u64>> {
    recorded_of(group, "weights.bin")
}

/// The ranges of a file in it.
fn recorded_of(group: &Value, file: &str) -> Vec<Range<u64>> {
    let ranges = group["ranges"].as_array().into_iter().flatten();
    let ranges = ranges.filter(|range| range[0] == file);
    let range = |range: &Value| {
        let start = range[1].as_u64().unwrap_or(0);
        start..start + range[2].as_u64().unwrap_or(0)
    };
    joined(ranges.map(range).collect())
}
