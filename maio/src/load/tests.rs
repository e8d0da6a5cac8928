mod forerunners;
mod silence;

use std::collections::{BTreeSet, HashSet};

use super::*;

const MIB: u64 = 1 << 20;
const PAGES: u32 = 256;

#[derive(Default)]
struct FakeProcesses {
    ranks: HashMap<u32, u32>,
    dead: HashSet<u32>,
}

impl Processes for FakeProcesses {
    fn facts(&self, process: u32) -> ProcessFacts {
        ProcessFacts {
            rank: self.rank(process),
            xpu: None,
        }
    }

    fn rank(&self, process: u32) -> Option<u32> {
        self.ranks.get(&process).copied()
    }

    fn is_alive(&self, process: u32) -> bool {
        !self.dead.contains(&process)
    }
}

fn extent(first: u32, pages: u32) -> Extent {
    Extent {
        file: 0,
        first,
        pages,
    }
}

fn memory(mib: u64) -> Memory {
    Memory {
        limit: mib * MIB,
        used: 0,
        threshold: mib * MIB,
        available: mib * MIB,
        group: 0,
    }
}

/// Two workers, each with 16 MiB of its own and 16 MiB that both read.
fn forecast() -> Forecast {
    let groups = [
        vec![extent(0, 16 * PAGES), extent(32 * PAGES, 16 * PAGES)],
        vec![
            extent(16 * PAGES, 16 * PAGES),
            extent(32 * PAGES, 16 * PAGES),
        ],
    ];
    let expected = |worker| ExpectedWorker { worker, xpu: None };
    Forecast {
        files: Arc::new([("weights".to_owned(), 48 * MIB)]),
        pieces: Arc::new(Pieces::new(&groups)),
        expected: vec![expected(0), expected(1)],
        several: false,
    }
}

fn event(kind: Kind, process: u32, at_ms: u64) -> Event {
    let mut event = Event::new(kind, ppc::FileId(1), 0, 0).by(process);
    event.time_ns = at_ms * 1_000_000;
    event
}

/// Lets a load hear of an event at once.
fn hear(load: &mut Load, event: &Event, extent: &Extent, fake: &FakeProcesses) {
    load.hear(event, extent, fake, event.time_ns);
}

fn reads(load: &mut Load, process: u32, extents: &[Extent], at_ms: u64, fake: &FakeProcesses) {
    for extent in extents {
        for first in (extent.first..extent.end()).step_by(64) {
            let pages = (extent.end() - first).min(64);
            let extent = Extent {
                first,
                pages,
                ..*extent
            };
            hear(load, &event(Kind::Touch, process, at_ms), &extent, fake);
        }
    }
}

const IDLE: Duration = Duration::from_secs(10);

fn ns(seconds: u64) -> u64 {
    seconds * 1_000_000_000
}

#[test]
fn whole_forecast_is_loaded_at_the_first_event() {
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    hear(
        &mut load,
        &event(Kind::Open, 50, 0),
        &extent(0, 1),
        &FakeProcesses::default(),
    );
    let advice = load.advise(|_| true);
    let pages: u32 = advice.loads.iter().map(|wish| wish.extent.pages).sum();
    assert_eq!(pages, 48 * PAGES);
    assert!(advice.loads.iter().all(|wish| wish.process.is_none()));
    assert_eq!(load.advise(|_| true), Advice::default());
}

#[test]
fn early_load_waits_for_readers_then_takes_priority() {
    let fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.await_readers(true);
    let pages =
        |advice: &Advice| -> u32 { advice.loads.iter().map(|wish| wish.extent.pages).sum() };
    let advice = load.advise(|_| true);
    assert!(advice.loads.iter().all(|wish| wish.behind));
    assert_eq!(pages(&advice), 48 * PAGES);
    // Imports take longer than a load otherwise waits for readers.
    assert!(!load.tick(ns(200), IDLE, &fake));
    assert_eq!(load.advise(|_| true), Advice::default());
    hear(
        &mut load,
        &event(Kind::Open, 50, 200_000),
        &extent(0, 1),
        &fake,
    );
    let advice = load.advise(|_| true);
    assert_eq!(advice.cancels, [extent(0, 48 * PAGES)]);
    assert!(advice.loads.iter().all(|wish| !wish.behind));
    // Both workers ask for what both read: what is cached costs nothing.
    assert_eq!(pages(&advice), 64 * PAGES);
    assert!(!load.tick(ns(205), IDLE, &fake));
}

