//! Runs MAIO's parsers on untrusted input.
//!
//! ```text
//! fuzz run SECONDS SEED [TARGET...]     libFuzzer on each target for SECONDS, two at a time; seed 0 is random
//! fuzz input TARGET PATH                one input, once, without libFuzzer
//! ```
//!
//! `make fuzz` builds it and `fuzz-target`, which it starts from its own folder.

mod runner;

/// The compiler's counters are in this program, too, and call functions that libFuzzer defines.
#[cfg(feature = "libfuzzer")]
use libfuzzer_sys as _;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use fuzz::limits::Limits;
use fuzz::targets::{self, Target};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["run", seconds, seed, ref names @ ..] => run(seconds, seed, names),
        ["input", name, path] => target(name).and_then(|it| input(it, Path::new(path))),
        _ => Err("usage: fuzz run SECONDS SEED [TARGET...] | fuzz input TARGET PATH".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn run(seconds: &str, seed: &str, names: &[&str]) -> Result<bool> {
    let targets = match names {
        [] => targets::ALL.to_vec(),
        names => names.iter().copied().map(target).collect::<Result<_>>()?,
    };
    let seed = match seed.parse()? {
        0 => any_seed(),
        seed => seed,
    };
    runner::run(&targets, seconds.parse()?, seed)
}

/// Runs one input under the usual limits: the process dies if the target fails.
fn input(target: Target, path: &Path) -> Result<bool> {
    let bytes = fs::read(path)?;
    let mut limits = Limits::set()?;
    limits.restart()?;
    (target.run)(&bytes);
    println!("{}: {} bytes, no failure", target.name, bytes.len());
    Ok(true)
}

/// A seed that differs from run to run, and is short enough to type.
fn any_seed() -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(1, |now| now.subsec_micros() + 1)
}

fn target(name: &str) -> Result<Target> {
    let names: Vec<_> = targets::ALL.iter().map(|target| target.name).collect();
    let unknown = || format!("{name} is none of {}", names.join(", "));
    Ok(targets::by_name(name).ok_or_else(unknown)?)
}
