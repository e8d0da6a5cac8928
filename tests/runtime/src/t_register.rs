//! A registered policy receives exactly the misses, and its I/Os are carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::thread::sleep;

use cprt::control::protocol::MountState;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use test_support::pages_taken_back;

use crate::case::{Case, scratch};
use crate::daemon::{Daemon, policy, test_policy};
use crate::files::{KIB, MIB, Pattern, set_readahead};
use crate::mount::Mount;
use crate::outcome::{
    For as _, Outcome, ensure, ensure_eq, fail, kernel_is_at_least, millis, skip, wait_until,
};
use crate::reader::{Job, rests};
use crate::way::Way;

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "cprt_register_hears_what_reads_miss",
        30,
        hears_what_reads_miss,
    ),
    Case::new(
        "cprt_register_hears_what_faults_miss",
        30,
        hears_what_faults_miss,
    ),
    Case::new("cprt_register_tells_readers_apart", 30, tells_readers_apart),
    Case::new("cprt_register_hears_what_it_wants", 30, hears_what_it_wants),
    Case::new("cprt_register_loads", 30, loads),
    Case::new("cprt_register_evicts", 40, evicts),
    Case::new("cprt_register_settings_change", 30, settings_change),
    Case::new(
        "cprt_register_log_and_events_are_told",
        40,
        log_and_events_are_told,
    ),
    Case::new("cprt_register_null_is_the_kernels", 30, null_is_the_kernels),
    Case::new("cprt_register_frozen_policy_runs", 30, frozen_policy_runs),
    Case::new("cprt_register_follows_the_mount", 40, follows_the_mount),
];

const PAGE: u64 = 4096;

/// A line of the probe's record.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) kind: String,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) process: u32,
    pub(crate) way: String,
    pub(crate) path: String,
}

impl Heard {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("event ")?.splitn(7, ' ');
        let kind = words.next()?.to_owned();
        let mut number = || words.next()?.parse::<u64>().ok();
        let (offset, length, _, process) = (number()?, number()?, number()?, number()?);
        Some(Self {
            kind,
            offset,
            length,
            process: process.try_into().ok()?,
            way: words.next()?.to_owned(),
            path: words.next()?.to_owned(),
        })
    }

    fn pages(&self) -> Range<u64> {
        pages(&(self.offset..self.offset + self.length))
    }
}

/// The pages that a range of bytes touches.
fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

fn pages_of(ranges: &[Range<u64>]) -> BTreeSet<u64> {
    ranges.iter().flat_map(pages).collect()
}

/// A probe that records its events in a file, not in the log.
pub(crate) struct Probe {
    record: String,
}

impl Probe {
    pub(crate) fn new() -> Self {
        let record = scratch().join("record");
        Self {
            record: format!("record={}", record.display()),
        }
    }

    pub(crate) fn register(&self, daemon: &Daemon, mount: &Mount, settings: &[&str]) -> Outcome {
        let settings = [&[self.record.as_str(), "log=0"], settings].concat();
        daemon.register(mount, &test_policy("probe"), &settings)?;
        Ok(())
    }

    pub(crate) fn heard(&self) -> Outcome<Vec<Heard>> {
        let path = self.record.trim_start_matches("record=");
        let text = fs::read_to_string(path).of(path)?;
        Ok(text.lines().filter_map(Heard::parse).collect())
    }

    /// The pages that each process missed, by file.
    fn missed(&self) -> Outcome<BTreeMap<(u32, String), BTreeSet<u64>>> {
        let mut missed: BTreeMap<_, BTreeSet<u64>> = BTreeMap::new();
        for miss in self.heard()?.iter().filter(|heard| heard.kind == "MISS") {
            let key = (miss.process, miss.path.clone());
            missed.entry(key).or_default().extend(miss.pages());
        }
        Ok(missed)
    }

    /// Waits until these pages have been missed, and then checks that no others have.
    fn wait_for(&self, expected: &BTreeMap<(u32, String), BTreeSet<u64>>) -> Outcome {
        let all = |found: &BTreeMap<(u32, String), BTreeSet<u64>>| {
            expected
                .iter()
                .all(|(key, pages)| found.get(key).is_some_and(|found| found.is_superset(pages)))
        };
        let waited = wait_until(5, "the misses", || Ok(all(&self.missed()?).then_some(())));
        sleep(millis(100));
        ensure_eq!(&self.missed()?, expected, "misses by process");
        waited
    }
}

