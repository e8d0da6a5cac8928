//! Readers: processes of this program that read a file, check every byte and report what it took.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::sys::wait::{WaitStatus, waitpid};
use serde::{Deserialize, Serialize};

use crate::files::{MIB, Pattern, first_wrong};
use crate::mount::Mount;
use crate::outcome::{For as _, Outcome, Stop, ensure, ensure_eq, fail};
use crate::procfs;
use crate::sys::{self, Map, PAGE};
use crate::way::Way;

/// What a reader is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    path: PathBuf,
    /// The path by which it is dropped from the cache: with FUSE passthrough, that of the file below.
    cache: PathBuf,
    seed: u64,
    /// Read one after the other.
    ranges: Vec<Range<u64>>,
    /// Pause after each range, in ms.
    pause: u64,
    chunk: usize,
    mmap: bool,
    /// Files that it writes its process id to before it begins.
    groups: Vec<PathBuf>,
    /// Reads again and again, dropping the file from the cache in between, until this file exists.
    until: Option<PathBuf>,
    /// Stays after reading, with its mapping, until this file exists.
    linger: Option<PathBuf>,
    /// Its `RANK`.
    rank: Option<u32>,
    /// Its process title.
    title: Option<String>,
    /// Number of threads that share the ranges in turn, each with its own descriptor.
    threads: usize,
    /// Bytes at the beginning of each range that it reads first, through another descriptor.
    heads: u64,
    /// Closes its descriptor as soon as the file is mapped.
    closed: bool,
    /// Bytes at the beginning of the file that it reads itself before it leaves the ranges to a child.
    parent: u64,
    /// Has a lower priority than others.
    yields: bool,
}

/// What a reader has done, over all its passes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Read {
    pub(crate) bytes: u64,
    pub(crate) times: u64,
    pub(crate) ms: f64,
    pub(crate) cpu_ms: f64,
    /// How long it was ready to run while another process had its processor.
    pub(crate) queued_ms: f64,
    /// Duration of its longest single read.
    pub(crate) longest_ms: f64,
    pub(crate) minor_faults: i64,
    pub(crate) major_faults: i64,
    /// Where the first wrong byte was.
    pub(crate) wrong: Option<u64>,
}

impl Job {
    /// Reads all of a file with read(2), 128 KiB at a time.
    pub(crate) fn new(mount: &Mount, file: &Pattern) -> Self {
        Self::path(mount.up(file), file)
    }

    /// Reads the file in the lower file system.
    pub(crate) fn lower(file: &Pattern) -> Self {
        Self::path(file.lower.clone(), file)
    }

    fn path(path: PathBuf, file: &Pattern) -> Self {
        let below = Way::now() == Way::Fuse && !Way::now().caches_above();
        Self {
            cache: if below { &file.lower } else { &path }.clone(),
            path,
            seed: file.seed,
            ranges: std::iter::once(0..file.size).collect(),
            pause: 0,
            chunk: 128 << 10,
            mmap: false,
            groups: Vec::new(),
            until: None,
            linger: None,
            rank: None,
            title: None,
            threads: 1,
            heads: 0,
            closed: false,
            parent: 0,
            yields: false,
        }
    }

    pub(crate) fn chunk(mut self, bytes: usize) -> Self {
        self.chunk = bytes;
        self
    }

    /// Reads through a mapping.
    pub(crate) fn mmap(mut self) -> Self {
        self.mmap = true;
        self
    }

    /// Reads only these ranges, which begin at multiples of 8.
    pub(crate) fn ranges(mut self, ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        self.ranges = ranges.into_iter().collect();
        self
    }

    /// Reads only this range.
    pub(crate) fn range(self, range: Range<u64>) -> Self {
        self.ranges(std::iter::once(range))
    }

    /// Rests this many milliseconds after each range.
    pub(crate) fn pause(mut self, millis: u64) -> Self {
        self.pause = millis;
        self
    }

    /// Joins this memory cgroup.
    pub(crate) fn within(mut self, group: PathBuf) -> Self {
        self.groups.push(group);
        self
    }

    /// Reads again and again until this file exists.
    pub(crate) fn until(mut self, path: PathBuf) -> Self {
        self.until = Some(path);
        self
    }

    /// Stays after reading until this file exists.
    pub(crate) fn linger(mut self, path: PathBuf) -> Self {
        self.linger = Some(path);
        self
    }

    /// Makes it the worker of this rank.
    pub(crate) fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Sets no rank in its environment.
    pub(crate) fn unranked(mut self) -> Self {
        self.rank = None;
        self
    }

    /// Sets its process title.
    pub(crate) fn title(mut self, title: String) -> Self {
        self.title = Some(title);
        self
    }

