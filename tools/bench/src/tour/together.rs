//! Services that load at the same time from one device, each a model of its own, against one after the other.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use super::disk::DiskCounters;
use super::process;
use super::scratch::Scratch;
use crate::args::{By, Device, Together};
use crate::disk::Disk;
use crate::error::{Failure, Result, file, system};
use crate::median::median;
use crate::model::{self, Model, SMALL};
use crate::place::Place;
use crate::units::{MIB, float};
use crate::{cold, signals};

/// Number of inodes of a service's model, at most.
const FILES: usize = 64;
/// What all services together may take, of the time that they take one after the other, and what the one with
/// priority may take, of the time that it takes alone.
const BAR: f64 = 1.05;
const URGENT_BAR: f64 = 1.1;

/// How the services load, in the order of their turns: each leaves the records that the next one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kernel,
    First,
    Later,
    /// A second load, the first service with priority.
    Urgent,
}

impl Way {
    const ALL: [Self; 4] = [Self::Kernel, Self::First, Self::Later, Self::Urgent];

    const fn title(self) -> &'static str {
        match self {
            Self::Kernel => "the kernel alone",
            Self::First => "MAIO, first load",
            Self::Later => "MAIO, second load",
            Self::Urgent => "the one with priority",
        }
    }

    const fn bar(self) -> f64 {
        match self {
            Self::Urgent => URGENT_BAR,
            _ => BAR,
        }
    }
}

/// The times of a way to load: medians of whole commands, in seconds.
#[derive(Debug, PartialEq, Serialize)]
struct Times {
    way: &'static str,
    alone: f64,
    alone_spread: f64,
    together: f64,
    together_spread: f64,
    /// The time together, of that one after the other; of the one with priority, of that alone.
    ratio: f64,
    bar: f64,
}

/// The services, and what they load from.
struct Neighbours<'a> {
    // Dropped in this order: the disk is in the scratch folder.
    disk: Disk,
    scratch: Scratch,
    wanted: &'a Together,
    model: Model,
    library: PathBuf,
}

/// Measures the wanted number of services and prints their times.
pub(crate) fn measure(wanted: &Together) -> Result<()> {
    signals::take()?;
    let scratch = Scratch::take()?;
    eprintln!(
        "making {} models of {} MiB on a simulated disk",
        wanted.services, wanted.mib
    );
    let model = Model::new(&SMALL.of_mib(wanted.mib));
    let disk = make(scratch.place()?, &model, wanted.services, wanted.device)?;
    let library = scratch.library()?;
    let neighbours = Neighbours {
        disk,
        scratch,
        wanted,
        model,
        library,
    };
    let times = neighbours.all()?;
    if wanted.json {
        println!("{}", serde_json::to_string_pretty(&times)?);
    } else {
        print!("{}", table(wanted, &times));
    }
    Ok(())
}

fn name(service: usize) -> String {
    format!("service-{service}")
}

fn make(place: &Place, model: &Model, services: usize, device: Device) -> Result<Disk> {
    let bytes = services as u64 * (model.bytes() + 16 * MIB);
    let mut disk = Disk::make(place, bytes, services * FILES, |onto| {
        for service in 0..services {
            let folder = onto.join(name(service));
            fs::create_dir(&folder).map_err(file("Making", &folder))?;
            model::write(model, &folder)?;
        }
        Ok(())
    })?;
    disk.be(device.timing())?;
    Ok(disk)
}

