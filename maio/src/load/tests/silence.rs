//! Readers that are silent: they have ended or pause, the device is slow, or what they do has not been heard yet.

use super::*;

#[test]
fn a_load_that_waits_for_its_device_is_not_idle() {
    let fake = FakeProcesses::default();
    // The device answers after 20 s, or never; the reader goes on a little later.
    for (answers, over) in [(20, 31), (u64::MAX, 301)] {
        let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
        load.record(None);
        hear(&mut load, &event(Kind::Open, 10, 0), &extent(0, 1), &fake);
        load.advise(|_| true);
        reads(&mut load, 10, &[extent(0, 2 * PAGES)], 0, &fake);
        let mut is_over = |seconds| {
            load.pass(ns(seconds), memory(1024), |_| seconds <= answers);
            load.tick(ns(seconds), IDLE, &fake)
        };
        let first = (1..400).find(|&seconds| is_over(seconds));
        assert_eq!(first, Some(over), "{answers}");
    }
}

#[test]
fn a_reader_of_little_far_on_in_its_order_is_no_worker_yet() {
    let fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(None);
    hear(&mut load, &event(Kind::Open, 10, 0), &extent(0, 1), &fake);
    // Threads that share its part.
    for first in [0, 5 * PAGES, 10 * PAGES] {
        reads(&mut load, 10, &[extent(first, PAGES / 4)], 0, &fake);
    }
    // It reads slowly, but it has begun: the next load would record the rest alone.
    assert!(!load.tick(ns(11), IDLE, &fake));
    reads(&mut load, 10, &[extent(0, 16 * PAGES)], 12_000, &fake);
    assert!(load.tick(ns(23), IDLE, &fake));
}

#[test]
fn readers_whose_events_wait_are_not_silent() {
    let mut fake = FakeProcesses::default();
    let mut load = Load::new(forecast(), memory(1024), u64::MAX, false, 0);
    load.record(None);
    let hear = |load: &mut Load, first, at_s, now_s, fake: &FakeProcesses| {
        let event = event(Kind::Touch, 10, at_s * 1000);
        load.hear(&event, &extent(first, 4 * PAGES), fake, ns(now_s));
    };
    // It reads all within 8 s, and ends. That is heard 20 s later.
    fake.dead.insert(10);
    for (first, at_s) in [(0, 0), (4 * PAGES, 1), (8 * PAGES, 2), (12 * PAGES, 3)] {
        hear(&mut load, first, at_s, at_s + 20, &fake);
        assert!(!load.tick(ns(at_s + 20), IDLE, &fake));
    }
    for first in (16..48).step_by(4) {
        hear(&mut load, first * PAGES, 8, 24, &fake);
    }
    assert!(!load.tick(ns(24), IDLE, &fake));
    assert!(load.tick(ns(26), IDLE, &fake));
    let outcome = load.end();
    assert_eq!(outcome.read, 48 * u64::from(PAGES));
    assert_eq!(
        outcome.parts.map(|it| it.len()),
        Ok(1),
        "it did not end midway"
    );
}