/// Scattered ranges, smaller and larger than a page and the reader's chunk.
fn some_ranges() -> Vec<Range<u64>> {
    vec![
        0..8 * KIB,
        64 * KIB..64 * KIB + 104,
        MIB..MIB + 300 * KIB,
        2 * MIB - 8..2 * MIB + 8,
        4 * MIB - 16..4 * MIB + 5,
    ]
}

fn hears(mmap: bool) -> Outcome {
    set_readahead("0")?;
    let mount = Mount::new()?;
    let file = mount.file("dir/f", 3, 4 * MIB + 5)?;
    let daemon = Daemon::start()?;
    let probe = Probe::new();
    probe.register(&daemon, &mount, &[])?;
    let ranges = some_ranges();
    let job = Job::new(&mount, &file).ranges(ranges.clone());
    let reader = if mmap { job.mmap() } else { job }.start()?;
    let key = (reader.pid(), "dir/f".to_owned());
    reader.finish()?;
    probe.wait_for(&BTreeMap::from([(key, pages_of(&ranges))]))?;
    let way = if mmap { "mmap" } else { "read" };
    // FUSE requests do not show which it was, nor do kernels before 6.12.
    let tells = Way::now() == Way::Module || kernel_is_at_least(6, 12);
    if tells && !Way::now().caches_above() {
        let all = probe.heard()?.iter().all(|heard| heard.way == way);
        ensure!(all, "not all by {way}");
    }
    // Cached pages cause no events, unless the machine reclaims them before they are read.
    wait_until(30, "the machine to leave what is cached", || {
        let (before, taken_back) = (probe.heard()?.len(), pages_taken_back());
        Job::new(&mount, &file).ranges(ranges.clone()).run()?;
        sleep(millis(200));
        let heard = probe.heard()?.len();
        let kept = pages_taken_back() == taken_back;
        ensure!(
            heard == before || !kept,
            "events of a warm reader: {heard}, not {before}"
        );
        Ok((heard == before).then_some(()))
    })?;
    daemon.stop()
}

fn hears_what_reads_miss() -> Outcome {
    hears(false)
}

fn hears_what_faults_miss() -> Outcome {
    hears(true)
}

fn tells_readers_apart() -> Outcome {
    set_readahead("0")?;
    let mount = Mount::new()?;
    let files = [mount.file("a", 1, MIB)?, mount.file("b", 2, MIB)?];
    let daemon = Daemon::start()?;
    let probe = Probe::new();
    probe.register(&daemon, &mount, &[])?;
    let mut readers = Vec::new();
    let mut expected = BTreeMap::new();
    for (file, name) in files.iter().zip(["a", "b"]) {
        for part in [0..512 * KIB, 512 * KIB..MIB] {
            let job = Job::new(&mount, file).range(part.clone()).chunk(16 << 10);
            let reader = if part.start == 0 { job.mmap() } else { job }.start()?;
            expected.insert((reader.pid(), name.to_owned()), pages(&part).collect());
            readers.push(reader);
        }
    }
    for reader in readers {
        reader.finish()?;
    }
    probe.wait_for(&expected)?;
    daemon.stop()
}

