//! Checks whether the simulated SSD follows its model, as seen through the loop device.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Instant;

use crate::error::{Result, file};
use crate::result::Check;
use crate::ssd::Timing;
use crate::sys::Anonymous;
use crate::units::{MIB, float, index};

/// Requests of one size, `depth` of them in flight.
#[derive(Clone, Copy, Debug)]
struct Load {
    what: &'static str,
    bytes: u64,
    depth: usize,
    each: u64,
    random: bool,
}

const LOADS: [Load; 5] = [
    Load {
        what: "4 KiB random, 1 at a time",
        bytes: 4 << 10,
        depth: 1,
        each: 300,
        random: true,
    },
    Load {
        what: "128 KiB in order, 1 at a time",
        bytes: 128 << 10,
        depth: 1,
        each: 150,
        random: false,
    },
    Load {
        what: "4 KiB random, 32 at a time",
        bytes: 4 << 10,
        depth: 32,
        each: 100,
        random: true,
    },
    Load {
        what: "128 KiB in order, 8 at a time",
        bytes: 128 << 10,
        depth: 8,
        each: 60,
        random: false,
    },
    Load {
        what: "1 MiB in order, 32 at a time",
        bytes: MIB,
        depth: 32,
        each: 6,
        random: false,
    },
];

/// Measures each load on the device.
pub(crate) fn check(node: &Path, size: u64, timing: Timing) -> Result<Vec<Check>> {
    LOADS
        .iter()
        .map(|load| one(node, size, timing, load))
        .collect()
}

fn one(node: &Path, size: u64, timing: Timing, load: &Load) -> Result<Check> {
    let began = Instant::now();
    let threads: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.depth)
            .map(|number| scope.spawn(move || requests(node, size, load, number as u64)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Ok(())))
            .collect()
    });
    let took = began.elapsed().as_secs_f64();
    threads
        .into_iter()
        .collect::<std::io::Result<()>>()
        .map_err(file("Reading", node))?;
    let requests = load.each * load.depth as u64;
    let expected = timing
        .expected(requests, load.bytes, load.depth)
        .as_secs_f64();
    let all = float(requests * load.bytes);
    Ok(Check {
        what: load.what.to_owned(),
        expected: all / expected,
        measured: all / took,
    })
}

fn requests(node: &Path, size: u64, load: &Load, thread: u64) -> std::io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(node)?;
    let mut buffer = Anonymous::new(load.bytes)?;
    let places = (size / load.bytes).max(1);
    for number in 0..load.each {
        let place = if load.random {
            (number * 7919 + thread * 104_729 + 13) % places
        } else {
            (number + thread * load.each) % places
        };
        let all = buffer.bytes_mut();
        file.read_exact_at(&mut all[..index(load.bytes)], place * load.bytes)?;
    }
    Ok(())
}
