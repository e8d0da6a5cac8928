//! Which events report what readers do.

use test_support::{pages_taken_back, undisturbed};

use super::*;
use crate::backend::observe::record::Raw;
use crate::sys::testing::all_but_few;

#[test]
fn misses_are_what_was_read_cold_and_hits_are_none() {
    each_source("misses", |folder, open| {
        let path = folder.file("sub/model", 24 * MIB + 100);
        folder.file("other", MIB);
        let observe = open(folder);
        let file = observe.open(Path::new("sub/model")).expect("its id");
        want(&observe, &[Kind::Miss]);
        let mut reader = Reader::new();
        let name = path.display();
        for (from, to) in [
            (MIB, 2 * MIB),
            (5 * MIB + 5, 6 * MIB),
            (20 * MIB, 24 * MIB + 100),
        ] {
            reader.does(&format!("exact {name} {from} {to} 65536"));
        }
        let events = heard(&observe);
        let expected = vec![
            (MIB, 2 * MIB),
            (5 * MIB, 6 * MIB),
            (20 * MIB, 24 * MIB + 100),
        ];
        assert_eq!(union(&events, Kind::Miss, file, reader.id()), expected);
        assert!(
            events
                .iter()
                .all(|event| event.kind == Kind::Miss && event.file == file)
        );
        assert!(events.iter().all(|event| !event.mmap && event.time_ns > 0));
        // Readahead brings in the whole file, and nothing beyond it.
        reader.does(&format!("read {name} 0 {} 1048576", 24 * MIB + 100));
        let all: Vec<_> = heard(&observe).into_iter().chain(events).collect();
        let whole = vec![(0, 24 * MIB + 100)];
        assert_eq!(union(&all, Kind::Miss, file, reader.id()), whole);
        let warm = || {
            warm_unheard(&observe, &path);
            reader.does(&format!("read {name} 0 {} 65536", 24 * MIB + 100));
            heard(&observe)
        };
        assert_eq!(undisturbed(warm, Vec::is_empty), [], "hits");
        // Misses through a mapping.
        drop_cached(&path);
        reader.does(&format!("map {name}"));
        reader.does(&format!("touch 0 {}", 24 * MIB));
        let events = heard(&observe);
        assert_eq!(union(&events, Kind::Miss, file, reader.id()), whole);
        assert!(events.iter().all(|event| event.mmap), "by faults");
    });
}

/// The kernel's first record of a read that jumps may come from further on, and nothing else says where the read
/// began. So this test looks at the records themselves.
#[cfg(target_arch = "x86_64")]
#[test]
fn programs_find_out_where_a_read_began() {
    each_source("beginnings", |folder, open| {
        let path = folder.file("model", 8 * MIB);
        let observe = open(folder);
        if observe.source.name() == "perf" {
            return;
        }
        want(&observe, &[Kind::Touch]);
        let mut reader = Reader::new();
        for from in [MIB, 5 * MIB, 3 * MIB] {
            let to = from + MIB;
            reader.does(&format!("read {} {from} {to} 262144", path.display()));
            let mut raws = Vec::new();
            observe.source.take(&mut raws);
            let read =
                |raw: &&Raw| raw.point == Point::Get && raw.process == reader.id() && !raw.late;
            let first = raws.iter().find(read).expect("a record of the read");
            assert_eq!(first.beginning, Some(from / sys::page_size()));
        }
    });
}

#[test]
fn touches_and_beacons_tell_of_hits_too() {
    each_source("touches", |folder, open| {
        let path = folder.file("model", 16 * MIB);
        let observe = open(folder);
        let file = observe.open(Path::new("model")).expect("its id");
        let mut reader = Reader::new();
        let name = path.display();
        reader.does(&format!("read {name} 0 {} 1048576", 16 * MIB));
        want(&observe, &[Kind::Miss, Kind::Touch, Kind::Progress]);
        assert_eq!(heard(&observe), []);
        warm_unheard(&observe, &path);
        reader.does(&format!("read {name} {MIB} {} 262144", 9 * MIB));
        let events = heard(&observe);
        let touched = union(&events, Kind::Touch, file, reader.id());
        assert_eq!(touched, [(MIB, 9 * MIB)]);
        let beacons = || events.iter().filter(|event| event.kind == Kind::Progress);
        assert_eq!(beacons().map(|event| event.length).sum::<u64>(), 8 * MIB);
        assert_eq!(
            beacons().next_back().map(|event| event.offset),
            Some(9 * MIB)
        );
        assert!(beacons().is_sorted_by_key(|event| event.offset));
        assert!(events.iter().all(|event| event.kind != Kind::Miss));
    });
}

