//! Tests on files of the machine's own file system. What that cannot do is skipped, with the reason.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::sys::testing::{Mapped, skip, skip_part};

const MIB: u64 = 1 << 20;

/// A file with contents, removed when the test ends.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn new(name: &str, length: u64) -> Self {
        let path = std::env::temp_dir().join(format!("cprt-engine-{}-{name}", std::process::id()));
        let file = File::create(&path).expect("a file");
        let block: Vec<u8> = (0..MIB).map(|i| (i % 251) as u8).collect();
        for at in (0..length).step_by(block.len()) {
            let part = usize::try_from((length - at).min(MIB)).expect("a size");
            file.write_all_at(&block[..part], at).expect("to write");
        }
        file.sync_all().expect("to sync");
        Self { path }
    }

    fn open(&self) -> File {
        File::open(&self.path).expect("the file")
    }

    /// Opens the file with nothing cached; `None` if the file system keeps its pages.
    fn cold(&self, engine: &Engine) -> Option<File> {
        let file = self.open();
        engine
            .evict(&file, &(0..u64::MAX), false)
            .expect("to evict");
        let left = engine.resident(&file, &(0..u64::MAX)).expect("to look");
        if left > 0 {
            skip(&format!("{} keeps its pages", self.path.display()));
        }
        (left == 0).then_some(file)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn how(cookie: u64, large: bool) -> How {
    How {
        cookie,
        large,
        ..How::default()
    }
}

#[test]
fn dense_load_caches_all_and_counts_only_new_pages() {
    let engine = Engine::new().expect("an engine");
    let length = 24 * MIB + 100;
    let temporary = Temporary::new("dense", length);
    let Some(file) = temporary.cold(&engine) else {
        return;
    };
    let first = engine
        .load(&file, &(0..MIB), how(1, true))
        .expect("to load");
    assert_eq!((first.done, first.stopped), (MIB, false));
    let there = engine.resident(&file, &(0..u64::MAX)).expect("to look");
    assert!(there >= MIB);
    let rest = engine
        .load(&file, &(0..u64::MAX), how(1, false))
        .expect("to load");
    // Pages that the kernel has read ahead after the first MiB count for this load.
    let pages = (length - MIB).div_ceil(4096);
    assert_eq!((rest.done, rest.fresh), (length, pages * 4096));
    let all = engine.resident(&file, &(0..u64::MAX)).expect("to look");
    assert_eq!(all, length, "the part of a page at the end as well");
    let again = engine
        .load(&file, &(0..u64::MAX), how(1, false))
        .expect("to load");
    assert_eq!((again.done, again.fresh), (length, 0));
}

#[test]
fn series_of_exact_loads_causes_no_readahead() {
    let engine = Engine::new().expect("an engine");
    let temporary = Temporary::new("exact", 24 * MIB);
    let exact = How {
        exact: true,
        ..how(1, true)
    };
    for piece in 0..40 {
        // As for each load, a file of its own: the kernel keeps the state of readahead in it.
        let Some(file) = (match piece {
            0 => temporary.cold(&engine),
            _ => File::open(&temporary.path).ok(),
        }) else {
            return;
        };
        let at = piece * (MIB / 4);
        let loaded = engine.load(&file, &(at..at + MIB / 4), exact);
        assert_eq!(loaded.expect("to load").done, MIB / 4);
        let there = engine.resident(&file, &(0..u64::MAX)).expect("to look");
        assert_eq!(there, at + MIB / 4);
    }
}

#[test]
fn externally_dropped_pages_count_as_fresh_again() {
    let engine = Engine::new().expect("an engine");
    let length = 8 * MIB;
    let temporary = Temporary::new("dropped", length);
    let Some(file) = temporary.cold(&engine) else {
        return;
    };
    let all = || {
        engine
            .load(&file, &(0..length), how(1, true))
            .expect("to load")
    };
    assert_eq!(all().fresh, length);
    // This load counts what is cached of the MiB that follow, and none of them is loaded.
    let part = engine.load(&file, &(0..MIB), how(1, true));
    assert_eq!(part.expect("to load").fresh, 0);
    advise(&file, &(0..length), PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("to drop");
    assert_eq!(engine.resident(&file, &(0..length)).expect("to look"), 0);
    std::thread::sleep(fresh::HOLDS);
    assert_eq!(all().fresh, length);
}

/// The number of a file's pages that the kernel reclaims last, and of all its pages; only root can read that.
fn in_use(file: &File) -> io::Result<(u64, u64)> {
    const ACTIVE: u64 = 1 << 6;
    const FRAME: u64 = (1 << 55) - 1;

    let word = |file: &File, at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at * 8)?;
        io::Result::Ok(u64::from_ne_bytes(bytes))
    };
    let (map, flags) = (
        File::open("/proc/self/pagemap")?,
        File::open("/proc/kpageflags")?,
    );
    let mapped = Mapped::new(file)?;
    mapped.sum(0..mapped.length());
    let page = crate::sys::page_size();
    let (mut active, all) = (0, mapped.length() as u64 / page);
    for number in 0..all {
        let frame = word(&map, mapped.address() / page + number)? & FRAME;
        if frame == 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        active += u64::from(word(&flags, frame)? & ACTIVE != 0);
    }
    Ok((active, all))
}

