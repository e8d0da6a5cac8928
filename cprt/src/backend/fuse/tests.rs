//! The backend on this host: checks by the mount's pages what is loaded and evicted.

use std::process::Command;

use super::*;
use crate::backend::fuse::mirror::tests::{Ground, Helper, can_mount, pages, pattern, plain};
use crate::machine::mappings::{self, Identity};
use crate::sys::cache::cachestat;
use crate::sys::testing::{Mapped, all_but_few, skip};

const MIB: u64 = 1 << 20;

fn mounted(ground: &Ground) -> Fuse {
    match mount(&ground.lower, &ground.at, &plain()).expect("to mount") {
        Mounted::Plain(fuse) => fuse,
        Mounted::Passthrough(_) => panic!("it was not asked for"),
    }
}

fn span(file: FileId, range: Range<u64>) -> Span {
    Span {
        file,
        offset: range.start,
        length: range.end - range.start,
    }
}

/// The events of other processes since the last call, after a moment.
fn heard(fuse: &Fuse) -> Vec<Event> {
    std::thread::sleep(Duration::from_millis(100));
    fuse.interrupt();
    let mut events = Vec::new();
    assert_eq!(fuse.events(&mut events).expect("events"), Flow::On);
    events
}

/// The same, up to a close: the kernel reports that some time later, and close(2) does not wait for it.
fn heard_to_close(fuse: &Fuse) -> Vec<Event> {
    let since = Instant::now();
    let mut events = Vec::new();
    while !events.iter().any(|event: &Event| event.kind == Kind::Close) {
        assert!(since.elapsed() < Duration::from_secs(20), "{events:?}");
        events.extend(heard(fuse));
    }
    events
}

/// The number of bytes that these events say were not cached.
fn missed(events: &[Event]) -> u64 {
    let misses = events.iter().filter(|event| event.kind == Kind::Miss);
    misses.map(|event| event.length).sum()
}

/// Has another process read the whole file, and returns its number.
fn cat(path: &Path, expected: &[u8]) -> u32 {
    let mut child = Command::new("cat")
        .arg(path)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("cat");
    let mut got = Vec::new();
    let mut output = child.stdout.take().expect("its output");
    io::Read::read_to_end(&mut output, &mut got).expect("to hear it");
    assert!(got == expected, "it reads something else");
    let process = child.id();
    child.wait().expect("it to end");
    process
}

#[test]
fn test_loaded_file_is_cached_above_only_and_not_missed() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.file("a", 6_000_000);
    let size = bytes.len() as u64;
    let fuse = mounted(&ground);
    let file = fuse.open(Path::new("a")).expect("its id");
    let loaded = fuse.load(span(file, 0..size), How::default());
    let loaded = loaded.expect("to load");
    assert_eq!(
        (loaded.done, loaded.fresh, loaded.stopped),
        (size, size, false)
    );
    let map = File::open(ground.at.join("a")).expect("the file");
    let map = Mapped::new(&map).expect("to map it");
    let resident = map.resident().expect("mincore") as u64;
    assert!(all_but_few(resident, size.div_ceil(4096)), "{resident}");
    assert_eq!(pages(&ground.lower.join("a")), 0, "cached twice");
    let resident = fuse.resident(span(file, 0..u64::MAX)).expect("it");
    assert!(all_but_few(resident, size), "{resident}");
    assert!(heard(&fuse).is_empty(), "the worker itself is not a reader");
    cat(&ground.at.join("a"), &bytes);
    // A host may take some of it back just then, but not each time.
    let all_is_there = || {
        let again = fuse.load(span(file, 0..size), How::default());
        let again = again.expect("again");
        assert_eq!(again.done, size);
        cat(&ground.at.join("a"), &bytes);
        again.fresh == 0 && missed(&heard(&fuse)) == 0
    };
    assert!((0..20).any(|_| all_is_there()));
}