#[test]
fn worker_parts_are_recorded_and_numbered_by_rank() {
    let mut fake = FakeProcesses::default();
    fake.ranks.extend([(10, 1), (11, 0)]);
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(None);
    let first = [
        extent(16 * PAGES, 16 * PAGES),
        extent(32 * PAGES, 16 * PAGES),
    ];
    let other = [extent(0, 16 * PAGES), extent(32 * PAGES, 16 * PAGES)];
    reads(&mut load, 10, &first, 1000, &fake);
    reads(&mut load, 11, &other, 2000, &fake);
    // This process only looks at the model.
    reads(&mut load, 12, &[extent(0, 1)], 2000, &fake);
    assert!(!load.tick(ns(5), IDLE, &fake));
    assert!(load.tick(ns(13), IDLE, &fake));
    let outcome = load.end();
    assert_eq!((outcome.expected, outcome.unknown), (48 * 256, 0));
    let parts = outcome.parts.expect("it was whole");
    let part = |worker, extents: [Extent; 2]| Part {
        worker,
        xpu: None,
        extents: extents.to_vec(),
    };
    assert_eq!(parts, [part(0, other).joined(), part(1, first).joined()]);
}

/// Where other processes have the processors, the ranks of workers are found out after their first events.
#[test]
fn a_rank_that_becomes_known_late_counts_all_the_same() {
    let mut fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(None);
    let (first, other) = (extent(16 * PAGES, 16 * PAGES), extent(0, 16 * PAGES));
    reads(&mut load, 10, &[first], 1000, &fake);
    reads(&mut load, 11, &[other], 2000, &fake);
    fake.ranks.extend([(10, 1), (11, 0)]);
    assert!(load.tick(ns(13), IDLE, &fake));
    let parts = load.end().parts.expect("it was whole");
    let starts: Vec<_> = parts
        .iter()
        .map(|part| (part.worker, part.extents[0].first))
        .collect();
    assert_eq!(starts, [(0, 0), (1, 16 * PAGES)]);
}

impl Part {
    /// Joins ranges that touch.
    fn joined(mut self) -> Self {
        let mut joined: Vec<Extent> = Vec::new();
        for extent in self.extents {
            match joined.last_mut() {
                Some(last) if last.end() == extent.first => last.pages += extent.pages,
                _ => joined.push(extent),
            }
        }
        self.extents = joined;
        self
    }
}

#[test]
fn fault_around_past_a_workers_part_is_not_recorded() {
    let mut fake = FakeProcesses::default();
    fake.ranks.extend([(10, 0), (11, 1)]);
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(None);
    // Faults at every 16th page from the second on, and the last one of the part maps 10 pages more.
    reads(&mut load, 10, &[extent(0, 1)], 1000, &fake);
    let mut touch = event(Kind::Touch, 10, 1000);
    touch.mmap = true;
    for first in (10..16 * PAGES).step_by(16) {
        hear(&mut load, &touch, &extent(first, 16), &fake);
    }
    hear(&mut load, &touch, &extent(1, 9), &fake);
    reads(
        &mut load,
        11,
        &[extent(16 * PAGES, 32 * PAGES)],
        1000,
        &fake,
    );
    assert!(load.tick(ns(13), IDLE, &fake));
    let parts = load.end().parts.expect("it was whole");
    let extents: Vec<_> = parts.into_iter().map(|part| part.extents).collect();
    let own = [extent(0, 16 * PAGES), extent(16 * PAGES, 32 * PAGES)];
    assert_eq!(extents, own.map(|own| vec![own]));
}

