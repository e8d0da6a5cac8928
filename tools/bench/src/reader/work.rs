//! A worker: one of the processes that load a model.

use std::collections::HashMap;
use std::io::{BufRead as _, Read as _, Write as _};
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::{Deserialize, Serialize};

use super::plan::{Step, steps};
use super::profile::{Access, Order, Task};
use super::source::{PIECE, Source};
use crate::error::{Failure, Result, file, system};
use crate::model::{Model, Pattern, Shard, sum};
use crate::sys;
use crate::units::{PAGE, index, now, transfer};

/// Bytes from the disk are late after the first 1/100 of the bytes that a worker touches.
const EARLY: u64 = 100;

/// The result of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Worked {
    /// In ns of the clock that all processes share.
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// Page faults that had to wait for the device, and all others.
    pub(crate) major_faults: u64,
    pub(crate) minor_faults: u64,
    /// CPU time, in ms.
    pub(crate) cpu_ms: u64,
    /// Bytes that the disk delivered for this process, and those of them after the first hundredth of what it
    /// touched; `None` if the kernel does not report it.
    #[serde(default)]
    pub(crate) disk: Option<u64>,
    #[serde(default)]
    pub(crate) late: Option<u64>,
    /// Bytes touched, and pieces of them that were not what had been written.
    pub(crate) touched: u64,
    pub(crate) wrong: u64,
}

/// Runs as the worker of a rank: a line on standard input makes it begin, end of file makes it end.
pub(crate) fn work(task: &Task, rank: u32) -> Result<()> {
    sys::end_with_parent();
    sys::sleep_exactly();
    let model = Model::new(&task.shape);
    let steps = steps(&model, task.profile, rank, task.turn);
    say("ready")?;
    let mut line = String::new();
    let mut input = std::io::stdin().lock();
    let read = input.read_line(&mut line).map_err(system("Waiting"))?;
    if read == 0 {
        return Ok(());
    }
    let before = getrusage(UsageWho::RUSAGE_SELF).map_err(system("Counting page faults"))?;
    let load = Load::new(task, &model, &steps);
    let (began, given) = (now(), given());
    let readers = load.read()?;
    let mut worked = Worked {
        began,
        touched: readers.iter().map(|it| it.touched).sum(),
        wrong: readers.iter().map(|it| it.wrong).sum(),
        ..Worked::default()
    };
    let early = load.early.get().copied();
    worked.ended = now();
    let since = |then: Option<u64>| Some(self::given()?.saturating_sub(then?));
    worked.disk = since(given);
    worked.late = since(early.flatten());
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(system("Counting page faults"))?;
    let more = |after: i64, before: i64| u64::try_from(after - before).unwrap_or(0);
    worked.major_faults = more(usage.major_page_faults(), before.major_page_faults());
    worked.minor_faults = more(usage.minor_page_faults(), before.minor_page_faults());
    let cpu = usage.user_time() + usage.system_time() - before.user_time() - before.system_time();
    worked.cpu_ms = u64::try_from(cpu.num_milliseconds()).unwrap_or(0);
    say(&serde_json::to_string(&worked)?)?;
    // A real worker would serve requests from now on.
    let _ = input.read_to_end(&mut Vec::new());
    drop(readers);
    Ok(())
}

/// Number of threads of a worker with a pool.
const POOL: usize = 4;

/// What the threads of a worker share.
struct Load<'a> {
    task: &'a Task,
    model: &'a Model,
    /// The parts that threads take, one at a time.
    parts: Vec<&'a [Step]>,
    next: AtomicUsize,
    /// Number of bytes to touch, and of those touched already.
    all: u64,
    touched: AtomicU64,
    /// Bytes that the disk had delivered when the early part was over.
    early: OnceLock<Option<u64>>,
}

impl<'a> Load<'a> {
    fn new(task: &'a Task, model: &'a Model, steps: &'a [Step]) -> Self {
        Self {
            task,
            model,
            parts: match task.profile.order {
                Order::Pool => steps.chunk_by(|it, next| it.shard == next.shard).collect(),
                _ => vec![steps],
            },
            next: AtomicUsize::new(0),
            all: steps.iter().map(|it| it.touch.end - it.touch.start).sum(),
            touched: AtomicU64::new(0),
            early: OnceLock::new(),
        }
    }

    /// Reads everything. Mappings that are kept live as long as the returned readers.
    fn read(&self) -> Result<Vec<TensorReader<'a>>> {
        if self.parts.len() == 1 {
            return self.read_parts().map(|it| vec![it]);
        }
        std::thread::scope(|scope| {
            let threads = [(); POOL].map(|()| scope.spawn(|| self.read_parts()));
            let panicked = |_| Err(Failure::Said("A thread of a worker panicked".to_owned()));
            let readers = threads.map(|it| it.join().unwrap_or_else(panicked));
            readers.into_iter().collect()
        })
    }

    /// Reads the parts that no other thread has taken.
    fn read_parts(&self) -> Result<TensorReader<'a>> {
        let mut reader = TensorReader {
            task: self.task,
            model: self.model,
            open: HashMap::new(),
            touched: 0,
            wrong: 0,
        };
        while let Some(part) = self.parts.get(self.next.fetch_add(1, Relaxed)) {
            for (at, step) in part.iter().enumerate() {
                reader.step(step)?;
                let length = step.touch.end - step.touch.start;
                if (self.touched.fetch_add(length, Relaxed) + length) * EARLY >= self.all {
                    self.early.get_or_init(given);
                }
                let next = part.get(at + 1).map(|it| it.shard);
                if self.task.profile.access != Access::Kept && next != Some(step.shard) {
                    reader.open.remove(&step.shard);
                }
            }
        }
        Ok(reader)
    }
}

