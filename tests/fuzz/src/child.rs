//! The process that runs a target, and dies by the first input that is too much for it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, setrlimit};
use nix::time::{ClockId, clock_gettime};

use crate::engine::Engine;
use crate::slate::Slate;
use crate::targets::Target;
use crate::{Result, hooks};

/// No input may take longer, of the processor's time: twice what the slowest takes that are known.
pub(crate) const LONGEST: Duration = Duration::from_secs(2);
/// Nor more memory, beyond what the program has without it.
const MEMORY: u64 = 512 << 20;

/// What was done, as the parent reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) inputs: u64,
    pub(crate) edges: usize,
    pub(crate) passed: usize,
    pub(crate) kept: usize,
}

impl Done {
    fn line(self) -> String {
        let Self {
            inputs,
            edges,
            passed,
            kept,
        } = self;
        format!("{inputs} {edges} {passed} {kept}")
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let inputs = words.next()?.parse().ok()?;
        let mut next = || words.next()?.parse().ok();
        let (edges, passed, kept) = (next()?, next()?, next()?);
        Some(Self {
            inputs,
            edges,
            passed,
            kept,
        })
    }
}

/// Runs a target for so long.
pub(crate) fn run(target: Target, seconds: u64, seed: u64, slate: &Path) -> Result<()> {
    let mut engine = Engine::new(seed, target.words, (target.seeds)());
    let mut slate = Slate::create(slate)?;
    let edges = hooks::edges();
    let mut counts = vec![0; edges];
    limit_memory()?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut inputs = 0;
    while Instant::now() < end {
        let input = engine.next_input(hooks::compared);
        inputs += 1;
        slate.write(inputs, &input)?;
        hooks::start();
        (target.run)(&input);
        hooks::stop(&mut counts);
        engine.learn(&input, &counts);
    }
    let (passed, kept) = engine.found();
    println!(
        "{}",
        Done {
            inputs,
            edges,
            passed,
            kept
        }
        .line()
    );
    Ok(())
}

/// Runs one input, once. Says whether it took no longer than it may; dies by everything else, and if it
/// takes much longer.
pub(crate) fn input(target: Target, path: &Path) -> Result<bool> {
    let bytes = fs::read(path)?;
    limit_memory()?;
    let most = 2 * LONGEST.as_secs();
    setrlimit(Resource::RLIMIT_CPU, most, most)?;
    let start = processor_time()?;
    (target.run)(&bytes);
    let took = processor_time()?.saturating_sub(start);
    println!("{} takes {} bytes, in {took:?}", target.name, bytes.len());
    Ok(took <= LONGEST)
}

/// A seed that is another one each time.
pub(crate) fn any_seed() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_REALTIME);
    // Short, as people will type it.
    now.map_or(1, |now| u64::from(Duration::from(now).subsec_micros()) + 1)
}

fn processor_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

fn limit_memory() -> Result<()> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let pages = pages.split_whitespace().next().unwrap_or_default();
    // Of 4 KiB or more; where they are larger there is more room.
    let most = pages.parse::<u64>()? * 4096 + MEMORY;
    Ok(setrlimit(Resource::RLIMIT_AS, most, most)?)
}