    /// Reads with several threads at once, which share the ranges.
    pub(crate) fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Reads this many bytes at the beginning of each range first.
    pub(crate) fn heads(mut self, bytes: u64) -> Self {
        self.heads = bytes;
        self
    }

    /// Reads through a mapping that outlives the descriptor.
    pub(crate) fn closed(mut self) -> Self {
        self.closed = true;
        self.mmap()
    }

    /// Reads in a child, after it has itself read this many bytes at the beginning of the file.
    pub(crate) fn parent(mut self, bytes: u64) -> Self {
        self.parent = bytes;
        self
    }

    /// Reads with a lower priority. In a guest, readers at full speed would otherwise have most of both processors, and
    /// whatever is done beside them takes five times as long.
    pub(crate) fn yields(mut self) -> Self {
        self.yields = true;
        self
    }

    /// Starts it.
    pub(crate) fn start(&self) -> Outcome<Reader> {
        let program = std::env::current_exe()?;
        let title = self.title.as_ref().map(OsString::from);
        let rank = self.rank.map(|rank| ("RANK", rank.to_string()));
        let mut child = Command::new(&program)
            .arg0(title.unwrap_or_else(|| program.clone().into()))
            .arg("--reader")
            .envs(rank)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        if let Some(input) = child.stdin.take() {
            serde_json::to_writer(input, self)?;
        }
        Ok(Reader { child })
    }

    /// Starts it and waits for its end.
    pub(crate) fn run(&self) -> Outcome<Read> {
        self.start()?.finish()
    }
}

/// A running reader.
#[derive(Debug)]
pub(crate) struct Reader {
    child: Child,
}

impl Reader {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end. Fails if a read failed or a byte was wrong.
    pub(crate) fn finish(mut self) -> Outcome<Read> {
        let mut text = String::new();
        if let Some(output) = &mut self.child.stdout {
            output.read_to_string(&mut text)?;
        }
        let status = self.child.wait()?;
        ensure!(status.success(), "a reader: {status}");
        let read: Read = serde_json::from_str(&text).of("a reader's words")?;
        ensure_eq!(read.wrong, None, "the first wrong byte");
        Ok(read)
    }
}

/// The reader process.
pub(crate) fn main() -> Outcome {
    let job: Job = serde_json::from_reader(std::io::stdin())?;
    if job.yields {
        sys::lower_priority()?;
    }
    for group in &job.groups {
        fs::write(group, std::process::id().to_string()).of(group.display())?;
    }
    let mut read = Read::default();
    let begin = (Instant::now(), procfs::queued_ms(std::process::id())?);
    loop {
        // A framework, too, keeps its mapping until the model is loaded.
        let source = read_once(&job, &mut read)?;
        read.times += 1;
        measure(&mut read, begin)?;
        linger(&job)?;
        drop(source);
        let Some(until) = &job.until else {
            break;
        };
        if until.exists() {
            break;
        }
        let file = File::open(&job.cache)?;
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    }
    println!("{}", serde_json::to_string(&read)?);
    Ok(())
}

/// Records what reading has taken so far.
fn measure(read: &mut Read, (begin, queued_ms): (Instant, f64)) -> Outcome {
    // Before the clock is read: time that the reader then spends in a queue does not count in `ms`.
    read.queued_ms = procfs::queued_ms(std::process::id())? - queued_ms;
    read.ms = begin.elapsed().as_secs_f64() * 1e3;
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let cpu = usage.user_time() + usage.system_time();
    #[allow(clippy::cast_precision_loss, reason = "it is a measurement")]
    {
        read.cpu_ms = cpu.num_microseconds() as f64 / 1e3;
    }
    read.minor_faults = usage.minor_page_faults();
    read.major_faults = usage.major_page_faults();
    Ok(())
}