#[test]
fn test_a_load_is_exact() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.file("a", 8_000_000);
    let fuse = mounted(&ground);
    let file = fuse.open(Path::new("a")).expect("its id");
    let resident = |range| fuse.resident(span(file, range)).expect("it");
    let wanted = MIB + 4096..3 * MIB + 512 * 1024;
    let loaded = fuse.load(span(file, wanted.clone()), How::default());
    assert_eq!(loaded.expect("to load").fresh, wanted.end - wanted.start);
    let all = wanted.end - wanted.start;
    assert!(all_but_few(resident(wanted.clone()), all));
    assert_eq!(resident(0..wanted.start), 0);
    assert_eq!(resident(wanted.end..8 * MIB), 0);
    // Of a range that is partly cached, only the rest is loaded.
    let loaded = fuse
        .load(span(file, 0..4 * MIB), How::default())
        .expect("to load");
    assert_eq!(loaded.done, 4 * MIB);
    // The load checks a few pages at a time; a host may have taken one of them back.
    assert!(loaded.fresh < 3 * MIB, "{loaded:?}");
    assert!(all_but_few(resident(0..4 * MIB), 4 * MIB));
    // Beyond the end there is nothing.
    let loaded = fuse.load(span(file, 7 * MIB..u64::MAX / 2), How::default());
    assert_eq!(loaded.expect("to load").done, 8_000_000 - 7 * MIB);
    cat(&ground.at.join("a"), &bytes);
}

#[test]
fn test_eviction_keeps_mapped_pages_only_on_request() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.file("a", 4 << 20);
    let fuse = mounted(&ground);
    let file = fuse.open(Path::new("a")).expect("its id");
    let whole = span(file, 0..4 * MIB);
    fuse.load(whole, How::default()).expect("to load");
    let mut mapper = Helper::mapping(&ground.at.join("a"));
    let sum: u64 = bytes.iter().copied().map(u64::from).sum();
    assert_eq!(mapper.hear(), sum.to_string());
    let kept = fuse.evict(whole, true).expect("to evict");
    assert!(all_but_few(kept.kept, 4 * MIB), "mapped: {kept:?}");
    let some = fuse
        .evict(span(file, MIB..2 * MIB), false)
        .expect("to evict");
    assert!(all_but_few(some.dropped, MIB) && some.kept == 0, "{some:?}");
    assert!(all_but_few(fuse.resident(whole).expect("it"), 3 * MIB));
    let rest = fuse.evict(whole, false).expect("to evict");
    assert!(
        all_but_few(rest.dropped, 3 * MIB) && rest.kept == 0,
        "{rest:?}"
    );
    assert_eq!(pages(&ground.at.join("a")), 0);
    drop(mapper);
    fuse.load(whole, How::default()).expect("to load");
    let unmapped = fuse.evict(whole, true).expect("to evict");
    let all = all_but_few(unmapped.dropped, 4 * MIB);
    assert!(all && unmapped.kept == 0, "not mapped: {unmapped:?}");
}

#[test]
fn test_readers_are_heard_by_their_process() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.file("a", 5_000_000);
    let fuse = mounted(&ground);
    let all = [Kind::Open, Kind::Close, Kind::Miss];
    fuse.want(all.into_iter().collect(), 0)
        .expect("to want them");
    let touch = fuse.want(Kinds::from(Kind::Touch), 0).expect_err("cannot");
    assert_eq!(touch.errno(), libc::EOPNOTSUPP);
    let process = cat(&ground.at.join("a"), &bytes);
    let events = heard_to_close(&fuse);
    let inode = ground.lower.join("a").metadata().expect("it").ino();
    assert!(events.iter().all(|event| event.file == FileId(inode)));
    assert!(
        events.iter().all(|event| event.process == process),
        "{events:?}"
    );
    let of = |kind| events.iter().filter(move |event| event.kind == kind);
    let opens: Vec<_> = of(Kind::Open).map(|event| event.length).collect();
    assert_eq!((opens, of(Kind::Close).count()), (vec![5_000_000], 1));
    // A host may take back pages that the kernel has read ahead before they are read.
    let missed = missed(&events);
    assert!(
        missed >= 5_000_000 && all_but_few(5_000_000, missed),
        "{missed}"
    );
    // Reads of this process itself are not reported.
    std::fs::read(ground.at.join("a")).expect("to read");
    assert!(heard(&fuse).is_empty());
    fuse.mirror().unmount();
    assert!(fuse.mirror().core().ended(Duration::from_secs(20)));
    let mut events = Vec::new();
    assert_eq!(fuse.events(&mut events).expect("the end"), Flow::Ended);
}