#[test]
fn beacons_of_hits_come_without_each_touch() {
    each_source("beacons", |folder, open| {
        let path = folder.file("model", 33 * MIB);
        let observe = open(folder);
        let file = observe.open(Path::new("model")).expect("its id");
        want(&observe, &[Kind::Miss, Kind::Progress]);
        let mut reader = Reader::new();
        let name = path.display();
        // With perf, each of the smallest reads makes a record, and there is no room for that number.
        let merges = observe.source.name() == "bpf";
        let pieces = [4096, 65536, 1 << 20, 16 << 20];
        for piece in pieces.into_iter().skip(usize::from(!merges)) {
            // A CPU may hold back a quarter of the step, and report it with the next piece.
            let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
            let kept = MIB + cpus * MIB / 4;
            let by_reader = |events: &[Event], process| -> Vec<Event> {
                let of = |event: &&Event| event.kind == Kind::Progress && event.process == process;
                events.iter().filter(of).cloned().collect()
            };
            let sum = |beacons: &[Event]| beacons.iter().map(|event| event.length).sum::<u64>();
            let is_all = |sum: u64| sum <= 33 * MIB + kept && sum + kept >= 33 * MIB;
            let process = reader.id();
            let read = || {
                warm_unheard(&observe, &path);
                reader.does(&format!("read {name} 0 {} {piece}", 32 * MIB));
                // The end of a long request is known by the next request that is reported: the kernel takes hold of
                // large folios by many MiB at a time. A piece of at least a quarter of the step is always reported.
                reader.does(&format!("read {name} {} {} {MIB}", 32 * MIB, 33 * MIB));
                heard(&observe)
            };
            let events = undisturbed(read, |it| is_all(sum(&by_reader(it, process))));
            let beacons = by_reader(&events, process);
            let sum = sum(&beacons);
            assert!(is_all(sum), "{} {piece}: {sum}", observe.source.name());
            // The kernel may take hold of a long request at once, in folios of 2 MiB.
            let least = (32 * MIB / piece).min(8);
            let many = beacons.len() as u64 >= least;
            assert!(many, "{piece}: {beacons:?}");
            assert!(beacons.iter().all(|event| event.file == file));
            let far = beacons.iter().map(|event| event.offset).max();
            assert!(far > Some(32 * MIB), "{piece}: {far:?}");
            assert!(events.iter().all(|event| event.kind != Kind::Touch));
        }
    });
}

/// Loads a file of 64 MiB.
fn load_whole(observe: &Observe, file: FileId) {
    let (offset, length) = (0, 64 * MIB);
    let span = Span {
        file,
        offset,
        length,
    };
    observe.load(span, How::default()).expect("to load");
}

/// A fault that maps a huge page makes no record of the page cache, and a look at the mappings of a process that has
/// ended comes too late.
#[test]
fn mapped_touches_of_an_ended_process_are_reported() {
    each_source("gone", |folder, open| {
        let path = folder.file("model", 64 * MIB);
        let observe = open(folder);
        let file = observe.open(Path::new("model")).expect("its id");
        want(&observe, &[Kind::Open, Kind::Touch]);
        heard(&observe);
        if !observe.hearing.lock().expect("it").reports_faults() {
            return skip_part("page faults are not reported");
        }
        heard(&observe);
        load_whole(&observe, file);
        let (over, is_known) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut reader = Reader::new();
        let process = reader.id();
        let mut events = std::thread::scope(|scope| {
            let hearing = scope.spawn(|| {
                let mut events = Vec::new();
                while !over.load(Relaxed) {
                    hear_until_quiet(&observe, &mut events);
                    let touched = union(&events, Kind::Touch, file, process);
                    is_known.store(!touched.is_empty(), Relaxed);
                }
                events
            });
            reader.does(&format!("map {}", path.display()));
            reader.does(&format!("touch {} {}", 63 * MIB, 64 * MIB));
            let since = Instant::now();
            while !is_known.load(Relaxed) && since.elapsed() < LATEST {
                std::thread::sleep(Duration::from_millis(1));
            }
            // From the end to the beginning, without a pause.
            for step in (0..16).rev() {
                let from = step * 4 * MIB;
                reader.begins(&format!("touch {from} {}", from + 4 * MIB));
            }
            (0..16).for_each(|_| reader.wait());
            drop(reader);
            over.store(true, Relaxed);
            hearing.join().expect("no panic")
        });
        events.extend(heard(&observe));
        let touched = union(&events, Kind::Touch, file, process);
        assert_eq!(touched, [(0, 64 * MIB)]);
    });
}