#[test]
fn fault_around_before_a_workers_part_is_not_recorded_but_the_header_is() {
    let mut fake = FakeProcesses::default();
    fake.ranks.extend([(10, 0), (11, 1)]);
    // The header has four pages, so faults of 16 pages bring in the end of the other worker's part.
    let parts = [extent(4, 8 * PAGES), extent(4 + 8 * PAGES, 8 * PAGES)];
    let forecast = Forecast {
        pieces: Arc::new(Pieces::new(&parts.map(|part| vec![part]))),
        ..forecast()
    };
    let mut load = Load::new(forecast, memory(1024), u64::MAX, false, 0);
    load.record(None);
    for (process, part) in [10, 11].into_iter().zip(parts) {
        reads(
            &mut load,
            process,
            &[extent(part.first + 64, 1)],
            1000,
            &fake,
        );
        let mut touch = event(Kind::Touch, process, 1000);
        touch.mmap = true;
        let blocks = (part.first / 16 * 16..part.end()).step_by(16);
        for first in std::iter::once(0).chain(blocks) {
            hear(&mut load, &touch, &extent(first, 16), &fake);
        }
    }
    assert!(load.tick(ns(13), IDLE, &fake));
    let parts = load.end().parts.expect("it was whole");
    let pages: Vec<BTreeSet<_>> = parts
        .iter()
        .map(|part| part.extents.iter().flat_map(|it| it.first..it.end()))
        .map(BTreeSet::from_iter)
        .collect();
    let first: BTreeSet<_> = (0..4 + 8 * PAGES).collect();
    let other = (0..16).chain(4 + 8 * PAGES..4 + 16 * PAGES).collect();
    assert_eq!(pages, [first, other]);
}

#[test]
fn a_load_whose_reader_ends_in_the_midst_of_it_is_not_kept() {
    let mut fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(None);
    reads(&mut load, 10, &[extent(0, 10 * PAGES)], 1000, &fake);
    fake.dead.insert(10);
    assert!(!load.tick(ns(1) + 100_000_000, IDLE, &fake));
    assert!(load.tick(ns(3), IDLE, &fake), "no reader is left");
    assert!(load.end().parts.is_err());
    // A reader that ends when all has been read has not failed.
    let mut fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(None);
    reads(&mut load, 10, &[extent(0, 48 * PAGES)], 1000, &fake);
    fake.dead.insert(10);
    assert!(!load.tick(ns(1) + 100_000_000, IDLE, &fake));
    assert!(load.end().parts.is_ok());
    let fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(Some((0, 10)));
    reads(&mut load, 10, &[extent(0, 48 * PAGES)], 1000, &fake);
    assert!(load.end().parts.is_err(), "it had begun before");
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(Some((0, 10)));
    hear(&mut load, &event(Kind::Open, 10, 100), &extent(0, 1), &fake);
    reads(&mut load, 10, &[extent(0, 48 * PAGES)], 1000, &fake);
    assert!(load.end().parts.is_ok(), "it was only told late");
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(Some((0, 10)));
    hear(&mut load, &event(Kind::Open, 11, 100), &extent(0, 1), &fake);
    reads(&mut load, 10, &[extent(0, 48 * PAGES)], 1000, &fake);
    assert!(load.end().parts.is_err(), "another process has opened it");
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(None);
    load.lose();
    assert!(load.end().parts.is_err(), "some is not known");
}

