//! Drives a real mount through every command of the protocol and prints `ok`.
//!
//! ```sh
//! rfs-smoke MNT/FILE
//! ```
//!
//! FILE is any file of at least two pages on a mount of rfs that is not in use; root runs it, the
//! virtual machine of the tests mostly. The first thing that is not as `rfs.h` says ends it with
//! exit status 1 and a line that says what.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rfs_uapi::{Batch, Device, ErrorKind, Event, FileId, FileInfo, Kind, Kinds, LoadRequest, Mask};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// On a slow machine under emulation events take their time; those that never come fail here.
const PATIENCE: Duration = Duration::from_secs(20);
const EVERYTHING: std::ops::Range<u64> = 0..u64::MAX;

macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err(format!($($words)+).into());
        }
    };
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // The reader of `events`: its own process, whose events are not left out.
        ["--cat", path] => read_all(Path::new(path)).map(drop),
        [path] => smoke(Path::new(path)).map(|()| println!("ok")),
        _ => {
            eprintln!("usage: rfs-smoke MNT/FILE");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = error
                .source()
                .map(|cause| format!(": {cause}"))
                .unwrap_or_default();
            eprintln!("rfs-smoke: {error}{cause}");
            ExitCode::FAILURE
        }
    }
}

fn smoke(path: &Path) -> Outcome {
    let held_open = File::open(path)?;
    let size = held_open.metadata()?.len();
    let info = FileInfo::of(&held_open)?;
    let device = Device::open_number(info.device)?;

    greeting(&device, info)?;
    lower_file(&device, info.file, path)?;
    page_cache(&device, info.file, size)?;
    events(&device, info.file, size, path)?;
    refusals(&device, info.file)?;
    statistics(&device)
}

fn greeting(device: &Device, info: FileInfo) -> Outcome {
    let hello = device.hello()?;
    ensure!(
        hello.version == rfs_uapi::VERSION,
        "HELLO agrees on {:?}",
        hello.version
    );
    ensure!(
        hello.device == info.device,
        "HELLO says device {}, FILE {}",
        hello.device,
        info.device
    );
    ensure!(
        hello.event_size == 64,
        "records of {} bytes",
        hello.event_size
    );
    ensure!(
        hello.kinds.contains(Kinds::OPEN | Kinds::MISS),
        "kinds {:?}",
        hello.kinds
    );
    let second = Device::open_number(info.device).map(drop);
    ensure!(
        kind(&second) == Some(ErrorKind::Busy),
        "a second reader: {second:?}"
    );
    let elsewhere = FileInfo::of(File::open("/proc/self/exe")?);
    ensure!(
        kind(&elsewhere) == Some(ErrorKind::NotRfs),
        "FILE of no rfs file: {elsewhere:?}"
    );
    Ok(())
}

fn lower_file(device: &Device, file: FileId, path: &Path) -> Outcome {
    let told = device.path(file)?;
    ensure!(
        told.file_name() == path.file_name(),
        "PATH says {}",
        told.display()
    );
    let mut lower = File::from(device.lower_fd(file, false)?);
    // Dirty pages are never evicted, and the file may just have been written.
    lower.sync_all()?;
    let mut below = Vec::new();
    lower.read_to_end(&mut below)?;
    ensure!(
        below == read_all(path)?,
        "LOWER_FD reads something else than the mount"
    );
    Ok(())
}

fn page_cache(device: &Device, file: FileId, size: u64) -> Outcome {
    cold(device, file)?;
    let pages = device.resident(file, EVERYTHING)?.pages;
    ensure!(pages >= 2, "a file of {pages} pages is too small");

    let loaded = device.load(LoadRequest::new(file, EVERYTHING).wait())?;
    ensure!(
        !loaded.stopped && loaded.pages == pages && loaded.done >= size,
        "LOAD: {loaded:?}"
    );
    let again = device.load(LoadRequest::new(file, 0..size).wait().cookie(7))?;
    ensure!(again.pages == 0, "LOAD of what is there: {again:?}");
    let map = device.page_map(file, EVERYTHING)?;
    ensure!(
        map.residency().cached == pages,
        "RESIDENT after LOAD: {:?}",
        map.residency()
    );
    ensure!(
        (0..pages).all(|page| map.is_cached(page)),
        "a page is missing in the bitmap"
    );

    let evicted = device.evict(file, EVERYTHING)?;
    ensure!(
        evicted.evicted == pages && evicted.kept == 0,
        "EVICT of {pages}: {evicted:?}"
    );
    let left = device.page_map(file, EVERYTHING)?;
    ensure!(
        left.residency().cached == 0,
        "RESIDENT after EVICT: {:?}",
        left.residency()
    );
    ensure!(
        !(0..pages).any(|page| left.is_cached(page)),
        "a page is left in the bitmap"
    );
    ensure!(device.stop(0)? == 0, "STOP found a load in flight");
    Ok(())
}

