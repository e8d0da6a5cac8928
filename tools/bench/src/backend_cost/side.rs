//! One run: the bare file, or the same file with a worker that serves its directory.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cprt::control::config::Config;
use cprt::control::stats::Stats;

use super::case::CostCase;
use super::file::{self, MeasuredFile as Files};
use super::reader::{Reader, Taken};
use crate::args::cost::{Backend, Cost, Want};
use crate::error::{Failure, Result};
use crate::place::Place;
use crate::runtime::{self, Runtime};
use crate::units::MIB;

/// How long the worker must get no more events to count as settled, and how long to wait for that.
const CALM: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_secs(20);
/// MAIO's interval of PROGRESS if there is enough memory.
const PROGRESS: &str = "4M";

/// The cost of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunCost {
    /// Times of the reader, in us.
    pub(super) time: u64,
    pub(super) cpu: u64,
    /// CPU time of the worker in ms, and number of its events: 0 for the bare side.
    pub(super) worker_cpu: u64,
    pub(super) events: u64,
}

/// What all runs have in common.
pub(super) struct Served<'a> {
    place: &'a Place,
    files: Files,
    mirror: PathBuf,
    library: PathBuf,
    backend: Backend,
    pub(super) mib: u64,
}

impl<'a> Served<'a> {
    pub(super) fn new(place: &'a Place, wanted: &Cost) -> Result<Self> {
        Ok(Self {
            place,
            library: place.copy_of(&library()?, "listener")?,
            mirror: place.folder("mirror")?,
            files: Files::make(&wanted.dir, wanted.mib)?,
            backend: wanted.backend,
            mib: wanted.mib,
        })
    }

    /// The folder that workers serve.
    pub(super) fn folder(&self) -> &Path {
        &self.files.lower
    }

    /// Makes one run. `None` if pages that should be cached were dropped meanwhile.
    pub(super) fn run(&self, case: &CostCase, want: Option<Want>) -> Result<Option<RunCost>> {
        let runtime = want.map(|want| self.serve(want)).transpose()?;
        let folder = runtime.as_ref().and_then(Runtime::folder);
        let mut path = folder.unwrap_or(&self.files.lower).join(Files::NAME);
        if case.beside {
            path.clone_from(&self.files.beside);
        }
        // The file that has the cached pages. Without a mount both are the same file.
        let cached = match self.backend {
            _ if case.beside => &path,
            Backend::Fuse => &path,
            Backend::Observe | Backend::Passthrough => &self.files.file,
        };
        // The lower file first: if reads are passed through, the mirror's pages are those of the lower file.
        file::cool(&[self.files.file.clone(), path.clone()])?;
        if !case.cold {
            file::warm(&path, cached)?;
        }
        let reader = Reader::start(&path, case)?;
        let before = settled(runtime.as_ref())?;
        let taken = reader.run()?;
        let after = settled(runtime.as_ref())?;
        if taken.bytes != self.mib * MIB * case.passes {
            return Err(Failure::Said(format!(
                "The reader saw {} bytes of {} times {} MiB",
                taken.bytes, case.passes, self.mib
            )));
        }
        if !file::is_warm(cached)? {
            return Ok(None);
        }
        let notes = runtime.map(Runtime::end).unwrap_or_default();
        let sample = sample(taken, &before, &after);
        check(case, want, &sample, &after, &notes).map(|()| Some(sample))
    }

    /// Starts a worker whose policy wants these events.
    fn serve(&self, want: Want) -> Result<Runtime> {
        let mut config = Config::default();
        config.fuse.passthrough = self.backend == Backend::Passthrough;
        let settings = [("kinds", want.kinds()), ("progress", PROGRESS)];
        let ground = runtime::Ground {
            kind: self.backend.kind(),
            folder: &self.files.lower,
            mirror: &self.mirror,
            cgroup: None,
        };
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Runtime::serve(
            ground,
            self.library.clone(),
            settings.into_iter().collect(),
            config,
        )
    }
}

impl std::fmt::Debug for Served<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served")
            .field("place", &self.place)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

/// The policy that was built together with this program.
fn library() -> Result<PathBuf> {
    const NAME: &str = "libppc_bench_listener.so";
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("/"));
    // Builds of tests have it only in the first.
    let places = [folder.join("deps").join(NAME), folder.join(NAME)];
    let found = places.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| Failure::Unavailable {
        what: "The listener policy",
        why: format!("there is no {NAME} beside this program"),
        remedy: "build both with 'cargo build --release --package ppc-bench'",
    })
}

/// The worker's statistics once it gets no more events.
fn settled(runtime: Option<&Runtime>) -> Result<Stats> {
    let Some(runtime) = runtime else {
        return Ok(Stats::default());
    };
    let began = Instant::now();
    let look = || {
        let gone = || Failure::Said("The policy's worker has ended".to_owned());
        runtime.stats().ok_or_else(gone)
    };
    let mut last = look()?;
    while began.elapsed() < PATIENCE {
        sleep(CALM);
        let now = look()?;
        if (now.events, now.prefetch_calls) == (last.events, last.prefetch_calls) {
            return Ok(now);
        }
        last = now;
    }
    Err(Failure::Said(
        "The worker keeps getting events of reads that ppc-bench does not make".to_owned(),
    ))
}

fn sample(taken: Taken, before: &Stats, after: &Stats) -> RunCost {
    RunCost {
        time: taken.time,
        cpu: taken.cpu,
        worker_cpu: after.worker_cpu_ms.saturating_sub(before.worker_cpu_ms),
        events: after.events.saturating_sub(before.events),
    }
}

/// Checks that the run measured what its name says.
fn check(
    case: &CostCase,
    want: Option<Want>,
    sample: &RunCost,
    after: &Stats,
    notes: &[String],
) -> Result<()> {
    let Some(want) = want else {
        return Ok(());
    };
    let hears = want.hears_hits() || case.cold && want != Want::None;
    let wrong = if case.beside && sample.events > 0 {
        "the worker got events of a file that it does not serve"
    } else if hears && !case.beside && sample.events == 0 {
        "the worker got no events"
    } else if want == Want::None && sample.events > 0 {
        "the worker got events that its policy does not want"
    } else if after.load_bytes > 0 {
        "the worker loaded something"
    } else {
        return Ok(());
    };
    Err(Failure::Said(format!(
        "{}, wanting {}: {wrong}, so this measures something else: {after:?} {}",
        case.name,
        want.name(),
        notes.join("; ")
    )))
}

#[cfg(test)]
mod tests {
    use super::super::case::CASES;
    use super::*;

    fn judge(case: &CostCase, want: Option<Want>, events: u64) -> bool {
        let sample = RunCost {
            time: 1,
            cpu: 1,
            worker_cpu: 0,
            events,
        };
        check(case, want, &sample, &Stats::default(), &[]).is_ok()
    }

    #[test]
    fn a_run_that_nothing_listened_to_is_refused() {
        let [warm, .., cold, beside] = CASES;
        assert!(judge(&beside, Some(Want::Record), 0) && !judge(&beside, Some(Want::Rest), 1));
        assert!(judge(&cold, None, 0) && judge(&warm, None, 0));
        for want in [Want::Miss, Want::Replay, Want::Record] {
            assert!(!judge(&cold, Some(want), 0), "{want:?}");
            assert!(judge(&cold, Some(want), 1), "{want:?}");
            assert_eq!(judge(&warm, Some(want), 0), want == Want::Miss, "{want:?}");
        }
        assert!(judge(&cold, Some(Want::None), 0) && !judge(&cold, Some(Want::None), 1));
    }
}