#[test]
fn a_process_that_reads_anothers_part_is_taken_for_that_one() {
    let fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.advise(|_| true);
    // What both read says nothing: the process is taken for the first worker, and then no longer.
    reads(&mut load, 10, &[extent(32 * PAGES, 64)], 1, &fake);
    assert_eq!(load.workers.reader(0).0, Some(10));
    reads(&mut load, 10, &[extent(16 * PAGES, 64)], 2, &fake);
    assert_eq!(
        (load.workers.reader(0).0, load.workers.reader(1).0),
        (None, Some(10))
    );
    reads(&mut load, 11, &[extent(0, 64)], 3, &fake);
    assert_eq!(load.workers.reader(0).0, Some(11));
    // A third process reads what the first worker reads.
    reads(&mut load, 12, &[extent(0, 64)], 3, &fake);
    assert_eq!(load.workers.reader(2).0, Some(12));
}

#[test]
fn a_place_that_a_process_has_left_holds_nothing_back() {
    let fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.advise(|_| true);
    let [first, second] = [0, 16 * PAGES].map(|at| extent(at, 16 * PAGES));
    let both = extent(32 * PAGES, 16 * PAGES);
    reads(&mut load, 10, &[extent(0, 64)], 1, &fake);
    reads(&mut load, 11, &[extent(16 * PAGES, 64)], 1, &fake);
    // A third process begins as the first worker's double, and turns out to be the second's.
    reads(&mut load, 12, &[extent(0, 64), second, both], 2, &fake);
    reads(&mut load, 10, &[first, both], 3, &fake);
    reads(&mut load, 11, &[second, both], 3, &fake);
    let dropped = |load: &mut Load| -> u32 {
        let drops = load.drop_passed();
        drops.iter().map(|it| it.pages).sum()
    };
    assert_eq!(dropped(&mut load), 48 * PAGES);

    // One of two turns out to be the other's double: the place it had is expected no longer.
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.advise(|_| true);
    reads(&mut load, 10, &[extent(0, 64)], 1, &fake);
    reads(&mut load, 11, &[extent(32 * PAGES, 64)], 1, &fake);
    reads(&mut load, 11, &[first, both], 2, &fake);
    reads(&mut load, 10, &[first, both], 2, &fake);
    assert!(!load.tick(ns(1), IDLE, &fake));
    assert_eq!(dropped(&mut load), 48 * PAGES);
}

#[test]
fn large_folio_fault_does_not_reassign_a_reader() {
    let mut fake = FakeProcesses::default();
    fake.ranks.extend([(10, 0), (11, 1)]);
    // Each fault maps a folio of 2 MiB, which begins and ends with the other worker's part.
    let parts = [vec![(128, 256)], vec![(0, 128), (384, 128)]];
    let parts = parts.map(|part| {
        let of = |folio: u32| {
            part.iter()
                .map(move |&(at, pages)| extent(folio * 512 + at, pages))
        };
        (0..16).flat_map(of).collect::<Vec<_>>()
    });
    let forecast = Forecast {
        pieces: Arc::new(Pieces::new(&parts)),
        ..forecast()
    };
    let mut load = Load::new(forecast, memory(1024), u64::MAX, false, 0);
    load.advise(|_| true);
    for at in (0..8192).step_by(512) {
        let mut event = event(Kind::Touch, 10, 1);
        event.mmap = true;
        hear(&mut load, &event, &extent(at, 512), &fake);
    }
    let member = load.workers.member(10).expect("it has read");
    assert_eq!(member.place, Some((0, 0)));
    assert_eq!(load.window.progress(0), (4096, 4096));
}