/// Number of bytes that the disk has delivered for this process.
fn given() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
}

fn say(line: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    let said = writeln!(output, "{line}").and_then(|()| output.flush());
    said.map_err(system("Reporting to the driver"))
}

struct TensorReader<'a> {
    task: &'a Task,
    model: &'a Model,
    open: HashMap<usize, Source>,
    /// Bytes touched, and pieces of them that were wrong.
    touched: u64,
    wrong: u64,
}

impl TensorReader<'_> {
    fn step(&mut self, step: &Step) -> Result<()> {
        let shard = &self.model.shards[step.shard];
        let path = self.task.folder.join(&shard.name);
        if !self.open.contains_key(&step.shard) {
            let source = self.open(shard, &path)?;
            self.open.insert(step.shard, source);
        }
        let source = self.open.get_mut(&step.shard);
        let source = source.ok_or_else(|| Failure::Said("No file is open".to_owned()))?;
        sleep(Duration::from_micros(self.task.tensor_us));
        let length = step.touch.end - step.touch.start;
        let mut at = step.touch.start;
        while at < step.touch.end {
            // Pieces end at multiples of their size, whatever the tensor's offset.
            let end = ((at / PIECE + 1) * PIECE).min(step.touch.end);
            let piece = at..end;
            let bytes = source.piece(&piece).map_err(file("Reading", &path))?;
            self.wrong += check(shard.pattern, bytes, &piece, &step.take);
            let copied = u128::from(step.copied) * u128::from(end - at) / u128::from(length.max(1));
            sleep(transfer(u64::try_from(copied).unwrap_or(0), self.task.copy));
            at = end;
        }
        self.touched += length;
        Ok(())
    }

    /// Opens a file and reads its header, as a loader does to find the tensors.
    fn open(&mut self, shard: &Shard, path: &Path) -> Result<Source> {
        let opened = Source::open(path, self.task.profile.access);
        let mut source = opened.map_err(file("Opening", path))?;
        let header = source
            .piece(&(0..shard.header.len() as u64))
            .map_err(file("Reading", path))?;
        self.wrong += u64::from(header != shard.header);
        Ok(source)
    }
}

/// Number of errors in a piece: wrong pages, judged by one number in each, and wrong sums of what is taken
/// completely.
fn check(pattern: Pattern, bytes: &[u8], piece: &Range<u64>, take: &Range<u64>) -> u64 {
    let mut wrong = 0;
    let mut page = piece.start / PAGE * PAGE;
    while page < piece.end {
        // The place within the page differs from page to page.
        let within = (page / PAGE).wrapping_mul(0x9e37) % (PAGE / 8) * 8;
        let last = piece.end.saturating_sub(8);
        let at = (page + within).clamp(piece.start, last.max(piece.start));
        let word = index(at - piece.start);
        let found = bytes
            .get(word..word + 8)
            .and_then(|word| word.try_into().ok());
        if found.map(u64::from_le_bytes) != Some(pattern.word(at)) {
            wrong += 1;
        }
        page += PAGE;
    }
    let taken = piece.start.max(take.start)..piece.end.min(take.end);
    if !taken.is_empty() {
        let part = index(taken.start - piece.start)..index(taken.end - piece.start);
        let sum = bytes.get(part).map(sum);
        wrong += u64::from(sum != Some(pattern.sum(&taken)));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::super::profile::Profile;
    use super::*;
    use crate::model::SMALL;

    #[test]
    fn threads_of_a_pool_take_a_file_each() {
        let model = Model::new(&SMALL);
        let parts = |order| {
            let task = Task::new(SMALL, Profile::full().in_order(order), Path::new("/m"));
            let steps = steps(&model, task.profile, 0, 0);
            let load = Load::new(&task, &model, &steps);
            let shards = |part: &&[Step]| part.iter().map(|it| it.shard).collect::<Vec<_>>();
            load.parts.iter().map(shards).collect::<Vec<_>>()
        };
        assert_eq!(parts(Order::Natural).len(), 1);
        let pool = parts(Order::Pool);
        assert_eq!(pool.len(), model.shards.len());
        for (number, shards) in pool.iter().enumerate() {
            assert!(shards.iter().all(|it| *it == number), "{shards:?}");
        }
    }

    #[test]
    fn a_wrong_page_and_a_wrong_byte_are_seen() {
        let pattern = Pattern::of_file(1);
        let piece = 1000..41_000;
        let mut bytes = vec![0; 40_000];
        pattern.fill(1000, &mut bytes);
        assert_eq!(check(pattern, &bytes, &piece, &piece), 0);
        assert_eq!(check(pattern, &bytes, &piece, &(2000..3000)), 0);
        assert_eq!(check(Pattern::of_file(2), &bytes, &piece, &(0..0)), 11);
        // In a page that is taken, any change is found; in others, another page in its place.
        bytes[5000] ^= 1;
        assert_eq!(check(pattern, &bytes, &piece, &piece), 1);
        pattern.fill(1000, &mut bytes);
        bytes.copy_within(3096..7192, 7192);
        assert!(check(pattern, &bytes, &piece, &(0..0)) > 0);
        assert!(check(pattern, &[], &piece, &piece) > 0, "nothing was read");
    }
}
