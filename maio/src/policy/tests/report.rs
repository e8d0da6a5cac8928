//! What is reported of a load: bytes by source, and time by phases that are the whole of it.

use ppc::Report;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// Lets time pass, a second at a time, with a tick after each.
fn pass(host: &FakeHost, maio: &mut ppc::host::Instance, seconds: u64) {
    for _ in 0..seconds {
        host.advance(Duration::from_secs(1));
        maio.prefetch(None).expect("a plan");
    }
}

fn touch(host: &FakeHost, maio: &mut ppc::host::Instance, kind: Kind, path: &str, bytes: u64) {
    let mut event = event(host, kind, path, 0, bytes, 0);
    (event.process, event.time_ns) = (1, ppc::host::Services::now(host));
    maio.prefetch(Some(&event)).expect("a plan");
}

/// The one load that has been reported; its phases are the whole.
fn reported(host: &FakeHost) -> Report {
    let mut reports = host.reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    let report = reports.remove(0);
    let phases = [
        report.waiting_ns,
        report.loading_ns,
        report.held_ns,
        report.reading_ns,
        report.resting_ns,
    ];
    let sum: u64 = phases.iter().sum();
    assert!(sum <= report.whole_ns, "{report:?}");
    assert!(sum * 100 >= report.whole_ns * 99, "{report:?}");
    report
}

#[test]
fn report_counts_used_late_unread_and_own_bytes() {
    let scratch = Scratch::new("reported");
    let host = host();
    let mut maio = recorded(&scratch, &host, &["a.bin", "b.bin"]);
    let first = reported(&host);
    let first = (first.service.as_str(), first.asked, first.used, first.late);
    // The configuration never came, and was taken back.
    assert_eq!(first, ("test", 16 * MIB, 16 * MIB, 0));

    let plan = hear_first(&host, &mut maio, &newcomer(&host, 1, 0));
    assert_eq!(loaded(&plan).len(), 2);
    pass(&host, &mut maio, 3);
    // The first file has come, and is read; the second comes late, and most of it is not read.
    host.set_cached(host.id("a.bin"), 0..8 * MIB);
    touch(&host, &mut maio, Kind::Touch, "a.bin", 8 * MIB);
    touch(&host, &mut maio, Kind::Miss, "b.bin", MIB);
    touch(&host, &mut maio, Kind::Miss, "config.json", 2);
    pass(&host, &mut maio, 2);
    host.set_cached(host.id("b.bin"), 0..8 * MIB);
    pass(&host, &mut maio, 4);
    host.advance(Duration::from_secs(1));
    touch(&host, &mut maio, Kind::Touch, "b.bin", MIB);
    host.advance(Duration::from_mins(5));
    maio.prefetch(None).expect("a plan");

    let report = reported(&host);
    assert_eq!(report.asked, 16 * MIB);
    let sources = (report.used, report.late, report.unread, report.own);
    assert_eq!(sources, (8 * MIB, MIB, 7 * MIB, PAGE));
    assert_eq!(report.waiting_ns + report.held_ns, 0, "{report:?}");
    assert!(
        (3 * SECOND..=6 * SECOND).contains(&report.loading_ns),
        "{report:?}"
    );
    assert!(report.reading_ns >= SECOND, "{report:?}");
    assert!(report.resting_ns >= 299 * SECOND, "{report:?}");
}

#[test]
fn a_load_that_begins_before_its_readers_waits_for_them() {
    let host = host();
    let settings = [("store", "none"), ("leases", "none"), ("begin", "early")];
    let (mut maio, plan) = host.start::<Library>(&settings).expect("it starts");
    assert_eq!(loaded(&plan).len(), 3);
    pass(&host, &mut maio, 7);
    let mut open = event(&host, Kind::Open, "a.bin", 0, 8 * MIB, 0);
    open.time_ns = ppc::host::Services::now(&host);
    hear_first(&host, &mut maio, &open);
    maio.exit().expect("it ends");
    let report = reported(&host);
    assert!(report.waiting_ns >= 7 * SECOND, "{report:?}");
    // Nothing came: it was taken back, or no process read it.
    assert_eq!(report.used + report.late + report.own, 0, "{report:?}");
}

#[test]
fn time_held_back_by_the_budget_is_reported() {
    let host = host();
    let settings = [("store", "none"), ("leases", "none"), ("budget", "8M")];
    let (mut maio, _) = host.start::<Library>(&settings).expect("it starts");
    let open = event(&host, Kind::Open, "a.bin", 0, 8 * MIB, 0);
    hear_first(&host, &mut maio, &open);
    pass(&host, &mut maio, 2);
    host.set_cached(host.id("a.bin"), 0..8 * MIB);
    host.set_cached(host.id("config.json"), 0..2);
    pass(&host, &mut maio, 5);
    maio.exit().expect("it ends");
    let report = reported(&host);
    assert!(report.loading_ns >= 2 * SECOND, "{report:?}");
    assert!(report.held_ns >= 4 * SECOND, "{report:?}");
    assert!(report.asked < 9 * MIB, "{report:?}");
}