fn linger(job: &Job) -> Outcome {
    if let Some(until) = &job.linger {
        fs::write(rests(until), "")?;
    }
    while job.linger.as_ref().is_some_and(|until| !until.exists()) {
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn read_once(job: &Job, read: &mut Read) -> Outcome<Source> {
    if job.heads > 0 {
        let source = Source::open(job)?;
        for range in &job.ranges {
            let end = range.end.min(range.start + job.heads);
            source.take(job, &(range.start..end), read)?;
        }
    }
    // Lives as long as the process, like a framework's mapping.
    let source = Source::open(job)?;
    if job.parent > 0 {
        source.take(job, &(0..job.parent), &mut Read::default())?;
        if let Some(child) = sys::fork()? {
            let status = waitpid(child, None)?;
            ensure_eq!(status, WaitStatus::Exited(child, 0), "the child's end");
            std::process::exit(0);
        }
    }
    if job.threads > 1 {
        by_threads(job, read)?;
    } else {
        for range in &job.ranges {
            source.take(job, range, read)?;
            sleep(Duration::from_millis(job.pause));
        }
    }
    Ok(source)
}

fn by_threads(job: &Job, read: &mut Read) -> Outcome {
    let one = |first: usize| -> Outcome<Read> {
        let (source, mut read) = (Source::open(job)?, Read::default());
        for range in job.ranges.iter().skip(first).step_by(job.threads) {
            source.take(job, range, &mut read)?;
            sleep(Duration::from_millis(job.pause));
        }
        Ok(read)
    };
    std::thread::scope(|scope| {
        let all = (0..job.threads).map(|first| scope.spawn(move || one(first)));
        for thread in all.collect::<Vec<_>>() {
            let part = thread.join().map_err(|_| Stop::fail("a thread"))??;
            read.bytes += part.bytes;
            read.wrong = read.wrong.or(part.wrong);
        }
        Ok(())
    })
}

/// What a file is read through: its mapping, if it has one.
struct Source {
    map: Option<Map>,
    file: Option<File>,
}

impl Source {
    fn open(job: &Job) -> Outcome<Self> {
        let file = File::open(&job.path).of(job.path.display())?;
        Ok(Self {
            map: job.mmap.then(|| Map::of(&file)).transpose()?,
            file: (!job.closed).then_some(file),
        })
    }

    /// Reads a range and checks its bytes.
    fn take(&self, job: &Job, range: &Range<u64>, read: &mut Read) -> Outcome {
        let mut buffer = vec![0; job.chunk];
        let mut at = range.start;
        while at < range.end {
            let most = job.chunk.min(usize::try_from(range.end - at)?);
            let begin = Instant::now();
            let bytes = match (&self.map, &self.file) {
                (Some(map), _) => {
                    let from = usize::try_from(at)?;
                    &map.bytes()[from..from + most]
                }
                (None, Some(file)) => {
                    let got = file.read_at(&mut buffer[..most], at)?;
                    ensure!(got > 0, "{} ends at {at}", job.path.display());
                    &buffer[..got]
                }
                (None, None) => fail!("{} is closed", job.path.display()),
            };
            let took = begin.elapsed().as_secs_f64() * 1e3;
            read.longest_ms = read.longest_ms.max(took);
            if let Some(wrong) = first_wrong(bytes, job.seed, at) {
                read.wrong.get_or_insert(wrong);
            }
            at += bytes.len() as u64;
            read.bytes += bytes.len() as u64;
        }
        Ok(())
    }
}

/// The file that a lingering reader creates when it has read everything and only waits for `until`.
pub(crate) fn rests(until: &Path) -> PathBuf {
    until.with_extension("rests")
}

/// A service: a process with this much memory of its own, in a cgroup.
#[derive(Debug)]
pub(crate) struct Service {
    child: Child,
}

impl Service {
    /// Starts a service and waits until it has its memory.
    pub(crate) fn start(bytes: u64, group: PathBuf) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--service", &(bytes / MIB).to_string()])
            .arg(group)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut word = [0; 6];
        let output = child
            .stdout
            .as_mut()
            .ok_or_else(|| Stop::fail("no output"))?;
        output.read_exact(&mut word).of("waiting for a service")?;
        Ok(Self { child })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Makes it read its memory again and end; returns how many page faults the reading took.
    pub(crate) fn finish(mut self) -> Outcome<i64> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        if let Some(output) = &mut self.child.stdout {
            output.read_to_string(&mut text)?;
        }
        let status = self.child.wait()?;
        ensure!(status.success(), "a service: {status}");
        text.trim().parse().of("a service's words")
    }
}

/// What that process does.
pub(crate) fn service(mib: &str, group: &str) -> Outcome {
    let mut own = OpenOptions::new().write(true).open(group)?;
    own.write_all(std::process::id().to_string().as_bytes())?;
    let mut memory = Map::anonymous(usize::try_from(mib.parse::<u64>()? * MIB)?)?;
    memory.touch();
    let look = || -> u64 {
        let pages = memory.bytes().iter().step_by(PAGE);
        pages.map(|&byte| u64::from(byte)).sum()
    };
    let faults = || -> Outcome<i64> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        Ok(usage.minor_page_faults() + usage.major_page_faults())
    };
    // Once beforehand, or page faults on the code itself would be counted.
    std::hint::black_box((look(), faults()?));
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let before = faults()?;
    let sum = look();
    let taken = faults()? - before;
    ensure_eq!(
        sum,
        memory.bytes().len() as u64 / PAGE as u64,
        "the pages that are ours"
    );
    println!("{taken}");
    Ok(())
}

/// A process that keeps a processor busy until it is dropped.
#[derive(Debug)]
pub(crate) struct Spinner {
    child: Child,
}

impl Spinner {
    pub(crate) fn start() -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let child = command.arg("--spin").stdin(Stdio::null()).spawn()?;
        Ok(Self { child })
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What that process does.
pub(crate) fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}