#[test]
fn a_worker_that_is_off_its_course_gets_the_one_that_fits_rank_or_not() {
    let mut fake = FakeProcesses::default();
    // The ranks are the other way round than in the template.
    fake.ranks.extend([(10, 1), (11, 0)]);
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(None);
    load.advise(|_| true);
    let place = |load: &mut Load, process| {
        let member = load.workers.member(process);
        member.and_then(|it| it.place).map(|(group, _)| group)
    };
    reads(&mut load, 10, &[extent(0, 2 * PAGES)], 1, &fake);
    reads(&mut load, 11, &[extent(16 * PAGES, 2 * PAGES)], 1, &fake);
    assert_eq!(
        (place(&mut load, 10), place(&mut load, 11)),
        (Some(1), Some(0))
    );
    reads(&mut load, 10, &[extent(2 * PAGES, 8 * PAGES)], 2, &fake);
    reads(&mut load, 11, &[extent(18 * PAGES, 8 * PAGES)], 2, &fake);
    assert_eq!(
        (place(&mut load, 10), place(&mut load, 11)),
        (Some(0), Some(1))
    );
    reads(&mut load, 10, &[extent(10 * PAGES, 6 * PAGES)], 3, &fake);
    reads(&mut load, 11, &[extent(26 * PAGES, 6 * PAGES)], 3, &fake);
    let outcome = load.end();
    assert_eq!(outcome.unknown, 0);
    assert!(
        outcome.off_course >= 28 * u64::from(PAGES),
        "{}",
        outcome.off_course
    );
    // A look at another worker's part does not count as that.
    let mut fake = FakeProcesses::default();
    fake.ranks.extend([(10, 0), (11, 1)]);
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.advise(|_| true);
    reads(
        &mut load,
        10,
        &[extent(0, 8 * PAGES), extent(16 * PAGES, PAGES)],
        1,
        &fake,
    );
    reads(&mut load, 10, &[extent(8 * PAGES, 8 * PAGES)], 1, &fake);
    assert_eq!(place(&mut load, 10), Some(0));
}

#[test]
fn workers_sharing_a_rank_are_separated_by_their_reads() {
    let mut fake = FakeProcesses::default();
    // As if all processes had inherited a launcher's variable.
    fake.ranks.extend([(10, 0), (11, 0)]);
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(None);
    load.advise(|_| true);
    reads(&mut load, 10, &[extent(0, 16 * PAGES)], 1, &fake);
    reads(&mut load, 11, &[extent(16 * PAGES, 16 * PAGES)], 1, &fake);
    let place = |load: &mut Load, process| {
        let member = load.workers.member(process);
        member.and_then(|it| it.place).map(|(group, _)| group)
    };
    assert_eq!(
        (place(&mut load, 10), place(&mut load, 11)),
        (Some(0), Some(1))
    );
    let outcome = load.end();
    assert_eq!(outcome.off_course, 0);
    let parts = outcome.parts.expect("it was whole");
    let numbers: Vec<_> = parts.iter().map(|part| part.worker).collect();
    assert_eq!(numbers, [0, 1]);
}

#[test]
fn idle_worker_does_not_hold_up_a_reading_one() {
    let fake = FakeProcesses::default();
    // There is room for a third of the model.
    let mut load = Load::new(forecast(), memory(16), u64::MAX, false, 0);
    let mine = [extent(0, 16 * PAGES), extent(32 * PAGES, 16 * PAGES)];
    reads(&mut load, 11, &[extent(16 * PAGES, 64)], 1, &fake);
    let mut pages = 0;
    for second in 0..60 {
        let at = second % 32;
        let part = &mine[usize::from(at >= 16)];
        let first = part.first + u32::try_from(at % 16).expect("small") * PAGES;
        if second < 32 {
            reads(&mut load, 10, &[extent(first, PAGES)], second * 1000, &fake);
        }
        load.tick(ns(second), Duration::from_hours(1), &fake);
        let advice = load.advise(|_| true);
        pages += advice
            .loads
            .iter()
            .map(|wish| u64::from(wish.extent.pages))
            .sum::<u64>();
    }
    assert!(pages >= 28 * u64::from(PAGES), "{pages}");
    assert!(load.window.held() <= 16 * u64::from(PAGES));
}

