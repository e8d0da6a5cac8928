//! Prints once a second how much page cache the memory of a process has room for.
//!
//! ```sh
//! memory PID|CGROUP [OURS]
//! ```
//!
//! CGROUP is named as in `ppcctl reg-policy --cgroup`. OURS is how much page cache is taken for ours,
//! `2GiB` or the like: as much as there is of it counts, none if it is left out.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cprt::control::config::{self, Bytes};
use cprt::machine::memory::{Roots, Watch};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [whom] => watch(whom, "0"),
        [whom, ours] => watch(whom, ours),
        _ => Err("Usage: memory PID|CGROUP [OURS]".into()),
    };
    if let Err(error) = result {
        eprintln!("memory: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn watch(whom: &str, ours: &str) -> Result<(), Box<dyn Error>> {
    let Bytes(ours) = ours.parse()?;
    let roots = Roots::default();
    let watch = Watch::new(config::MemoryConfig::default(), roots.clone());
    if let Ok(pid) = whom.parse() {
        match watch.follow_process(pid) {
            Some(dir) => println!("following {}", dir.display()),
            None => println!("no memory cgroup of process {pid} is known"),
        }
    } else {
        watch.follow_cgroup(&roots.resolve(Path::new(whom))?);
    }
    loop {
        let state = watch.sample(ours);
        let pressure = state.pressure.map_or_else(
            || "-".to_owned(),
            |pressure| format!("{}.{:02} %", pressure.share / 100, pressure.share % 100),
        );
        println!(
            "{}used {:>9} of {:>9}, room {:>9}, pressure {pressure:>8}, by {}",
            if state.over { "OVER " } else { "" },
            Bytes(state.used),
            Bytes(state.limit),
            Bytes(state.available),
            state.source
        );
        std::thread::sleep(Duration::from_secs(1));
    }
}
