//! Tables of inputs and of the decisions on them.

use super::*;
use crate::control::config::TimeSpan;

const GIB: u64 = 1 << 30;

fn config() -> config::MemoryConfig {
    config::MemoryConfig {
        threshold: 80,
        hysteresis: 5,
        pressure: 20,
        interval: TimeSpan(Duration::from_millis(100)),
        ..config::MemoryConfig::default()
    }
}

fn limit(limit: u64, held: u64, cache: u64) -> Limit {
    Limit {
        reading: Some(Reading { limit, held, cache }),
        ..Limit::default()
    }
}

#[test]
fn cache_of_others_does_not_count() {
    let verdict = limit(100, 10, 90).judge(&config(), 0, 0).expect("reads");
    assert_eq!((verdict.used, verdict.threshold), (10, 80));
    assert!(!verdict.over);
}

#[test]
fn own_bytes_count_up_to_the_cache_plus_new_loads() {
    for (cache, ours, new, used) in [
        (50, 0, 0, 10),
        (50, 20, 0, 30),
        (50, 70, 0, 60),
        (0, 70, 0, 10),
        // More has been loaded since the reading.
        (50, 70, 15, 70 + 5),
        (50, 70, 100, 80),
        (u64::MAX, u64::MAX, u64::MAX, u64::MAX),
    ] {
        let verdict = limit(100, 10, cache).judge(&config(), ours, new);
        assert_eq!(verdict.expect("reads").used, used, "{cache} {ours} {new}");
    }
}

#[test]
fn cgroup_reading_separates_held_memory_from_cache() {
    let stat = Stat {
        file: 60,
        inactive: 0,
        dirty: 10,
        limit: None,
    };
    let reading = |held, cache| Reading {
        limit: 100,
        held,
        cache,
    };
    assert_eq!(Reading::of_cgroup(100, 70, stat), reading(20, 50));
    // The counters disagree for a moment.
    assert_eq!(Reading::of_cgroup(100, 40, stat), reading(0, 50));
    let dirty = Stat { dirty: 99, ..stat };
    assert_eq!(Reading::of_cgroup(100, 70, dirty), reading(70, 0));
    let limit = Some(100);
    let unseen = Stat { limit, ..stat };
    assert_eq!(Reading::of_cgroup(u64::MAX, 70, unseen), reading(20, 50));
    assert_eq!(Reading::of_cgroup(200, 70, unseen), reading(20, 50));
}

#[test]
fn host_reading_separates_held_memory_from_cache() {
    let info = Meminfo {
        total: 1000,
        available: 700,
        free: 350,
        file: 400,
        inactive: 0,
        dirty: 50,
        hugetlb: 200,
    };
    let reading = Reading {
        limit: 800,
        held: 150,
        cache: 350,
    };
    assert_eq!(Reading::of_host(info), reading);
    let odd = Meminfo {
        available: 2000,
        hugetlb: 3000,
        ..info
    };
    assert_eq!(Reading::of_host(odd).limit, 0);
    assert_eq!(Reading::of_host(odd).held, 50);
}

#[test]
fn limit_without_a_reading_gives_no_verdict() {
    assert_eq!(Limit::default().judge(&config(), 1, 1), None);
}

#[test]
fn extremes_do_not_overflow() {
    for bytes in [0, 1, u64::MAX] {
        for percentage in [0, 1, 100, 255] {
            let odd = config::MemoryConfig {
                threshold: percentage,
                hysteresis: 255,
                ..config()
            };
            let verdict = limit(bytes, bytes, bytes).judge(&odd, bytes, bytes);
            assert!(verdict.is_some());
        }
    }
    assert_eq!(percent(u64::MAX, 100), u64::MAX);
    assert_eq!(percent(u64::MAX, 255), u64::MAX);
    assert_eq!(percent(10 * GIB, 80), 8 * GIB);
}

#[test]
fn over_at_the_threshold_until_below_the_band() {
    let mut watched = limit(100, 0, 100);
    let table = [
        (0, false),
        (79, false),
        (80, true),
        (100, true),
        (79, true),
        (75, true),
        (74, false),
        (79, false),
        (75, false),
        (80, true),
    ];
    for (ours, over) in table {
        let verdict = watched.judge(&config(), ours, 0).expect("reads");
        assert_eq!(verdict.over, over, "at {ours}");
    }
}

/// Inside any band, nothing ever changes.
#[test]
fn never_flaps_inside_the_band() {
    // A sequence that reaches all values; the constants are those of a well-known generator.
    let mut seed = 1_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed >> 33
    };
    for (rise, fall) in [(80, 75), (80, 80), (1, 0), (100, 1), (50, 49)] {
        let mut latch = Latch::default();
        let mut before = false;
        for _ in 0..10_000 {
            let value = next() % 120;
            let after = latch.update(value, rise, fall);
            if after != before {
                assert!(if after { value >= rise } else { value < fall });
            }
            assert!(after || value < rise);
            assert!(!after || value >= fall);
            before = after;
        }
    }
}