#[test]
fn test_a_load_stops_by_its_cookie() {
    const LONG: u64 = 4 << 30;

    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let sparse = File::create(ground.lower.join("a")).expect("a file");
    sparse.set_len(LONG).expect("a long one");
    let fuse = mounted(&ground);
    let file = fuse.open(Path::new("a")).expect("its id");
    let how = How {
        cookie: 7,
        ..How::default()
    };
    // Stopping a load that is not under way does not stop a later one.
    fuse.stop(7);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| fuse.load(span(file, 0..LONG), how));
        while fuse.resident(span(file, 0..LONG)).expect("it") < 2 * MIB {
            assert!(!load.is_finished());
        }
        fuse.stop(8);
        fuse.stop(7);
        let loaded = load.join().expect("the thread").expect("to load");
        assert!(loaded.stopped && loaded.done >= MIB && loaded.done < LONG);
    });
    assert!(lock(&fuse.flying).is_empty());
}

#[test]
fn test_older_contents_are_not_added_to() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.file("a", 3 << 20);
    let fuse = mounted(&ground);
    let file = fuse.open(Path::new("a")).expect("its id");
    fuse.load(span(file, 0..MIB), How::default())
        .expect("to load");
    let other = pattern(3 << 20, 9);
    std::fs::write(ground.lower.join("a"), &other).expect("to change it");
    let loaded = fuse
        .load(span(file, 0..2 * MIB), How::default())
        .expect("to load");
    assert_eq!(loaded.fresh, 2 * MIB);
    cat(&ground.at.join("a"), &other);
}

#[test]
fn test_a_file_that_the_kernel_has_forgotten_is_found_by_its_name() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.file("a", 2 << 20);
    ground.file("b", 2 << 20);
    let fuse = mounted(&ground);
    let file = fuse.open(Path::new("a")).expect("its id");
    let other = fuse.open(Path::new("b")).expect("its id");
    fuse.close(other).expect("it was open");
    assert_eq!(
        fuse.close(other).expect_err("not any more").errno(),
        libc::EBADF
    );
    // On a remount, the kernel forgets all names, and with them the files. Without -i, `mount` leaves it to
    // the package fuse3, which remounts nothing.
    let remounted = Command::new("mount")
        .args(["-i", "-o", "remount,ro"])
        .arg(&ground.at)
        .status();
    let since = Instant::now();
    while fuse.mirror.core().knows(file.0) || fuse.mirror.core().knows(other.0) {
        if since.elapsed() > Duration::from_secs(5) {
            return skip(&format!("the kernel forgets nothing: {remounted:?}"));
        }
    }
    let whole = span(file, 0..2 * MIB);
    assert_eq!(fuse.resident(whole).expect("nothing"), 0);
    assert_eq!(
        fuse.evict(whole, false).expect("nothing"),
        Evicted::default()
    );
    assert_eq!(
        fuse.load(whole, How::default()).expect("to load").fresh,
        2 * MIB
    );
    assert!(all_but_few(fuse.resident(whole).expect("all"), 2 * MIB));
    let gone = fuse
        .load(span(other, 0..MIB), How::default())
        .expect_err("closed");
    assert!(matches!(gone, Fault::Stale));
}

#[test]
fn test_a_deleted_file_that_is_open_is_estimated() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.file("a", 2 << 20);
    let fuse = mounted(&ground);
    let held = File::open(ground.at.join("a")).expect("a file");
    let file = FileId(held.metadata().expect("it").ino());
    std::fs::remove_file(ground.lower.join("a")).expect("to remove it");
    let loaded = fuse
        .load(span(file, 0..MIB), How::default())
        .expect("to load");
    assert_eq!(loaded.fresh, MIB);
    assert_eq!(fuse.resident(span(file, 0..2 * MIB)).expect("it"), MIB);
    let cached = cachestat(&held, &(0..0)).expect("cachestat");
    assert!(all_but_few(cached, 256), "{cached}");
    let path = fuse.path(file).expect_err("it has none");
    assert_eq!(path.errno(), libc::ENOENT);
    let mut got = vec![0; 100];
    assert_eq!(fuse.read(file, 5, &mut got).expect("to read"), 100);
    assert_eq!(got, &bytes[5..105]);
    fuse.evict(span(file, 0..2 * MIB), false).expect("to evict");
    assert_eq!(cachestat(&held, &(0..0)).expect("cachestat"), 0);
}

