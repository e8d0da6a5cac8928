//! What the backends without a module cost who reads, against the bare directory.
//!
//! ```text
//! PPC_BENCH=observe cargo test --release -p cprt --lib -- --ignored --exact --nocapture \
//!     backend::bench::what_it_costs
//! ```
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `PPC_BENCH` | `observe`, `fuse` or `passthrough` | |
//! | `PPC_BENCH_WANT` | what the policy of `observe` wants: `miss`, `progress` with it, `touch` with both; `none` shows what is noise | `miss` |
//! | `PPC_BENCH_DIR` | where the file is made | that of temporary files |
//! | `PPC_BENCH_MIB` | its length | 1024 |
//! | `PPC_BENCH_ROUNDS` | how often both sides take turns | 9 |
//! | `PPC_BENCH_CASE` | only cases with this in their name | |
//!
//! The reader and who serves are processes of their own. In each round a case is run on both sides,
//! which side begins alternates, and before each run the cache is made what the case says and looked
//! at: a cold one that has a page left is no cold one. A warm run of which pages have gone meanwhile
//! is done again. What is printed is the medians, their ratio, and the ratio of the reader's CPU time.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use ppc::{Kind, Kinds};

use super::Backend;
use super::fuse::{self, Mounted};
use super::observe::Observe;
use crate::backend::fuse::mirror::MirrorOptions;
use crate::sys::cache::cachestat;
use crate::sys::testing::{Mapped, all_but_few, warm};

const MIB: u64 = 1 << 20;

/// A case: its name, what the reader is told, whether nothing is cached.
const CASES: [(&str, &str, bool); 5] = [
    ("warm read 1 MiB", "read 1048576", false),
    ("warm read 64 KiB", "read 65536", false),
    ("warm mmap copy", "map 0", false),
    ("cold read 1 MiB", "read 1048576", true),
    ("cold mmap copy", "map 0", true),
];

fn variable(name: &str, or: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| or.to_owned())
}

fn number(name: &str, or: u64) -> u64 {
    let text = variable(name, &or.to_string());
    text.parse().expect("a number")
}