fn hears_what_it_wants() -> Outcome {
    if Way::now().caches_above() {
        skip!("requests tell nothing of what is cached");
    }
    if Way::now() == Way::Observe && !kernel_is_at_least(6, 12) {
        skip!("kernels before 6.12 tell nothing of what is cached");
    }
    let mount = Mount::new()?;
    let file = mount.file("f", 3, MIB)?;
    Job::new(&mount, &file).run()?;
    let daemon = Daemon::start()?;
    let probe = Probe::new();
    // Every kind, with a beacon every 64 KiB.
    probe.register(&daemon, &mount, &["progress=65536", "kinds=0x1e"])?;
    daemon.set(&mount, "kinds=0x3e")?;
    let told = |kind: &str, pid: u32| -> Outcome<Vec<Heard>> {
        let mut heard = probe.heard()?;
        heard.retain(|heard| heard.kind == kind && heard.process == pid);
        Ok(heard)
    };
    let mut pid = 0;
    for _ in 0..3 {
        let reader = Job::new(&mount, &file).start()?;
        pid = reader.pid();
        reader.finish()?;
        wait_until(5, "the CLOSE", || {
            Ok((!told("CLOSE", pid)?.is_empty()).then_some(()))
        })?;
        sleep(millis(100));
        // On a shared machine, the kernel may have reclaimed a page for another process.
        if Way::now() == Way::Module || told("MISS", pid)?.is_empty() {
            break;
        }
    }
    let of = |kind: &str| told(kind, pid);
    let opens = of("OPEN")?;
    ensure_eq!(opens.len(), 1, "OPENs");
    ensure_eq!(opens[0].length, file.size, "the length of OPEN");
    ensure_eq!(of("MISS")?.len(), 0, "misses of a warm file");
    let touched: BTreeSet<u64> = of("TOUCH")?.iter().flat_map(Heard::pages).collect();
    ensure_eq!(touched.len() as u64, file.size / PAGE, "pages touched");
    // Waiting beacons may be merged; together they cover the whole file.
    let beacons = of("PROGRESS")?;
    let told: u64 = beacons.iter().map(|beacon| beacon.length).sum();
    ensure_eq!(told, file.size, "bytes told by {beacons:?}");
    let last = beacons.iter().map(|beacon| beacon.offset).max();
    ensure_eq!(last, Some(file.size), "the last of {beacons:?}");
    daemon.stop()
}

/// Waits until this many bytes of a file are cached, and checks that they stay cached.
pub(crate) fn wait_cached(file: &Pattern, bytes: u64) -> Outcome {
    let mut last = 0;
    let waited = wait_until(10, "the pages to be loaded", || {
        last = file.cached()?;
        Ok((last >= bytes).then_some(()))
    });
    sleep(millis(50));
    ensure_eq!(
        file.cached()?,
        bytes,
        "bytes cached, of {} ({last} before)",
        file.size
    );
    waited
}

fn loads() -> Outcome {
    set_readahead("0")?;
    let mount = Mount::new()?;
    let file = mount.file("f", 3, 4 * MIB)?;
    let daemon = Daemon::start()?;
    Probe::new().register(&daemon, &mount, &["ahead=1048576"])?;
    Job::new(&mount, &file).range(PAGE..PAGE + 8).run()?;
    wait_cached(&file, MIB + PAGE)?;
    ensure_eq!(
        file.cached_in(PAGE..MIB + 2 * PAGE)?,
        MIB + PAGE,
        "bytes where they belong"
    );
    let stats = daemon.stats(&mount)?;
    ensure_eq!(stats.load_ranges, 1, "ranges named in {stats:?}");
    // The reader reads its own page at the same time; whichever comes first brings it in.
    ensure!(
        [MIB, MIB + PAGE].contains(&stats.loaded_bytes),
        "bytes loaded in {stats:?}"
    );
    ensure_eq!(stats.load_errors, 0, "errors in {stats:?}");
    // A range that reaches beyond the end is clipped.
    Job::new(&mount, &file)
        .range(4 * MIB - 64 * KIB..4 * MIB - 60 * KIB)
        .run()?;
    wait_cached(&file, MIB + PAGE + 64 * KIB)?;
    // Read all of it, checking every byte.
    Job::new(&mount, &file).run()?;
    Job::new(&mount, &file).mmap().run()?;
    daemon.stop()
}

/// With a threshold of 1 %, memory use is always above it.
const ALWAYS_OVER: &str = "[memory]\nthreshold = 1\nhysteresis = 0\n";

