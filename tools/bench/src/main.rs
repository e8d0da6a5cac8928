//! Measures how cache policies speed up the loading of models, on a simulated SSD.
//!
//! ```text
//! case = policy x reader x regime
//! rounds ─ run ─┬─ cold (nothing is cached)         rig: ssd ─ disk ─ model
//!               ├─ runtime (a policy) or prefetcher
//!               └─ reader (driver, workers)  ─▶ result ─ table, bars, JSON
//! ```
//!
//! Everything slow is simulated by sleeping: the device, copies to accelerators, frameworks. So two cores
//! stand in for many, and the ratios are those of a real machine.

mod args;
mod backend_cost;
mod bars;
mod case;
mod cgroup;
mod cold;
mod command;
mod disk;
mod error;
mod helper;
mod host_memory;
mod leftovers;
mod lend;
mod machine;
mod measure;
mod median;
mod model;
mod own_orders;
mod place;
mod prefetcher;
mod reader;
mod recorded;
mod report;
mod result;
mod rig;
mod rounds;
mod run;
mod runtime;
mod selfcheck;
mod signals;
mod ssd;
#[allow(
    unsafe_code,
    reason = "memory that is mapped, and three settings of a process"
)]
mod sys;
mod table;
mod tour;
mod units;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Cli, Errand};
use crate::error::Result;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.errand {
        None => measure::measure(&cli.wanted),
        Some(errand) => run_errand(errand).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("ppc-bench: {}", cprt::error::chain(&failure));
            ExitCode::FAILURE
        }
    }
}

fn run_errand(errand: Errand) -> Result<()> {
    match errand {
        Errand::Run(wanted) => tour::run(&wanted),
        Errand::Cost(wanted) => backend_cost::measure(&wanted),
        Errand::Together(wanted) => tour::measure_together(&wanted),
        Errand::Wrapped(wanted) => tour::measure_wrapped(&wanted),
        Errand::Selfcheck => measure::selfcheck(),
        Errand::Report { results } => {
            println!("{}", report::write(&results)?.display());
            Ok(())
        }
        Errand::Lend(wanted) => lend::lend(&wanted),
        Errand::Simulate { size, folder } => ssd::simulate(&folder, size),
        Errand::Drive { task } => reader::drive(&serde_json::from_str(&task)?),
        Errand::Work { rank, task } => reader::work(&serde_json::from_str(&task)?, rank),
        Errand::Load { model, command } => tour::load(&model, command.as_deref()),
        Errand::Prefetch { task } => prefetcher::prefetch(&serde_json::from_str(&task)?),
        Errand::Read { task } => backend_cost::read(&serde_json::from_str(&task)?),
        // Only the runtime calls these two.
        Errand::Worker { .. } => Ok(cprt::worker::process::run()?),
        Errand::Topology => {
            print!("{}", cprt::machine::topology::Topology::detect()?);
            Ok(())
        }
    }
}