/// This program once more, as one of the helpers below, which answers each line with one.
struct Helper {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Helper {
    fn start(name: &str, variables: &[(&str, &Path)]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "--ignored", "--nocapture"]);
        command.arg(format!("backend::bench::{name}"));
        command.envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut helper = Self {
            child,
            input,
            output,
        };
        helper.answer();
        helper
    }

    fn ask(&mut self, line: &str) -> (u64, u64) {
        writeln!(self.input, "{line}").expect("to tell it");
        self.answer()
    }

    /// Two numbers.
    fn answer(&mut self) -> (u64, u64) {
        loop {
            let line = self.output.next().expect("it has died").expect("a line");
            // The harness talks as well.
            if let Some((_, answer)) = line.split_once("ANSWER ") {
                let mut numbers = answer
                    .split(' ')
                    .map(|word| word.parse().expect("a number"));
                return (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = writeln!(self.input, "end");
        let _ = self.child.wait();
    }
}

/// CPU time of this process in us.
fn cpu() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("it");
    let both = usage.user_time() + usage.system_time();
    u64::try_from(both.num_microseconds()).unwrap_or(0)
}

fn orders() -> impl Iterator<Item = String> {
    println!("ANSWER 0 0");
    io::stdin()
        .lines()
        .map_while(Result::ok)
        .take_while(|line| line != "end")
}

#[test]
#[ignore = "only as a helper of the benchmark"]
fn reads() {
    if std::env::var_os("PPC_BENCH_AT").is_none() {
        return;
    }
    for order in orders() {
        let mut words = order.splitn(3, ' ');
        let mut word = || words.next().expect("a word");
        let (how, piece, path) = (word(), word().parse().expect("a size"), word());
        let (began, before) = (Instant::now(), cpu());
        if how == "read" {
            read(Path::new(path), piece);
        } else {
            copy(Path::new(path));
        }
        println!(
            "ANSWER {} {}",
            began.elapsed().as_micros(),
            cpu().saturating_sub(before)
        );
    }
}

fn read(path: &Path, piece: usize) {
    let mut file = File::open(path).expect("the file");
    let mut buffer = vec![0; piece];
    while file.read(&mut buffer).expect("to read") > 0 {}
}

fn copy(path: &Path) {
    let file = File::open(path).expect("the file");
    let map = Mapped::new(&file).expect("to map");
    let mut buffer = vec![0; 1 << 20];
    for part in map.bytes().chunks(buffer.len()) {
        buffer[..part.len()].copy_from_slice(part);
        std::hint::black_box(&mut buffer);
    }
}

#[test]
#[ignore = "only as a helper of the benchmark"]
fn serves() {
    let Some(at) = std::env::var_os("PPC_BENCH_AT").map(PathBuf::from) else {
        return;
    };
    let lower = PathBuf::from(variable("PPC_BENCH_LOWER", ""));
    let options = MirrorOptions {
        passthrough: variable("PPC_BENCH", "") == "passthrough",
        ..MirrorOptions::default()
    };
    let backend: Box<dyn Backend> = match variable("PPC_BENCH", "").as_str() {
        "observe" => Box::new(Observe::open(&lower).expect("to observe")),
        _ => match fuse::mount(&lower, &at, &options).expect("to mount") {
            Mounted::Plain(fuse) => Box::new(fuse),
            Mounted::Passthrough(through) => {
                for _ in orders() {
                    println!("ANSWER {} 0", cpu());
                }
                return drop(through);
            }
        },
    };
    let wanted = wanted();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut events = Vec::new();
            while !over.load(Relaxed) {
                events.clear();
                backend.events(&mut events).expect("events");
            }
        });
        for order in orders() {
            let kinds = if order == "on" {
                wanted
            } else {
                Kinds::default()
            };
            if order != "cpu" {
                backend.want(kinds, 16 * MIB).expect("to want it");
            }
            println!("ANSWER {} 0", cpu());
        }
        over.store(true, Relaxed);
        backend.interrupt();
    });
}

/// What the policy wants.
fn wanted() -> Kinds {
    let miss = Kinds::from(Kind::Miss);
    match variable("PPC_BENCH_WANT", "miss").as_str() {
        "none" => Kinds::default(),
        "miss" => miss,
        "progress" => miss | Kind::Progress,
        "touch" => miss | Kind::Progress | Kind::Touch,
        other => panic!("PPC_BENCH_WANT: {other}"),
    }
}

/// A file below and as it is seen through the backend, which for `observe` is the same.
struct Place {
    top: PathBuf,
    lower: PathBuf,
    above: PathBuf,
    length: u64,
}

impl Place {
    fn new(observe: bool) -> Self {
        let directory = variable("PPC_BENCH_DIR", &std::env::temp_dir().display().to_string());
        let top = Path::new(&directory).join(format!("cprt-bench-{}", std::process::id()));
        std::fs::create_dir_all(top.join("lower")).expect("a directory");
        std::fs::create_dir_all(top.join("at")).expect("a directory");
        let place = Self {
            lower: top.join("lower/model"),
            above: top.join(if observe { "lower/model" } else { "at/model" }),
            length: number("PPC_BENCH_MIB", 1024) * MIB,
            top,
        };
        let mut file = File::create(&place.lower).expect("a file");
        for number in 0..place.length / MIB {
            let block: Vec<u8> = (0..MIB)
                .map(|at| ((at * 31 + number) % 251).to_le_bytes()[0])
                .collect();
            file.write_all(&block).expect("to write");
        }
        file.sync_all().expect("to write it out");
        place
    }

