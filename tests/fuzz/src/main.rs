//! Runs readers of strangers' bytes on inputs that it finds by what they make them do.
//!
//! ```text
//! fuzz run SECONDS SEED [TARGET...]     each target for so long, two at a time; 0 is any seed
//! fuzz input TARGET PATH                one input, once
//! ```
//!
//! `make fuzz` builds it so that edges are counted and starts it. Each target runs in a process of its
//! own, `child`, which writes down each input before it runs it; `parent` watches, and keeps what was
//! written down last if that process dies, takes too long, or wants more memory than it may have.
//!
//! `targets` are what is run; `engine` and `mutate` find inputs; `hooks` is where the compiler's counters
//! are.

mod child;
mod engine;
mod hooks;
mod mutate;
mod parent;
mod random;
mod slate;
mod targets;

use std::path::Path;
use std::process::ExitCode;

use targets::Target;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["run", seconds, seed, ref names @ ..] => run(seconds, seed, names),
        ["child", name, seconds, seed, slate] => child(name, seconds, seed, Path::new(slate)),
        ["input", name, path] => target(name).and_then(|it| child::input(it, Path::new(path))),
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
        0 => child::any_seed(),
        seed => seed,
    };
    parent::run(&targets, seconds.parse()?, seed)
}

fn child(name: &str, seconds: &str, seed: &str, slate: &Path) -> Result<bool> {
    child::run(target(name)?, seconds.parse()?, seed.parse()?, slate)?;
    Ok(true)
}

fn target(name: &str) -> Result<Target> {
    let names: Vec<_> = targets::ALL.iter().map(|target| target.name).collect();
    let unknown = || format!("{name} is none of {}", names.join(", "));
    Ok(targets::by_name(name).ok_or_else(unknown)?)
}