#[test]
fn fully_cached_or_bypassed_model_is_not_loaded() {
    let fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, true, 0);
    hear(&mut load, &event(Kind::Open, 50, 0), &extent(0, 1), &fake);
    assert_eq!(load.advise(|_| true), Advice::default());
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    assert!(!load.advise(|_| true).loads.is_empty());
    load.suspect_bypass();
    assert!(load.is_to_hold_back());
    let idle = Duration::from_secs(1);
    let pages = |extents: &[Extent]| extents.iter().map(|extent| extent.pages).sum::<u32>();
    let advice = load.hold_back(|extent| extent.first >= 32 * PAGES);
    assert_eq!(
        (pages(&advice.cancels), pages(&advice.drops)),
        (16 * PAGES, 0),
        "what was begun is stopped"
    );
    assert_eq!(load.advise(|_| true), Advice::default());
    assert!(!load.tick(ns(1), idle, &fake), "they may only have asked");
    assert!(load.tick(ns(2), idle, &fake));
    let advice = load.hold_back(|_| false);
    assert_eq!(pages(&advice.drops), 32 * PAGES, "of no use");
}

#[test]
fn a_reader_that_only_asked_whether_it_could_bypass_the_cache_is_loaded_for() {
    let fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    assert!(!load.advise(|_| true).loads.is_empty());
    load.suspect_bypass();
    assert!(load.is_to_hold_back());
    load.hold_back(|_| true);
    reads(&mut load, 50, &[extent(0, 15 * PAGES)], 0, &fake);
    assert!(
        load.advise(|_| true).loads.is_empty(),
        "headers, as it seems"
    );
    reads(&mut load, 50, &[extent(15 * PAGES, PAGES)], 0, &fake);
    let loads = load.advise(|_| true).loads;
    let pages: u32 = loads.iter().map(|wish| wish.extent.pages).sum();
    assert_eq!(pages, 32 * PAGES, "the rest");
}

#[test]
fn the_budget_is_what_others_leave() {
    let of = |used: u64, held: u64, others: u64| {
        let memory = Memory {
            used: used * MIB,
            ..memory(1600)
        };
        budget(memory, held * MIB, others * MIB) / MIB
    };
    assert_eq!(of(0, 0, 0), 1600);
    assert_eq!(of(800, 0, 800), 800);
    assert_eq!(of(800, 800, 0), 1600, "all of it is ours");
    assert_eq!(of(800, 800, 800), 800, "none of it has come in yet");
    assert_eq!(of(1200, 600, 0), 1000, "they took more since");
    assert_eq!(of(2000, 0, 0), 0);
}

fn misses(load: &mut Load, process: u32, extent: &Extent, at_ms: u64) {
    let mut event = event(Kind::Miss, process, at_ms);
    event.length = extent.length();
    hear(load, &event, extent, &FakeProcesses::default());
}

fn wished(load: &mut Load) -> u32 {
    let advice = load.advise(|_| true);
    advice.loads.iter().map(|wish| wish.extent.pages).sum()
}

#[test]
fn load_pauses_while_reads_stray_from_the_forecast() {
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    hear(
        &mut load,
        &event(Kind::Open, 50, 0),
        &extent(0, 1),
        &FakeProcesses::default(),
    );
    assert_eq!(wished(&mut load), 48 * PAGES);
    let elsewhere = |mib: u32| Extent {
        file: 3,
        ..extent(mib * PAGES, PAGES)
    };
    for mib in 0..15 {
        misses(&mut load, 50, &elsewhere(mib), 10);
    }
    assert!(!load.is_to_hold_back());
    misses(&mut load, 50, &elsewhere(15), 20);
    assert!(load.is_to_hold_back());
    // The first MiB of the whole has been loaded.
    let advice = load.hold_back(|extent| extent.first >= PAGES);
    assert!(!load.is_to_hold_back());
    let dropped: u32 = advice.cancels.iter().map(|extent| extent.pages).sum();
    assert!(advice.loads.is_empty() && advice.drops.is_empty());
    assert!(dropped >= 46 * PAGES, "{dropped}");
    assert_eq!(load.advise(|_| true), Advice::default());
    assert!(load.claims().is_empty());
    misses(&mut load, 50, &extent(0, 2), 30);
    let again = wished(&mut load);
    assert!((dropped - 2..=dropped).contains(&again), "{again}");
}

