//! Prints the events of a mount, one a line, until it is unmounted.
//!
//! ```sh
//! cargo run -p rfs-uapi --example rfs-events -- /mnt/model.safetensors open,miss
//! ```
//!
//! The first argument is any file of the mount, or its device; the second, if given, the kinds
//! wanted. PROGRESS comes each 64 MiB.

use std::error::Error;
use std::fs::File;
use std::process::ExitCode;

use rfs_uapi::{Batch, Device, Event, FileInfo, Hello, Kind, Kinds, Mask};

const BEACON_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [mount] => run(mount, Kinds::OPEN | Kinds::CLOSE | Kinds::MISS),
        [mount, kinds] => parse_kinds(kinds).and_then(|kinds| run(mount, kinds)),
        _ => {
            eprintln!("usage: rfs-events FILE|DEVICE [open,close,miss,touch,progress]");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("rfs-events: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

fn parse_kinds(list: &str) -> Result<Kinds, Box<dyn Error>> {
    list.split(',')
        .map(|name| {
            Kinds::from_name(&name.to_uppercase()).ok_or_else(|| format!("no kind {name}").into())
        })
        .collect()
}

fn run(mount: &str, kinds: Kinds) -> Result<(), Box<dyn Error>> {
    let device = if mount.starts_with("/dev/rfs") {
        Device::open(mount)?
    } else {
        Device::open_number(FileInfo::of(File::open(mount)?)?.device)?
    };
    let Hello {
        version: (major, minor),
        device: number,
        features,
        ..
    } = device.hello()?;
    eprintln!("/dev/rfs{number}: version {major}.{minor}, {features:?}");

    let mask = Mask::kinds(kinds);
    device.set_mask(if kinds.contains(Kinds::PROGRESS) {
        mask.progress(BEACON_BYTES)
    } else {
        mask
    })?;
    let mut batch = Batch::new();
    while let Some(events) = device.read_batch(&mut batch)? {
        for event in events {
            print(&device, &event?);
        }
        device.wait(None)?;
    }
    Ok(())
}

fn print(device: &Device, event: &Event) {
    let path = match event.kind {
        Kind::Lost => "-".to_owned(),
        _ => device
            .path(event.file)
            .map_or_else(|_| "?".to_owned(), |path| path.display().to_string()),
    };
    let seconds = event.time_ns / 1_000_000_000;
    let nanos = event.time_ns % 1_000_000_000;
    println!(
        "{seconds}.{nanos:09} cpu={} {:<8} {}+{} count={} tgid={} tid={} flags={:#x} file={} {path}",
        event.cpu,
        event.kind,
        event.offset,
        event.length,
        event.count,
        event.tgid,
        event.tid,
        event.flags.bits(),
        event.file,
    );
}