#[test]
fn held_pages_are_marked_active_by_the_kernel() {
    let engine = Engine::new().expect("an engine");
    let temporary = Temporary::new("held", 4 * MIB);
    let Some(file) = temporary.cold(&engine) else {
        return;
    };
    let hold = How {
        hold: true,
        ..How::default()
    };
    // Part of the file is cached before.
    for (range, how) in [(0..MIB, how(1, false)), (0..4 * MIB, hold)] {
        engine.load(&file, &range, how).expect("to load");
    }
    match in_use(&file) {
        // The kernel activates pages in batches, and with lru_gen in another way.
        Ok((active, all)) if !Path::new("/sys/kernel/mm/lru_gen/enabled").exists() => {
            assert!(active * 4 >= all * 3, "{active} of {all}");
        }
        Ok(_) => skip("this kernel tells ages of pages otherwise"),
        Err(error) => skip(&format!("flags of pages are not told: {error}")),
    }
}

#[test]
fn slices_come_in_exactly() {
    let engine = Engine::new().expect("an engine");
    let temporary = Temporary::new("sparse", 32 * MIB);
    let Some(file) = temporary.cold(&engine) else {
        return;
    };
    let slices: Vec<_> = (0..16)
        .map(|i| 2 * i * MIB..2 * i * MIB + MIB / 2)
        .collect();
    let mut fresh = 0;
    for slice in &slices {
        let file = temporary.open();
        let loaded = engine.load(&file, slice, how(1, false)).expect("to load");
        assert_eq!(loaded.done, MIB / 2);
        fresh += loaded.fresh;
        assert_eq!(engine.resident(&file, slice).expect("to look"), MIB / 2);
    }
    assert_eq!(fresh, 8 * MIB);
    let all = engine.resident(&file, &(0..u64::MAX)).expect("to look");
    assert_eq!(all, fresh, "and nothing between them");
    // Three pieces, of which neither the first nor the last is whole.
    let odd = 30 * MIB + MIB / 2 + 5..32 * MIB - 5;
    let loaded = engine
        .load(&temporary.open(), &odd, how(1, false))
        .expect("to load");
    assert_eq!(loaded.done, odd.end - odd.start);
    assert_eq!(engine.resident(&file, &odd).expect("to look"), loaded.done);
}