    fn variables(&self) -> [(&'static str, PathBuf); 2] {
        let at = |name| self.top.join(name);
        [("PPC_BENCH_LOWER", at("lower")), ("PPC_BENCH_AT", at("at"))]
    }

    /// Nothing of it is cached, on either side.
    fn cool(&self) {
        for path in [&self.above, &self.lower] {
            let since = Instant::now();
            loop {
                let file = File::open(path).expect("the file");
                let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
                posix_fadvise(&file, 0, 0, advice).expect("to drop it");
                if cachestat(&file, &(0..0)).expect("cachestat") == 0 {
                    break;
                }
                assert!(since.elapsed() < Duration::from_secs(20), "it stays cached");
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.top);
    }
}

/// Whether nearly all that is read of a file is still cached, on the side that has it.
fn stays(paths: [&Path; 2], length: u64) -> bool {
    let cached = |path| cachestat(File::open(path).expect("it"), &(0..0)).expect("cachestat");
    let most = paths.map(cached).into_iter().max().unwrap_or(0);
    all_but_few(most.min(length / 4096), length / 4096)
}

/// What was measured of one side in a case.
#[derive(Default)]
struct Side {
    times: Vec<Duration>,
    /// CPU time of the reader.
    spent: Vec<Duration>,
    /// CPU time of who serves.
    daemon: Duration,
}

fn median(values: &[Duration]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    let median = values.get(values.len() / 2);
    median.copied().unwrap_or_default().as_secs_f64()
}

/// One line about a case.
fn line(name: &str, [bare, by]: &[Side; 2], length: u64) -> String {
    let ratio = |of: fn(&Side) -> &Vec<Duration>| median(of(by)) / median(of(bare));
    let runs = u32::try_from(by.times.len()).unwrap_or(1);
    let runs_of_4_gib = f64::from(u32::try_from(length / MIB).unwrap_or(1)) / 4096.0;
    format!(
        "{name:16} {:7.1} ms {:7.1} ms  x{:.3}  CPU x{:.3}  daemon {:.2} CPU s per 4 GiB\n",
        median(&bare.times) * 1e3,
        median(&by.times) * 1e3,
        ratio(|side| &side.times),
        ratio(|side| &side.spent),
        by.daemon.as_secs_f64() / f64::from(runs) / runs_of_4_gib,
    )
}

/// Runs a case once on a side.
fn run(side: &mut Side, on: bool, case: (&str, bool), place: &Place, helpers: &mut [Helper; 2]) {
    let [server, reader] = helpers;
    let path = if on { &place.above } else { &place.lower };
    loop {
        // Nobody listens to that.
        server.ask("off");
        place.cool();
        if !case.1 {
            warm(path);
        }
        let before = server.ask(if on { "on" } else { "off" }).0;
        let (time, cpu) = reader.ask(&format!("{} {}", case.0, path.display()));
        let after = server.ask("cpu").0;
        if case.1 || stays([path, &place.lower], place.length) {
            side.times.push(Duration::from_micros(time));
            side.spent.push(Duration::from_micros(cpu));
            side.daemon += Duration::from_micros(after - before);
            return;
        }
    }
}

#[test]
#[ignore = "a benchmark"]
fn what_it_costs() {
    let which = variable("PPC_BENCH", "");
    if !["observe", "fuse", "passthrough"].contains(&which.as_str()) {
        return println!("PPC_BENCH is to be observe, fuse or passthrough");
    }
    let place = Place::new(which == "observe");
    let variables = place.variables();
    let variables = variables
        .each_ref()
        .map(|(name, path)| (*name, path.as_path()));
    let mut helpers = ["serves", "reads"].map(|name| Helper::start(name, &variables));
    println!(
        "{which}, {} wanted, {} MiB; bare and by it",
        variable("PPC_BENCH_WANT", "miss"),
        place.length / MIB
    );
    let case = variable("PPC_BENCH_CASE", "");
    for (name, order, cold) in CASES.into_iter().filter(|it| it.0.contains(&case)) {
        let mut sides = [Side::default(), Side::default()];
        for round in 0..number("PPC_BENCH_ROUNDS", 9) {
            let first = usize::from(round % 2 == 1);
            for at in [first, 1 - first] {
                let case = (order, cold);
                run(&mut sides[at], at == 1, case, &place, &mut helpers);
            }
        }
        print!("{}", line(name, &sides, place.length));
    }
}