#[test]
fn tightest_is_what_has_least_left() {
    let verdict = |limit_, held| {
        let verdict = limit(limit_, held, 0).judge(&config(), 0, 0);
        verdict.expect("reads")
    };
    // The larger limit is the tighter one.
    assert!(verdict(1000, 790).tightness() < verdict(100, 10).tightness());
    // Limits that are exceeded come before others, and those exceeded further come first.
    assert!(verdict(100_000, 80_001).tightness() < verdict(10, 7).tightness());
    assert!(verdict(1000, 900).tightness() < verdict(1000, 850).tightness());
}

#[test]
fn limit_still_over_is_tighter_than_one_merely_near() {
    let mut lingers = limit(1000, 0, 1000);
    assert!(lingers.judge(&config(), 800, 0).expect("reads").over);
    let lingers = lingers.judge(&config(), 760, 0).expect("reads");
    let near = limit(10, 7, 0).judge(&config(), 0, 0).expect("reads");
    assert!(lingers.over && !near.over);
    assert!(lingers.tightness() < near.tightness());
}

/// Feeds totals in µs at times in ms; returns the last share and whether it is over.
fn feed(gauge: &mut Gauge, start: Instant, readings: &[(u64, u64, u32)]) -> (u16, bool) {
    let mut last = (0, false);
    for &(ms, total, avg10) in readings {
        gauge.update(start + Duration::from_millis(ms), Psi { avg10, total });
        let Pressure { share, over } = gauge.judge(20);
        last = (share, over);
    }
    last
}

#[test]
fn pressure_starts_with_the_average() {
    let start = Instant::now();
    assert_eq!(feed(&mut Gauge::default(), start, &[(0, 0, 0)]), (0, false));
    let busy = feed(&mut Gauge::default(), start, &[(0, 0, 3000)]);
    assert_eq!(busy, (3000, true));
}

#[test]
fn pressure_is_detected_and_cleared_within_a_second() {
    let start = Instant::now();
    let mut gauge = Gauge::default();
    // Quiet for long, then stalled for half of the time; a sample each 100 ms.
    let quiet: Vec<_> = (0..50).map(|i| (i * 100, 7, 0)).collect();
    assert_eq!(feed(&mut gauge, start, &quiet), (0, false));
    let busy: Vec<_> = (50..=60)
        .map(|i| (i * 100, 7 + (i - 50) * 50_000, 300))
        .collect();
    assert_eq!(feed(&mut gauge, start, &busy), (5000, true));
    // The kernel's average stays high for long after; the gauge does not.
    let after: Vec<_> = (61..=70).map(|i| (i * 100, 500_007, 900)).collect();
    assert_eq!(feed(&mut gauge, start, &after), (0, false));
}

#[test]
fn pressure_ends_at_half() {
    let start = Instant::now();
    let mut gauge = Gauge::default();
    let mut total = 0;
    let table = [
        // µs in a window of 500 ms
        (0, false),
        (100_000, false),
        (100_050, true),
        (90_000, true),
        (50_050, true),
        (50_000, false),
        (90_000, false),
        (500_000, true),
    ];
    feed(&mut gauge, start, &[(0, 0, 0)]);
    for (window, (waited, over)) in (1..).zip(table) {
        total += waited;
        let (share, is) = feed(&mut gauge, start, &[(window * 500, total, 0)]);
        assert_eq!(is, over, "{share} at {window}");
    }
}

#[test]
fn pressure_of_odd_windows() {
    let start = Instant::now();
    let gauge = || {
        let mut gauge = Gauge::default();
        feed(&mut gauge, start, &[(0, 1000, 0)]);
        gauge
    };
    // Too short to tell; long but good; too long, so the average counts; restarted at 0, likewise.
    assert_eq!(feed(&mut gauge(), start, &[(499, 400_000, 0)]).0, 0);
    assert_eq!(feed(&mut gauge(), start, &[(9000, 4_501_000, 1)]).0, 5000);
    assert_eq!(feed(&mut gauge(), start, &[(11_000, 9_000_000, 1)]).0, 1);
    assert_eq!(feed(&mut gauge(), start, &[(500, 999, 1)]).0, 1);
    // A stall of more than the whole time, because clocks differ.
    assert_eq!(feed(&mut gauge(), start, &[(500, u64::MAX, 0)]).0, 0);
    assert_eq!(feed(&mut gauge(), start, &[(500, 700_000, 0)]).0, 10_000);
    assert_eq!(feed(&mut gauge(), start, &[(500, 0, u32::MAX)]).0, 10_000);
    // Time does not go backwards, but samples may overtake each other.
    let mut late = Gauge::default();
    feed(&mut late, start, &[(1000, 0, 7), (0, 5, 9)]);
    assert_eq!(late.judge(20).share, 7);
}

#[test]
fn pressure_of_nothing_allowed_and_of_all() {
    let mut gauge = Gauge::default();
    let start = Instant::now();
    gauge.update(start, Psi { avg10: 1, total: 0 });
    assert!(gauge.judge(0).over);
    gauge.update(start + WINDOW, Psi { avg10: 1, total: 0 });
    assert!(!gauge.judge(0).over);
    let mut whole = Gauge::default();
    whole.update(
        start,
        Psi {
            avg10: 10_000,
            total: 0,
        },
    );
    assert!(!whole.judge(100).over);
}