#[test]
fn whole_folios_come_in_as_such_and_exactly() {
    let engine = Engine::new().expect("an engine");
    engine.allow_folios(true);
    let temporary = Temporary::new("folios", 16 * MIB);
    let Some(file) = temporary.cold(&engine) else {
        return;
    };
    let one = |file: &File, range| cache::fault_in(file, &range, engine.page);
    if !engine.has_folios || !one(&file, 14 * MIB..16 * MIB).is_ok_and(|one| one) {
        return skip("this kernel or file system makes no large folios");
    }
    let part = 2 * MIB..6 * MIB;
    let loaded = engine.load(&temporary.open(), &part, how(1, false));
    let loaded = loaded.expect("to load");
    assert_eq!((loaded.done, loaded.fresh), (4 * MIB, 4 * MIB));
    let there = engine.resident(&file, &(0..14 * MIB)).expect("to look");
    assert_eq!(there, 4 * MIB, "and nothing beside");
    for at in [2 * MIB, 4 * MIB] {
        assert!(one(&file, at..at + 2 * MIB).expect("to map"), "{at}");
    }
    engine.allow_folios(false);
    let part = 10 * MIB..12 * MIB;
    let loaded = engine.load(&temporary.open(), &part, how(1, false));
    assert_eq!(loaded.expect("to load").done, 2 * MIB);
    assert!(!one(&file, part).expect("to map"), "not allowed");
    engine.allow_folios(true);
    // A folio of which a reader has brought in the first page.
    let mut page = [0; 4096];
    file.read_exact_at(&mut page, 8 * MIB).expect("to read");
    let part = 8 * MIB..10 * MIB;
    let loaded = engine.load(&temporary.open(), &part, how(1, false));
    assert_eq!(loaded.expect("to load").done, 2 * MIB);
    assert_eq!(engine.resident(&file, &part).expect("to look"), 2 * MIB);
}

#[test]
fn both_ways_of_counting_agree() {
    let engine = Engine::new().expect("an engine");
    let temporary = Temporary::new("count", 9 * MIB + 5000);
    let Some(file) = temporary.cold(&engine) else {
        return;
    };
    engine
        .load(&file, &(3 * MIB + 5..3 * MIB + 70_000), how(1, false))
        .expect("to load");
    let page = sys::page_size();
    for range in [0..9 * MIB, 2 * MIB..4 * MIB, 3 * MIB + page..9 * MIB + 5000] {
        let pages = cache::mincore(&file, &range, page).expect("to look");
        match cache::cachestat(&file, &range) {
            Ok(told) => assert_eq!(told, pages, "{range:?}"),
            Err(error) => skip_part(&format!("cachestat: {error}")),
        }
    }
    assert_eq!(engine.resident(&file, &(0..0)).expect("to look"), 0);
    assert_eq!(
        engine
            .resident(&file, &(1 << 40..1 << 41))
            .expect("to look"),
        0
    );
}

#[test]
fn stopped_load_reports_how_far_it_got() {
    let engine = Engine::new().expect("an engine");
    let temporary = Temporary::new("stop", 16 * MIB);
    let Some(file) = temporary.cold(&engine) else {
        return;
    };
    let left = std::cell::Cell::new(3);
    let stopped = || left.replace(left.get() - 1) == 0;
    let done = engine
        .bring(&file, &(5..16 * MIB), Way::Exact, stopped)
        .expect("to load");
    assert_eq!(done, 3 * MIB - 5, "between two pieces");
    let flight = engine.begin(7);
    engine.stop(8);
    assert!(!flight.stopped());
    engine.stop(7);
    assert!(flight.stopped());
    drop(flight);
    assert!(engine.lock().flying.is_empty());
    let loaded = engine
        .load(&file, &(0..MIB), how(7, false))
        .expect("to load");
    assert!(!loaded.stopped, "only what is in flight is stopped");
}

#[test]
fn directories_and_write_only_files_are_not_loaded() {
    let engine = Engine::new().expect("an engine");
    let folder = File::open(std::env::temp_dir()).expect("a folder");
    assert!(matches!(
        engine.load(&folder, &(0..1), how(1, false)),
        Err(Fault::NoFile)
    ));
    assert!(matches!(
        engine.evict(&folder, &(0..1), false),
        Err(Fault::NoFile)
    ));
    let temporary = Temporary::new("write-only", MIB);
    let file = OpenOptions::new()
        .write(true)
        .open(&temporary.path)
        .expect("the file");
    engine
        .evict(&temporary.open(), &(0..MIB), false)
        .expect("to evict");
    let loaded = engine.load(&file, &(0..MIB), how(1, true));
    assert_eq!(loaded.map_err(|fault| fault.errno()), Err(libc::EBADF));
    let past = engine.load(&temporary.open(), &(MIB..2 * MIB), how(1, false));
    assert_eq!(past.expect("nothing"), Loaded::default());
}

