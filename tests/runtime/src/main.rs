//! Tests of the runtime in a guest: cprtd, ppcctl and policies on a mount of rfs.
//!
//! The protocol is that of the module's tests: `--list` prints `name seconds`, `cprt-test NAME` runs
//! one test. Exit status 0 is a pass, 77 a skip, any other a failure; the last line is the message.
//! `RFS_FS`, `RFS_LOWER`, `RFS_KERNEL` and `RFS_FACTOR` are as in `tests/vm/README.md`.
//!
//! Benchmarks (`bench`) are run by name and are not in the list.
//!
//! `case` is a test and the cleanup after it; tests are built from `daemon`, `reader`, `mount`, `cgroup`,
//! `disk`, `files`, `model` and `procfs`; each `t_*` has the tests of one subject.

use std::process::ExitCode;

mod bench;
mod case;
mod cgroup;
mod daemon;
mod disk;
mod files;
mod model;
mod mount;
mod outcome;
mod procfs;
mod reader;
#[allow(
    unsafe_code,
    reason = "the system calls; every other module goes through these"
)]
mod sys;
mod t_affinity;
mod t_crash;
mod t_faults;
mod t_idle;
mod t_interrupt;
mod t_maio;
mod t_memory;
mod t_misbehave;
mod t_models;
mod t_overhead;
mod t_record;
mod t_refusals;
mod t_register;
mod t_residency;
mod t_rig;
mod t_start;
mod t_swap;
mod t_ways;
mod way;

use case::Case;
use outcome::{Outcome, Stop};

/// All tests, in the order of their names.
fn cases() -> Vec<Case> {
    let mut all = [
        t_affinity::CASES,
        t_crash::CASES,
        t_faults::CASES,
        t_idle::CASES,
        t_interrupt::CASES,
        t_maio::CASES,
        t_memory::CASES,
        t_misbehave::CASES,
        t_models::CASES,
        t_overhead::CASES,
        t_record::CASES,
        t_refusals::CASES,
        t_register::CASES,
        t_residency::CASES,
        t_rig::CASES,
        t_start::CASES,
        t_swap::CASES,
    ]
    .concat();
    all.extend(t_ways::of(&all));
    all.sort_by_key(|case| case.name);
    all
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut all = cases();
    all.extend_from_slice(bench::CASES);
    let named = |name: &str| all.iter().find(|case| case.name == name);
    match words[..] {
        ["--list"] => {
            for case in cases() {
                println!("{}", case.line());
            }
            ExitCode::SUCCESS
        }
        ["--reader"] => helper(reader::main()),
        ["--spin"] => reader::spin(),
        ["--service", mib, group] => helper(reader::service(mib, group)),
        ["--body", name] if named(name).is_some() => {
            named(name).map_or(ExitCode::FAILURE, Case::run_as_body)
        }
        [name] if named(name).is_some() => named(name).map_or(ExitCode::FAILURE, Case::run),
        _ => {
            eprintln!("usage: cprt-test --list | TEST | BENCH");
            ExitCode::from(2)
        }
    }
}

/// The exit status of a process that belongs to a test.
fn helper(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Skip(why) | Stop::Fail(why)) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_say_whose_they_are() {
        let names: BTreeSet<&str> = cases().iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases().len());
        for name in names {
            assert!(
                name.starts_with("cprt_") || name.starts_with("storm_cprt_"),
                "{name}"
            );
            // PID 1 of the guest has no room for longer names.
            assert!(name.len() < 64, "{name}");
        }
    }
}