/// Has a child read the whole file, cold, and checks which events report that.
fn events(device: &Device, file: FileId, size: u64, path: &Path) -> Outcome {
    cold(device, file)?;
    let kinds = Kinds::OPEN | Kinds::CLOSE | Kinds::MISS | Kinds::TOUCH;
    device.set_mask(Mask::kinds(kinds).progress(64 << 10))?;
    let mut child = Command::new(std::env::current_exe()?)
        .args([Path::new("--cat"), path])
        .stdout(Stdio::null())
        .spawn()?;
    let status = child.wait()?;
    ensure!(status.success(), "the child: {status}");

    let seen = until_close(device, file)?;
    device.set_mask(Mask::kinds(Kinds::empty()))?;
    let of = |kind| {
        seen.iter()
            .filter(move |event| event.kind == kind && event.file == file)
    };
    let open = of(Kind::Open).next().ok_or("no OPEN")?;
    ensure!(
        open.length == size,
        "OPEN says {} bytes of {size}",
        open.length
    );
    ensure!(
        of(Kind::Miss).any(|miss| miss.offset == 0),
        "no MISS at the beginning"
    );
    let touched: u64 = of(Kind::Touch).map(|touch| touch.length).sum();
    ensure!(touched >= size, "TOUCH reports {touched} bytes of {size}");
    let beacons = of(Kind::Progress).count() > 0;
    ensure!(
        beacons == (size >= 64 << 10),
        "beacons for {size} bytes: {beacons}"
    );
    ensure!(
        seen.iter().all(|event| event.kind != Kind::Lost),
        "LOST of so few events"
    );
    ensure!(
        seen.iter()
            .all(|event| event.tgid == child.id() && event.count > 0 && event.time_ns > 0),
        "events of other processes than {}: {seen:?}",
        child.id()
    );
    Ok(())
}

/// The close is queued when the last reference goes, which may be after the child was reaped.
/// Records of different CPUs are in no order: the rest is there already, so one more pass gets it.
fn until_close(device: &Device, file: FileId) -> Outcome<Vec<Event>> {
    let deadline = Instant::now() + PATIENCE;
    let mut batch = Batch::new();
    let mut seen: Vec<Event> = Vec::new();
    let mut closed = false;
    loop {
        let before = seen.len();
        for event in device
            .read_batch(&mut batch)?
            .ok_or("the device says the mount is gone")?
        {
            seen.push(event?);
        }
        if closed && seen.len() == before {
            return Ok(seen);
        }
        closed |= seen
            .iter()
            .any(|event| event.kind == Kind::Close && event.file == file);
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "no CLOSE in {PATIENCE:?}; seen: {seen:?}");
        if !closed {
            device.wait(Some(left))?;
        }
    }
}

fn refusals(device: &Device, file: FileId) -> Outcome {
    let nobody = FileId::from_raw(u64::MAX);
    let cases = [
        ("PATH", kind(&device.path(nobody)), ErrorKind::Stale),
        (
            "LOWER_FD",
            kind(&device.lower_fd(nobody, false)),
            ErrorKind::Stale,
        ),
        (
            "LOAD",
            kind(&device.load(LoadRequest::new(nobody, 0..1))),
            ErrorKind::Stale,
        ),
        ("EVICT", kind(&device.evict(nobody, 0..1)), ErrorKind::Stale),
        (
            "RESIDENT",
            kind(&device.resident(nobody, 0..1)),
            ErrorKind::Stale,
        ),
        (
            "LOAD of nothing",
            kind(&device.load(LoadRequest::new(file, 5..5))),
            ErrorKind::Invalid,
        ),
        (
            "EVICT of nothing",
            kind(&device.evict(file, 5..5)),
            ErrorKind::Invalid,
        ),
        (
            "RESIDENT of nothing",
            kind(&device.resident(file, 5..5)),
            ErrorKind::Invalid,
        ),
        (
            "MASK of an unknown kind",
            kind(&device.set_mask(Mask::kinds(Kinds::from_bits_retain(1 << 31)))),
            ErrorKind::Invalid,
        ),
        (
            "MASK with PROGRESS at no distance",
            kind(&device.set_mask(Mask::kinds(Kinds::PROGRESS))),
            ErrorKind::Invalid,
        ),
        (
            "MASK with beacons too close",
            kind(&device.set_mask(Mask::kinds(Kinds::OPEN).progress(4096))),
            ErrorKind::Invalid,
        ),
    ];
    for (what, answer, expected) in cases {
        ensure!(
            answer == Some(expected),
            "{what}: {answer:?}, not {expected:?}"
        );
    }
    Ok(())
}

fn statistics(device: &Device) -> Outcome {
    let stats = device.stats()?;
    ensure!(stats.loads >= 2 && stats.loaded >= 2, "loads in {stats:?}");
    ensure!(
        stats.evicts >= 3 && stats.evicted >= 2,
        "evicts in {stats:?}"
    );
    ensure!(
        stats.events >= 3 && stats.delivered >= 3,
        "events in {stats:?}"
    );
    let accounted = stats.merged + stats.delivered + stats.lost + stats.queued;
    ensure!(
        stats.events >= accounted,
        "events that never happened in {stats:?}"
    );
    ensure!(stats.files >= 1, "files in {stats:?}");
    Ok(())
}

/// A page can be busy for a moment, on its way to an LRU list for one, and EVICT then keeps it.
fn cold(device: &Device, file: FileId) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let evicted = device.evict(file, EVERYTHING)?;
        let left = device.resident(file, EVERYTHING)?;
        if left.cached == 0 {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "not cold: {left:?} after {evicted:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn read_all(path: &Path) -> Outcome<Vec<u8>> {
    Ok(std::fs::read(path)?)
}

fn kind<T>(result: &rfs_uapi::Result<T>) -> Option<ErrorKind> {
    result.as_ref().err().map(rfs_uapi::Error::kind)
}