#[test]
fn load_whose_readers_died_is_held_back_and_ends() {
    let mut fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    hear(&mut load, &event(Kind::Open, 50, 0), &extent(0, 1), &fake);
    assert_eq!(wished(&mut load), 48 * PAGES);
    assert!(!load.tick(ns(9), IDLE, &fake) && !load.is_to_hold_back());
    fake.dead.insert(50);
    assert!(!load.tick(ns(9), IDLE, &fake) && load.is_to_hold_back());
    load.hold_back(|_| true);
    assert!(load.advise(|_| true).loads.is_empty());
    hear(
        &mut load,
        &event(Kind::Open, 51, 9500),
        &extent(0, 1),
        &fake,
    );
    assert_eq!(wished(&mut load), 48 * PAGES);
    fake.dead.insert(51);
    assert!(!load.tick(ns(19), IDLE, &fake));
    assert!(load.tick(ns(20), IDLE, &fake));
    let cancels = load.hold_back(|_| true).cancels;
    assert_eq!(cancels, [extent(0, 48 * PAGES)]);
}

#[test]
fn multi_node_load_covers_only_workers_that_appear() {
    let mut fake = FakeProcesses::default();
    fake.ranks.insert(10, 1);
    let several = true;
    let forecast = Forecast {
        several,
        ..forecast()
    };
    let mut load = Load::new(forecast, memory(1024), u64::MAX, false, 0);
    hear(&mut load, &event(Kind::Open, 50, 0), &extent(0, 1), &fake);
    assert_eq!(wished(&mut load), 0);
    hear(&mut load, &event(Kind::Open, 10, 1), &extent(0, 1), &fake);
    assert_eq!(wished(&mut load), 32 * PAGES);
}

#[test]
fn when_all_has_been_read_and_closed_it_is_over_soon() {
    let fake = FakeProcesses::default();
    for (pages, close, over) in [(48, true, true), (47, true, false), (48, false, false)] {
        let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
        load.record(None);
        hear(&mut load, &event(Kind::Open, 10, 0), &extent(0, 1), &fake);
        reads(&mut load, 10, &[extent(0, pages * PAGES)], 1000, &fake);
        if close {
            hear(
                &mut load,
                &event(Kind::Close, 10, 1000),
                &extent(0, 1),
                &fake,
            );
        }
        assert!(!load.tick(ns(2), IDLE, &fake));
        assert_eq!(load.tick(ns(4), IDLE, &fake), over, "{pages} {close}");
        assert!(load.tick(ns(12), IDLE, &fake));
    }
}

#[test]
fn a_beacon_among_neighbours_parts_does_not_make_a_worker_one_of_them() {
    // One page table covers parts of both workers, the second worker's last.
    let groups = [vec![extent(0, PAGES)], vec![extent(PAGES, PAGES)]];
    let forecast = Forecast {
        pieces: Arc::new(Pieces::new(&groups)),
        ..forecast()
    };
    let beacon = |load: &mut Load, process, fake: &FakeProcesses| {
        let mut event = event(Kind::Progress, process, 1);
        event.length = 2 * MIB;
        hear(load, &event, &extent(2 * PAGES - 1, 1), fake);
        load.workers.member(process).and_then(|member| member.place)
    };
    let mut fake = FakeProcesses::default();
    fake.ranks.extend([(10, 1), (11, 0)]);
    let mut load = Load::new(forecast.clone(), memory(1024), u64::MAX, false, 0);
    assert_eq!(beacon(&mut load, 11, &fake), Some((0, 0)));
    assert_eq!(beacon(&mut load, 10, &fake), Some((1, 1)));
    let mut load = Load::new(forecast, memory(1024), u64::MAX, false, 0);
    assert_eq!(
        beacon(&mut load, 20, &fake),
        Some((0, 0)),
        "who comes first"
    );
    assert_eq!(beacon(&mut load, 21, &fake), Some((1, 1)));
}