/// Misses the page at this offset until the event arrives. While the table of files is being filled, as it
/// is just after a policy has started, the kernel may report nothing on that processor: then this retries.
fn misses_until_heard(mount: &Mount, file: &Pattern, daemon: &Daemon, at: u64) -> Outcome {
    let before = daemon.stats(mount)?.events;
    for _ in 0..5 {
        Job::new(mount, file).range(at..at + 8).run()?;
        let heard = || Ok((daemon.stats(mount)?.events > before).then_some(()));
        if wait_until(2, "a miss event", heard).is_ok() {
            return Ok(());
        }
        println!("a miss was not reported");
        let lower = File::open(&file.lower)?;
        let (page, advice) = (PAGE.cast_signed(), PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        posix_fadvise(&lower, at.cast_signed(), page, advice)?;
    }
    fail!("no miss was reported");
}

/// A policy drops the pages behind a miss, mapped or not, and does so at an interval, too.
fn evicts() -> Outcome {
    if Way::now().caches_above() {
        skip!("what is mapped beforehand is mapped from below the mirror");
    }
    // Single pages are dropped one by one; the large folios that readahead makes are not.
    set_readahead("0")?;
    let mount = Mount::new()?;
    let file = mount.file("f", 3, 4 * MIB)?;
    let stop = scratch().join("stop");
    let job = Job::new(&mount, &file).mmap().range(0..3 * MIB);
    let mapper = job.linger(stop.clone()).start()?;
    wait_cached(&file, 3 * MIB)?;
    // It may still be reading its last pages, and would bring them back in a folio that is not dropped.
    wait_until(10, "the mapper to rest", || {
        Ok(rests(&stop).exists().then_some(()))
    })?;
    let daemon = Daemon::with(ALWAYS_OVER)?;
    Probe::new().register(&daemon, &mount, &["behind=65536"])?;
    let gone = |bytes: u64| {
        let range = 3 * MIB - bytes..3 * MIB;
        wait_until(10, "what is behind to be dropped", || {
            Ok((file.cached_in(range.clone())? == 0).then_some(()))
        })
        .or_else(|stop| fail!("{stop:?}; {:?}", daemon.stats(&mount)?))
    };
    misses_until_heard(&mount, &file, &daemon, 3 * MIB)?;
    gone(64 * KIB)?;
    ensure_eq!(
        file.cached()?,
        3 * MIB + PAGE - 64 * KIB,
        "what is not behind"
    );
    // No process reads now, but the interval passes.
    daemon.set(&mount, "behind=1048576")?;
    gone(MIB)?;
    ensure_eq!(file.cached()?, 2 * MIB + PAGE, "what is not behind");
    let stats = daemon.stats(&mount)?;
    ensure!(stats.evict_calls > 1 && stats.evict_ranges > 1, "{stats:?}");
    ensure_eq!(stats.evict_errors, 0, "{stats:?}");
    if Way::now() == Way::Module {
        ensure_eq!(stats.evicted_bytes, MIB, "bytes dropped in {stats:?}");
        ensure_eq!(stats.kept_bytes, 0, "{stats:?}");
    } else {
        // Dropping mapped pages may take several calls.
        ensure!(stats.evicted_bytes >= MIB, "bytes dropped in {stats:?}");
    }
    fs::write(stop, "")?;
    mapper.finish()?;
    Job::new(&mount, &file).run()?;
    daemon.stop()
}

fn settings_change() -> Outcome {
    set_readahead("0")?;
    let mount = Mount::new()?;
    let file = mount.file("f", 3, 4 * MIB)?;
    let daemon = Daemon::start()?;
    Probe::new().register(&daemon, &mount, &["ahead=4096"])?;
    Job::new(&mount, &file).range(0..8).run()?;
    wait_cached(&file, 2 * PAGE)?;
    let status = daemon.set(&mount, "ahead=65536")?;
    let settings = status
        .policy
        .map(|policy| policy.settings)
        .unwrap_or_default();
    ensure_eq!(
        settings.get("ahead").map(String::as_str),
        Some("65536"),
        "the status"
    );
    let worker = daemon.worker(&mount)?;
    Job::new(&mount, &file).range(MIB..MIB + 8).run()?;
    wait_cached(&file, 3 * PAGE + 64 * KIB)?;
    ensure_eq!(daemon.worker(&mount)?, worker, "the worker");
    // The policy refuses an unknown setting and continues as before.
    let path = mount.path.display().to_string();
    let answer = daemon.run(&["set", &path, "ahaed=1"])?;
    ensure_eq!(answer.code, crate::daemon::REFUSED, "{answer:?}");
    let said = answer.output + &answer.errors;
    ensure!(said.contains("does not know the setting ahaed"), "{said}");
    ensure_eq!(daemon.worker(&mount)?, worker, "the worker");
    daemon.stop()
}

fn log_and_events_are_told() -> Outcome {
    set_readahead("0")?;
    let mount = Mount::new()?;
    let file = mount.file("dir/f", 3, MIB)?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &test_policy("probe"), &[])?;
    let listener = daemon.listen(&mount, "miss", 3)?;
    let stop = scratch().join("stop");
    let job = Job::new(&mount, &file).range(64 * KIB..64 * KIB + 8);
    let reader = job.until(stop.clone()).start()?;
    let events = listener.finish(10)?;
    fs::write(&stop, "")?;
    let pid = reader.pid();
    let times = reader.finish()?.times;
    ensure!(times >= 3, "read {times} times");
    ensure_eq!(events.len(), 3, "events");
    // Backends other than the module know only pages.
    let length = if Way::now() == Way::Module { 8 } else { PAGE };
    for event in events {
        let told = (
            event.kind.as_str(),
            event.process,
            event.offset,
            event.length,
        );
        ensure_eq!(told, ("MISS", pid, 64 * KIB, length), "an event");
        ensure_eq!(event.path.as_deref(), Some(Path::new("dir/f")), "its path");
    }
    // Between these two is a count, as waiting events may be merged.
    let (begin, end) = (
        format!("event MISS 65536 {length} "),
        format!(" {pid} read dir/f"),
    );
    wait_until(5, "the policy's words in the log", || {
        let log = daemon.log()?;
        let told = log
            .lines()
            .any(|line| line.contains(&begin) && line.ends_with(&end));
        Ok(told.then_some(()))
    })?;
    daemon.stop()
}

