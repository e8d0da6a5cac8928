//! Loads that begin before their readers, and processes that come before these.

use super::*;

#[test]
fn a_forerunner_that_reads_a_file_of_no_template_is_not_the_reader() {
    let mut fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.await_readers(true);
    assert!(!load.advise(|_| true).loads.is_empty());
    let configuration = Extent {
        file: 1,
        first: 0,
        pages: 1,
    };
    for kind in [Kind::Open, Kind::Miss, Kind::Touch] {
        hear(&mut load, &event(kind, 50, 1000), &configuration, &fake);
    }
    fake.dead.insert(50);
    assert!(!load.tick(ns(2), IDLE, &fake));
    assert!(load.is_early() && !load.is_to_hold_back());
    assert_eq!(load.left(), 48 * MIB);
}

#[test]
fn a_load_that_a_forerunner_has_begun_waits_for_readers_until_one_reaches_the_weights() {
    let mut fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    let configuration = Extent {
        file: 1,
        first: 0,
        pages: 1,
    };
    hear(&mut load, &event(Kind::Open, 50, 0), &configuration, &fake);
    load.await_readers(true);
    fake.dead.insert(50);
    assert!(!load.tick(ns(60), IDLE, &fake));
    assert!(load.is_early() && !load.is_to_hold_back());
    hear(
        &mut load,
        &event(Kind::Open, 51, 61_000),
        &extent(0, 1),
        &fake,
    );
    load.await_readers(true);
    assert!(!load.is_early(), "its reader is there");
}

#[test]
fn a_forerunner_that_ends_leaves_its_place_to_the_worker() {
    let mut fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    // The shell opens the file, and `head` reads of it.
    hear(&mut load, &event(Kind::Open, 50, 0), &extent(0, 1), &fake);
    misses(&mut load, 51, &extent(0, 160), 0);
    fake.dead.insert(51);
    // That it is gone is found out before anything is loaded.
    assert!(!load.tick(ns(1) / 1000, IDLE, &fake));
    // With the piece that it has brought a part of in.
    assert_eq!(wished(&mut load), 48 * PAGES);
    misses(&mut load, 52, &extent(0, 160), 100);
    let place = |load: &mut Load, it| load.workers.member(it).and_then(|it| it.place);
    assert_eq!(place(&mut load, 51), None);
    assert_eq!(place(&mut load, 52), Some((0, 0)));
}

#[test]
fn early_load_waits_again_after_a_header_only_reader() {
    let fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.await_readers(true);
    // A server, whose workers have yet to start.
    misses(&mut load, 50, &extent(0, 32), 1000);
    assert!(!load.tick(ns(2), IDLE, &fake) && !load.is_early());
    assert!(!load.tick(ns(7), IDLE, &fake) && load.is_early());
    assert!(load.advise(|_| true).loads.iter().all(|it| it.behind));
    let place = |load: &mut Load, it| load.workers.member(it).and_then(|it| it.place);
    assert_eq!(place(&mut load, 50), None, "it is the worker's");
    hear(
        &mut load,
        &event(Kind::Open, 50, 8000),
        &extent(0, 1),
        &fake,
    );
    assert!(load.is_early(), "it looks again");
    assert!(!load.tick(ns(300), IDLE, &fake));
    misses(&mut load, 51, &extent(0, 160), 301_000);
    assert!(!load.is_early());
}

#[test]
fn load_ends_after_ten_minutes_without_a_reader() {
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.await_readers(true);
    assert!(!load.tick(ns(599), IDLE, &FakeProcesses::default()));
    assert!(load.tick(ns(601), IDLE, &FakeProcesses::default()));
}
