//! Whole starts, without MAIO and by `ppcctl run`, on this machine's own disk and on simulated remote storage.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use super::application::Application;
use super::disk::DiskCounters;
use super::loader;
use super::process;
use super::progress::Progress;
use super::real::summary;
use super::scratch::{Folder, Scratch};
use crate::args::Tour;
use crate::disk::Disk;
use crate::error::{Failure, Result, file, system};
use crate::result::{StartTimes, Starts};
use crate::{lend, rounds, ssd};

/// Least number of rounds for a median.
const ROUNDS: u32 = 3;
/// Number of modules on remote storage: each takes tens of milliseconds there, and all are waited for twice.
const FAR_MODULES: usize = 400;
const DROP: &str = "/proc/sys/vm/drop_caches";

/// The kinds of starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Cold,
    First,
    Later,
    Warm,
}

impl Turn {
    /// All kinds, in order: each leaves the state that the next one needs.
    const ALL: [Self; 4] = [Self::Cold, Self::First, Self::Later, Self::Warm];

    const fn title(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::First => "MAIO, first start",
            Self::Later => "MAIO, second start",
            Self::Warm => "all cached",
        }
    }
}

/// The state that is common to all starts.
struct Starter {
    // Dropped in this order: the disk is in the scratch folder.
    _simulated: Option<Disk>,
    scratch: Scratch,
    application: Application,
    disk: DiskCounters,
    /// The output of the application at its first start, which all others have to repeat.
    said: Option<String>,
}

/// Measures starts on this machine's own disk. The failure says why, if that is not possible.
pub(super) fn own(wanted: &Tour) -> Result<Starts> {
    ask()?;
    let folder = Folder::make(&wanted.output)?;
    let progress = Progress::begin("making an application");
    let application = Application::find(&folder.0)?;
    progress.end("done");
    let starter = Starter {
        _simulated: None,
        disk: DiskCounters::of(&application.place),
        application,
        scratch: Scratch::take()?,
        said: None,
    };
    let name = starter.disk.name.clone();
    starter.all(name, ROUNDS.max(wanted.rounds))
}

/// Measures starts on simulated remote storage, like a network file system.
pub(super) fn far(wanted: &Tour) -> Result<Starts> {
    ask()?;
    let folder = Folder::make(&wanted.output)?;
    let progress = Progress::begin("one far away");
    let application = Application::made_up(&folder.0, FAR_MODULES)?;
    let scratch = Scratch::take()?;
    let disk = lend::disk_of(scratch.place()?, &folder.0, ssd::NETWORK)?;
    let application = application.moved(&disk.path);
    progress.end("done");
    let starter = Starter {
        disk: DiskCounters::of(&application.place),
        _simulated: Some(disk),
        application,
        scratch,
        said: None,
    };
    let name = format!("storage {} ms away", ssd::NETWORK.latency_us / 1000);
    starter.all(name, wanted.rounds)
}

fn ask() -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let why = "only root can observe what a command reads of all files".to_owned();
    Err(unavailable(why, "run it as root"))
}

fn unavailable(why: String, remedy: &'static str) -> Failure {
    let what = "A whole start";
    Failure::Unavailable { what, why, remedy }
}

impl Starter {
    /// Measures every kind of start in each round.
    fn all(mut self, disk: String, rounds: u32) -> Result<Starts> {
        eprintln!(
            "A start, from exec to exit: {}, from {disk}.",
            self.application.title
        );
        let mut times = Turn::ALL.map(|turn| StartTimes {
            title: turn.title().to_owned(),
            seconds: Vec::new(),
        });
        for _ in 0..rounds {
            for (turn, times) in Turn::ALL.into_iter().zip(&mut times) {
                times.seconds.push(self.start(turn)?);
            }
        }
        for times in &times {
            eprintln!("  {:<22} {:6.2} s", times.title, times.median());
        }
        eprintln!();
        Ok(Starts {
            what: self.application.title,
            disk,
            times: times.into(),
        })
    }

    /// Makes one start; returns its seconds.
    fn start(&mut self, turn: Turn) -> Result<f64> {
        let store = self.scratch.path.join("starts");
        if turn == Turn::First {
            let _ = fs::remove_dir_all(&store);
            rounds::make(&store)?;
        }
        if turn != Turn::Warm {
            nix::unistd::sync();
            fs::write(DROP, "3").map_err(file("Dropping what is cached, by", Path::new(DROP)))?;
        }
        let [output, errors] = ["output", "errors"].map(|name| self.scratch.path.join(name));
        let make = |path: &Path| File::create(path).map_err(file("Making", path));
        let mut command = self.command(turn, &store)?;
        command.stdout(make(&output)?).stderr(make(&errors)?);
        let ended = process::watch(command, &self.disk)?;
        let read = |path: &Path| fs::read(path).map_err(file("Reading", path));
        let errors = String::from_utf8_lossy(&read(&errors)?).into_owned();
        if !ended.status.success() {
            let words = loader::last_words(&errors);
            let why = format!(
                "{} failed, with {}:{words}",
                self.application.title, ended.status
            );
            return Err(match turn {
                // This failed without MAIO.
                Turn::Cold => unavailable(why, "it has to run by itself"),
                _ => Failure::Said(why),
            });
        }
        self.check(turn, &String::from_utf8_lossy(&read(&output)?), &errors)?;
        Ok(ended.took)
    }

    fn command(&self, turn: Turn, store: &Path) -> Result<Command> {
        let words = &self.application.words;
        let (program, arguments) = words
            .split_first()
            .ok_or_else(|| Failure::Said("There is nothing to start".to_owned()))?;
        let mut command = if matches!(turn, Turn::First | Turn::Later) {
            let us = std::env::current_exe().map_err(system("Looking for this program"))?;
            let mut command = Command::new(us.with_file_name("ppcctl"));
            command
                .args(["--json", "run", "--policy"])
                .arg(self.scratch.library()?);
            command
                .args(["--set", &format!("store={}", store.display()), "--"])
                .arg(program);
            command
        } else {
            Command::new(program)
        };
        command.args(arguments);
        Ok(command)
    }

    /// Checks that the output is the same each time, and that MAIO was running.
    fn check(&mut self, turn: Turn, said: &str, errors: &str) -> Result<()> {
        let first = self.said.get_or_insert_with(|| said.to_owned());
        if first != said {
            return Err(Failure::Said(
                "The application read other bytes than before: this proves nothing".to_owned(),
            ));
        }
        if !matches!(turn, Turn::First | Turn::Later) {
            return Ok(());
        }
        let summary =
            summary(errors).ok_or_else(|| loader::failed("ended without a summary", errors))?;
        if let Some(fault) = summary.fault {
            return Err(Failure::Said(format!("MAIO failed: {fault}")));
        }
        if summary.backend.is_none() {
            let lines = errors
                .lines()
                .filter_map(|line| line.strip_prefix("ppcctl: "));
            let why = lines.collect::<Vec<_>>().join("; ");
            return Err(unavailable(why, "'ppcctl doctor' has details"));
        }
        Ok(())
    }
}