#[test]
fn steps_that_cut_folios_drop_them_all_the_same() {
    let engine = Engine::new().expect("an engine");
    let temporary = Temporary::new("steps", 32 * MIB);
    let Some(file) = temporary.cold(&engine) else {
        return;
    };
    engine
        .load(&file, &(0..u64::MAX), how(1, true))
        .expect("to load");
    let mut dropped = 0;
    for step in 0..32 {
        let range = step * MIB..(step + 1) * MIB;
        dropped += engine
            .evict(&file, &range, false)
            .expect("to evict")
            .dropped;
    }
    let left = engine.resident(&file, &(0..u64::MAX)).expect("to look");
    assert_eq!((left, dropped), (0, 32 * MIB));
}

/// A further process of this test binary, which maps a file and reads all of it.
struct Mapper(Child);

const MAPPER: &str = "CPRT_TEST_MAPS";

impl Mapper {
    fn new(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this"))
            .args([
                "--exact",
                "backend::pagecache::tests::mapper_helper_maps_the_given_file",
                "--nocapture",
            ])
            .env(MAPPER, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let out = child.stdout.take().expect("its output");
        let ready = BufReader::new(out).lines().map_while(Result::ok);
        assert!(ready.into_iter().any(|line| line.contains("mapped")));
        Self(child)
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of a `Mapper`; otherwise does nothing.
#[test]
fn mapper_helper_maps_the_given_file() {
    let Some(path) = std::env::var_os(MAPPER) else {
        return;
    };
    let file = File::open(path).expect("the file");
    let mapping = crate::sys::testing::Mapped::new(&file).expect("a mapping");
    let sum = mapping.sum(0..mapping.length());
    println!("mapped {sum}");
    let _ = io::stdin().read(&mut [0]);
}

#[test]
fn eviction_keeps_pages_that_two_processes_map() {
    let engine = Engine::new().expect("an engine");
    let length = 8 * MIB;
    let temporary = Temporary::new("mapped", length);
    let Some(file) = temporary.cold(&engine) else {
        return;
    };
    let first = Mapper::new(&temporary.path);
    let evicted = engine.evict(&file, &(0..length), true).expect("to evict");
    assert_eq!(
        (evicted.dropped, evicted.kept),
        (0, length),
        "as it was asked for"
    );
    let evicted = engine.evict(&file, &(0..length), false).expect("to evict");
    if evicted.kept > 0 && !nix::unistd::geteuid().is_root() {
        skip_part("only root may have others let go of what they map");
        return;
    }
    assert_eq!((evicted.dropped, evicted.kept), (length, 0));
    drop(first);
    let both = [Mapper::new(&temporary.path), Mapper::new(&temporary.path)];
    std::thread::sleep(MAPPERS_AGE);
    let evicted = engine.evict(&file, &(0..length), false).expect("to evict");
    assert_eq!((evicted.dropped, evicted.kept), (0, length), "two map it");
    drop(both);
    let evicted = engine.evict(&file, &(0..length), false).expect("to evict");
    assert_eq!((evicted.dropped, evicted.kept), (length, 0), "none does");
}

#[test]
fn pages_come_from_the_node_that_the_thread_prefers() {
    let nodes = fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    let last = nodes
        .trim()
        .rsplit([',', '-'])
        .next()
        .and_then(|node| node.parse().ok());
    let Some(node @ 1_u16..) = last else {
        skip("this machine has one node");
        return;
    };
    let engine = Engine::new().expect("an engine");
    let temporary = Temporary::new("node", 64 * MIB);
    let Some(file) = temporary.cold(&engine) else {
        return;
    };
    let cached = || {
        let path = format!("/sys/devices/system/node/node{node}/meminfo");
        let text = fs::read_to_string(path).expect("its state");
        let line = text
            .lines()
            .find(|line| line.contains("FilePages"))
            .expect("a line");
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        words[words.len() - 2].parse::<u64>().expect("a number") << 10
    };
    let before = cached();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sys::bind_thread(&[], node).expect("to prefer a node");
            engine
                .load(&file, &(0..u64::MAX), how(1, true))
                .expect("to load");
        });
    });
    assert!(cached() >= before + 48 * MIB, "most of it is there");
}
