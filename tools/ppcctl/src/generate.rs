//! Man pages and completions, generated from the definition of the command line; and the tables of
//! backends and metrics for the runtime's READMEs.

use std::fs::{self, File};
use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use crate::args::Cli;
use crate::failure::{Failure, Result};

/// The file name under which each shell looks for its completion.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "ppcctl"),
    (Shell::Zsh, "_ppcctl"),
    (Shell::Fish, "ppcctl.fish"),
];

/// Writes `man/*.1`, `completions/SHELL/*`, `backends.md` and `metrics.md` into a directory.
pub(crate) fn write(directory: &Path) -> Result<()> {
    let man = directory.join("man");
    make(&man)?;
    clap_mangen::generate_to(Cli::command(), &man).map_err(failed(&man))?;
    let tables = [
        ("backends.md", cprt::backend::select::table()),
        ("metrics.md", cprt::control::metrics::table()),
    ];
    for (name, table) in tables {
        let path = directory.join(name);
        fs::write(&path, table).map_err(failed(&path))?;
    }
    for (shell, name) in COMPLETIONS {
        let directory = directory.join("completions").join(shell.to_string());
        make(&directory)?;
        let path = directory.join(name);
        let mut file = File::create(&path).map_err(failed(&path))?;
        generate(shell, &mut Cli::command(), "ppcctl", &mut file);
    }
    Ok(())
}

fn make(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).map_err(failed(directory))
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
    let path = path.to_owned();
    |source| Failure::Write { path, source }
}