/// A process that reads file by file maps each to where the one before was.
#[test]
fn files_mapped_at_the_same_address_are_distinguished() {
    each_source("same", |folder, open| {
        let paths = ["a", "b", "c"].map(|name| folder.file(name, 64 * MIB));
        let observe = open(folder);
        want(&observe, &[Kind::Open, Kind::Touch]);
        heard(&observe);
        if !observe.hearing.lock().expect("it").reports_faults() {
            return skip_part("page faults are not reported");
        }
        heard(&observe);
        let files = paths.each_ref().map(|path| {
            let name = Path::new(path.file_name().expect("its name"));
            let file = observe.open(name).expect("its id");
            load_whole(&observe, file);
            file
        });
        let over = AtomicBool::new(false);
        let is_known = [(); 3].map(|()| AtomicBool::new(false));
        let mut reader = Reader::new();
        let process = reader.id();
        let parts = [0, 32, 16].map(|at| (at * MIB, (at + 16) * MIB));
        let events = std::thread::scope(|scope| {
            let hearing = scope.spawn(|| {
                let mut events = Vec::new();
                while !over.load(Relaxed) {
                    hear_until_quiet(&observe, &mut events);
                    for (&file, is_known) in files.iter().zip(&is_known) {
                        let touched = union(&events, Kind::Touch, file, process);
                        is_known.store(!touched.is_empty(), Relaxed);
                    }
                }
                events.extend(heard(&observe));
                events
            });
            for ((path, is_known), (from, to)) in paths.iter().zip(&is_known).zip(parts) {
                reader.does(&format!("map {}", path.display()));
                for step in from / (2 * MIB)..to / (2 * MIB) {
                    let at = step * 2 * MIB;
                    reader.does(&format!("touch {at} {}", at + 2 * MIB));
                    // A file that is gone before it is known to have been mapped is left out.
                    let since = Instant::now();
                    while !is_known.load(Relaxed) && since.elapsed() < LATEST {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                reader.does("close");
            }
            drop(reader);
            over.store(true, Relaxed);
            hearing.join().expect("no panic")
        });
        for (file, part) in files.into_iter().zip(parts) {
            assert_eq!(union(&events, Kind::Touch, file, process), [part]);
        }
    });
}

#[test]
fn mapping_reader_is_followed_without_fault_records() {
    each_source("mapped", |folder, open| {
        let path = folder.file("model", 32 * MIB);
        let observe = open(folder);
        let file = observe.open(Path::new("model")).expect("its id");
        let taken_back = pages_taken_back();
        // The file is cached in huge pages, on which faults make no records.
        let span = Span {
            file,
            offset: 0,
            length: 32 * MIB,
        };
        let how = How {
            large: true,
            ..How::default()
        };
        // Its end is cached in small ones, so records report the end before a look finds what precedes it.
        let small = Span {
            offset: 31 * MIB,
            length: MIB,
            ..span
        };
        observe.load(small, How::default()).expect("to load");
        observe.load(span, how).expect("to load");
        want(&observe, &[Kind::Touch, Kind::Progress]);
        let mut reader = Reader::new();
        reader.does(&format!("map {}", path.display()));
        let mut events = Vec::new();
        for step in 0..8 {
            let from = step * 4 * MIB;
            reader.does(&format!("touch {from} {}", from + 4 * MIB));
            let since = Instant::now();
            // If a look took long, the next one waits.
            let so_far = |events: &[Event]| match union(events, Kind::Touch, file, reader.id())[..]
            {
                [(0, end)] => end,
                _ => 0,
            };
            while so_far(&events) < from + 4 * MIB {
                assert!(since.elapsed() < LATEST, "{events:?}");
                events.extend(heard(&observe));
            }
        }
        let touched = union(&events, Kind::Touch, file, reader.id());
        assert_eq!(touched, [(0, 32 * MIB)]);
        let beacons = || events.iter().filter(|event| event.kind == Kind::Progress);
        let sum: u64 = beacons().map(|event| event.length).sum();
        // A host may take back a few pages before they are read.
        assert!(
            sum >= 32 * MIB && all_but_few(32 * MIB, sum),
            "all of it, and nothing twice: {sum}"
        );
        // The last bytes, fewer than are wanted from one to the next, have none.
        let last = beacons().next_back().map_or(0, |event| event.offset);
        assert!((31 * MIB + 1..=32 * MIB).contains(&last), "{last}");
        // Pages that the machine takes back and the reader brings in again are reported a second time.
        if pages_taken_back() == taken_back {
            assert!(beacons().is_sorted_by_key(|event| event.offset));
        }
        assert!(
            events
                .iter()
                .all(|event| event.mmap && event.process == reader.id())
        );
    });
}

#[test]
fn kernel_before_6_12_reports_misses_and_progress_only() {
    each_source("partly", |folder, open| {
        let whole = open(folder);
        assert!(whole.features().contain(Features::TOUCH));
        drop(whole);
        let layouts: Vec<_> = available::layouts().expect("layouts")[..1].to_vec();
        assert_eq!(layouts[0].point, Point::Add);
        let (source, _) = available::open(&layouts).expect("a source");
        let why = Some("as it is tested".to_owned());
        let path = folder.file("model", 16 * MIB);
        let observe = Observe::with(&folder.0, source, why, &layouts).expect("to observe");
        assert!(!observe.features().contain(Features::TOUCH));
        assert!(observe.features().contain(Features::PROGRESS));
        let limits = observe.limits().join("\n");
        assert!(limits.contains("before 6.12") && limits.contains("as it is tested"));
        let refused = observe.want(Kinds::from(Kind::Touch), 0);
        assert_eq!(
            refused.map_err(|fault| fault.errno()),
            Err(libc::EOPNOTSUPP)
        );
        want(&observe, &[Kind::Miss, Kind::Progress]);
        let file = observe.open(Path::new("model")).expect("its id");
        let mut reader = Reader::new();
        reader.does(&format!("exact {} 0 {} 65536", path.display(), 8 * MIB));
        let events = heard(&observe);
        let missed = union(&events, Kind::Miss, file, reader.id());
        assert_eq!(missed, [(0, 8 * MIB)]);
        let far = |events: &[Event]| {
            let beacons = events.iter().filter(|event| event.kind == Kind::Progress);
            beacons.map(|event| event.offset).max()
        };
        assert!(far(&events) >= Some(7 * MIB));
        // Through a mapping, hits count as well, once a page has been read in.
        reader.does(&format!("map {}", path.display()));
        reader.does(&format!("touch 0 {}", 16 * MIB));
        assert_eq!(far(&heard(&observe)), Some(16 * MIB));
    });
}

#[test]
fn own_loads_reads_and_evictions_are_not_reported() {
    each_source("own", |folder, open| {
        folder.file("model", 16 * MIB);
        let observe = open(folder);
        let file = observe.open(Path::new("model")).expect("its id");
        want(
            &observe,
            &[Kind::Miss, Kind::Touch, Kind::Progress, Kind::Open],
        );
        let span = Span {
            file,
            offset: 0,
            length: 16 * MIB,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let loaded = observe.load(span, How::default()).expect("to load");
                assert_eq!((loaded.done, loaded.fresh), (16 * MIB, 16 * MIB));
            });
        });
        let resident = observe.resident(span).expect("to look");
        assert!(all_but_few(resident, 16 * MIB), "{resident}");
        assert_eq!(observe.read(file, 5, &mut [0; 100]).expect("to read"), 100);
        let evicted = observe.evict(span, false).expect("to evict");
        let all = all_but_few(evicted.dropped, 16 * MIB);
        assert!(all && evicted.kept == 0, "{evicted:?}");
        assert_eq!(heard(&observe), []);
    });
}