#[test]
fn denied_setgroups_is_reported_as_a_limit() {
    assert!(limit_of_groups("deny\n").is_some_and(|it| it.contains("supplementary")));
    assert_eq!(limit_of_groups("allow\n"), None);
    assert_eq!(limit_of_groups(""), None);
}

#[test]
fn test_files_are_what_they_are_below() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    std::fs::create_dir(ground.lower.join("sub")).expect("a directory");
    let bytes = ground.file("sub/a", 70_000);
    let fuse = mounted(&ground);
    let file = fuse.open(Path::new("sub/a")).expect("its id");
    let info = fuse.info(file).expect("its info");
    let below = ground.lower.join("sub/a").metadata().expect("it");
    assert_eq!(
        (info.size, info.device, info.inode),
        (70_000, below.dev(), below.ino())
    );
    assert_eq!(fuse.path(file).expect("its path"), Path::new("sub/a"));
    let mut got = vec![0; 100_000];
    assert_eq!(fuse.read(file, 1, &mut got).expect("to read"), 69_999);
    assert_eq!(&got[..69_999], &bytes[1..]);
    assert_eq!(
        pages(&ground.lower.join("sub/a")),
        0,
        "nothing is cached below"
    );
    let list = fuse.list(Path::new(""), true).expect("a list");
    assert!(list.iter().any(|entry| entry.path == Path::new("sub/a")));
    assert!(matches!(fuse.open(Path::new("sub")), Err(Fault::NoFile)));
    assert!(
        fuse.limits()
            .iter()
            .any(|limit| limit.contains("off in the settings"))
    );
    assert!(fuse.features().contain(Features::EVICT_MAPPED));
}

#[test]
fn test_by_passthrough_lower_files_and_those_of_the_mount_lead_to_each_other() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.file("a", 2 << 20);
    // Mounted over itself, so that no path leads to the lower file.
    let mounted = mount(&ground.lower, &ground.lower, &MirrorOptions::default());
    let Mounted::Passthrough(through) = mounted.expect("to mount") else {
        return skip("this kernel has no passthrough");
    };
    let above = File::open(ground.lower.join("a")).expect("a file");
    let id = FileId(above.metadata().expect("it").ino());
    let (lower, identity) = through.lower(id).expect("its lower file");
    let metadata = lower.metadata().expect("it");
    assert_eq!(
        (metadata.dev(), metadata.ino()),
        (identity.device, identity.inode)
    );
    assert_ne!(metadata.dev(), through.mirror().device());
    assert_eq!(through.file(identity.device, identity.inode), Some(id));
    io::Read::read(&mut &above, &mut [0; 4096]).expect("to read");
    assert!(cachestat(&lower, &(0..0)).expect("cachestat") > 0);
    assert_eq!(cachestat(&above, &(0..0)).expect("cachestat"), 0);
    // Mappings are found by the lower file, though the kernel shows the mount's device.
    let mapped = Mapped::new(&above).expect("a mapping");
    let below = Identity::of(&metadata);
    let found = mappings::of(std::process::id(), below, Some(through.mirror().device()));
    let lengths: Vec<_> = found
        .iter()
        .filter_map(|mapping| mapping.addresses_of(&(0..u64::MAX)))
        .map(|addresses| addresses.end - addresses.start)
        .collect();
    assert_eq!(lengths, [2 << 20]);
    assert_eq!(mapped.length(), 2 << 20);
    drop(mapped);
    through.want(Kinds::from(Kind::Open));
    let bytes = std::fs::read(ground.lower.join("a")).expect("to read");
    let process = cat(&ground.lower.join("a"), &bytes);
    let mut events = Vec::new();
    while events.is_empty() {
        assert_eq!(through.events(&mut events), Flow::On);
    }
    let opened = (events[0].kind, events[0].file, events[0].process);
    assert_eq!(opened, (Kind::Open, id, process));
    let root = File::from(through.root().expect("the root"));
    assert_eq!(root.metadata().expect("it").dev(), identity.device);
}