fn null_is_the_kernels() -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, 4 * MIB)?;
    let daemon = Daemon::start()?;
    if Way::now() == Way::Module {
        let state = daemon.status(&mount)?.state;
        ensure_eq!(state, MountState::Native, "the state without a policy");
    }
    let registered = daemon.register(&mount, &policy("null"), &[])?;
    let name = registered.policy.map(|policy| policy.name);
    ensure_eq!(name.as_deref(), Some("null"), "the policy's name");
    Job::new(&mount, &file).range(0..KIB).run()?;
    sleep(millis(100));
    let stats = daemon.stats(&mount)?;
    ensure_eq!(
        (stats.load_ranges, stats.evict_ranges),
        (0, 0),
        "ranges in {stats:?}"
    );
    ensure!(file.cached()? < MIB, "{} bytes cached", file.cached()?);
    let after = daemon.unregister(&mount)?;
    ensure_eq!(after.state, MountState::Native, "the state after rm-policy");
    ensure!(after.policy.is_none(), "{after:?}");
    Job::new(&mount, &file).run()?;
    daemon.stop()
}

/// A policy built when version 1 was the only one still runs.
fn frozen_policy_runs() -> Outcome {
    set_readahead("0")?;
    let mount = Mount::new()?;
    let file = mount.file("f", 3, MIB)?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &test_policy("frozen"), &[])?;
    Job::new(&mount, &file).range(0..8).run()?;
    wait_cached(&file, 64 * KIB + PAGE)?;
    let stats = daemon.stats(&mount)?;
    ensure_eq!(stats.policy_errors, 0, "errors in {stats:?}");
    daemon.stop()
}

/// An unmounted mount takes its policy along; a new mount in its place has none.
fn follows_the_mount() -> Outcome {
    let mount = Mount::new()?;
    let file = mount.file("f", 3, MIB)?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &policy("shift"), &[])?;
    Job::new(&mount, &file).run()?;
    mount.unmount()?;
    wait_until(10, "the worker to end", || {
        Ok(daemon.workers()?.is_empty().then_some(()))
    })?;
    let path = mount.path.display().to_string();
    let answer = daemon.run(&["stats", &path])?;
    ensure_eq!(answer.code, crate::daemon::NOTHING_THERE, "{answer:?}");
    let again = Mount::new()?;
    if Way::now() == Way::Module {
        let state = daemon.status(&again)?.state;
        ensure_eq!(
            state,
            MountState::Native,
            "the state of another mount there"
        );
    }
    daemon.register(&again, &policy("shift"), &[])?;
    Job::new(&again, &file).run()?;
    daemon.stop()
}