impl Neighbours<'_> {
    fn all(&self) -> Result<Vec<Times>> {
        let mut seconds = Way::ALL.map(|way| (way, Vec::new(), Vec::new()));
        for round in 1..=self.wanted.rounds {
            for (way, alone, together) in &mut seconds {
                // The first load together is recorded for the second one, and so is the first one alone.
                together.push(self.load(*way, "together", self.wanted.services)?);
                alone.push(self.load(*way, "alone", 1)?);
                eprintln!(
                    "[round {round}] {}: one alone {:.2} s, all at once {:.2} s",
                    way.title(),
                    alone.last().unwrap_or(&0.0),
                    together.last().unwrap_or(&0.0)
                );
            }
        }
        let times = |(way, alone, together): &(Way, Vec<f64>, Vec<f64>)| {
            times(*way, self.wanted.services, alone, together)
        };
        Ok(seconds.iter().filter_map(times).collect())
    }

    /// Has some services load their models, all at once, and returns how long the slowest command took, or the one with
    /// priority.
    fn load(&self, way: Way, occasion: &str, services: usize) -> Result<f64> {
        let store = self.scratch.path.join(format!("store-{occasion}"));
        if way == Way::First {
            let _ = fs::remove_dir_all(&store);
        }
        fs::create_dir_all(&store).map_err(file("Making", &store))?;
        for service in 0..self.wanted.services {
            cold::drop_all(&self.model, &self.disk.path.join(name(service)))?;
        }
        let commands = (0..services).map(|service| self.command(way, service, &store));
        let commands = commands.collect::<Result<Vec<_>>>()?;
        let watch = |command| process::watch(command, &DiskCounters::default());
        let ended = std::thread::scope(|scope| {
            let all = commands
                .into_iter()
                .map(|command| scope.spawn(move || watch(command)));
            let all: Vec<_> = all.collect();
            let panicked = |_| Err(Failure::Said("A thread that waits has panicked".to_owned()));
            all.into_iter()
                .map(|thread| thread.join().unwrap_or_else(panicked))
                .collect::<Result<Vec<_>>>()
        })?;
        for end in &ended {
            if !end.status.success() {
                let said = format!("{}: a load has failed: {}", way.title(), end.status);
                return Err(Failure::Said(said));
            }
        }
        let counts = if way == Way::Urgent { 1 } else { services };
        let took = ended.iter().take(counts).map(|end| end.took);
        Ok(took.fold(0.0, f64::max))
    }

    fn command(&self, way: Way, service: usize, store: &Path) -> Result<Command> {
        let us = std::env::current_exe().map_err(system("Looking for this program"))?;
        let folder = self.disk.path.join(name(service));
        let mut command = Command::new(&us);
        if way != Way::Kernel {
            command = Command::new(us.with_file_name("ppcctl"));
            command
                .args(["run", "--quiet", "--policy"])
                .arg(&self.library);
            let leases = self.scratch.path.join("leases");
            for (key, path) in [("store", store), ("leases", &leases)] {
                command.args(["--set", &format!("{key}={}", path.display())]);
            }
            if way == Way::Urgent && service == 0 {
                command.args(["--set", "priority=1"]);
            }
            command.arg(&folder).arg("--").arg(us);
        }
        command.arg("load").arg("--model").arg(&folder);
        if self.wanted.by == By::Read {
            command.args(["--command", "cat \"$MODEL\"/*.safetensors > /dev/null"]);
        }
        command.stdout(std::process::Stdio::null());
        Ok(command)
    }
}

fn times(way: Way, services: usize, alone: &[f64], together: &[f64]) -> Option<Times> {
    let alone = median(alone.iter().copied())?;
    let together = median(together.iter().copied())?;
    let after = if way == Way::Urgent { 1 } else { services };
    Some(Times {
        way: way.title(),
        alone: alone.value,
        alone_spread: alone.spread,
        together: together.value,
        together_spread: together.spread,
        ratio: together.value / (alone.value * float(after as u64)),
        bar: way.bar(),
    })
}

fn table(wanted: &Together, times: &[Times]) -> String {
    let mut text = format!(
        "\n{} services, {} MiB each, {}; medians of {} rounds, whole commands\n\n{:22}{:>9} {:>5}  {:>12} {:>5}  {:>15}\n",
        wanted.services,
        wanted.mib,
        wanted.device.name(),
        wanted.rounds,
        "",
        "one alone",
        "+-",
        "all at once",
        "+-",
        "of that in turn"
    );
    for it in times {
        let verdict = if it.ratio <= it.bar { "PASS" } else { "MISS" };
        let _ = writeln!(
            text,
            "{:22}{:>7.2} s {:>4.0}%  {:>10.2} s {:>4.0}%  {:>15.2}  {verdict}, bar {}",
            it.way,
            it.alone,
            100.0 * it.alone_spread,
            it.together,
            100.0 * it.together_spread,
            it.ratio,
            it.bar
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_one_after_the_other() {
        let found = times(Way::Later, 2, &[1.0, 2.0, 4.0], &[3.0, 4.0, 5.0]).expect("rounds");
        assert!((found.ratio - 1.0).abs() < 1e-9, "{found:?}");
        assert!((found.alone_spread - 1.0).abs() < 1e-9, "{found:?}");
        let urgent = times(Way::Urgent, 2, &[1.0, 2.0, 4.0], &[2.0]).expect("rounds");
        assert!((urgent.ratio - 1.0).abs() < 1e-9, "{urgent:?}");
        assert_eq!(times(Way::First, 2, &[], &[]), None);
    }
}
